"""Identities: did:key of an Ed25519 key (PROTOCOL §2)."""
from __future__ import annotations

import functools
import os
import re

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from .errors import Refused, refuse_unless

P = 2**255 - 19
_D = -121665 * pow(121666, -1, P) % P
_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_FORM = re.compile(f"did:key:z(6Mk[{_ALPHABET}]{{44}})")


class Identity:
    """Who signs and opens. did is the did:key. seed has 32 bytes and is secret: it signs as you."""

    did: str
    seed: bytes

    def __init__(self, seed: bytes):
        """The identity of a seed of 32 bytes. Raises Refused with INVALID_KEY for another length."""
        refuse_unless(isinstance(seed, (bytes, bytearray)) and len(seed) == 32, "INVALID_KEY", "a seed has 32 bytes")
        self.seed = bytes(seed)
        self._key = Ed25519PrivateKey.from_private_bytes(self.seed)
        self.did = _encode(self.public_key)

    @classmethod
    def generate(cls) -> Identity:
        """A new identity. Save it with save_key, because a lost key is a lost identity."""
        return cls(os.urandom(32))

    @property
    def public_key(self) -> bytes:
        """The Ed25519 public key, 32 bytes."""
        return self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    def sign_bytes(self, message: bytes) -> bytes:
        """The Ed25519 signature of message, 64 bytes."""
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"Identity({self.did})"  # without the seed, which is secret


def _encode(key: bytes) -> str:
    number, text = int.from_bytes(b"\xed\x01" + key, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = _ALPHABET[digit] + text
    return "did:key:z" + text


def did_of(key: bytes) -> str:
    """The did:key of 32 key bytes. Raises what key_of raises."""
    did = _encode(key)
    key_of(did)
    return did


def key_of(did: object) -> bytes:
    """The 32 key bytes of a did:key. Raises Refused with INVALID_DID unless did is the one spelling of a usable
    key."""
    # The form is checked before base58 is decoded, because that takes quadratic time.
    if not isinstance(did, str) or not (form := _FORM.fullmatch(did)):
        raise Refused("INVALID_DID", "not a did:key of Ed25519")
    return _decode(did, form[1])


@functools.lru_cache(maxsize=4096)
def _decode(did: str, digits: str) -> bytes:
    number = 0
    for char in digits:
        number = number * 58 + _ALPHABET.index(char)
    refuse_unless(number < 2**272, "INVALID_DID", "the did:key has more than 34 bytes")
    key = number.to_bytes(34, "big")[2:]
    refuse_unless(_encode(key) == did, "INVALID_DID", "not the spelling of its own key")
    y = int.from_bytes(key, "little") % 2**255  # remove the sign of x
    refuse_unless(y < P, "INVALID_DID", "a second encoding of a key")
    # Points of order 1, 2 and 4 have y = ±1 or 0; those of order 8 double to y = 0, so y² = -x² there.
    low_order = y in (0, 1, P - 1) or (_D * y**4 + 2 * y * y - 1) % P == 0
    refuse_unless(not low_order, "INVALID_DID", "a key under which anybody can sign")
    # On the curve, x² = (y² - 1) / (D y² + 1). A product is a square if and only if the quotient is one (Euler).
    on_curve = pow((y * y - 1) * (_D * y * y + 1), (P - 1) // 2, P) == 1
    refuse_unless(on_curve, "INVALID_DID", "not a point of the curve")
    return key

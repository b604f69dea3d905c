"""Sealed payloads (docs/SEALING.md): HPKE (RFC 9180) in base mode, DHKEM(X25519, HKDF-SHA256), ChaCha20-Poly1305."""
from __future__ import annotations

import hashlib
import hmac
import os
from typing import Any, Mapping

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from .didkey import P, Identity, key_of
from .envelope import Envelope, decode64, encode64, thread_of, verify
from .errors import Refused, refuse_unless
from .jsontext import canonicalize, parse
from .protocol import TYPES

STAND_IN = "sealed"  # replaces the message of a sealed ERROR
UNIT = 256  # the plaintext is padded to a multiple of this


def _clear_names(e: Mapping[str, Any]) -> set[str]:
    return TYPES[e["type"]]


def is_sealed(e: Mapping[str, Any]) -> bool:
    """Whether the payload of e is sealed."""
    return e["type"] != "MANIFEST" and "sealed" in e["payload"]


def open_payload(e: Mapping[str, Any], me: Identity) -> dict[str, Any]:
    """Opens e, which is sealed to me, and returns the payload. It verifies e. All failures raise the same Refused."""
    try:
        return _opened(e, me)
    except Exception:  # nobody may learn which step failed
        raise Refused("INVALID_REQUEST", "the sealed payload cannot be opened") from None


def _opened(e: Mapping[str, Any], me: Identity) -> dict[str, Any]:
    def check(ok: object) -> None:
        refuse_unless(ok, "INVALID_REQUEST", "")

    check(is_sealed(e) and e["recipient"]["id"] == me.did)
    verify(e)
    clear = dict(e["payload"])
    sealed = clear.pop("sealed")
    check(e["type"] != "ERROR" or clear.pop("message", None) == STAND_IN)
    check(clear.keys() <= _clear_names(e))
    check(sealed.startswith("v1."))
    raw = decode64(sealed[3:])
    if raw is None or len(raw) < 32 + 16:
        raise Refused("INVALID_REQUEST", "")

    enc, mine = raw[:32], X25519PrivateKey.from_private_bytes(x25519_private(me.seed))
    shared = mine.exchange(X25519PublicKey.from_public_bytes(enc))  # raises an error if all bytes are zero
    key, nonce = _schedule(shared, enc, _public_of(mine), place(e))
    secret: dict[str, Any] = parse(ChaCha20Poly1305(key).decrypt(nonce, raw[32:], None))
    check(isinstance(secret, dict))
    check(secret.keys().isdisjoint(_clear_names(e) | {"sealed"}))
    check(e["type"] != "ERROR" or isinstance(secret.get("message"), str) and secret["message"] != "")
    return clear | secret


def seal(e: Mapping[str, Any], ephemeral: bytes | None = None) -> Envelope:
    """Returns e with its payload sealed to its recipient, to be signed. Only tests pass an ephemeral key, 32 bytes.
    Raises Refused if e has no recipient."""
    refuse_unless(
        "recipient" in e and e["type"] != "MANIFEST",
        "INVALID_REQUEST",
        "only a message to one recipient can be sealed, and no MANIFEST; name the recipient",
    )
    names = _clear_names(e)
    refuse_unless("sealed" not in e["payload"], "INVALID_REQUEST", "the payload has a member named sealed")
    clear = {name: value for name, value in e["payload"].items() if name in names}
    secret = canonicalize({name: value for name, value in e["payload"].items() if name not in names})
    if e["type"] == "ERROR":
        clear["message"] = STAND_IN
    mine = X25519PrivateKey.from_private_bytes(ephemeral or os.urandom(32))
    enc, theirs = _public_of(mine), x25519_public(key_of(e["recipient"]["id"]))
    key, nonce = _schedule(mine.exchange(X25519PublicKey.from_public_bytes(theirs)), enc, theirs, place(e))
    ciphertext = ChaCha20Poly1305(key).encrypt(nonce, secret + b" " * (-len(secret) % UNIT), None)
    return dict(e) | {"payload": clear | {"sealed": "v1." + encode64(enc + ciphertext)}}


def place(e: Mapping[str, Any]) -> bytes:
    """The info of the sealing: the members of e that the ciphertext is bound to, in RFC 8785 form."""
    parts = {
        "sender": e["sender"]["id"],
        "recipient": e["recipient"]["id"],
        "id": e["id"],
        "type": e["type"],
        "thread": thread_of(e),
    }
    if "request_id" in e["payload"]:
        parts["request_id"] = e["payload"]["request_id"]
    return canonicalize(parts)


# --- Keys: conversion of Ed25519 keys to X25519 keys


def x25519_public(key: bytes) -> bytes:
    """The X25519 public key, 32 bytes, of an Ed25519 public key that key_of has returned: u = (1+y)/(1-y)."""
    y = int.from_bytes(key, "little") % 2**255  # remove the sign of x
    return ((1 + y) * pow(1 - y, -1, P) % P).to_bytes(32, "little")


def x25519_private(seed: bytes) -> bytes:
    """The X25519 private key, 32 bytes, of an Ed25519 seed."""
    scalar = bytearray(hashlib.sha512(seed).digest()[:32])
    scalar[0] &= 248
    scalar[31] = scalar[31] & 127 | 64
    return bytes(scalar)


def _public_of(private: X25519PrivateKey) -> bytes:
    return private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


# --- HPKE: the key and the nonce of the first message

_KEM, _HPKE = b"KEM\x00\x20", b"HPKE\x00\x20\x00\x01\x00\x03"


def _extract(suite: bytes, salt: bytes, label: bytes, data: bytes) -> bytes:
    return hmac.digest(salt, b"HPKE-v1" + suite + label + data, "sha256")


def _expand(suite: bytes, prk: bytes, label: bytes, info: bytes, length: int) -> bytes:
    """HKDF-Expand of one block, which is enough for all lengths in this file."""
    return hmac.digest(prk, bytes([0, length]) + b"HPKE-v1" + suite + label + info + b"\x01", "sha256")[:length]


def _schedule(dh: bytes, enc: bytes, recipient: bytes, info: bytes) -> tuple[bytes, bytes]:
    shared = _expand(_KEM, _extract(_KEM, b"", b"eae_prk", dh), b"shared_secret", enc + recipient, 32)
    context = b"\x00" + _extract(_HPKE, b"", b"psk_id_hash", b"") + _extract(_HPKE, b"", b"info_hash", info)
    secret = _extract(_HPKE, shared, b"secret", b"")
    return _expand(_HPKE, secret, b"key", context, 32), _expand(_HPKE, secret, b"base_nonce", context, 12)

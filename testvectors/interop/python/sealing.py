"""Sealed payloads for Python (docs/SEALING.md): HPKE (RFC 9180) in base mode. You may copy this file."""
import base64
import hashlib
import hmac
import os

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from agora import MAX_DEPTH, P, Refused, canonicalize, depth, key_of, must, parse, thread_of, verify

CLEAR = {"REQUEST": {"request_id", "intent"}, "RESULT": {"request_id", "status"}, "ERROR": {"request_id", "code"}}
STAND_IN = "sealed"  # replaces the message of a sealed ERROR
UNIT = 256


def clear_names(e):
    return CLEAR.get(e["type"], {"request_id"})


def is_sealed(e):
    return e["type"] != "MANIFEST" and "sealed" in e["payload"]


def open_payload(e, me):
    """Opens e, which is sealed to the identity me, and returns the payload. All failures raise the same error."""
    try:
        return opened(e, me)
    except Exception:
        raise Refused("INVALID_REQUEST", "the sealed payload cannot be opened") from None


def opened(e, me):
    def check(ok):
        must(ok, "INVALID_REQUEST", "")

    check(is_sealed(e) and e["recipient"]["id"] == me.did)
    verify(e)
    clear = dict(e["payload"])
    sealed = clear.pop("sealed")
    check(e["type"] != "ERROR" or clear.pop("message", None) == STAND_IN)
    check(clear.keys() <= clear_names(e))
    check(sealed.startswith("v1."))
    raw = base64.urlsafe_b64decode(sealed[3:] + "=" * (-len(sealed[3:]) % 4))
    check(base64.urlsafe_b64encode(raw).decode().rstrip("=") == sealed[3:])  # only one spelling is valid
    check(len(raw) >= 32 + 16)

    enc, mine = raw[:32], X25519PrivateKey.from_private_bytes(scalar_of(seed_of(me)))
    dh = mine.exchange(X25519PublicKey.from_public_bytes(enc))  # raises an error if all bytes are zero
    key, nonce = schedule(dh, enc, public_of(mine), place(e))
    plaintext = ChaCha20Poly1305(key).decrypt(nonce, raw[32:], None)

    check(depth(plaintext) <= MAX_DEPTH)
    secret = parse(plaintext)
    check(isinstance(secret, dict))
    check(secret.keys().isdisjoint(clear_names(e) | {"sealed"}))
    check(e["type"] != "ERROR" or isinstance(secret.get("message"), str) and secret["message"] != "")
    return clear | secret


def seal(e, ephemeral=None):
    """Returns e with its payload sealed to its recipient, to be signed. Only tests pass an ephemeral key, 32 bytes."""
    clear = {name: value for name, value in e["payload"].items() if name in clear_names(e)}
    secret = canonicalize({name: value for name, value in e["payload"].items() if name not in clear_names(e)})
    if e["type"] == "ERROR":
        clear["message"] = STAND_IN
    mine = X25519PrivateKey.from_private_bytes(ephemeral or os.urandom(32))
    enc, theirs = public_of(mine), convert(key_of(e["recipient"]["id"]))
    key, nonce = schedule(mine.exchange(X25519PublicKey.from_public_bytes(theirs)), enc, theirs, place(e))
    ciphertext = ChaCha20Poly1305(key).encrypt(nonce, secret + b" " * (-len(secret) % UNIT), None)
    text = base64.urlsafe_b64encode(enc + ciphertext).decode().rstrip("=")
    return e | {"payload": clear | {"sealed": "v1." + text}}


def place(e):
    """The info of the sealing: the members of e that the ciphertext is bound to, in RFC 8785 form."""
    parts = {"sender": e["sender"]["id"], "recipient": e["recipient"]["id"], "id": e["id"], "type": e["type"], "thread": thread_of(e)}
    if "request_id" in e["payload"]:
        parts["request_id"] = e["payload"]["request_id"]
    return canonicalize(parts)


# --- Keys: conversion of Ed25519 keys to X25519 keys


def convert(key):
    """The X25519 public key, 32 bytes, of an Ed25519 public key that key_of has returned: u = (1+y)/(1-y)."""
    y = int.from_bytes(key, "little") % 2**255  # remove the sign of x
    return ((1 + y) * pow(1 - y, -1, P) % P).to_bytes(32, "little")


def scalar_of(seed):
    """The X25519 private key, 32 bytes, of an Ed25519 seed."""
    scalar = bytearray(hashlib.sha512(seed).digest()[:32])
    scalar[0] &= 248
    scalar[31] = scalar[31] & 127 | 64
    return bytes(scalar)


def seed_of(me):
    return me.key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())


def public_of(private):
    return private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


# --- HPKE: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305, base mode, the first message

KEM, HPKE = b"KEM\x00\x20", b"HPKE\x00\x20\x00\x01\x00\x03"


def extract(suite, salt, label, data):
    return hmac.digest(salt, b"HPKE-v1" + suite + label + data, "sha256")


def expand(suite, prk, label, info, length):
    """HKDF-Expand of one block, which is enough for all lengths in this file."""
    return hmac.digest(prk, bytes([0, length]) + b"HPKE-v1" + suite + label + info + b"\x01", "sha256")[:length]


def schedule(dh, enc, recipient, info):
    shared = expand(KEM, extract(KEM, b"", b"eae_prk", dh), b"shared_secret", enc + recipient, 32)
    context = b"\x00" + extract(HPKE, b"", b"psk_id_hash", b"") + extract(HPKE, b"", b"info_hash", info)
    secret = extract(HPKE, shared, b"secret", b"")
    return expand(HPKE, secret, b"key", context, 32), expand(HPKE, secret, b"base_nonce", context, 12)

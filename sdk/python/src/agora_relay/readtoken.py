"""Signed reads: the tokens that prove who reads (PROTOCOL §8)."""
from __future__ import annotations

import hashlib
import os
import re
import time

from .didkey import Identity
from .envelope import SECOND, decode64, encode64, format_time, instant, sign, verify_by
from .errors import Refused
from .jsontext import canonicalize, parse

MEMBERS = ["aud", "did", "method", "nonce", "sig", "target", "ts", "typ"]
MAX_TOKEN = 8192  # characters


def read_token(aud: str, target: str, me: Identity, ts: str | None = None, nonce: str | None = None) -> str:
    """Makes a token for one GET of target (path and query as sent) from the relay whose origin is aud."""
    token = {
        "typ": "agora-read",
        "did": me.did,
        "aud": aud,
        "method": "GET",
        "target": target,
        "ts": ts or format_time(time.time()),
        "nonce": nonce or encode64(os.urandom(16)),
    }
    return encode64(canonicalize(sign(token, me)))


def call_token(aud: str, method: str, target: str, body: bytes, me: Identity, ts: str | None = None) -> str:
    """Makes a token for one request to a gateway of the relay (GATEWAYS §3)."""
    token = {
        "typ": "agora-call",
        "did": me.did,
        "aud": aud,
        "method": method,
        "target": target,
        "body": encode64(hashlib.sha256(body).digest()),
        "ts": ts or format_time(time.time()),
        "nonce": encode64(os.urandom(16)),
    }
    return encode64(canonicalize(sign(token, me)))


def check_read(token: str, *, origin: str, method: str, target: str, now: int) -> str:
    """Returns the signer of a token for this request. now is in nanoseconds, as in instant. Raises Refused with
    UNAUTHORIZED; details["reason"] says why. Only a relay needs to check that a token is used once."""

    def valid(ok: object, reason: str, what: str) -> None:
        if not ok:
            raise Refused("UNAUTHORIZED", what, details={"reason": reason})

    text = decode64(token) if len(token) <= MAX_TOKEN else None
    if text is None:
        raise Refused(
            "UNAUTHORIZED", "the token is not unpadded base64url, or too long", details={"reason": "malformed"}
        )
    try:
        t = parse(text)
        ts = instant(t.get("ts")) if isinstance(t, dict) else 0
    except Refused as err:
        raise Refused("UNAUTHORIZED", str(err), details={"reason": "malformed"}) from None
    valid(isinstance(t, dict) and sorted(t) == MEMBERS, "malformed", "the token does not have the members of a token")
    valid(all(isinstance(value, str) for value in t.values()), "malformed", "a member of the token is not a text")
    form = t["typ"] == "agora-read" and re.fullmatch("[A-Za-z0-9_-]{16,64}", t["nonce"])
    valid(form, "malformed", "the typ or the nonce of the token is not valid")
    valid(t["aud"] == origin, "audience", "the token is for another relay")
    valid((t["method"], t["target"]) == (method, target), "request", "the token is for another request")
    valid(-60 * SECOND < now - ts < 60 * SECOND, "time", "the ts of the token is too old or too new")
    try:
        verify_by(t["did"], t)
    except Refused as err:
        raise Refused("UNAUTHORIZED", str(err), details={"reason": "malformed"}) from None
    did: str = t["did"]
    return did

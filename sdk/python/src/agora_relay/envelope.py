"""Messages: their form (PROTOCOL §1), their times, their ids, and their signatures."""
from __future__ import annotations

import base64
import datetime
import os
import re
import time
from typing import Any, Mapping

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from .didkey import Identity, key_of
from .errors import Refused, refuse_unless
from .jsontext import MAX_DEPTH, canonicalize, depth_of, parse
from .protocol import TYPES

Envelope = dict[str, Any]
"""A message with all members that its sender has signed, known or not."""

FIELDS = {"version", "id", "ts", "type", "sender", "recipient", "payload", "thread", "meta", "sig"}
MAX_BYTES = 128 * 1024
MAX_TTL = 9223372036  # seconds; fits into 64 bits of nanoseconds
SECOND = 1_000_000_000  # instants are nanoseconds since 1970
_EPOCH = datetime.date(1970, 1, 1).toordinal()
_ORIGIN = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[^\s/?#@:\[\]%\\^`{|}]+)(:[0-9]*)?")
_ID = re.compile("[A-Za-z0-9][A-Za-z0-9._:~-]{0,127}")


def encode64(data: bytes) -> str:
    """Unpadded base64url."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def decode64(text: object) -> bytes | None:
    """The bytes of unpadded base64url, or None if text is not the one spelling of them."""
    if not isinstance(text, str) or not re.fullmatch("[A-Za-z0-9_-]*", text) or len(text) % 4 == 1:
        return None
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    return data if encode64(data) == text else None


def read_envelope(body: bytes | bytearray | memoryview, *, max_bytes: int = MAX_BYTES) -> Envelope:
    """Parses a body: an envelope, or {"envelope": …} around one. Checks all that needs neither a clock nor a key.
    Raises Refused."""
    _check_size(len(body), max_bytes)
    e = parse(body)
    if isinstance(e, dict) and len(e) == 1 and isinstance(e.get("envelope"), dict):
        e = e["envelope"]
    _check_size(len(canonicalize(e)), max_bytes)
    return _check(e)


def read_delivered(text: bytes, max_bytes: int) -> Envelope:
    """Parses and checks an envelope that a relay has delivered. It makes no canonical form, so that an envelope that is
    refused costs little. Raises Refused."""
    _check_size(len(text), max_bytes)
    return _check(parse(text))


def check_envelope(e: object, *, max_bytes: int = MAX_BYTES) -> Envelope:
    """Checks what read_envelope checks, for an envelope that is parsed already. Returns it. Raises Refused."""
    text = canonicalize(e)
    refuse_unless(depth_of(text) <= MAX_DEPTH, "INVALID_REQUEST", "the message is nested too deep")
    _check_size(len(text), max_bytes)
    return _check(e)


def _check_size(size: int, most: int) -> None:
    refuse_unless(size <= most, "PAYLOAD_TOO_LARGE", f"the message has {size} bytes, and the limit is {most}")


def _check(e: object) -> Envelope:
    def valid(ok: object, what: str) -> None:
        refuse_unless(ok, "INVALID_REQUEST", f"the message has no valid {what}")

    if not isinstance(e, dict):
        raise Refused("INVALID_REQUEST", "the message is not a JSON object")
    for name in e:
        valid(
            name in FIELDS or name.casefold() not in FIELDS,
            "name of a member: one differs from a known name only in case",
        )
    refuse_unless(e.get("version") == "1.0", "UNSUPPORTED_VERSION", 'the version is not "1.0"')
    valid(valid_id(e.get("id")), "id")
    valid(isinstance(e.get("type"), str) and e["type"] in TYPES, "type")
    instant(e.get("ts"))
    _check_parties(e)
    payload = e.get("payload")
    if not isinstance(payload, dict):
        raise Refused("INVALID_REQUEST", "the message has no valid payload")
    if e["type"] == "MANIFEST":
        valid("thread" not in e, "form: a MANIFEST has no thread")
    else:
        request_id = payload.get("request_id", "")
        valid(isinstance(request_id, str) and len(request_id.encode()) <= 128, "payload.request_id")
        valid("thread" not in e or isinstance(e["thread"], dict), "thread")
        valid(valid_id(thread_of(e)), "thread.id")
    meta = e.get("meta", {})
    if not isinstance(meta, dict):
        raise Refused("INVALID_REQUEST", "the message has no valid meta")
    valid(_is_whole(meta.get("ttl", 1), 1, MAX_TTL), "meta.ttl")
    valid(_is_whole(meta.get("hop", 0), 0, 16), "meta.hop")
    valid("home" not in meta or is_home(meta["home"]), "meta.home")
    valid("re" not in meta or _is_hash(meta["re"]), "meta.re")
    valid("continues" not in meta or e["type"] == "REQUEST" and _is_hash(meta["continues"]), "meta.continues")
    return e


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def is_home(value: object) -> bool:
    """Whether value has exactly the did of a relay and its url, an origin."""
    if not isinstance(value, dict) or value.keys() != {"did", "url"} or not isinstance(value["url"], str):
        return False
    try:
        key_of(value["did"])
    except Refused:
        return False
    return _ORIGIN.fullmatch(value["url"]) is not None


def _check_parties(e: Envelope) -> None:
    sender = e.get("sender")
    if not isinstance(sender, dict) or not isinstance(sender.get("id"), str):
        raise Refused("INVALID_DID", "the message has no valid sender")
    refuse_unless(
        all(isinstance(sender.get(name, ""), str) for name in ("name", "url")),
        "INVALID_DID",
        "the name or the url of the sender is not a text",
    )
    if "recipient" in e:
        recipient = e["recipient"]
        refuse_unless(
            isinstance(recipient, dict) and isinstance(recipient.get("id"), str),
            "INVALID_DID",
            "the message has no valid recipient",
        )


def valid_id(value: object) -> bool:
    """Whether value has the form of the id of a message or a thread."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def _is_whole(value: object, low: int, high: int) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and value == int(value)
        and low <= value <= high
    )


def thread_of(e: Mapping[str, Any]) -> Any:
    """The id of the message's thread. Some clients leave thread out; then it is request_id."""
    return e["thread"].get("id") if "thread" in e else e["payload"].get("request_id")


_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])(?:\.([0-9]{1,9}))?"
    r"(?:Z|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))"
)


def instant(text: object) -> int:
    """Converts an RFC 3339 date-time to nanoseconds since 1970. Raises Refused."""
    # datetime has only microseconds, and no year 0.
    match = _TIME.fullmatch(text) if isinstance(text, str) else None
    if not match:
        raise Refused("INVALID_REQUEST", "a time is not an RFC 3339 date-time, such as 2026-02-02T12:00:00Z")
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    fraction, sign, offset_hours, offset_minutes = match.groups()[6:]
    era = 400 if year == 0 else 0  # the calendar repeats after 400 years (146097 days)
    try:
        days = datetime.date(year + era, month, day).toordinal() - _EPOCH - era // 400 * 146097
    except ValueError:
        raise Refused("INVALID_REQUEST", "a time has a date that is not in the calendar") from None
    offset = (int(offset_hours or 0) * 3600 + int(offset_minutes or 0) * 60) * (-1 if sign == "-" else 1)
    return (days * 86400 + hour * 3600 + minute * 60 + second - offset) * SECOND + int((fraction or "").ljust(9, "0"))


def format_time(seconds: float) -> str:
    """Formats seconds since 1970 as RFC 3339 in UTC with milliseconds. Raises Refused for a time after the year
    9999."""
    try:
        utc = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    except (ValueError, OverflowError, OSError):
        raise Refused("INVALID_REQUEST", "a time is not in the years 1 to 9999") from None
    return utc.strftime("%Y-%m-%dT%H:%M:%S.").rjust(20, "0") + f"{utc.microsecond // 1000:03d}Z"


_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"


def new_id(prefix: str, seconds: float) -> str:
    """prefix, an underscore and a ULID in lower case: 48 bits of milliseconds and 80 random bits. seconds: since
    1970."""
    number = (max(int(seconds * 1000), 0) % 2**48 << 80) | int.from_bytes(os.urandom(10), "big")
    return prefix + "_" + "".join(_CROCKFORD[number >> 5 * i & 31] for i in reversed(range(26)))


def new_thread() -> str:
    """A new id for the thread of a request. Save it before the request, to continue after a crash."""
    return new_id("thread", time.time())


def covered(e: Mapping[str, Any]) -> bytes:
    """The bytes that a signature covers: the canonical form without sig."""
    return canonicalize({name: value for name, value in e.items() if name != "sig"})


def sign(e: Mapping[str, Any], me: Identity) -> Envelope:
    """Returns e with the signature of me."""
    return dict(e) | {"sig": encode64(me.sign_bytes(covered(e)))}


def verify(e: Mapping[str, Any]) -> None:
    """Raises Refused unless sender and recipient are valid did:keys and the signature is the sender's. Check the form
    of e first, with read_envelope or check_envelope."""
    sender, recipient = e.get("sender"), e.get("recipient")
    if "recipient" in e:
        key_of(recipient.get("id") if isinstance(recipient, dict) else None)
    verify_by(sender.get("id") if isinstance(sender, dict) else None, e)


def verify_by(did: object, e: Mapping[str, Any]) -> None:
    """Raises Refused unless did has signed e."""
    key_of(did)
    sig = decode64(e.get("sig"))
    if sig is None or len(sig) != 64:
        raise Refused("INVALID_SIGNATURE", "sig is not 86 characters of base64url")
    refuse_unless(verifies(sig, covered(e), did), "INVALID_SIGNATURE", "the message is not signed by its sender")


def verifies(sig: bytes, message: bytes, did: object) -> bool:
    """Whether sig, 64 bytes, is the signature of did over message. Raises what key_of raises."""
    try:
        Ed25519PublicKey.from_public_bytes(key_of(did)).verify(sig, message)
    except InvalidSignature:
        return False
    return True

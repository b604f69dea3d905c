"""Agora v1.0 for Python: identities, strict parsing, signing, and the relay's HTTP API. You may copy this file.

It needs Python 3.11 and the package cryptography (Debian: python3-cryptography) for Ed25519; the rest is here.
All input from other parties is parsed strictly and verified before it is used.
"""
import base64
import datetime
import http.client
import json
import math
import os
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat


class Refused(Exception):
    """A refusal by this code or by the relay. code is one of the protocol's codes."""

    def __init__(self, code, message, retryable=False):
        super().__init__(f"{code}: {message}")
        self.code, self.retryable = code, retryable


def must(ok, code, message):
    if not ok:
        raise Refused(code, message)


# --- Identities: did:key of an Ed25519 key (PROTOCOL §2)

P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


class Identity:
    """The identity of a 32-byte seed. Without a seed, a new identity. Keep the seed secret: it signs as you."""

    def __init__(self, seed=None):
        self.key = Ed25519PrivateKey.from_private_bytes(seed or os.urandom(32))
        self.did = did_of(self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))


def did_of(key):
    number, text = int.from_bytes(b"\xed\x01" + key, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = ALPHABET[digit] + text
    return "did:key:z" + text


def key_of(did):
    """The 32 key bytes of a did:key. The form is checked before base58 is decoded, because that takes quadratic time."""
    form = isinstance(did, str) and re.fullmatch(f"did:key:z(6Mk[{ALPHABET}]{{44}})", did)
    must(form, "INVALID_DID", "not a did:key of Ed25519")
    number = 0
    for char in form[1]:
        number = number * 58 + ALPHABET.index(char)
    must(number < 2**272, "INVALID_DID", "not 34 bytes")
    key = number.to_bytes(34, "big")[2:]
    must(did_of(key) == did, "INVALID_DID", "not the spelling of its own key")
    y = int.from_bytes(key, "little") % 2**255  # remove the sign of x
    must(y < P, "INVALID_DID", "a second encoding of a key")
    # Points of order 1, 2 and 4 have y = ±1 or 0; those of order 8 double to y = 0, so y² = -x² there.
    low_order = y in (0, 1, P - 1) or (D * y**4 + 2 * y * y - 1) % P == 0
    must(not low_order, "INVALID_DID", "a key under which anybody can sign")
    # On the curve, x² = (y² - 1) / (D y² + 1). A product is a square if and only if the quotient is one (Euler's
    # criterion).
    must(pow((y * y - 1) * (D * y * y + 1), (P - 1) // 2, P) == 1, "INVALID_DID", "not a point")
    return key


# --- JSON: only I-JSON is accepted, because all parsers agree about its meaning (PROTOCOL §1)


def parse(body):
    """Parses bytes as one I-JSON value. All its numbers become floats, as in JavaScript."""

    def members(pairs):
        must(len(dict(pairs)) == len(pairs), "INVALID_REQUEST", "a member occurs twice in one object")
        return dict(pairs)

    try:
        value = json.loads(bytes(body).decode(), object_pairs_hook=members, parse_int=float, parse_constant=float)
        canonicalize(value)  # refuses half a surrogate pair, inf (from 1e400), and NaN (not JSON)
    except (ValueError, RecursionError):
        raise Refused("INVALID_REQUEST", "not I-JSON in UTF-8") from None
    must(costly_numbers(bytes(body).decode()) <= 1000, "INVALID_REQUEST", "too many numbers with many digits or below 1e-307")
    return value


NUMBER = re.compile(r'"(?:[^"\\]|\\.)*"|-?([0-9.]+)(?:[eE]([+-]?[0-9]+))?')


def costly_numbers(text):
    """The number of numbers in a JSON text with more than 17 significant digits, or not zero and below 1e-307."""
    count = 0
    for digits, exponent in NUMBER.findall(text):
        whole, _, fraction = digits.partition(".")
        significant = (whole + fraction).strip("0")
        if significant:  # otherwise it is a string, or zero
            whole = whole.lstrip("0")
            first = len(whole) - 1 if whole else len(fraction.lstrip("0")) - len(fraction) - 1
            count += len(significant) > 17 or float(exponent or 0) + first < -307
    return count


def canonicalize(value):
    """The RFC 8785 form of a value, in bytes. Raises ValueError if the value has none."""
    return jcs(value).encode()


def jcs(value):
    if isinstance(value, dict):  # sorted by UTF-16 code units, which differs from the order of code points
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return "{" + ",".join(jcs(name) + ":" + jcs(value[name]) for name in names) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(jcs, value)) + "]"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return number(float(value))
    return json.dumps(value, ensure_ascii=False)  # for strings, true, false and null, Python's form is canonical


def number(x):
    """A number as ECMAScript writes it. repr returns the same shortest digits, but another position of the point."""
    if not math.isfinite(x):
        raise ValueError("not a finite number")
    mantissa, _, exponent = repr(abs(x)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(digits) - len(fraction) + int(exponent or 0)  # x = 0.digits × 10^point
    digits = digits.rstrip("0")
    sign = "-" if x < 0 else ""
    if not digits:
        return "0"
    if len(digits) <= point <= 21:
        return sign + digits.ljust(point, "0")
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return sign + "0." + "0" * -point + digits
    return sign + digits[0] + ("." + digits[1:] if digits[1:] else "") + f"e{point - 1:+d}"


def depth(body):
    level = deepest = 0
    for token in re.findall(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[{}[\]]', body, re.DOTALL):
        level += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(token, 0)
        deepest = max(deepest, level)
    return deepest


# --- Envelopes

FIELDS = {"version", "id", "ts", "type", "sender", "recipient", "payload", "thread", "meta", "sig"}
TYPES = {"REQUEST", "OFFER", "ACCEPT", "RESULT", "ERROR", "CANCEL", "MANIFEST"}
MAX_BYTES, MAX_DEPTH, MAX_TTL = 128 * 1024, 64, 9223372036  # MAX_TTL: fits into 64 bits of nanoseconds
SECOND = 1_000_000_000  # times are nanoseconds since 1970
EPOCH = datetime.date(1970, 1, 1).toordinal()
ABSENT = object()  # differs from None, which is the value null


def read_envelope(body):
    """Parses a body: an envelope, or {"envelope": …} around one. Checks all that needs neither a clock nor a key."""
    must(len(body) <= MAX_BYTES, "PAYLOAD_TOO_LARGE", "too many bytes")
    must(depth(body) <= MAX_DEPTH, "INVALID_REQUEST", "nested too deep")
    e = parse(body)
    if isinstance(e, dict) and len(e) == 1 and isinstance(e.get("envelope"), dict):
        e = e["envelope"]
    must(len(canonicalize(e)) <= MAX_BYTES, "PAYLOAD_TOO_LARGE", "too many bytes")
    check_fields(e)
    return e


def check_fields(e):
    def valid(ok, what):
        must(ok, "INVALID_REQUEST", what)

    def is_id(value):
        return isinstance(value, str) and re.fullmatch("[A-Za-z0-9][A-Za-z0-9._:~-]{0,127}", value)

    def is_whole(value, low, high):
        return isinstance(value, float) and value.is_integer() and low <= value <= high

    valid(isinstance(e, dict), "no JSON object")
    for name in e:
        valid(name in FIELDS or name.casefold() not in FIELDS, "a name differs only in case")
    must(e.get("version") == "1.0", "UNSUPPORTED_VERSION", "version")
    valid(is_id(e.get("id")), "id")
    valid(isinstance(e.get("type"), str) and e["type"] in TYPES, "type")
    instant(e.get("ts"))
    sender, recipient, payload = e.get("sender"), e.get("recipient", ABSENT), e.get("payload")
    must(isinstance(sender, dict) and isinstance(sender.get("id"), str), "INVALID_DID", "sender")
    must(all(isinstance(sender.get(name, ""), str) for name in ("name", "url")), "INVALID_DID", "sender")
    must(recipient is ABSENT or isinstance(recipient, dict) and isinstance(recipient.get("id"), str), "INVALID_DID", "recipient")
    valid(isinstance(payload, dict), "payload")
    if e["type"] == "MANIFEST":
        valid("thread" not in e, "thread")
    else:
        request_id = payload.get("request_id", "")
        valid(isinstance(request_id, str) and len(request_id.encode()) <= 128, "payload.request_id")
        valid("thread" not in e or isinstance(e["thread"], dict), "thread")
        valid(is_id(thread_of(e)), "thread.id")
    meta = e.get("meta", {})
    valid(isinstance(meta, dict), "meta")
    valid(is_whole(meta.get("ttl", 1.0), 1, MAX_TTL), "meta.ttl")
    valid(is_whole(meta.get("hop", 0.0), 0, 16), "meta.hop")


def thread_of(e):
    """The id of the message's thread. Some clients leave thread out; then it is request_id."""
    return e["thread"].get("id") if "thread" in e else e["payload"].get("request_id")


def instant(text):
    """Converts an RFC 3339 date-time to nanoseconds since 1970. datetime has only microseconds, and no year 0."""
    form = r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])(?:\.([0-9]{1,9}))?"
    match = isinstance(text, str) and re.fullmatch(form + "(?:Z|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))", text)
    must(match, "INVALID_REQUEST", "ts")
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    fraction, sign, offset_hours, offset_minutes = match.groups()[6:]
    era = 400 if year == 0 else 0  # the calendar repeats after 400 years (146097 days)
    try:
        days = datetime.date(year + era, month, day).toordinal() - EPOCH - era // 400 * 146097
    except ValueError:
        raise Refused("INVALID_REQUEST", "ts is no date") from None
    offset = (int(offset_hours or 0) * 3600 + int(offset_minutes or 0) * 60) * (-1 if sign == "-" else 1)
    return (days * 86400 + hour * 3600 + minute * 60 + second - offset) * SECOND + int((fraction or "").ljust(9, "0"))


def covered(e):
    """The bytes that a signature covers: the canonical form without sig."""
    return canonicalize({name: value for name, value in e.items() if name != "sig"})


def sign(e, identity):
    return e | {"sig": base64.urlsafe_b64encode(identity.key.sign(covered(e))).decode().rstrip("=")}


def verify(e):
    """Raises Refused unless sender and recipient are valid did:keys and the signature is the sender's."""
    if "recipient" in e:
        key_of(e["recipient"]["id"])
    verify_by(e["sender"]["id"], e)


def verify_by(did, e):
    key, sig = key_of(did), e.get("sig")
    # 86 characters are 516 bits. The last four bits must be zero; otherwise a signature would have sixteen spellings.
    form = isinstance(sig, str) and re.fullmatch("[A-Za-z0-9_-]{85}[AQgw]", sig)
    must(form, "INVALID_SIGNATURE", "sig is not 86 characters of base64url")
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(base64.urlsafe_b64decode(sig + "=="), covered(e))
    except InvalidSignature:
        raise Refused("INVALID_SIGNATURE", "not signed by its sender") from None


# --- Signed reads (PROTOCOL §8)


def read_token(aud, target, me, ts=None, nonce=None):
    """Makes a token for one GET of target (path and query as sent) from the relay whose origin is aud."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")[:-6] + "Z"
    token = {
        "typ": "agora-read", "did": me.did, "aud": aud, "method": "GET", "target": target,
        "ts": ts or now, "nonce": nonce or uuid.uuid4().hex,
    }
    return base64.urlsafe_b64encode(canonicalize(sign(token, me))).decode().rstrip("=")


def check_read(token, origin, method, target, now):
    """Returns the signer of a token for this request. Only a relay needs to check that a token is used once."""

    def valid(ok, what):
        must(ok, "UNAUTHORIZED", what)

    text = base64.urlsafe_b64decode(re.sub("[^A-Za-z0-9_-]", "", token[:8192]) + "===")
    valid(base64.urlsafe_b64encode(text).decode().rstrip("=") == token, "not one spelling of base64url, or too long")
    try:
        t = parse(text)
        valid(isinstance(t, dict) and sorted(t) == ["aud", "did", "method", "nonce", "sig", "target", "ts", "typ"], "members")
        valid(all(isinstance(value, str) for value in t.values()), "a member is no text")
        valid(t["typ"] == "agora-read" and re.fullmatch("[A-Za-z0-9_-]{16,64}", t["nonce"]), "typ or nonce")
        valid((t["aud"], t["method"], t["target"]) == (origin, method, target), "for another relay or request")
        valid(-60 * SECOND < now - instant(t["ts"]) < 60 * SECOND, "ts")
        verify_by(t["did"], t)
    except Refused as err:
        raise Refused("UNAUTHORIZED", str(err)) from None
    return t["did"]


def place(url):
    """The scheme, host and port of a URL. All names of this machine count as the same host."""
    parts = urllib.parse.urlsplit(url)
    here = re.fullmatch(r"localhost|127\..*|::1", parts.hostname or "")
    return parts.scheme, "here" if here else parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


# --- The relay


class Relay:
    def __init__(self, url, me=None):
        self.url, self.me, self.about = url.rstrip("/"), me or Identity(), None

    def post(self, type, payload, to=None, thread=None, ttl=86400):
        """Signs and posts a message. If there is no response, it sends the same bytes again, which is safe."""
        now = datetime.datetime.now(datetime.timezone.utc)
        e = {
            "version": "1.0", "id": f"msg_{uuid.uuid4()}", "ts": now.isoformat(timespec="milliseconds")[:-6] + "Z",
            "type": type, "sender": {"id": self.me.did}, "payload": payload, "meta": {"ttl": ttl},
        }
        if to:
            e["recipient"] = {"id": to}
        if thread:
            e["thread"] = {"id": thread}
        body = canonicalize(sign(e, self.me))
        for attempt in range(1, 6):
            try:
                return self.call("/events", body)
            except (Refused, OSError) as err:
                if isinstance(err, Refused) and not err.retryable or attempt == 5:
                    raise
                time.sleep(0.25 * 2**attempt)

    def follow(self, place=None, **filter):
        """Yields verified events that match filter (recipient, sender, type, thread, broadcast), and waits for more.

        place["cursor"] advances after each page. Store it, so that the next process can continue there.
        """
        place = place if place is not None else {"cursor": "0"}
        while True:
            try:
                page = self.call("/events?" + urllib.parse.urlencode(filter | {"cursor": place["cursor"], "timeout": 30}))
            except (Refused, OSError) as err:
                if isinstance(err, Refused) and not err.retryable:
                    raise
                time.sleep(2)
                continue
            for event in page["events"]:
                try:
                    check_fields(event)
                    verify(event)
                except Refused as err:
                    print("an event was left out:", err, file=sys.stderr)
                    continue
                yield event
            place["cursor"] = page["cursor"]

    def newest(self, **filter):
        """The position after all stored events, to follow only new events."""
        since = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"cursor": self.call("/events?" + urllib.parse.urlencode(filter | {"since": since, "timeout": 0}))["cursor"]}

    def call(self, path, body=None):
        return self.exchange(path, body, {"Content-Type": "application/json"} if body else self.authorization(path))

    def authorization(self, path):
        """Asks the relay once who may read messages. If only their parties may, all further reads are signed.

        A token is for the address that we use, not for another address that the relay claims to have.
        """
        if self.about is None:
            self.about = self.exchange("/.well-known/agora.json", None, {})
        if self.about.get("reads") != "parties":
            return {}
        url = self.about["url"]
        must(place(url) == place(self.url), "UNAUTHORIZED", f"this relay is to be reached at {url}")
        target = urllib.request.Request(self.url + path).selector
        return {"Authorization": "Agora " + read_token(url, target, self.me)}

    def exchange(self, path, body, headers):
        request = urllib.request.Request(self.url + path, body, headers)
        try:
            try:
                response = urllib.request.urlopen(request, timeout=60)
            except urllib.error.HTTPError as err:
                response = err  # the body has the reason
            with response:
                answer = parse(response.read())
        except (Refused, http.client.HTTPException):  # the response is truncated, or it is a gateway's page
            raise Refused("UNAVAILABLE", "not an answer of a relay", retryable=True) from None
        if answer.get("ok") is True:
            return answer
        raise Refused(answer.get("error"), answer.get("message"), answer.get("retryable") is True)

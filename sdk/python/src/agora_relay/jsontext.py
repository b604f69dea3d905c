"""JSON as the protocol needs it: strict parsing of I-JSON (PROTOCOL §1), and the canonical form of RFC 8785."""
from __future__ import annotations

import json
import math
import re
from typing import Any

from .errors import Refused, refuse_unless

MAX_DEPTH = 64
MAX_COSTLY = 1000  # numbers that take parsers long
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_EXACT = 2**53  # integers up to here are exact as a double


def parse(body: bytes | bytearray | memoryview, *, depth: int = MAX_DEPTH, costly: int = MAX_COSTLY) -> Any:
    """Parses bytes as one I-JSON value. Raises Refused with INVALID_REQUEST.

    A whole number in plain digits up to ±2^53 becomes an int; every other number becomes a float, as in JavaScript.
    """
    body = bytes(body)
    refuse_unless(depth_of(body, depth) <= depth, "INVALID_REQUEST", "the JSON is nested too deep")
    try:
        text = body.decode()
        value = json.loads(
            text, object_pairs_hook=_members, parse_int=_whole, parse_float=_float, parse_constant=_constant
        )
        if _SURROGATE.search(text):
            canonicalize(value)  # refuses half a surrogate pair
    except (ValueError, RecursionError):
        raise Refused("INVALID_REQUEST", "the text is not I-JSON in UTF-8") from None
    refuse_unless(
        costly_numbers(text) <= costly,
        "INVALID_REQUEST",
        "the JSON has too many numbers with many digits or below 1e-307",
    )
    return value


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    refuse_unless(len(members) == len(pairs), "INVALID_REQUEST", "a member occurs twice in one object")
    return members


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError("a number is too large for a double")
    return value


def _whole(digits: str) -> int | float:
    value = _float(digits)
    return int(value) if abs(value) <= _EXACT and digits != "-0" else value


def _constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b"{}[]"))


def depth_of(body: bytes, limit: int = 1000) -> int:
    """How deep a JSON text is nested; more than limit: at least that deep. For a text that is not JSON, it is some
    number."""
    brackets = _STRING.sub(b"", body).translate(_BRACKETS, _OTHERS)
    depth = 0
    while brackets and depth <= limit:  # each round removes the innermost brackets
        shorter = brackets.replace(b"[]", b"")
        if len(shorter) == len(brackets):
            return depth + brackets.count(b"[")
        brackets, depth = shorter, depth + 1
    return depth


_MAYBE_COSTLY = re.compile(r"[0-9.]{18}|[eE]-")  # without one of these, no number is costly
_NUMBER = re.compile(r'"(?:[^"\\]|\\.)*"|-?([0-9.]+)(?:[eE]([+-]?[0-9]+))?')


def costly_numbers(text: str) -> int:
    """The number of numbers in a JSON text with more than 17 significant digits, or not zero and below 1e-307."""
    count = 0
    if not _MAYBE_COSTLY.search(text):
        return count
    for digits, exponent in _NUMBER.findall(text):
        whole, _, fraction = digits.partition(".")
        if (whole + fraction).strip("0"):  # otherwise it is a string, or zero
            whole = whole.lstrip("0")
            first = len(whole) - 1 if whole else len(fraction.lstrip("0")) - len(fraction) - 1
            significant = (whole + fraction).strip("0")
            count += len(significant) > 17 or float(exponent or 0) + first < -307
    return count


def canonicalize(value: Any) -> bytes:
    """The RFC 8785 form of a value, in UTF-8. Raises Refused with INVALID_REQUEST if the value has none."""
    try:
        return canonical_text(value).encode()
    except UnicodeEncodeError:
        raise Refused("INVALID_REQUEST", "a text has half a surrogate pair") from None


def canonical_text(value: Any) -> str:
    """The RFC 8785 form of a value, as text. Raises Refused with INVALID_REQUEST if the value has none."""
    try:
        return _jcs(value)
    except RecursionError:
        raise Refused("INVALID_REQUEST", "the value is nested too deep, or contains itself") from None
    except UnicodeEncodeError:
        raise Refused("INVALID_REQUEST", "the name of a member has half a surrogate pair") from None


def _jcs(value: Any) -> str:
    if value is None or isinstance(value, (str, bool)):
        return json.dumps(value, ensure_ascii=False)  # Python's form of these is canonical
    if isinstance(value, (int, float)):
        return _number(value)
    if isinstance(value, dict):
        refuse_unless(
            all(isinstance(name, str) for name in value), "INVALID_REQUEST", "the names of members must be texts"
        )
        # Sorted by UTF-16 code units, which differs from the order of code points.
        names: list[str] = sorted(value, key=_utf16)
        return "{" + ",".join(_jcs(name) + ":" + _jcs(value[name]) for name in names) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_jcs, value)) + "]"
    raise Refused("INVALID_REQUEST", f"a value of the type {type(value).__name__} cannot be written as JSON")


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be")


def _number(value: int | float) -> str:
    """A number as ECMAScript writes it. repr returns the same shortest digits, but another position of the point."""
    try:
        x = float(value)
    except OverflowError:
        x = math.inf
    refuse_unless(math.isfinite(x), "INVALID_REQUEST", "a number is not finite or too large for JSON")
    refuse_unless(x == value, "INVALID_REQUEST", "a whole number beyond 2^53 would lose digits; send it as a text")
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

"""Reads the answers of a relay. A relay may be hostile, or an impostor may answer instead of it. So the size of the
answer, of each list and of each element is bounded, and lists are read one element at a time."""
from __future__ import annotations

import dataclasses
import email.utils
import json
import logging
import re
from typing import Any, Callable, Mapping

from .envelope import Envelope, read_delivered, verify
from .errors import RelayError, Refused, UnknownOutcome
from .transport import Response

log = logging.getLogger("agora_relay")

# Bounds of an answer, in bytes.
MAX_SHORT = 64 << 10  # an error, a receipt, the answer of /health
MAX_DOCUMENT = 256 << 10  # the well-known document
MAX_BULK = 4 << 20  # what became of the messages of one request
MAX_DIRECTORY = 8 << 20  # a page of agents (relays end a page at 256 KiB), or all manifests of one agent
MAX_POLL = 8 << 20  # a page of events; relays end a page at 4 MiB
MAX_SINCE_PAGE = 16 << 20  # a page of a read with since, which may exceed the 4 MiB (PROTOCOL §7)
MAX_RECORD = 32 << 20  # a thread, which may have 100 offers
MAX_ELEMENT = 4 << 20  # one element of a list
MAX_EVENT = 1 << 20  # an event; a larger event is skipped
MAX_REST = 512 << 10  # all members of an answer except its list
MAX_TEXT = 1 << 10  # characters of a relay's text that go into an error; the rest is cut off
MAX_RETRY_AFTER = 2**31 - 1.0  # seconds

# How many elements a list may have.
MAX_ROWS = 1000  # agents in a page; manifests of one agent
MAX_THREAD = 10_000  # events of a thread
MAX_SINCE = 100_000  # events in an answer to a read with since; it may exceed the limit (PROTOCOL §7)


TOO_LONG = {"reason": "too_long"}
"""The details of the error for an answer that is too long. A shorter page may fit."""


class TooLong(ValueError):
    """A part of an answer is too long."""


@dataclasses.dataclass
class Spec:
    """How to read a successful answer: the largest size of its body in bytes, and the list whose elements on_element
    gets one at a time, as JSON text. If the answer turns out to be malformed, on_element may have been called. With
    is_text, the answer is a text, not JSON. The result then has it as its only member "text". statuses are the statuses
    of a success. With sister, the answer is from the hub or the registry of jobs, whose answers have other forms
    (GATEWAYS §4)."""

    limit: int
    list_name: str = ""
    on_element: Callable[[bytes], None] | None = None
    is_text: bool = False
    statuses: tuple[int, ...] = (200,)
    sister: bool = False


def read_answer(base: str, response: Response, spec: Spec, now: float) -> dict[str, Any]:
    """The members of a successful answer, without the list of spec. Raises RelayError for every other answer."""

    def failed(code: str, message: str, details: dict[str, Any] | None = None) -> RelayError:
        return RelayError(
            code,
            message,
            status=response.status,
            details=details,
            retry_after=retry_after(response.header("retry-after"), now),
            challenged=challenged(response) or spec.sister and response.status == 401,
        )

    encoding = response.header("content-encoding")
    if encoding and encoding.lower() != "identity":
        raise failed(
            "INVALID_ANSWER",
            f"the answer is compressed ({encoding[:MAX_TEXT]}), although the request does " "not allow that",
        )
    try:
        if spec.is_text and response.status == 200:
            return {"text": response.body.decode()}
        if spec.on_element and response.status == 200:
            answer = split_list(response.body, spec.list_name, spec.on_element)
        else:
            answer = _load(response.body)
    except TooLong as err:
        raise failed("INVALID_ANSWER", str(err), TOO_LONG) from None
    except (ValueError, RecursionError):
        answer = {}
    if spec.sister and answer:
        if response.status in spec.statuses:
            return answer
        answer = _sister_refusal(answer, response.status)
    code, message = answer.get("error"), answer.get("message")
    if answer.get("ok") is True and response.status in spec.statuses:
        return answer
    if answer.get("ok") is True:
        raise failed("INVALID_ANSWER", f"the answer says ok, but has the status {response.status}")
    if not isinstance(code, str) or not code:
        raise failed(
            "INVALID_ANSWER",
            f"{base} answered with status {response.status} and a body that is not from an "
            "Agora relay; check its URL"
            + (", which may need https://" if response.status == 400 and base.startswith("http:") else ""),
        )
    details = answer.get("details")
    raise failed(
        code[:MAX_TEXT],
        message[:MAX_TEXT] if isinstance(message, str) else "",
        details if isinstance(details, dict) else None,
    )


def _sister_refusal(answer: dict[str, Any], status: int) -> dict[str, Any]:
    """Puts a refusal of the hub or of the registry of jobs into the form of a relay's refusal. The hub has its details
    in the member error. If there is no code, the code is the number of the status."""
    error, detail = answer.get("error"), answer.get("detail")
    if isinstance(error, dict):
        return {"error": str(error.get("code", status)), "message": error.get("message"), "details": error}
    if isinstance(detail, list):
        detail = "; ".join(str(each.get("msg")) for each in detail if isinstance(each, dict))
    return {"error": str(answer.get("error_code", status)), "message": detail, "details": answer}


def _load(body: bytes) -> dict[str, Any]:
    value = json.loads(body.decode("utf-8", "replace"), parse_constant=_constant)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def _constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def retry_after(text: str, now: float) -> float:
    """The delay in seconds of a Retry-After header, which has seconds or a date (RFC 9110 §10.2.3); 0: none."""
    if text.isascii() and text.isdecimal():
        return min(float(text), MAX_RETRY_AFTER)
    try:
        return min(max(email.utils.parsedate_to_datetime(text).timestamp() - now, 0.0), MAX_RETRY_AFTER)
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0.0


def challenged(response: Response) -> bool:
    """Whether an answer asks for a signed read: it has a WWW-Authenticate header with the scheme Agora."""
    return any(
        value.strip().partition(" ")[0].lower() == "agora" for value in response.headers.get("www-authenticate", [])
    )


_BLANKS = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder(parse_constant=_constant)
_WINDOWS = (4 << 10, 64 << 10, MAX_EVENT)  # most values are short, so most of the text is looked at once


class _Scanner:
    """Reads a JSON text from left to right. Every byte is one character of its text, so a part of the text keeps its
    bytes, valid or not, and no character takes more memory than one byte."""

    def __init__(self, body: bytes):
        self.text = body.decode("latin-1")
        self.at = 0

    def skip(self, char: str) -> bool:
        """Skips white space, and char if it comes next. Returns whether it came."""
        blanks = _BLANKS.match(self.text, self.at)
        self.at = blanks.end() if blanks else self.at
        if self.text.startswith(char, self.at):
            self.at += len(char)
            return True
        return False

    def expect(self, char: str) -> None:
        if not self.skip(char):
            raise ValueError(f"{char} is missing")

    def value(self, limit: int) -> bytes:
        """Reads one value of at most limit bytes, and returns its text."""
        self.skip("")
        for window in (*(size for size in _WINDOWS if size < limit), limit):
            part = self.text[self.at : self.at + window + 1]
            try:
                _, end = _DECODER.raw_decode(part)
            except ValueError:
                continue
            if end <= window:  # else a number may go on after the window
                self.at += end
                return part[:end].encode("latin-1")
        if len(self.text) - self.at > limit:
            raise TooLong("a part of the response is too long")
        raise ValueError("malformed JSON")


def split_list(body: bytes, name: str, on_element: Callable[[bytes], None]) -> dict[str, Any]:
    """Passes each element of the member name of a JSON object to on_element, and returns the other members."""
    scanner = _Scanner(body)
    rest: list[bytes] = []
    size, first = 0, True
    scanner.expect("{")
    while not scanner.skip("}"):
        if not first:
            scanner.expect(",")
        first = False
        key = scanner.value(MAX_REST)
        scanner.expect(":")
        if not key.startswith(b'"'):
            raise ValueError("the name of a member is missing")
        if json.loads(key.decode("utf-8", "replace")) == name:
            _read_list(scanner, on_element)
            continue
        rest.append(key + b":" + scanner.value(MAX_REST))
        size += len(rest[-1])
        if size > MAX_REST:
            raise TooLong("the response is too long")
    scanner.skip("")
    if scanner.at < len(scanner.text):
        raise ValueError("there is more text after the JSON object")
    return _load(b"{" + b",".join(rest) + b"}")


def _read_list(scanner: _Scanner, on_element: Callable[[bytes], None]) -> None:
    if scanner.skip("null"):
        return
    scanner.expect("[")
    first = True
    while not scanner.skip("]"):
        if not first:
            scanner.expect(",")
        first = False
        on_element(scanner.value(MAX_ELEMENT))


class Envelopes:
    """Collects the events of an answer. valid are those that parse and verify. limit is the allowed number."""

    def __init__(self, limit: int):
        self.limit, self.received = limit, 0
        self.valid: list[Envelope] = []
        self.invalid, self.first = 0, ""  # how many others there were, and what is wrong with the first one

    def add(self, text: bytes) -> None:
        """Parses and verifies one event. It is used as Spec.on_element."""
        self.received += 1
        if self.received > self.limit:
            raise TooLong(f"the response has more than {self.limit} events")
        try:
            self.valid.append(verified(text))
        except Exception as err:  # whatever is wrong with an event, it only makes the event invalid
            self.invalid += 1
            self.first = self.first or str(err)

    def log(self) -> None:
        """Logs how many events are not valid."""
        if self.invalid:
            log.warning(
                "%d events were skipped because they are invalid; the first: %s", self.invalid, self.first
            )


def verified(text: bytes) -> Envelope:
    """Parses and verifies a delivered envelope. It may be larger than this client's own may be. Raises Refused."""
    e = read_delivered(text, MAX_EVENT)
    verify(e)
    return e


def text_of(answer: Mapping[str, Any], name: str, longest: int = MAX_TEXT) -> str:
    """A text of an answer; absent: empty. Raises RelayError if it is no text or too long."""
    value = answer.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > longest:
        raise RelayError("INVALID_ANSWER", f"the member {name} of the relay's answer is malformed", status=200)
    return value


def permanent(err: BaseException) -> bool:
    """Whether err is a refusal, by the relay or by this client itself, that a retry would get again. A refusal because
    of the time is not permanent: a retry has a new timestamp, and a wrong clock may be corrected."""
    if not isinstance(err, Refused) or err.code in ("STALE_TIMESTAMP", "EXPIRED"):
        return False
    if isinstance(err, RelayError) and not err.from_relay:
        return False
    if err.code == "RATE_LIMITED":
        return err.details.get("maxOffers") is not None
    return err.code not in ("INTERNAL_ERROR", "UNAVAILABLE")


def retry_after_of(err: BaseException | None) -> float:
    """How many seconds the relay asks to wait before a retry; 0: neither err nor its cause says."""
    if isinstance(err, UnknownOutcome):
        err = err.__cause__
    return err.retry_after if isinstance(err, RelayError) else 0.0

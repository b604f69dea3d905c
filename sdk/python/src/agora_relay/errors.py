"""The errors of this package. Every one has a code for programs, and retryable."""
from __future__ import annotations

import unicodedata
from typing import Any

from .protocol import AGENT_RETRYABLE


def safe(text: str) -> str:
    """Escapes the characters of a stranger's text that control a terminal or are invisible, as \\uXXXX in UTF-16."""

    def escape(char: str) -> str:
        unsafe = unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") or 0xE0000 <= ord(char) <= 0xE0FFF
        if not unsafe:
            return char
        units = char.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))

    return text if text.isascii() and text.isprintable() else "".join(map(escape, text))


class AgoraError(Exception):
    """The base of all errors of this package."""

    code: str
    message: str
    retryable: bool
    """Whether the same call may succeed later."""
    details: dict[str, Any]

    def __init__(self, code: str, message: str, *, retryable: bool = False, details: dict[str, Any] | None = None):
        super().__init__(safe(f"{code}: {message}"))
        self.code, self.message, self.retryable, self.details = code, message, retryable, details or {}


class Refused(AgoraError):
    """A refusal by the rules of the protocol. code is one of PROTOCOL §5, or INVALID_KEY for a seed or a key file."""


class RelayError(Refused):
    """A request without a successful answer. code is the relay's code, NO_ANSWER if there was no complete answer, or
    INVALID_ANSWER if the answer is not from an Agora relay."""

    status: int
    """The HTTP status; 0: there was no complete answer."""
    retry_after: float
    """How many seconds the relay asks to wait; 0: it does not say."""
    challenged: bool
    """Whether the relay asks for a signed read (PROTOCOL §8)."""
    not_sent: bool
    """Whether the request was certainly not sent."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int = 0,
        retry_after: float = 0.0,
        challenged: bool = False,
        not_sent: bool = False,
        details: dict[str, Any] | None = None,
    ):
        super().__init__(code, message, details=details)
        self.status, self.retry_after, self.challenged, self.not_sent = status, retry_after, challenged, not_sent
        self.retryable = self.temporary and not self.details.get("maxOffers")

    @property
    def temporary(self) -> bool:
        """Whether the status says that the same request may succeed later: no answer, a malformed 200, 5xx, 408,
        429."""
        return self.status in (408, 429) or not 300 <= self.status < 500

    @property
    def from_relay(self) -> bool:
        """Whether the code comes from a relay's refusal, and not NO_ANSWER or INVALID_ANSWER."""
        return self.code not in ("NO_ANSWER", "INVALID_ANSWER")

    @property
    def is_answer(self) -> bool:
        """Whether a relay that works has answered: with a refusal other than a 5xx."""
        return self.from_relay and 400 <= self.status < 500

    @property
    def no_effect(self) -> bool:
        """Whether the request certainly had no effect. After any other 5xx the relay may have stored the message."""
        return self.not_sent or 400 <= self.status < 500 or self.from_relay and self.details.get("stored") is False


class AgentError(AgoraError):
    """An agent's ERROR, or the relay's notice that a thread has timed out (TIMEOUT). An agent's functions raise it to
    choose the ERROR for their client."""

    sender: str | None
    """The DID of the sender of the ERROR; None if it is raised by an agent's own function."""

    def __init__(
        self, code: str, message: str = "", *, details: dict[str, Any] | None = None, sender: str | None = None
    ):
        super().__init__(code, message or code, retryable=code in AGENT_RETRYABLE, details=details)
        self.sender = sender


class UnknownOutcome(AgoraError):
    """The relay may or may not have stored the message: the connection broke or the server failed, and no later
    answer shows what happened. envelope is the message. It is safe to post it again with post_envelope, because the
    relay recognizes duplicates. call is the Call if request raises this: its thread may exist, and then there will be
    offers. """

    envelope: dict[str, Any]
    call: Any

    def __init__(self, cause: Exception, envelope: dict[str, Any], why: str = ""):
        super().__init__("UNKNOWN_OUTCOME", f"{why or cause}; it is unknown whether the relay stored the message")
        self.__cause__, self.envelope, self.call = cause, envelope, None


class NoProof(UnknownOutcome):
    """The relay says that it has stored a message, but its proof does not hold, or it has none and proofs are required.
    The cause says why. With missing, it has none."""

    def __init__(self, cause: Exception, envelope: dict[str, Any], *, missing: bool = False):
        advice = "use proofs='prefer', or a relay whose well-known document has the feature proofs"
        why = f"the relay gave no proof ({advice})" if missing else f"the relay gave no proof that holds: {cause}"
        super().__init__(cause, envelope, why)


class Unacceptable(AgoraError):
    """An offer cannot be accepted: it breaks the limits of the request, belongs to another one, or is not valid now.
    Or no acceptable offer came in time; then it is retryable."""

    def __init__(self, message: str, *, retryable: bool = False):
        super().__init__("UNACCEPTABLE", message, retryable=retryable)


class NoOffer(Unacceptable):
    """No acceptable offer came in time. is_open says whether the request is still open, or was cancelled."""

    def __init__(self, why: str, *, is_open: bool):
        self.why = why
        state = "is still open: wait again, or end it with cancel()" if is_open else "was cancelled"
        super().__init__(f"{why}. The request {state}", retryable=True)


class Cancelled(AgoraError):
    """The call was cancelled by its own client."""

    def __init__(self) -> None:
        super().__init__("CANCELLED", "the call was cancelled")


class Plain(AgoraError):
    """The agent has answered a sealed request in plaintext. error is set if the answer is an ERROR."""

    error: AgentError | None

    def __init__(self, what: str, error: AgentError | None = None):
        super().__init__(
            "PLAIN",
            f"the agent has answered a sealed request in plaintext ({what}); "
            "to accept such answers, pass allow_plain" + (f": {error}" if error else ""),
        )
        self.error = error


class Closed(AgoraError):
    """An answer is sealed and cannot be decrypted with this client's key."""

    def __init__(self, what: str):
        super().__init__(
            "CLOSED", f"the agent's answer is sealed and cannot be decrypted with this client's key ({what})"
        )


class Gone(AgoraError):
    """The thread has ended, but the relay does not show the message that ended it."""

    def __init__(self) -> None:
        super().__init__("GONE", "the thread has ended, but the relay does not show the message that ended it")


class Unproven(AgoraError):
    """resume found neither the REQUEST nor an ACCEPT of this client, and the relay's record is not signed."""

    def __init__(self, thread: str):
        super().__init__(
            "UNPROVEN",
            f"the relay shows no message of this client in thread {thread}; " "pass the request_id to resume",
        )


class Endless(AgoraError):
    """The relay claims that its directory has more agents, but sends no new ones."""

    def __init__(self) -> None:
        super().__init__("ENDLESS", "the relay claims that its directory has more agents, but sends no new ones")


def refuse_unless(ok: object, code: str, message: str) -> None:
    """Raises Refused unless ok is true."""
    if not ok:
        raise Refused(code, message)

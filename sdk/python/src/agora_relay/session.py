"""Requests to one relay, and the rules for its reads (PROTOCOL §8).

The member "reads" of a relay's document has one of two values. With "parties" (a private relay), the relay shows a
directed message only to its sender and its recipient, and a client with an identity signs each read with a new token.
With "open", the relay shows every message to everybody. Then only polls are signed, so that the reader is shown
online.

A token names the origin of the relay. The client takes this origin from the URL that it was given, and rejects a
document that names another origin. So an impostor gets no token that another relay would accept. There is one
exception, for loopback addresses: see is_other_loopback."""
from __future__ import annotations

import asyncio
import ipaddress
import urllib.parse
from typing import Any, Callable, Mapping

from .answer import MAX_DOCUMENT, MAX_SINCE, MAX_SINCE_PAGE, MAX_TEXT, TOO_LONG, Envelopes, Spec, log, read_answer
from .didkey import Identity
from .envelope import SECOND, format_time, instant
from .errors import RelayError, Refused
from .jsontext import canonicalize
from .readtoken import call_token, read_token
from .transport import BodyTooLong, Transport, TransportFailed
from .waiting import Backoff

WELL_KNOWN = "/.well-known/agora.json"
HEALTH = "/health"
EXCHANGE_SECONDS = 30.0  # for one request and its whole answer; the time that a poll waits is added
READ_ATTEMPTS = 3  # without a token, with a token that has a wrong time, and with the corrected time
RECHECK_SECONDS = 300.0  # how long a document counts, and how long refused tokens of polls have effect
MAX_CORRECTION = 86400.0  # seconds; enough for a wrong time zone, too little for signatures in the distant future
MAX_READ_AHEAD = 900.0  # seconds; an impostor could use a token with a future time later


def relay_url(url: str) -> str:
    """Checks a relay's URL and returns it without a slash at the end. Raises ValueError."""
    try:
        parts = urllib.parse.urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment or parts.username is not None:
        raise ValueError(f"{url!r} is not a relay's URL; use a URL such as https://relay.example")
    return url.rstrip("/")


def quote(text: str) -> str:
    """Escapes a text for the path of a URL."""
    return urllib.parse.quote(text, safe=":~")


def is_other_loopback(claimed: str, used: str) -> bool:
    """Whether used has a loopback host and claimed names another loopback address with the same scheme and port. A
    name such as localhost may stand for two addresses, on which two processes may listen, so claimed must have an
    address. """
    claimed_host, used_host = _hosts(claimed, used)
    return (
        _is_loopback(claimed_host)
        and claimed_host != "localhost"
        and claimed_host != used_host
        and _is_loopback(used_host)
    )


def same_origin(claimed: str, used: str) -> bool:
    """Whether the origin that a relay claims is that of the URL that the client uses."""
    claimed_host, used_host = _hosts(claimed, used)
    return claimed_host != "" and claimed_host == used_host


def _hosts(claimed: str, used: str) -> tuple[str, str]:
    """The hosts of both URLs in lower case; empty if the schemes or ports differ, or if claimed is more than an
    origin."""
    default = {"http": 80, "https": 443}
    try:
        a, b = urllib.parse.urlsplit(claimed), urllib.parse.urlsplit(used)
        ports = a.port or default.get(a.scheme), b.port or default.get(b.scheme)
        extra = a.path or a.query or a.fragment or a.username is not None
        if extra or a.scheme != b.scheme or ports[0] != ports[1]:
            return "", ""
        return (a.hostname or "").lower(), (b.hostname or "").lower()
    except ValueError:
        return "", ""


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Session:
    """Sends requests to a relay as an identity, or as nobody. Several requests may be under way at once."""

    def __init__(
        self, url: str, me: Identity | None, transport: Transport, clock: Callable[[], float], require_parties: bool
    ):
        self.base = self._given = relay_url(url)
        self.me, self.transport, self.require_parties = me, transport, require_parties
        self.clock = clock
        self.correction = 0.0  # seconds to add to the clock, for messages
        self.rate: tuple[float, float] | None = None  # posts a second and burst of one sender, from the document
        self.proves: bool | None = None  # whether the document has the feature proofs; None: it was not read yet
        self.document: Mapping[str, Any] | None = None  # the document that was read last
        self.document_at = 0.0  # when it was read
        self._fetching = asyncio.Lock()
        self._fetched_at: float | None = None  # when the document was asked for; None: never, or it is out of date
        self._audience = ""  # of tokens for a private relay; empty: the relay is open
        self._open_audience = ""  # of tokens for an open relay; empty: no read is signed there
        self._presence_paused_at: float | None = None  # when an open relay refused a token
        self._read_correction, self._read_corrected_at = 0.0, None  # type: float, float | None

    def now(self) -> float:
        """The time of the client's clock in seconds since 1970, with the correction."""
        return self.clock() + self.correction

    def correct_clock(self, stale: RelayError) -> bool:
        """Sets the clock to the relay's time in a STALE_TIMESTAMP error. Returns whether it did."""
        relay_now = relay_time(stale)
        if relay_now is None:
            return False
        correction = relay_now - self.clock()
        if abs(correction) > MAX_CORRECTION:
            log.warning("the relay's time is not used, because it differs from this machine's by more than a day")
            return False
        self.correction = correction
        log.warning("timestamps are corrected by %.1f s to the relay's clock; check this machine's clock", correction)
        return True

    # --- One request

    async def exchange(
        self,
        method: str,
        target: str,
        spec: Spec,
        *,
        body: bytes | None = None,
        token: str = "",
        base: str | None = None,
    ) -> dict[str, Any]:
        """Sends one request and returns the answer. Raises RelayError."""
        base = base or self.base
        # Without Accept-Encoding some proxies compress, and a small answer could become very large.
        headers = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "agora-client-python/1.0",
        }
        if token:
            headers["Authorization"] = token
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            response = await self.transport.send(method, base + target, headers, body, spec.limit)
        except TransportFailed as err:
            raise RelayError("NO_ANSWER", str(err), not_sent=not err.sent) from err
        except BodyTooLong as err:
            raise RelayError("INVALID_ANSWER", str(err), status=err.response.status, details=TOO_LONG) from None
        if len(response.body) <= 64 << 10:
            return read_answer(base, response, spec, self.now())
        return await asyncio.to_thread(
            read_answer, base, response, spec, self.now()
        )  # others need the loop meanwhile

    async def get(
        self, path: str, query: Mapping[str, str], spec: Spec, *, show_online: bool = False
    ) -> dict[str, Any]:
        """Sends a GET. If the relay refuses its token, it retries the read with a better one. The caller limits the
        time. Raises RelayError."""
        target = path + ("?" + urllib.parse.urlencode(query) if query else "")
        for attempt in range(1, READ_ATTEMPTS + 1):
            token, grants_access = await self._token(target, show_online)
            try:
                return await self.exchange("GET", target, spec, token=token)
            except RelayError as failed:
                if attempt < READ_ATTEMPTS and token and not grants_access and self._pause_presence(failed):
                    continue
                self._prepare_retry(failed, grants_access)
                last = failed
        # A later try may succeed, for example if a proxy sends some requests twice.
        raise RelayError("NO_ANSWER", f"the relay refused the read {READ_ATTEMPTS} times: {last}", not_sent=True)

    async def read(self, path: str, query: Mapping[str, str], spec: Spec) -> dict[str, Any]:
        """Sends a GET, in at most EXCHANGE_SECONDS. It retries only a 429 whose Retry-After ends before that time.
        Raises RelayError."""
        pause = Backoff()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + EXCHANGE_SECONDS
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    try:
                        return await self.get(path, query, spec)
                    except RelayError as failed:
                        if failed.status != 429 or not 0 < failed.retry_after < deadline - loop.time():
                            raise
                        last = failed
                    await pause.wait(last.retry_after)
        except TimeoutError:
            raise RelayError("NO_ANSWER", f"the relay did not answer within {EXCHANGE_SECONDS:.0f} s") from None

    async def call(
        self,
        origin: str,
        gateway: str,
        url: str,
        body: Any,
        limit: int,
        *,
        method: str = "",
        sister: bool = False,
    ) -> dict[str, Any]:
        """Sends a signed call to a gateway of the relay: by default a POST of body, or a GET if body is None. url
        begins with the gateway's URL. For sister, see Spec. Raises RelayError."""
        if self.me is None or not url.startswith(gateway + "/") or not gateway.startswith(origin + "/"):
            raise unauthorized("a signed call goes to a gateway of the relay, and needs an identity")
        await self.assure_parties()
        parts = urllib.parse.urlsplit(url)
        target = parts.path + ("?" + parts.query if parts.query else "")
        method = method or ("GET" if body is None else "POST")
        content = None if body is None else canonicalize(body)
        spec = Spec(limit, statuses=(200, 201), sister=sister)
        for attempt in range(1, READ_ATTEMPTS + 1):
            ts = format_time(self.clock() + self._read_correction)
            token = "Agora " + call_token(origin, method, target, content or b"", self.me, ts)
            try:
                async with asyncio.timeout(EXCHANGE_SECONDS):
                    return await self.exchange(method, target, spec, body=content, token=token, base=origin)
            except TimeoutError:
                raise RelayError(
                    "NO_ANSWER", f"the relay did not answer within {EXCHANGE_SECONDS:.0f} s"
                ) from None
            except RelayError as failed:
                if attempt == READ_ATTEMPTS:
                    raise
                self._prepare_retry(failed, True)
        raise AssertionError("unreachable")

    # --- Tokens

    def is_private(self) -> bool:
        """Whether the relay is known to be private, so that all reads are signed."""
        return self._audience != ""

    async def assure_parties(self) -> None:
        """Raises RelayError if private reads are required and the relay does not have them."""
        if self.require_parties:
            await self._find_audience()

    def forget_document(self) -> None:
        """Makes the next read fetch the relay's document again, unless the relay is known to be private."""
        self._fetched_at = None

    async def _token(self, target: str, show_online: bool) -> tuple[str, bool]:
        """The Authorization header for a GET of target; empty: send none. The second value: the token grants access."""
        if target.partition("?")[0] in (WELL_KNOWN, HEALTH) or self.me is None and not self.require_parties:
            return "", False
        audience = await self._find_audience()
        if self.me is None:
            return "", False
        grants_access = audience != ""
        if not grants_access and show_online:
            audience = self._presence_audience()
        if not audience:
            return "", False
        parts = urllib.parse.urlsplit(self.base + target)
        full = (parts.path or "/") + ("?" + parts.query if parts.query else "")
        ts = format_time(self.clock() + self._read_correction)
        return "Agora " + read_token(audience, full, self.me, ts), grants_access

    def _known(self) -> bool:
        recent = self._fetched_at is not None and monotonic() - self._fetched_at < RECHECK_SECONDS
        return recent or self._audience != "" and not self.require_parties

    async def _find_audience(self) -> str:
        """The audience of tokens that grant access; empty: the relay is open. Raises RelayError if that is unknown."""
        if self._known():
            return self._audience
        async with self._fetching:  # one task fetches the document, the others wait for it
            if self._known():
                return self._audience
            try:
                async with asyncio.timeout(EXCHANGE_SECONDS):
                    await self._fetch_audience()
            except TimeoutError:
                raise RelayError("NO_ANSWER", "the relay's document did not come in time", not_sent=True) from None
            return self._audience

    async def _fetch_audience(self) -> None:
        started, base = monotonic(), self.base
        url, reads = await self._fetch_document(base)
        if reads == "parties" and is_other_loopback(url, base):
            # The document names another loopback address. Another process may listen there, so only a document that is
            # fetched from that address counts.
            base = url + urllib.parse.urlsplit(self._given).path
            url, reads = await self._fetch_document(base)
        if reads != "parties" and self.require_parties:
            raise unauthorized(
                "this relay shows messages to everybody, or does not say who can read them; nothing was "
                "sent to it, because this client requires private reads"
            )
        if reads not in ("parties", "open", ""):
            raise unauthorized(
                f'the relay\'s document says "reads":"{reads[:MAX_TEXT]}", which this client does not '
                "know; use a newer client"
            )
        if reads != "parties":
            self._audience = ""
            self._open_audience = url if reads == "open" and same_origin(url, base) else ""
        elif same_origin(url, base):
            self.base, self._audience, self._open_audience = base, url, ""
        else:
            raise unauthorized(
                f"the relay's document says that its URL is {url[:MAX_TEXT]}, but this client was given "
                "another URL; signed reads need the URL from the document, so use that one if you trust it"
            )
        self._fetched_at = started

    async def _fetch_document(self, base: str) -> tuple[str, str]:
        """The members url and reads of the document of the relay at base. If the relay has no document (404), it
        counts as open if it answers an unsigned read for this client's own inbox. Everything else is a temporary
        failure."""
        try:
            doc = await self.exchange("GET", WELL_KNOWN, Spec(MAX_DOCUMENT), base=base)
            self.note(doc)
            url, reads = doc.get("url", ""), doc.get("reads", "")
            if isinstance(url, str) and isinstance(reads, str):
                return url, reads
            failed = RelayError("INVALID_ANSWER", "the relay's document is malformed", status=200)
        except RelayError as err:
            if err.temporary and err.status != 200:
                raise
            failed = err
        if failed.status == 404 and not self.is_private():
            if self.me is None:  # private reads are required; otherwise it needs no document
                if failed.code == "NOT_FOUND":
                    return "", ""
            else:
                inbox = {"recipient": self.me.did, "since": format_time(self.now()), "timeout": "0"}
                try:
                    await self.exchange(
                        "GET",
                        "/events?" + urllib.parse.urlencode(inbox),
                        Spec(MAX_SINCE_PAGE, "events", Envelopes(MAX_SINCE).add),
                        base=base,
                    )
                    return "", ""
                except RelayError as err:
                    failed = err
        raise RelayError(
            "NO_ANSWER",
            "the relay's /.well-known/agora.json cannot be read, so it is unknown who can read "
            f"messages there: {failed}",
            not_sent=True,
            retry_after=failed.retry_after,
        )

    def note(self, doc: Mapping[str, Any]) -> None:
        """Keeps the relay's document, and what it says about posts and proofs."""
        self.document, self.document_at = doc, monotonic()
        self.rate, self.proves = _rate(doc), has_feature(doc, "proofs")

    def _presence_audience(self) -> str:
        paused = self._presence_paused_at
        return "" if paused is not None and monotonic() - paused < RECHECK_SECONDS else self._open_audience

    def _pause_presence(self, failed: RelayError) -> bool:
        """Stops signing reads of an open relay for some minutes if a proxy may have refused the token. Returns whether
        to retry the read."""
        if failed.status not in (401, 403, 431):
            return False
        self._presence_paused_at = monotonic()
        if failed.challenged:  # the relay has become private, so its document has changed
            self._fetched_at = None
        return True

    def _prepare_retry(self, failed: RelayError, signed: bool) -> None:
        """Prepares the retry of a read that the relay refused with 401 and a challenge. Raises the error to report if
        a retry would not help. signed is whether the read had a token that grants access."""
        if not failed.from_relay or failed.status != 401 or not failed.challenged:
            raise failed
        reason = failed.details.get("reason")
        if signed and reason == "time":
            self._correct_reads(failed)
        elif signed and reason == "used":  # the transport or a proxy has sent the request twice
            return
        elif signed or self.me is None:
            raise failed
        else:  # the relay was open when the document was fetched, and has become private since
            self._fetched_at = None

    def _correct_reads(self, failed: RelayError) -> None:
        relay_now = relay_time(failed)
        if relay_now is None:
            raise failed
        difference = relay_now - self.clock()
        if not -MAX_CORRECTION <= difference <= MAX_READ_AHEAD:
            raise unauthorized(
                f"the relay's clock differs from this machine's clock by {abs(difference):.0f} s; set this "
                "machine's clock: the client sets the time of signed reads forward by 15 minutes at most, "
                "and back by a day at most"
            )
        corrected = self._read_corrected_at
        if corrected is not None and monotonic() - corrected < RECHECK_SECONDS:
            raise RelayError(
                "NO_ANSWER",
                "the relay refuses the time of a signed read again, although it was corrected "
                f"less than 5 minutes ago: {failed}",
                not_sent=True,
            )
        self._read_correction, self._read_corrected_at = difference, monotonic()


def has_feature(document: Mapping[str, Any], name: str) -> bool:
    """Whether a relay's document has a feature."""
    features = document.get("features")
    return isinstance(features, list) and name in features


def monotonic() -> float:
    """The time of the loop's clock, for delays."""
    return asyncio.get_running_loop().time()


def unauthorized(message: str) -> RelayError:
    """The error of a read or post that this client does not send. A retry would fail in the same way."""
    return RelayError("UNAUTHORIZED", message, status=401, not_sent=True)


def relay_time(refusal: Refused) -> float | None:
    """The time on the relay's clock in an error, in seconds since 1970, or None."""
    try:
        return instant(refusal.details.get("now")) / SECOND
    except Refused:
        return None


def _rate(doc: Mapping[str, Any]) -> tuple[float, float] | None:
    """The document's limit on the posts of one sender, or None if it is absent or out of range."""
    value: Any = doc
    for name in ("limits", "rates", "postsPerAgent"):
        value = value.get(name) if isinstance(value, dict) else None
    if not isinstance(value, dict):
        return None
    per_second, burst = value.get("perSecond"), value.get("burst")
    if not isinstance(per_second, (int, float)) or not isinstance(burst, (int, float)):
        return None
    return (float(per_second), float(burst)) if 0.01 <= per_second <= 1e6 and 1 <= burst <= 1e6 else None

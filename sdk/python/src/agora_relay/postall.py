"""Posts many messages that are signed already, in few requests (PROTOCOL §5). POST /events/bulk takes one on each line.
At a relay without it, the messages are posted one by one."""
from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Iterable

from .answer import MAX_BULK, MAX_RETRY_AFTER, MAX_TEXT, Spec
from .envelope import Envelope, check_envelope
from .errors import AgoraError, Refused, RelayError, UnknownOutcome
from .jsontext import canonicalize
from .links import home_of
from .protocol import SETTLES, STATUS
from .proving import asks, proved
from .records import Receipt, malformed
from .session import EXCHANGE_SECONDS, Session
from .waiting import POST_PATIENCE, Backoff

if TYPE_CHECKING:
    from .client import Client

log = logging.getLogger("agora_relay")

# A request has at most this many messages and bytes. A relay takes more, but in small requests a failure makes the
# client repeat less.
BULK_MESSAGES = 1000
BULK_BYTES = 4 << 20
BULK_SECONDS = 3 * EXCHANGE_SECONDS  # for one request; a relay works on it for a minute at most


async def post_all(
    client: Client, session: Session, envelopes: Iterable[Envelope], attempts: int
) -> list[Receipt | AgoraError]:
    """See Client.post_all."""
    bulk = _Bulk(client, session, list(envelopes))
    await bulk.run(attempts)
    return [bulk.outcomes[i] for i in range(len(bulk.envelopes))]


class _Bulk:
    """One call of post_all."""

    def __init__(self, client: Client, session: Session, envelopes: list[Envelope]):
        self.client, self.session, self.envelopes = client, session, envelopes
        self.target = "/events/bulk"
        self.outcomes: dict[int, Receipt | AgoraError] = {}
        self.pending = list(range(len(envelopes)))  # the messages without an outcome, in order
        self.unknown: set[int] = set()  # the messages that an earlier attempt may have stored
        self.refusals: dict[int, RelayError] = {}  # the last one of each message
        self.size = BULK_MESSAGES  # how many messages to send in the next request

    async def run(self, attempts: int) -> None:
        """Sends requests until every message has an outcome."""
        pause, attempt = Backoff(), 0
        await self.leave_out_strangers()
        with contextlib.suppress(RelayError):  # if the document cannot be read now, the receipts come without proofs
            if self.pending and await asks(self.client):
                self.target += "?proofs=true"
        while self.pending:
            lines = await asyncio.to_thread(self.chunk)  # other tasks need the loop meanwhile
            if not lines:
                continue
            attempt, settled = attempt + 1, 0
            failed: RelayError | None
            try:
                results, stopped = await self.request(lines)
            except RelayError as err:
                if err.status in (404, 405):
                    return await self.one_by_one()
                failed = err
                if not failed.no_effect:
                    self.unknown.update(self.pending[: len(lines)])
            else:
                settled, failed = self.settle(len(lines), await self.proved(results), stopped)
                if settled:
                    attempt = 0
                    pause.reset()
                # After a refusal the relay takes no more at the moment.
                self.size = max(settled, 1) if failed else min(2 * self.size, BULK_MESSAGES)
            if not failed or not self.pending:
                continue
            if failed.status == 413 and len(lines) > 1:
                self.size = len(lines) // 2
            elif failed.status == 413:
                self.give_up(failed, 1)  # the relay takes this message in no request
            elif not failed.temporary or _too_long(failed) or attempt >= attempts:
                self.give_up(failed, len(self.pending))
            else:
                level = logging.INFO if settled else logging.WARNING
                log.log(level, "posting %d messages will be continued: %s", len(self.pending), failed)
                await pause.wait(min(failed.retry_after, POST_PATIENCE))

    def chunk(self) -> list[bytes]:
        """The messages of the next request, in canonical form: the first ones that are pending. A message that is not
        valid gets its error, and is not sent."""
        lines: list[bytes] = []
        chosen: list[int] = []
        seen = total = 0
        for i in self.pending[: self.size]:
            try:
                line = canonicalize(check_envelope(self.envelopes[i], max_bytes=BULK_BYTES))
            except Refused as err:
                self.outcomes[i] = err
            else:
                total += len(line) + 1
                if total > BULK_BYTES and lines:
                    break
                lines.append(line)
                chosen.append(i)
            seen += 1
        self.pending[:seen] = chosen
        return lines

    async def leave_out_strangers(self) -> None:
        """Gives the messages whose home is another relay their error (RELAYS R-4)."""
        silent: RelayError | None = None
        for i in [i for i in self.pending if home_of(self.envelopes[i])]:
            try:
                if silent:
                    raise silent
                await self.client.assure_home(self.envelopes[i])
            except RelayError as err:
                self.outcomes[i] = silent = err
            except Refused as err:
                self.outcomes[i] = err
        self.pending = [i for i in self.pending if i not in self.outcomes]

    async def request(self, lines: list[bytes]) -> tuple[list[Receipt | RelayError], RelayError | None]:
        """Sends one request with the first messages that are pending. Returns the result of each line, and why the
        relay has stopped before the last one. Raises RelayError."""
        results: list[Receipt | RelayError] = []

        def take(text: bytes) -> None:
            if len(results) == len(lines):
                raise malformed("it has more results than the request has messages")
            results.append(_result(json.loads(text), self.envelopes[self.pending[len(results)]]))

        try:
            async with asyncio.timeout(BULK_SECONDS):
                await self.session.assure_parties()
                answer = await self.session.exchange(
                    "POST",
                    self.target,
                    Spec(MAX_BULK, "results", take),
                    body=b"".join(line + b"\n" for line in lines),
                )
        except TimeoutError:
            raise RelayError("NO_ANSWER", f"the relay did not answer within {BULK_SECONDS:.0f} s") from None
        stopped = answer.get("stopped")
        if stopped is None and len(results) < len(lines):
            raise malformed("it has fewer results than the request has messages")
        return results, None if stopped is None else _refusal(stopped)

    async def proved(self, results: list[Receipt | RelayError]) -> list[Receipt | RelayError | UnknownOutcome]:
        """The results after the proofs of the receipts were checked."""
        checked: list[Receipt | RelayError | UnknownOutcome] = []
        for result in results:
            await asyncio.sleep(0)  # other tasks need the loop meanwhile
            try:
                checked.append(await proved(self.client, result) if isinstance(result, Receipt) else result)
            except UnknownOutcome as err:
                checked.append(err)
        return checked

    def settle(
        self, sent: int, results: list[Receipt | RelayError | UnknownOutcome], stopped: RelayError | None
    ) -> tuple[int, RelayError | None]:
        """Records the results of a request with sent messages. Returns how many messages have got an outcome, and why
        the next one has none; None: the next request may follow at once."""
        left: list[int] = []
        failed: RelayError | None = None
        for i, result in zip_longest(self.pending[:sent], results):
            if isinstance(result, (Receipt, UnknownOutcome)):
                self.outcomes[i] = result
                continue
            reason = result or stopped
            if reason and not reason.no_effect:
                self.unknown.add(i)
            if result:
                self.refusals[i] = result
                if result.temporary and not _too_long(result):
                    failed = failed or result
            if result and not failed:
                self.outcomes[i] = self.outcome(i, result)
            else:
                # A message behind one that is refused for the moment may depend on it. So it is sent again too.
                left.append(i)
        self.pending[:sent] = left
        if stopped and not stopped.temporary and not results:
            self.give_up(stopped, 1)  # the relay takes this message in no request
        settled = sent - len([i for i in left if i not in self.outcomes])
        return settled, failed or (stopped if stopped and stopped.temporary else None)

    def outcome(self, i: int, failed: RelayError) -> AgoraError:
        """The error of message i after its last attempt has failed."""
        proven = failed.from_relay and failed.code in SETTLES
        if i in self.unknown and not proven:
            return UnknownOutcome(failed, self.envelopes[i])
        return failed

    def give_up(self, failed: RelayError, n: int) -> None:
        """Ends the first n pending messages. A message that was refused keeps its own error."""
        for i in self.pending[:n]:
            self.outcomes[i] = self.outcome(i, self.refusals.get(i, failed))
        del self.pending[:n]

    async def one_by_one(self) -> None:
        """Posts the pending messages each in its own request, until the relay does not answer any more."""
        lost: RelayError | None = None
        for i in self.pending:
            if lost:
                self.outcomes[i] = self.outcome(i, lost)
                continue
            try:
                self.outcomes[i] = await self.client.post_envelope(self.envelopes[i])
            except RelayError as err:
                self.outcomes[i] = self.outcome(i, err)
                lost = err if err.temporary else None
            except AgoraError as err:
                self.outcomes[i] = err
                cause = err.__cause__
                lost = cause if isinstance(cause, RelayError) and cause.temporary else None
        self.pending = []


def _too_long(failed: RelayError) -> bool:
    """Whether the relay asks for a longer delay than post waits."""
    return failed.no_effect and failed.retry_after > POST_PATIENCE


def _result(member: Any, envelope: Envelope) -> Receipt | RelayError:
    """What became of one message. Raises RelayError if member is malformed, or is about another message."""
    if not isinstance(member, dict):
        raise malformed("a result is not an object")
    return _refusal(member) if member.get("error") else Receipt.of(member, envelope)


def _refusal(member: Any) -> RelayError:
    """The relay's refusal of one message, or the reason why it has stopped. Raises RelayError if it is malformed."""
    code = member.get("error") if isinstance(member, dict) else None
    if not isinstance(code, str) or not code:
        raise malformed("a refusal has no code")
    message, delay, details = member.get("message"), member.get("retryAfter"), member.get("details")
    seconds = delay if isinstance(delay, (int, float)) and not isinstance(delay, bool) else 0
    return RelayError(
        code[:MAX_TEXT],
        message[:MAX_TEXT] if isinstance(message, str) else "",
        status=STATUS.get(code, 400),  # a code that this client does not know is no reason to try again
        retry_after=float(min(max(seconds, 0), MAX_RETRY_AFTER)),
        details=details if isinstance(details, dict) else None,
    )

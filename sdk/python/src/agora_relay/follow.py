"""The poll loop: reads the events of a relay, in the relay's order, and loses none."""
from __future__ import annotations

import asyncio
import dataclasses
import datetime
import functools
import inspect
import os
from typing import Any, Awaitable, Callable, Mapping, Protocol

from .answer import MAX_POLL, MAX_SINCE, MAX_SINCE_PAGE, Envelopes, Spec, log
from .didkey import Identity
from .envelope import SECOND, Envelope, format_time, instant, thread_of
from .errors import AgoraError, RelayError, Refused
from .files import MAX_CURSOR
from .links import content_hash
from .sealing import is_sealed, open_payload
from .session import EXCHANGE_SECONDS, Session
from .waiting import MAX_PAUSE, READ_PATIENCE, Backoff, Recent

POLL_SECONDS = 30  # how long a relay waits for new events before it answers a poll
QUICK_SECONDS = 5.0  # a poll that ends before this time without news is followed by a pause
HELD_SECONDS = 2.0  # a poll that fails after this time was held by a working relay, so the next pause is short
PAGE = 100  # events in a page
SEEN = 4096  # how many events a reader remembers, to recognize repeats
OLDEST = "0"  # the cursor before the relay's oldest event


class CursorStore(Protocol):
    """Stores the position of a reader durably. Use one for each reader of one relay. Both methods may be async."""

    def load(self) -> str | None | Awaitable[str | None]:
        """The cursor that was saved last, or None."""

    def save(self, cursor: str) -> None | Awaitable[None]:
        """Stores the cursor. It is not called concurrently."""


async def load_cursor(store: CursorStore | None) -> str:
    """The saved cursor of a store; empty: there is none. Raises TypeError for a path."""
    if isinstance(store, (str, bytes, os.PathLike)):
        raise TypeError(f"the cursor must be a store, and not a path; pass FileCursor({os.fspath(store)!r})")
    value = store.load() if store else None
    return (await value if inspect.isawaitable(value) else value) or ""


async def save_cursor(store: CursorStore | None, cursor: str) -> None:
    """Saves a cursor in a store, if there is one."""
    done = store.save(cursor) if store else None
    if inspect.isawaitable(done):
        await done


@dataclasses.dataclass(frozen=True)
class Filter:
    """Selects events. An event must match all members that are set."""

    recipient: str | None = None
    broadcast: bool = False
    """With recipient: also select events without a recipient."""
    sender: str | None = None
    type: str | None = None
    thread: str | None = None

    def matches(self, event: Event) -> bool:
        """Whether the filter selects an event."""
        to_me = (
            self.recipient is None or event.recipient == self.recipient or self.broadcast and event.recipient is None
        )
        return (
            to_me
            and self.sender in (None, event.sender)
            and self.type in (None, event.type)
            and self.thread in (None, event.thread)
        )

    def query(self) -> dict[str, str]:
        """The parameters of GET /events."""
        members = {"recipient": self.recipient, "sender": self.sender, "type": self.type, "thread": self.thread}
        query = {name: value for name, value in members.items() if value}
        return query | {"broadcast": "true"} if self.broadcast and self.recipient else query


@dataclasses.dataclass(frozen=True, eq=False)
class Event:
    """A verified message. payload is the payload of envelope, decrypted if it was sealed to this client."""

    envelope: Envelope
    """The message as its sender has signed it."""
    payload: dict[str, Any]
    opened: bool
    """Whether the payload was sealed and is decrypted."""

    @classmethod
    def of(cls, envelope: Envelope, me: Identity | None) -> Event:
        """The event of a verified envelope. A payload that is sealed to me is opened, if possible."""
        if me and is_sealed(envelope) and envelope.get("recipient", {}).get("id") == me.did:
            try:
                return cls(envelope, open_payload(envelope, me), True)
            except Refused:
                log.info(
                    "the sealed message %s of %s cannot be decrypted with this client's key",
                    envelope["id"],
                    envelope["sender"]["id"],
                )
        return cls(envelope, envelope["payload"], False)

    @property
    def id(self) -> str:
        """The id that the sender gave the message."""
        return str(self.envelope["id"])

    @property
    def type(self) -> str:
        """REQUEST, OFFER, ACCEPT, RESULT, ERROR, CANCEL or MANIFEST."""
        return str(self.envelope["type"])

    @property
    def sender(self) -> str:
        """The did:key of the sender."""
        return str(self.envelope["sender"]["id"])

    @property
    def recipient(self) -> str | None:
        """The did:key of the recipient; None: a broadcast."""
        return self.envelope["recipient"]["id"] if "recipient" in self.envelope else None

    @property
    def thread(self) -> str:
        """The id of the thread; empty for a MANIFEST."""
        return "" if self.type == "MANIFEST" else str(thread_of(self.envelope))

    @property
    def request_id(self) -> str:
        """payload.request_id, or an empty text."""
        return str(self.envelope["payload"].get("request_id", ""))

    @property
    def ts(self) -> float:
        """The time that the sender claims, in seconds since 1970."""
        return instant(self.envelope["ts"]) / SECOND

    @functools.cached_property
    def hash(self) -> str:
        """The content hash of the message, in lower-case hex."""
        return content_hash(self.envelope)

    @property
    def sealed(self) -> bool:
        """Whether the payload was sealed."""
        return is_sealed(self.envelope)

    @property
    def closed(self) -> bool:
        """Whether the payload is sealed and not opened. Then it shows only its clear members."""
        return self.sealed and not self.opened

    def text(self, name: str) -> str:
        """A member of the payload that is a text; else an empty text."""
        value = self.payload.get(name)
        return value if isinstance(value, str) else ""


@dataclasses.dataclass
class _Page:
    events: list[Event]  # valid, and matching the filter
    received: int
    cursor: str


class Follower:
    """Polls for the events that match a filter. One task uses it. Call begin first, and then step again and again."""

    def __init__(
        self,
        session: Session,
        filter: Filter,
        *,
        from_oldest: bool = False,
        since: float | None = None,
        page: int = PAGE,
    ):
        self._session, self._filter, self._page, self._limit = session, filter, page, page
        self._since, self.cursor = since, OLDEST if from_oldest else ""
        self._seen: Recent[str, None] = Recent(SEEN)
        self._pause = Backoff()
        self._delay = 0.0  # seconds until the next poll
        self.failing_since: float | None = None  # since when each poll gets no valid answer, on the loop's clock
        self.idle: Callable[[], Awaitable[None]] | None = None
        """Called after each answer without new events."""
        self.on_page: Callable[[list[Event], str], Awaitable[None]]
        """Called with the new events of an answer, and the cursor after them. There may be no events."""

    def begin(self, saved: str) -> None:
        """Sets where to begin: at the saved cursor if it is not empty."""
        self.cursor = saved or self.cursor
        if not self.cursor and self._since is None:
            self._since = self._session.now()

    def is_new(self, event: Event) -> bool:
        """Whether the event was not seen before. It remembers the event."""
        return self._seen.add(event.hash, None)

    async def step(self) -> None:
        """Polls once and handles the answer. If a poll brings nothing new and ends quickly, the next one begins after
        a pause, whatever the reason. So no relay can make a reader poll in a hot loop. Raises RelayError if a retry
        would not help."""
        delay, self._delay = self._delay, 0.0
        if delay:
            await asyncio.sleep(delay)
        loop = asyncio.get_running_loop()
        began, first = loop.time(), not self.cursor
        try:
            page = await self._poll()
        except RelayError as failed:
            self.failing_since = None if failed.is_answer else self.failing_since or began
            if loop.time() - began >= HELD_SECONDS:
                self._pause.reset()
            self._recover(failed)
            return
        except AgoraError:
            raise
        except Exception:  # a defect of this package: what a relay sends must not end a reader
            log.exception("reading an answer of the relay failed, will be retried")
            self._delay = self._pause.next()
            return
        self._limit, self.failing_since = min(self._limit * 2, self._page), None
        quick = loop.time() - began < QUICK_SECONDS
        if not quick:
            self._pause.reset()
        events = [event for event in page.events if self.is_new(event)]
        moved = page.cursor != self.cursor
        if moved or events:
            await self.on_page(events, page.cursor)
            self.cursor = page.cursor
        if events:
            self._pause.reset()
            return
        if not first and quick:  # after known events the reader continues after a short pause
            self._delay = self._pause.next(0.0, 1.0 if moved and page.received else MAX_PAUSE)
        if self.idle:
            await self.idle()

    def _recover(self, failed: RelayError) -> None:
        if failed.details.get("reason") == "unknown_cursor":
            log.warning(
                "the relay does not know the saved cursor, so it has probably lost its data; reading again from "
                "the relay's oldest event"
            )
            self.cursor = OLDEST
            self._session.forget_document()  # its cursors change between open and private
        elif failed.from_relay and not failed.temporary:
            raise failed
        else:
            log.warning("polling failed, will be retried: %s", failed)
            if not failed.is_answer:
                self._session.document = None  # another relay may answer there now
        if failed.details.get("reason") == "too_long":
            self._limit = max(self._limit // 2, 1)  # a smaller page may fit
        self._delay = self._pause.next(min(failed.retry_after, READ_PATIENCE))

    async def _poll(self) -> _Page:
        query = self._filter.query() | {"limit": str(self._limit)}
        if self.cursor:
            envelopes, most = Envelopes(self._limit), MAX_POLL
            query |= {"cursor": self.cursor, "timeout": str(POLL_SECONDS)}
        else:
            envelopes, most = Envelopes(MAX_SINCE), MAX_SINCE_PAGE
            query |= {"since": format_time(self._since or 0.0), "timeout": "0"}
        try:
            async with asyncio.timeout(POLL_SECONDS + EXCHANGE_SECONDS):
                answer = await self._session.get(
                    "/events", query, Spec(most, "events", envelopes.add), show_online=True
                )
        except TimeoutError:
            raise RelayError("NO_ANSWER", "the relay did not answer the poll") from None
        cursor = cursor_of(answer)
        if not cursor:
            raise RelayError("INVALID_ANSWER", "the relay's answer has no cursor", status=200)
        return _Page(wanted(self._session.me, envelopes, self._filter.matches), envelopes.received, cursor)


def cursor_of(answer: Mapping[str, Any]) -> str:
    """The cursor of an answer; absent: empty. Raises RelayError if it is malformed or too long."""
    cursor = answer.get("cursor", "")
    if not isinstance(cursor, str) or len(cursor) > MAX_CURSOR:
        raise RelayError("INVALID_ANSWER", "the cursor in the relay's answer is malformed or too long", status=200)
    return cursor


def wanted(me: Identity | None, envelopes: Envelopes, select: Callable[[Event], bool]) -> list[Event]:
    """The valid events that were asked for. It logs those that it skips."""
    envelopes.log()
    events = [Event.of(e, me) for e in envelopes.valid]
    selected = [event for event in events if select(event)]
    if len(selected) < len(events):
        log.warning("%d events were skipped because they were not requested", len(events) - len(selected))
    return selected


def seconds_of(time: datetime.datetime) -> float:
    """Converts a datetime to seconds since 1970. Raises ValueError if it has no time zone."""
    if time.tzinfo is None:
        raise ValueError("the datetime needs a time zone, such as datetime.timezone.utc")
    return time.timestamp()

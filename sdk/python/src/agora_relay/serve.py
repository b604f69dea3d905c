"""The agent's side: answers REQUESTs with OFFERs, does the work when an offer is accepted, and posts the RESULT.

A directed REQUEST for another intent gets the ERROR INTENT_NOT_SUPPORTED. If the budget of a directed REQUEST is
below the price, it gets INSUFFICIENT_BUDGET. In both cases a broadcast REQUEST is ignored. A client that seals its
messages gets sealed answers. If a sealed message cannot be decrypted, the answer is INVALID_REQUEST, always with the
same message.

If more REQUESTs arrive than the relay's rate allows to answer, they are answered in three groups: those of clients
for which the agent has worked, then those that name this agent, then the other broadcasts. Every fourth turn takes
the groups in reverse order. Within a group the client with the fewest turns comes first. Accepted work never waits
for REQUESTs.

For each event the agent reads the state of the thread from the relay, and then posts the next message. After a crash
between ACCEPT and RESULT the saved cursor is before the ACCEPT, so the work is done again. Without a saved cursor the
agent begins with the relay's oldest message. That takes time, but loses nothing: the record of each thread shows what
was already handled. What an agent knows of its jobs is in a Book: in memory, or in the file of State. In memory, work
is done at least once, and only one RESULT counts."""
from __future__ import annotations

import asyncio
import dataclasses
import sys
from typing import TYPE_CHECKING, Any, Callable, Container, Coroutine, Iterable, Mapping

from .answer import log, permanent, retry_after_of
from .desk import Desk
from .errors import AgoraError, RelayError
from .follow import CursorStore, Event, Filter, Follower, load_cursor
from .jsontext import canonicalize
from .links import flaw, home_of
from .pace import DEFAULT_RATE, Pace
from .payloads import Job, Price, price_of
from .progress import Page, Progress
from .queue import Key, Queue, Queued
from .run import Run
from .session import Session
from .state import State
from .waiting import POST_PATIENCE, READ_PATIENCE, Backoff, Recent

if TYPE_CHECKING:
    from .client import Client

MAX_ACCEPTS = 1024  # how many ACCEPTs are handled at once; with more, the agent stops reading, also CANCELs
MAX_REMEMBERED = 32 << 10  # bytes of the largest REQUEST that an agent keeps in memory; it keeps MAX_ACCEPTS of them
LOG_SECONDS = 10.0  # the shortest time between two log lines about dropped REQUESTs


@dataclasses.dataclass(frozen=True)
class Service:
    """What an agent serves: the arguments of Client.serve."""

    intents: list[str]
    quote: Callable[[Job], Any]
    manifest: dict[str, Any] | None
    concurrency: int
    quote_seconds: float
    dropped: Callable[[Event], None] | None

    @classmethod
    def of(
        cls,
        intents: str | Iterable[str],
        work: Callable[[Job], Any],
        *,
        quote: Callable[[Job], Any] | None,
        price: float | Price | None,
        manifest: Mapping[str, Any] | None,
        concurrency: int,
        quote_seconds: float,
        dropped: Callable[[Event], None] | None,
        state: State | None,
        attempts: int,
    ) -> tuple[Service, Desk]:
        """Checks the arguments. Raises TypeError and ValueError."""
        names = [intents] if isinstance(intents, str) else list(intents)
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ValueError("serve needs at least one intent, such as 'translation.en_zh'")
        if not callable(work):
            raise TypeError("work must be a function, such as lambda job: job.params")
        if quote is not None and not callable(quote):
            raise TypeError("quote must be a function, such as lambda job: 0.01")
        if concurrency < 1 or attempts < 1:
            raise ValueError("concurrency and attempts must be 1 or more")
        every = price_of(0.0 if price is None else price)
        payload: dict[str, Any] | None = None
        if manifest is not None:
            payload = {"id": "main", "intents": [{"id": name} for name in names]}
            payload |= {"pricing": every.pricing()} if price is not None or quote is None else {}
            payload |= manifest
        # Without a file, work is done at least once.
        desk = Desk(state or State(), work, concurrency, attempts if state and state.path else sys.maxsize)
        return cls(names, quote or (lambda job: every), payload, concurrency, quote_seconds, dropped), desk


class Agent:
    """An agent at one relay, during one call of serve. route returns the agent that handles a message of a client, and
    None if the message is ignored; by default it is this one. store has the position, or else store_of says which one
    does."""

    desk: Desk
    ending: bool
    intents: list[str]
    me: str
    pace: Pace
    queue: Queue
    quote: Callable[[Job], Any]
    quote_seconds: float
    read_slots: asyncio.Semaphore
    session: Session

    def __init__(
        self,
        client: Client,
        service: Service,
        desk: Desk,
        store: CursorStore | None = None,
        *,
        store_of: Callable[[str], CursorStore] | None = None,
        route: Callable[[Agent, Event], Agent | None] = lambda agent, event: agent,
        from_oldest: bool = True,
    ):
        self.client, self.session, self.me = client, client._session, client.identity().did
        self.intents, self.quote, self.quote_seconds = service.intents, service.quote, service.quote_seconds
        self.desk, self._route = desk, route
        self._manifest, self._on_dropped = service.manifest, service.dropped
        self._from_oldest = from_oldest
        self._store_of, concurrency = store_of, service.concurrency
        self.queue, self.pace = Queue(), Pace()
        self.progress = Progress(store)
        self._accept_slots = asyncio.Semaphore(MAX_ACCEPTS)  # one for each ACCEPT that is being handled
        self.read_slots = asyncio.Semaphore(concurrency)  # one for each read of the thread or proof of an ACCEPT
        self._answer_slots = asyncio.Semaphore(concurrency)  # one for each REQUEST that is being answered
        self._running: dict[Key, Run] = {}  # the threads that are being handled
        self._requests: Recent[Key, Event] = Recent(MAX_ACCEPTS)
        self._dropped, self._dropped_logged = 0, float("-inf")
        self._tasks: set[asyncio.Task[None]] = set()
        self.ending = False
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Runs until it is cancelled or fails. No task of the agent runs when it returns."""
        saved = await load_cursor(self.progress.store)
        self.start(self._poll(saved))
        self.start(self._answer_all())
        if self._manifest is not None:
            self.start(self._announce(self._manifest))
        try:
            await self._failed
        finally:
            self.ending = True
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def start(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs a job in a task. If it fails, the whole agent fails."""
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (err := task.exception()) and not self._failed.done():
            self._failed.set_exception(err)

    # --- Reading

    async def _poll(self, saved: str) -> None:
        if self._store_of:
            self.progress.store = self._store_of(await self.client._patient_did())
            saved = await load_cursor(self.progress.store)
        follower = Follower(self.session, Filter(recipient=self.me, broadcast=True), from_oldest=self._from_oldest)
        follower.on_page = self._page
        follower.begin(saved)
        while True:
            await follower.step()

    async def _page(self, events: list[Event], cursor: str) -> None:
        """Starts to handle a page of events."""
        page = self.progress.begin(cursor)
        for event in events:
            agent = None if event.sender == self.me else self._route(self, event)
            if agent and self.desk.inbox.is_new(event, self.client.now(), by_home=agent is self):
                page.hold()
                await agent.take(event, page)
        await page.release()

    async def take(self, event: Event, page: Page) -> None:
        """Starts to handle an event, which has a hold of the page."""
        key = event.sender, event.thread
        if event.type in ("CANCEL", "ERROR"):
            await self._client_ended(key, event)
        elif event.type == "REQUEST" and (event.recipient or self.serves(event)):
            await self._drop(self.queue.put(Queued(key, event, page), self.clock()))
            return
        elif event.type == "ACCEPT":
            queued = self.queue.withdraw(key)
            if queued:
                self.remember(key, queued.event)
                await self._done(queued.event, queued.page)
            await self._accept_slots.acquire()
            self.start(self._handle_accept(key, event, page))
            return
        await self._done(event, page)

    async def _done(self, event: Event, page: Page) -> None:
        """Records that an event was handled."""
        self.desk.inbox.done(event, self.client.now())
        await page.release()

    def serves(self, request: Event) -> bool:
        """Whether a REQUEST is for one of the agent's intents."""
        return request.text("intent") in self.intents

    def remember(self, key: Key, request: Event) -> None:
        """Keeps a client's REQUEST in memory, unless it is too large."""
        if len(canonicalize(request.envelope)) <= MAX_REMEMBERED:
            self._requests.add(key, request)

    def remembered(self, key: Key) -> Event | None:
        """The REQUEST of a thread, if it is in memory."""
        return self._requests.get(key)

    def counts(self, event: Event, request: Event, answers: Container[str]) -> bool:
        """Whether a message of a client names the home of its REQUEST and the message that it answers (RELAYS R-3,
        R-7)."""
        why = flaw(event.envelope, home_of(request.envelope), answers)
        if why:
            log.warning("the %s %s of %s is ignored: %s", event.type, event.id, event.sender, why)
        return not why

    async def _client_ended(self, key: Key, event: Event) -> None:
        """Ends the agent's work on a thread after the client has ended the thread."""
        queued, run = self.queue.find(key), self._running.get(key)
        request = queued.event if queued else run.request if run else None
        if request and not self.counts(event, request, {request.hash, run.event.hash if run else ""}):
            return
        if self.queue.withdraw(key) and queued:
            await self._done(queued.event, queued.page)
        if run:
            if run.job:
                self.desk.ended(*run.job, self.client.now())
            run.give_up()

    def clock(self) -> float:
        """The time of a monotonic clock, for delays."""
        return asyncio.get_running_loop().time()

    # --- Accepted offers

    async def _handle_accept(self, key: Key, event: Event, page: Page) -> None:
        run = Run(self, key, event)
        try:
            while current := self._running.get(key):  # one run at a time works on a thread
                await current.ended.wait()
            await self._guard(run, self._accepted(run))
            await self._done(event, page)
        finally:
            self._accept_slots.release()

    async def _accepted(self, run: Run) -> AgoraError | None:
        """Handles an ACCEPT, and retries after temporary failures."""
        pause = Backoff()
        while not run.is_over():
            try:
                await run.step()
                return None
            except AgoraError as err:
                if permanent(err):
                    return err
                delay = min(retry_after_of(err), POST_PATIENCE)  # the thread may end during a longer pause
                log.warning("handling an ACCEPT of %s failed, will be retried: %s", run.key[0], err)
            await pause.wait(delay)
        return None

    async def _guard(self, run: Run, job: Coroutine[Any, Any, AgoraError | None]) -> AgoraError | None:
        """Registers a run while it works on its thread. Returns the error of the job, or None if the client has ended
        the thread meanwhile. If the whole agent ends, it raises CancelledError, and the event counts as not handled.
        """
        self._running[run.key] = run
        err: AgoraError | None = None
        try:
            err = await job
        except asyncio.CancelledError:
            if self.ending or not run.given_up:
                raise
            run.task.uncancel()
            log.info("the client %s has ended the thread %s, or has continued the job in a newer one", *run.key)
        except OSError:  # the file of State cannot be written: without it, the agent could work twice
            raise
        except Exception:  # a defect: one message of a client must not end the agent
            log.exception("handling a message of %s failed", run.key[0])
        finally:
            del self._running[run.key]
            if run.job:
                self.desk.leave(run.job[0], run)
            run.ended.set()
        if err and permanent(err):
            log.info("the agent does nothing more in the thread %s of %s: %s", run.key[1], run.key[0], err)
        return err

    # --- Offers

    async def _answer_all(self) -> None:
        while True:
            await self._answer_slots.acquire()
            self.start(self._answer(await self._next()))

    async def _next(self) -> Queued:
        """Waits for the next REQUEST to answer."""
        while True:
            self.queue.added.clear()
            w, late, wait = self.queue.next(self.clock(), self.pace)
            await self._drop(late)
            if w:
                return w
            try:
                async with asyncio.timeout(wait):
                    await self.queue.added.wait()
            except TimeoutError:
                pass

    async def _answer(self, w: Queued) -> None:
        """Answers a REQUEST, if it still needs an answer. After a temporary failure it goes back into the queue."""
        run = Run(self, w.key, w.event, w.unposted)
        try:
            err = None
            if w.key not in self._running:  # else another run handles a later message of the thread
                err = await self._guard(run, _outcome(run))
            if not run.tried_post:
                self.pace.refund(self.clock())
            if err and not permanent(err):
                log.warning("answering a REQUEST of %s failed, will be retried: %s", w.key[0], err)
                w.unposted = run.unposted
                self._postpone(w, err)
                await self._drop(self.queue.put_back(w))
            else:
                await self._done(w.event, w.page)
        finally:
            run.caller.after_threads(self._answer_slots.release)

    def _postpone(self, w: Queued, err: AgoraError) -> None:
        """Decides when to retry a REQUEST. If the relay limits the rate of this agent or of its address, all other
        REQUESTs wait as well. If the inbox of the client is full, only this REQUEST waits."""
        now, delay = self.clock(), min(retry_after_of(err), POST_PATIENCE)
        w.not_before = now + w.pause.next(delay)
        if not isinstance(err, RelayError) or err.code != "RATE_LIMITED":
            return
        limit = err.details.get("limit")
        if limit == "inbox":
            return
        if limit == "postsPerAgent":
            self.pace.limited(self.session.rate or DEFAULT_RATE, delay, now)
        elif limit in ("postsPerAddress", "readsPerAddress"):
            self.pace.close(delay, now)
        else:  # a limit that this client does not know
            self.pace.close(min(delay, 1.0), now)
            return
        w.not_before = 0.0  # the pace delays this REQUEST

    async def _drop(self, dropped: list[Queued]) -> None:
        """Reports REQUESTs that get no answer, and releases their pages."""
        for w in dropped:
            self._dropped += 1
            if self.clock() - self._dropped_logged >= LOG_SECONDS:
                self._dropped_logged = self.clock()
                log.warning(
                    "REQUESTs were dropped without an answer, because too many were waiting, or their ttl ended: "
                    "%d in total",
                    self._dropped,
                )
            if self._on_dropped:
                self._on_dropped(w.event)
            await self._done(w.event, w.page)

    async def _announce(self, manifest: dict[str, Any]) -> None:
        """Posts the manifest, and posts it again after half of its lifetime in the relay."""
        pause = Backoff()
        while True:
            self.pace.spend(self.clock())
            try:
                receipt = await self.client.post("MANIFEST", manifest)
                pause.reset()
                expires = receipt.expires_at.timestamp() if receipt.expires_at else 0.0
                delay = max((expires - self.client.now()) / 2, 60.0)
            except AgoraError as err:
                if permanent(err):
                    log.error("the manifest was refused, and will not be posted again: %s", err)
                    return
                log.warning("posting the manifest failed, will be retried: %s", err)
                delay = min(retry_after_of(err), READ_PATIENCE)
            await pause.wait(delay)


async def _outcome(run: Run) -> AgoraError | None:
    try:
        await run.step()
    except AgoraError as err:
        return err
    return None

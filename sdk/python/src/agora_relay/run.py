"""What an agent does in one thread to handle one event: a REQUEST or an ACCEPT."""
from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from typing import TYPE_CHECKING, Any, Callable, Mapping, TypeVar

from .answer import log, permanent
from .chain import home_of, links
from .errors import AgentError, RelayError, Refused
from .follow import Event
from .payloads import Delivery, Job, Quote, comparable, failure, read_time
from .protocol import MOVED_ON
from .proving import objection
from .records import Thread

if TYPE_CHECKING:
    from .serve import Agent

T = TypeVar("T")

# How far the relay's clock can differ from this machine's clock before the relay refuses its messages (PROTOCOL §1).
# Work may continue for this long after the thread's deadline, because this machine's clock may be fast.
CLOCK_SKEW = 300.0

# It does not contain the cause, because the cause may be private. The log has the cause.
INTERNAL = AgentError("INTERNAL_ERROR", "the agent failed; the agent's operator can find the reason in its log")
# It is the same for every reason, so that it shows nothing about the reason (docs/SEALING.md).
NOT_OPENED = AgentError(
    "INVALID_REQUEST",
    "the sealed payload cannot be opened; seal it to this agent's key as described "
    "in docs/SEALING.md, or send it in plaintext",
)
EXPIRED = AgentError("UNAVAILABLE", "the REQUEST has expired, so the agent can no longer read it; send a new REQUEST")
MALFORMED = AgentError(
    "INVALID_REQUEST", "the payload of the REQUEST does not have the form that the protocol requires"
)


class Run:
    """Handles one event in a thread, in the task that creates it. Other tasks only cancel it and wait for ended."""

    def __init__(self, agent: Agent, key: tuple[str, str], event: Event, unposted: dict[str, Any] | None = None):
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[Any] = task
        self.key, self.unposted = key, unposted
        self.client_ended = False  # whether the client has ended the thread, so that the task was cancelled
        self.ended = asyncio.Event()
        self.tried_post = False
        self._agent, self.event = agent, event
        self.request = event if event.type == "REQUEST" else None  # the client's REQUEST, as soon as it is known
        self._accept = ""  # the hash of the ACCEPT that the answers are for; empty: there is none yet
        self._outcome: tuple[
            str, dict[str, Any]
        ] | None = None  # kept, so a retry of the post does not repeat the work
        self._seal = False  # whether answers are sealed: the client has sealed a message to this agent
        self._threads: set[asyncio.Future[Any]] = set()  # blocking functions that still run

    async def step(self) -> None:
        """Reads the state of the thread. If the thread waits for this agent, posts the agent's next message. After an
        error it can be called again. Raises AgoraError."""
        agent, is_request = self._agent, self.event.type == "REQUEST"
        try:
            if is_request:
                record = await agent.client.thread(self.key[1], self.key[0])
            else:
                async with agent.read_slots:
                    record = await agent.client.thread(self.key[1], self.key[0])
        except RelayError as err:
            # A private relay shows the record of a thread only to its parties. If the REQUEST has no recipient, this
            # agent is not a party before it has made an offer.
            hidden = is_request and self.event.recipient is None and agent.session.is_private()
            if err.code != "THREAD_NOT_FOUND" or not hidden:
                raise
            record = Thread(self.key[1], self.key[0], "PENDING", self.event.request_id)
        self.request = request = self._request(record)
        self._seal = any(
            e.sender == self.key[0] and e.recipient == agent.me and e.sealed
            for e in [*record.events, self.event, *([request] if request else [])]
        )
        if is_request:
            if record.state == "PENDING" and request and agent.me not in record.offers:
                await self._offer(request)
        elif record.state == "ACTIVE" and record.agent == agent.me:
            accept = self._by_client("ACCEPT", record)  # the relay's record is not signed, so it is not enough
            self._accept = accept.hash if accept else ""
            if accept and request and not self._is_linked(accept, request, record):
                pass
            elif accept and accept.closed:
                await self._post("ERROR", failure(NOT_OPENED) | {"request_id": record.request_id})
            elif accept:
                await self._work(request, accept, record)

    def _by_client(self, type: str, record: Thread) -> Event | None:
        """The client's message of this type about the thread's request, to this agent or to nobody."""
        for event in [*record.events, self.event]:
            if (
                event.type == type
                and event.sender == self.key[0]
                and event.request_id == record.request_id
                and event.recipient in (None, self._agent.me)
            ):
                return event
        return None

    def _is_linked(self, accept: Event, request: Event, record: Thread) -> bool:
        """Whether an ACCEPT names the home of its REQUEST and an OFFER of this agent (RELAYS R-3, R-7, R-8)."""
        offers = {e.hash for e in record.events if e.type == "OFFER" and e.sender == self._agent.me}
        return self._agent.counts(accept, request, offers)

    def _request(self, record: Thread) -> Event | None:
        """The client's REQUEST. The relay deletes it when its ttl ends, which may be before the client accepts the
        offer. So the agent keeps the REQUESTs that it has seen."""
        request = self._by_client("REQUEST", record)
        if request:
            self._agent.remember(self.key, request)
        return request or self._agent.remembered(self.key)

    # --- The offer

    async def _offer(self, request: Event) -> None:
        """Answers a REQUEST with an OFFER, or else a directed one with an ERROR. The relay would refuse an ERROR for a
        broadcast from an agent that has not offered."""
        try:
            offer = await self._quote(request)
        except AgentError as err:
            if request.recipient is None:
                log.info("the agent makes no offer in the thread %s of %s: %s", self.key[1], self.key[0], err)
                return
            await self._post("ERROR", failure(err) | {"request_id": request.request_id})
            return
        self.unposted = offer
        await self._post("OFFER", offer | {"request_id": request.request_id})

    async def _quote(self, request: Event) -> dict[str, Any]:
        """The payload of an OFFER, without the request_id. Raises AgentError if there is no offer."""
        agent = self._agent
        if not agent.serves(request):
            raise AgentError(
                "INTENT_NOT_SUPPORTED", "this agent only serves these intents: " + ", ".join(agent.intents)
            )
        job = _job_of(request)
        if self.unposted and not _over(self.unposted, agent.client.now()):
            return self.unposted
        value = await self._call(agent.quote, job, agent.quote_seconds)
        if value is None:
            raise AgentError("UNAVAILABLE", "the agent makes no offer for this request")
        try:
            offer, price, currency = _offer_of(value)
        except (ValueError, TypeError, AttributeError, Refused) as err:
            log.error("the function quote returned no offer, so the client gets an ERROR: %s", err)
            raise INTERNAL from None
        budget = job.limits.max_cost
        if budget is not None and comparable(price, currency) and price > budget:
            raise AgentError(
                "INSUFFICIENT_BUDGET",
                f"the agent's price is {price:g} USD, but max_cost_usd of the REQUEST " f"is {budget:g}",
                details={"min_required": price, "provided": budget},
            )
        return offer

    # --- The work

    async def _work(self, request: Event | None, accept: Event, record: Thread) -> None:
        """Does the job and posts the outcome. If the post fails, a further call only repeats the post."""
        request_id = record.request_id
        if self._outcome is None:
            if request is None:
                self._outcome = "ERROR", failure(EXPIRED) | {"request_id": request_id}
            else:
                request_id = request.request_id
                try:
                    self._outcome = "RESULT", await self._perform(request, accept, record)
                except AgentError as err:
                    self._outcome = "ERROR", failure(err)
                self._outcome[1]["request_id"] = request_id
        try:
            await self._post(*self._outcome)
        except Refused as err:
            if not permanent(err) or isinstance(err, RelayError) and err.code in MOVED_ON:
                raise
            # For example: the output is too large, or is not JSON.
            log.error("the outcome of the work cannot be posted, so the client gets an ERROR: %s", err)
            self._outcome = "ERROR", failure(INTERNAL) | {"request_id": request_id}
            await self._post(*self._outcome)

    async def _perform(self, request: Event, accept: Event, record: Thread) -> dict[str, Any]:
        """The payload of a RESULT, without the request_id. Raises AgentError."""
        agent, job = self._agent, _job_of(request)
        async with agent.read_slots:
            why = await objection(agent.client, accept.envelope, request.envelope)
        if why:
            log.warning("the agent does not begin to work in the thread %s of %s: %s", self.key[1], self.key[0], why)
            raise AgentError("UNAVAILABLE", f"the agent does not begin to work: {why}")
        agent.queue.earn(self.key[0])
        await agent.work_slots.acquire(self.key[0])
        try:
            left = None
            if record.deadline:
                left = max(record.deadline.timestamp() - agent.client.now() + CLOCK_SKEW, 0.0)
            value = await self._call(agent.work, job, left)
        finally:
            self.after_threads(functools.partial(agent.work_slots.release, self.key[0]))
        return (value if isinstance(value, Delivery) else Delivery(value)).payload()

    # --- Posting, and calling the agent's functions

    async def _post(self, type: str, payload: Mapping[str, Any]) -> None:
        """Sends a message to the client. If the relay refuses an answer to a REQUEST with 429, it is not retried here:
        the REQUEST goes back into the queue, where another one may be more urgent."""
        self.tried_post = True
        retry_limited = self.event.type != "REQUEST"
        if retry_limited:
            self._agent.pace.spend(self._agent.clock())
        answered = self._accept or (self.request.hash if self.request else "")
        await self._agent.client._post(
            type,
            payload,
            to=self.key[0],
            thread=self.key[1],
            seal=self._seal,
            retry_limited=retry_limited,
            meta=links(home_of((self.request or self.event).envelope), answered),
        )

    async def _call(self, function: Callable[[Job], T], job: Job, seconds: float | None) -> T:
        """Calls quote or work. Raises AgentError for every error of it."""
        try:
            async with asyncio.timeout(seconds):
                if _is_async(function):
                    value: Any = function(job)
                else:
                    value = await self._in_thread(function, job)
                return await value if inspect.isawaitable(value) else value  # type: ignore[no-any-return]
        except AgentError:
            raise
        except asyncio.CancelledError:
            if self.task.cancelling():
                raise
            log.error(
                "the function of the agent was cancelled by its own code"
            )  # for example, it awaited a cancelled task
            raise INTERNAL from None
        except Exception:
            log.exception("the function of the agent failed in the thread %s of %s", self.key[1], self.key[0])
            raise INTERNAL from None
        finally:
            job.cancelled.set()

    async def _in_thread(self, function: Callable[[Job], T], job: Job) -> T:
        """Runs a blocking function in a thread. Nothing can stop a thread. So if the task is cancelled, the thread
        goes on, and sees job.cancelled. It is a daemon, so it does not keep the process from ending."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def finish(set_result: Callable[[], None]) -> None:
            try:
                loop.call_soon_threadsafe(lambda: None if done.done() else set_result())
            except RuntimeError:
                pass  # the loop has ended, so nobody waits

        def body() -> None:
            try:
                value = context.run(function, job)
            except Exception as err:
                finish(functools.partial(done.set_exception, err))
            except BaseException as err:  # such as SystemExit, which ends the thread only
                finish(functools.partial(done.set_exception, RuntimeError(f"the function raised {err!r}")))
            else:
                finish(functools.partial(done.set_result, value))

        self._threads.add(done)
        done.add_done_callback(self._threads.discard)
        threading.Thread(target=body, name="agora-work", daemon=True).start()
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            done.add_done_callback(lambda future: future.exception())  # nobody waits for it any more
            raise

    def after_threads(self, release: Callable[[], object]) -> None:
        """Calls release once no blocking function of this run is running."""
        running = next(iter(self._threads), None)
        if running is None:
            release()
        else:
            running.add_done_callback(lambda _: self.after_threads(release))


def _is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))


def _job_of(request: Event) -> Job:
    """The Job for a REQUEST. Raises AgentError, which is for the client, if the payload cannot be read."""
    if request.closed:
        raise NOT_OPENED
    try:
        return Job.of(request)
    except ValueError:
        raise MALFORMED from None


def _offer_of(value: Any) -> tuple[dict[str, Any], float, str]:
    """The payload of an OFFER for what quote returned, its price and its currency."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = Quote(value)
    if isinstance(value, Quote):
        value = value.payload()
    if not isinstance(value, Mapping):
        raise TypeError(
            f"it returned {type(value).__name__}; return a price in USD, a Quote, or the payload of an OFFER"
        )
    offer = dict(value)
    price = offer.get("price", {})
    if isinstance(price, (int, float)):
        price = offer["price"] = Quote(price).payload()["price"]
    return offer, float(price.get("amount", 0.0)), str(price.get("currency", ""))


def _over(offer: Mapping[str, Any], now: float) -> bool:
    """Whether an offer is no longer valid."""
    try:
        until = read_time(offer, "valid_until")
    except ValueError:
        return True
    return until is not None and now >= until.timestamp()

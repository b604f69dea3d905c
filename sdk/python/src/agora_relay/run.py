"""What an agent does in one thread to handle one event: a REQUEST or an ACCEPT."""
from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Mapping

from .answer import log, permanent
from .book import JobKey, job_key
from .calling import INTERNAL, Caller
from .desk import FULL
from .errors import AgentError, RelayError, Refused
from .follow import Event
from .jsontext import canonicalize
from .links import home_of, links, root_of
from .payloads import Job, Quote, comparable, failure, read_time
from .protocol import MOVED_ON
from .proving import objection
from .records import Thread
from .state import expiry_of

if TYPE_CHECKING:
    from .serve import Agent

# How far the relay's clock can differ from this machine's clock before the relay refuses its messages (PROTOCOL §1).
# Work may continue for this long after the thread's deadline, because this machine's clock may be fast.
CLOCK_SKEW = 300.0

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
        self.given_up = False  # whether give_up was called
        self.ended = asyncio.Event()
        self.tried_post = False
        self._agent, self.event = agent, event
        self.request = event if event.type == "REQUEST" else None  # the client's REQUEST, as soon as it is known
        self._accept = ""  # the hash of the ACCEPT that the answers are for; empty: there is none yet
        self.job: tuple[JobKey, dict[str, Any]] | None = None  # the job, and its thread, after the ACCEPT has counted
        self.expires: float | None = None  # when the relay has certainly ended the thread, by the client's clock
        self.caller = Caller()
        self._outcome: tuple[str, dict[str, Any]] | None = None  # what is posted after the work
        self._seal = False  # whether answers are sealed: the client has sealed a message to this agent

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
        self.expires = record.deadline.timestamp() + CLOCK_SKEW if record.deadline else None
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
            elif accept and (accept.closed or request is None):
                known = None if accept.closed else self._known(accept)
                type, payload = known or ("ERROR", failure(NOT_OPENED if accept.closed else EXPIRED))
                await self._post(type, payload | {"request_id": record.request_id})
            elif accept and request:
                await self._work(request, accept)

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

    def _known(self, accept: Event) -> tuple[str, dict[str, Any]] | None:
        """The outcome of the job with this ACCEPT, if the agent has worked before."""
        home = home_of(accept.envelope)
        return self._agent.desk.book.outcome_at(self.key[0], self.key[1], home["did"] if home else "")

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
        self._agent.desk.book.offered(job_key(request), offer, expiry_of(request), self._agent.client.now())
        await self._post("OFFER", offer | {"request_id": request.request_id})

    async def _check_gateway(self, request: Event) -> None:
        """Refuses a REQUEST with an intent of a gateway, unless the relay's gateway has sealed it. Anybody can post one,
        and its params say who the caller is (A2A §4). Raises AgentError."""
        if not str(request.payload.get("intent")).startswith(("a2a.", "chorus.")):
            return
        try:
            gateway = await self._agent.client.gateway()
        except RelayError as err:
            log.warning("it is not known who the relay's gateway is (thread %s): %s", self.key[1], err)
            message = "the agent cannot read the relay's document now; try again later"
            raise AgentError("UNAVAILABLE", message) from None
        if request.sender != gateway or not request.sealed:
            raise AgentError(
                "FORBIDDEN",
                "only the relay's gateway sends this, and seals it; its DID is in the relay's document "
                "/.well-known/agora.json",
            )

    async def _quote(self, request: Event) -> dict[str, Any]:
        """The payload of an OFFER, without the request_id. Raises AgentError if there is no offer."""
        agent = self._agent
        if not agent.serves(request):
            raise AgentError(
                "INTENT_NOT_SUPPORTED", "this agent only serves these intents: " + ", ".join(agent.intents)
            )
        await self._check_gateway(request)
        job = _job_of(request)
        key, now = job_key(request), agent.client.now()
        book = agent.desk.book
        if self.unposted and not _over(self.unposted, now):
            return self.unposted
        known = book.terms(key)  # a continuation gets the same terms
        if known:
            return {name: value for name, value in known.items() if name != "valid_until" or not _over(known, now)}
        if not book.has_room(key, now):
            raise FULL
        value = await self.caller.call(agent.quote, job, asyncio.timeout(agent.quote_seconds))
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

    async def _work(self, request: Event, accept: Event) -> None:
        """Does the job, unless that was done, and posts the outcome."""
        agent, place = self._agent, _place(request, accept)
        try:
            job = _job_of(request)
            if self.job is None:
                async with agent.read_slots:
                    why = await objection(agent.client, accept.envelope, request.envelope)
                if why:
                    log.warning("the agent does not begin to work in the thread %s of %s: %s", *reversed(self.key), why)
                    raise AgentError("UNAVAILABLE", f"the agent does not begin to work: {why}")
                self.job = job_key(request), place
        except AgentError as err:
            await self._post("ERROR", failure(err) | {"request_id": request.request_id})
            return
        left = self.expires - agent.client.now() if self.expires is not None else None
        if self._outcome is None:
            self._outcome = await agent.desk.outcome(agent, self, self.job[0], job, place, left and max(left, 0.0))
        if self._outcome is None:
            return
        type, payload = self._outcome
        try:
            await self._post(type, payload | {"request_id": request.request_id})
        except Refused as err:
            if not permanent(err) or isinstance(err, RelayError) and err.code in MOVED_ON:
                raise
            log.error("the outcome of the work cannot be posted, so the client gets an ERROR: %s", err)  # too large
            self._outcome = "ERROR", failure(INTERNAL)
            await self._post("ERROR", failure(INTERNAL) | {"request_id": request.request_id})

    def give_up(self) -> None:
        """Ends the run, because the client has ended the thread, or has accepted in a newer one."""
        self.given_up = True
        self.task.cancel()

    def in_first(self) -> bool:
        """Whether the job's first REQUEST opened the thread: then an ACCEPT in another one ends the run."""
        return self.job is not None and bool(self.job[1]["first"])

    def is_over(self) -> bool:
        """Whether there is no reason to try again: the outcome is for newer threads only, or the thread has ended."""
        moved = self.job is not None and self.in_first() and self._agent.desk.book.is_older(*self.job)
        return moved or self.expires is not None and self._agent.client.now() > self.expires

    # --- Posting

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


def _place(request: Event, accept: Event) -> dict[str, Any]:
    """A thread of a job with an ACCEPT, as Book keeps it."""
    home = home_of(request.envelope)
    return {
        "home": home["did"] if home else "",
        "id": request.thread,
        "accept": accept.hash,
        "first": root_of(request.envelope) == request.hash,
    }


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
    offer = json.loads(canonicalize(offer))
    return offer, float(price.get("amount", 0.0)), str(price.get("currency", ""))


def _over(offer: Mapping[str, Any], now: float) -> bool:
    """Whether an offer is no longer valid."""
    try:
        until = read_time(offer, "valid_until")
    except ValueError:
        return True
    return until is not None and now >= until.timestamp()

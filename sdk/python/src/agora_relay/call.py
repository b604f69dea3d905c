"""The client's side of a thread."""
from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import functools
import math
from typing import TYPE_CHECKING, Any, AsyncGenerator, Callable, Literal

from .answer import log, permanent
from .errors import AgentError, AgoraError, Cancelled, Closed, Gone, NoOffer, Plain, RelayError, Unacceptable, Unproven
from .envelope import format_time
from .follow import Event, Filter, Follower, seconds_of
from .jsontext import canonicalize
from .links import Home, content_hash, flaw, home_of, links, re_of
from .outlook import hint
from .payloads import Limits, Offer, Result, agent_error
from .protocol import DRAFT_TTL
from .records import Thread

if TYPE_CHECKING:
    from .client import Client

SILENCE_SECONDS = 5.0  # until best says why there may be no offer
MAX_COLLECTED = 1000  # offers that collect returns; relays of this project allow 100 in a thread

Rule = Literal["cheapest", "fastest", "first"] | Callable[[Offer, Offer], float]
"""How best chooses. A function gets two offers, and returns a negative number if the first one is better."""


@dataclasses.dataclass(frozen=True)
class CallState:
    """The state of a call. state, offers and deadline are claims of the relay."""

    thread: str
    state: str
    """PENDING, ACTIVE, COMPLETED or ERROR."""
    agent: str | None
    """The agent in this client's own signed ACCEPT; None: no ACCEPT is known."""
    offers: int
    """How many offers are open."""
    deadline: datetime.datetime | None
    """When the relay will end the thread, by its clock; None: it has ended."""


class Call:
    """The client's side of a thread, which Client.request and Client.resume return. Only one task may use it at a
    time."""

    thread: str
    """The id of the thread, for Client.resume."""
    request_id: str
    """The id of the request, which all messages about it have."""
    agent: str | None
    """The did:key of the agent whose offer was accepted; None: no ACCEPT is known."""
    seal: bool
    """Whether messages to the agent are sealed."""
    allow_plain: bool
    """Whether answers in plaintext to a sealed request count."""

    def __init__(
        self,
        client: Client,
        thread: str,
        request_id: str,
        *,
        recipient: str | None = None,
        limits: Limits | None = None,
        seal: bool = False,
        allow_plain: bool = False,
    ):
        self.thread, self.request_id = thread, request_id
        self.seal, self.allow_plain = seal, allow_plain
        self.agent = None
        self._client, self._me = client, client.identity().did
        self._recipient = recipient
        self._intent = ""  # empty: not known
        self._limits = limits  # None: unknown, because the request was resumed and has expired or is sealed
        self._seal_directed = False  # encrypt messages to one agent even if seal is False
        self._home: Home | None = None
        self._asked = ""  # the hash of the REQUEST; empty: not known, because the call was resumed
        self._accepts: dict[str, str] = {}  # the agents whose offers this client has accepted, by the ACCEPT's hash

    # --- Offers

    async def offers(self) -> AsyncGenerator[Offer, None]:
        """Yields each offer once: first those that were already made, then new ones as they arrive. It ends when an
        offer has been accepted. Raises AgentError if the agent that was asked refused, or if the relay has ended the
        thread (TIMEOUT); Cancelled, Plain, Closed; RelayError."""
        watch = _Watch(self, ("ACTIVE", "COMPLETED"))
        while True:
            for event in await watch.next():
                if event.type == "ACCEPT" and event.sender == self._me and event.request_id == self.request_id:
                    return
                offer = self._offer(event)
                if offer:
                    yield offer
            if watch.reached:
                return

    async def collect(self, *, seconds: float = 5.0) -> list[Offer]:
        """Waits and returns all offers, also those that were made before, in the order of their arrival. It returns
        earlier if an offer has been accepted. With 0 seconds it reads the thread once. Raises what offers raises."""
        return await self._gather(seconds, lambda offer: False)

    async def _gather(self, seconds: float | None, enough: Callable[[Offer], bool]) -> list[Offer]:
        if seconds is not None and seconds <= 0:
            return await self._offers_now()
        found: list[Offer] = []
        try:
            async with asyncio.timeout(seconds), contextlib.aclosing(self.offers()) as offers:
                async for offer in offers:
                    found.append(offer)
                    if len(found) >= MAX_COLLECTED or enough(offer):
                        break
        except TimeoutError:
            pass
        return found

    async def _offers_now(self) -> list[Offer]:
        """The offers that the relay has now, by one read of the thread. Raises what offers raises."""
        record = await self._client.thread(self.thread, self._me)
        await self._raise_end(record)
        offers = [offer for event in record.events if (offer := self._offer(event))]
        return offers[:MAX_COLLECTED]

    async def best(
        self,
        rule: Rule = "cheapest",
        *,
        seconds: float | None = None,
        max_cost: float | None = None,
        deadline: datetime.datetime | None = None,
    ) -> Offer:
        """Waits, by default for 5 seconds, and returns the best acceptable offer. It needs no collect before. With 0
        seconds it chooses among the offers that are there. With the rule first it returns as
        soon as there is one, and by default waits without a limit. max_cost and deadline replace the limits of the
        request. Raises Unacceptable if there is none in time, and what offers raises."""
        if isinstance(rule, str) and rule not in RULES:
            raise ValueError(
                f"{rule!r} is not a rule; use cheapest, fastest, first, or a function that compares offers"
            )
        first = rule == "first"
        seconds = 5.0 if seconds is None and not first else seconds
        limits = self._limits_with(max_cost, deadline)
        waits_long = seconds is None or seconds > SILENCE_SECONDS
        silent = asyncio.create_task(self._explain_silence(limits)) if waits_long else None

        def enough(offer: Offer) -> bool:
            if silent:
                silent.cancel()
            return first and self._objection(offer, limits) is None

        try:
            found = await self._gather(seconds, enough)
        finally:
            if silent:
                silent.cancel()
                await asyncio.gather(silent, return_exceptions=True)
        good = [offer for offer in found if self._objection(offer, limits) is None]
        if good:
            return min(good, key=RULES[rule] if isinstance(rule, str) else _key(rule))
        if found:
            why = f"no offer is acceptable: {self._objection(found[-1], limits)}"
        else:
            why = f"there was no offer in time; {await self._hint(limits)}"
        raise NoOffer(why, is_open=True)

    async def _explain_silence(self, limits: Limits | None) -> None:
        await asyncio.sleep(SILENCE_SECONDS)
        log.warning("no offer after %.0f seconds; %s", SILENCE_SECONDS, await self._hint(limits))

    async def _hint(self, limits: Limits | None) -> str:
        """Why there may be no offer, by the relay's directory."""
        found = None
        if self._intent:
            with contextlib.suppress(AgoraError):
                found = await self._client.outlook(self._intent, to=self._recipient)
        return hint(found, self._intent, to=self._recipient, max_cost=limits.max_cost if limits else None)

    def _offer(self, event: Event) -> Offer | None:
        """Reads an OFFER to this call; None: it is none, or it cannot be accepted. But a sealed REQUEST asks one agent
        only, and that agent will make no second OFFER. So it raises Plain or Closed then."""
        if event.type != "OFFER" or not self._for_me(event) or self._recipient not in (None, event.sender):
            return None
        try:
            self._check_seal(event)
            return Offer.of(event)
        except (Plain, Closed) as err:
            if self.seal and self._recipient:
                raise
            log.warning("an offer of %s was skipped: %s", event.sender, err)
        except ValueError as err:
            log.warning("an offer of %s was skipped, because its payload is malformed: %s", event.sender, err)
        return None

    # --- Accepting

    def _limits_with(self, max_cost: float | None, deadline: datetime.datetime | None) -> Limits | None:
        """The limits of the request, or those that take their place; None: unknown."""
        if max_cost is None and deadline is None:
            return self._limits
        known = self._limits or Limits()
        return Limits(known.max_cost if max_cost is None else max_cost, deadline or known.deadline)

    def _objection(self, offer: Offer, limits: Limits | None) -> str | None:
        """Why an offer cannot be accepted now; None: it can."""
        if offer.request_id != self.request_id or not offer.agent:
            return "the offer belongs to another request"
        if limits is None:
            why = "the REQUEST is sealed" if self.seal else "the relay no longer has the REQUEST"
            return f"{why}, so a resumed call does not know its limits; pass max_cost, which may be math.inf"
        now = self._client.now()
        if offer.valid_until and now >= offer.valid_until.timestamp():
            return f"the offer was valid until {format_time(offer.valid_until.timestamp())} only"
        if offer.price is not None and math.isnan(offer.price):
            return "its price has no number as amount"
        if offer.price is not None and offer.price < 0:
            return "its price is negative"
        if limits.max_cost is not None and limits.max_cost < math.inf and offer.price is not None:
            if not offer.in_usd:
                return f"the price is in {offer.currency!r}, which cannot be compared with a cost in USD"
            if offer.price > limits.max_cost:
                return f"it costs {offer.price:g} USD, and the limit is {limits.max_cost:g}"
        if limits.deadline and seconds_of(limits.deadline) - now <= max(offer.eta_seconds or 0.0, 0.0):
            return (
                f"with an ETA of {offer.eta_seconds or 0:g} s the result would come too late for the deadline, "
                f"{format_time(limits.deadline.timestamp())}"
            )
        return None

    async def accept(
        self, offer: Offer, *, max_cost: float | None = None, deadline: datetime.datetime | None = None
    ) -> None:
        """Accepts an offer, if it is valid, costs no more than max_cost in USD, and can meet the deadline; by default
        those of the request. A thread can have only one ACCEPT. Raises Unacceptable with the reason, and what
        Client.post raises. After UnknownOutcome, state shows whether the relay has the ACCEPT; if it has, call result.
        """
        await self._accept(offer, max_cost, deadline)

    async def _accept(
        self,
        offer: Offer,
        max_cost: float | None,
        deadline: datetime.datetime | None,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        limits = self._limits_with(max_cost, deadline)
        why = self._objection(offer, limits)
        if why or limits is None:
            raise Unacceptable(why or "")
        # Also without a price the terms say 0, so that the agent cannot claim another price later.
        named = next(iter(self._accepts.values()), offer.agent)
        if self._home and named != offer.agent:
            raise Unacceptable(
                f"this client has signed an ACCEPT for {named} already, and two ACCEPTs of one REQUEST prove that it "
                "has broken its word; make a new request"
            )
        terms: dict[str, object] = {"price_usd": offer.price or 0.0} if offer.price is None or offer.in_usd else {}
        if limits.deadline:
            terms["deadline"] = format_time(limits.deadline.timestamp())
        payload = {"request_id": self.request_id, "accepted_at": format_time(self._client.now()), "terms": terms}
        self._seal_directed = self.seal or self._seal_directed or offer.event.sealed
        await self._client._post(
            "ACCEPT",
            payload,
            to=offer.agent,
            thread=self.thread,
            seal=self._seal_directed,
            meta=links(self._home, offer.event.hash),
            on_signed=lambda e: self._accepts.update({content_hash(e): offer.agent}),
            on_refused=on_refused,
        )
        self.agent = offer.agent

    async def result(self, *, seconds: float | None = None) -> Result:
        """Waits for the result of the agent whose offer was accepted. Raises AgentError if the agent sent an ERROR or
        the relay ended the thread (TIMEOUT); Plain, Closed, Cancelled, Gone; RelayError; TimeoutError after seconds.
        """
        if self.agent is None:
            raise ValueError("there is no result to wait for; accept an offer first")
        async with asyncio.timeout(seconds):
            watch = _Watch(self, ("COMPLETED",))
            while True:
                for event in await watch.next():
                    if event.type == "RESULT" and event.sender == self.agent and self._for_me(event):
                        self._check_seal(event)
                        return Result.of(event)
                if watch.reached:
                    raise Gone

    async def state(self) -> CallState:
        """Reads the state of the thread from the relay. Raises RelayError, most often with THREAD_NOT_FOUND."""
        record = await self._client.thread(self.thread, self._me)
        self._find_accepted(record)
        return CallState(self.thread, record.state, self.agent, len(record.offers), record.deadline)

    async def cancel(self, reason: str = "") -> None:
        """Cancels the request. reason is for the agent. Raises what Client.post raises, such as RelayError with
        INVALID_TRANSITION if the thread has already ended."""
        recipient = self.agent or self._recipient  # None: a broadcast, which every agent with an offer receives
        seal = self.seal or self._seal_directed and recipient is not None
        if self._seal_directed and not seal and reason:
            log.warning("a broadcast CANCEL is sent without its reason, because the thread may be sealed")
            reason = ""
        payload = {"request_id": self.request_id} | ({"reason": reason} if reason else {})
        meta = links(self._home, next(reversed(self._accepts), self._asked))
        await self._client._post("CANCEL", payload, to=recipient, thread=self.thread, seal=seal, meta=meta)

    # --- What counts

    def _for_me(self, event: Event) -> bool:
        """Whether an event is an answer to this call. A thread of another client may have the same id, so the
        request_id must match too. The recipient may be absent, because some agents leave it out."""
        is_answer = (
            event.sender != self._me and event.request_id == self.request_id and event.recipient in (None, self._me)
        )
        return is_answer and self._is_linked(event)

    def _is_linked(self, event: Event) -> bool:
        """Whether an answer names the home of this thread and the message that it answers (RELAYS R-3, R-7). What a
        resumed call does not know, it does not check."""
        answers = {
            "OFFER": {self._asked},
            "RESULT": self._accepts.keys(),
            "ERROR": {self._asked, *self._accepts},
        }.get(event.type, set())
        if not self._asked and (not self._accepts or event.type != "RESULT"):
            return True
        if home_of(event.envelope) is None and re_of(event.envelope) is None and not self._client.in_network:
            return True  # as without a home: its sender knows no homes, but a Network needs them to continue a job
        why = flaw(event.envelope, self._home, answers)
        if why:
            log.warning("the %s %s of %s is ignored: %s", event.type, event.id, event.sender, why)
        return not why

    def _check_seal(self, event: Event) -> None:
        what = f"{event.type} {event.id}"
        if event.closed:
            raise Closed(what)
        if self.seal and not self.allow_plain and not event.sealed:
            raise Plain(what)

    def _find_accepted(self, record: Thread) -> bool:
        """Sets agent to the one whose offer this client has accepted by its own signed ACCEPT. Returns whether there
        is an ACCEPT."""
        accepts = [
            event
            for event in record.events
            if event.type == "ACCEPT" and event.sender == self._me and event.request_id == self.request_id
        ]
        for event in accepts:
            self._home = home_of(event.envelope)
            self.agent = event.recipient or self._only_offer(record.events)
            self._accepts.setdefault(event.hash, self.agent or "")
        return bool(accepts)

    def _only_offer(self, events: list[Event]) -> str | None:
        """The only agent with an open OFFER among the events; None: there is not exactly one."""
        open_offers: dict[str, None] = {}
        for event in events:
            if event.type == "OFFER" and self._for_me(event) and self._recipient in (None, event.sender):
                open_offers[event.sender] = None
            elif event.type == "ERROR":
                open_offers.pop(event.sender, None)
        return next(iter(open_offers)) if len(open_offers) == 1 else None

    async def _raise_end(self, record: Thread) -> None:
        """Raises the error for a thread that has ended without a RESULT, according to the relay's record."""
        if record.state != "ERROR" or not record.transitions:
            return
        if record.timed_out:
            raise AgentError(
                "TIMEOUT",
                "the relay ended the thread, because no message came before its deadline",
                sender=await self._relay_did(),
            )
        last = record.transitions[-1]
        if last.by == self._me:
            raise Cancelled
        for event in record.events:
            if (event.type, event.id, event.sender) == ("ERROR", last.id, last.by) and event.recipient in (
                None,
                self._me,
            ):
                if not self._is_linked(event):
                    break
                if event.closed:
                    raise Closed(f"ERROR {event.id}")
                err = agent_error(event)
                if self.seal and not self.allow_plain and not event.sealed:
                    raise Plain(f"ERROR {event.id}", err)
                raise err
        raise Gone

    async def _relay_did(self) -> str | None:
        try:
            return await self._client.relay_did()
        except RelayError as err:
            log.warning("reading the relay's DID failed: %s", err)
            return None


def _key(compare: Callable[[Offer, Offer], float]) -> Callable[[Offer], Any]:
    """The key by which min finds the offer that compare prefers."""

    def sign(a: Offer, b: Offer) -> int:
        x = compare(a, b)
        return (x > 0) - (x < 0)

    return functools.cmp_to_key(sign)


def _cost(offer: Offer) -> float:
    """What an offer costs in USD. Without a price it is free. A price in another currency comes after all others."""
    return (offer.price if offer.in_usd else math.inf) if offer.price is not None else 0.0


def _eta(offer: Offer) -> float:
    return math.inf if offer.eta_seconds is None else offer.eta_seconds


RULES: dict[str, Callable[[Offer], Any]] = {
    "cheapest": lambda offer: (_cost(offer), _eta(offer)),
    "fastest": lambda offer: (_eta(offer), _cost(offer)),
    "first": lambda offer: 0,
}


class _Watch:
    """Reads the events of a thread from the oldest. It raises an error when the thread has ended without a RESULT.

    The filter of the poll has the thread but not the recipient, because agents may leave the recipient out. The
    events do not show whether a thread has ended without a RESULT: an ERROR may also withdraw an offer, or belong to
    another client's thread with the same id. So it reads the relay's record of the thread. It also does so when a
    poll brings nothing, because the awaited message may have expired while this client was not connected."""

    def __init__(self, call: Call, ends: tuple[str, ...]):
        self.reached = False  # whether the thread is in one of the states ends, and all of its events were returned
        self._call, self._ends = call, ends
        self._events: list[Event] = []
        self._failure: AgoraError | None = None
        self._follower = Follower(call._client._session, Filter(thread=call.thread), from_oldest=True)
        self._follower.begin("")
        self._follower.on_page, self._follower.idle = self._on_page, self._check

    @property
    def failing_since(self) -> float | None:
        """Since when the reads get no valid answer, on the loop's clock; None: they do."""
        return self._follower.failing_since

    async def next(self) -> list[Event]:
        """Waits for new events and returns them. There may be none."""
        if self._failure:
            raise self._failure
        self._events = []
        await self._follower.step()
        return self._events

    async def _on_page(self, events: list[Event], _: str) -> None:
        self._events += events
        if any(event.type in ("ERROR", "CANCEL") for event in events):
            await self._check()

    async def _check(self) -> None:
        call = self._call
        try:
            record = await call._client.thread(call.thread, call._me)
        except RelayError as err:
            if permanent(err):  # for example: the relay does not have the thread, or no longer has it
                raise
            log.warning("reading the thread %s failed, will be retried: %s", call.thread, err)
            return
        self._events += [event for event in record.events if self._follower.is_new(event)]
        self.reached = record.state in self._ends
        try:
            await call._raise_end(record)
        except AgoraError as err:
            self._failure = err  # after the events before it
            if not self._events:
                raise


# --- Resuming


def resume_call(
    client: Client, record: Thread, *, request_id: str | None, recipient: str | None, allow_plain: bool
) -> Call:
    """The Call of a record. It takes the agent and the request from envelopes that this client has signed, because the
    record itself is not signed. Raises Unproven and RelayError."""
    record = dataclasses.replace(record, request_id=request_id or record.request_id)
    request = record.request
    call = Call(
        client,
        record.id,
        record.request_id,
        recipient=request.recipient if request else recipient,
        allow_plain=allow_plain,
    )
    if request:
        call._intent, call._home, call._asked = request.text("intent"), home_of(request.envelope), request.hash
    if request and not request.closed and not request.sealed:
        try:
            call._limits = Limits.of(request.payload)
        except ValueError as err:
            raise RelayError("INVALID_ANSWER", f"the REQUEST of thread {record.id} is malformed: {err}", status=200)
    accepted = call._find_accepted(record)
    if not accepted and not request and not request_id:
        raise Unproven(record.id)
    agent = call.agent or call._recipient
    sealed = agent is not None and record.sealed(agent)
    call.seal, call._seal_directed = (request.sealed, sealed) if request else (sealed, True)
    return call


async def continue_request(
    client: Client,
    thread: str,
    *,
    intent: str,
    params: Any,
    to: str | None,
    limits: Limits,
    seal: bool,
    allow_plain: bool,
    refused: RelayError,
) -> Call:
    """The Call of a thread that an earlier request opened. refused is the relay's error for the present request. It is
    raised with another message if the thread was opened with another request. The params and the max_cost of a sealed
    request cannot be compared."""
    record = await client.thread(thread, client.identity().did)
    request_id = thread
    for event in record.events:  # another program may have opened the thread with another request_id
        if event.type == "REQUEST" and event.sender == record.client and event.request_id == record.request_id:
            request_id = event.request_id
    call = resume_call(client, record, request_id=request_id, recipient=to, allow_plain=allow_plain)
    request = dataclasses.replace(record, request_id=request_id).request
    differs = {"recipient": call._recipient != to}
    if request:
        differs |= {"intent": request.text("intent") != intent, "seal": call.seal != seal}
        if not request.sealed and call._limits:
            max_cost = None if limits.max_cost == math.inf else limits.max_cost
            differs["params"] = canonicalize(request.payload.get("params")) != canonicalize(params)
            differs["max_cost"] = call._limits.max_cost != max_cost
    if names := [name for name, is_different in differs.items() if is_different]:
        raise RelayError(
            refused.code,
            f"this thread was opened with another request (what differs: {', '.join(names)}); use a new id, "
            "or resume(thread)",
            status=refused.status,
            details=refused.details,
        ) from refused
    if call._limits is None:  # the REQUEST is sealed or has expired
        call._limits, call.seal = limits, call.seal or seal
    return call

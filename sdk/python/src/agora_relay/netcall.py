"""The client's side of a job that moves from relay to relay (RELAYS §4)."""
from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import urllib.parse
from typing import TYPE_CHECKING, Any, AsyncGenerator, Awaitable, Callable, TypeVar

from .answer import log, permanent
from .call import Call, CallState, _Watch
from .envelope import Envelope
from .errors import AgoraError, NoProof, Refused, RelayError, Unacceptable, UnknownOutcome
from .follow import Event
from .links import Home, content_hash, home_of
from .payloads import Limits, Offer, Result
from .waiting import Backoff

if TYPE_CHECKING:
    from .client import Client
    from .network import Network

T = TypeVar("T")

MAX_CONTINUATIONS = 3


@dataclasses.dataclass(frozen=True)
class Timing:
    """When a client continues a job, in seconds (RELAYS R-15). Only tests change it."""

    silence: float = 30.0
    """How long posts, or reads, get no valid answer."""
    offer: float = 60.0
    """How long the agent that was asked makes no offer."""
    tick: float = 0.5
    """How often this is checked."""


class _Silent(Exception):
    """A post got no valid answer for too long."""


class _Leg:
    """One thread of the job."""

    def __init__(self, client: Client, call: Call, request: Envelope):
        self.client, self.call, self.request = client, call, request
        self.is_silent = False  # its posts got no valid answer for too long
        self.has_offer = False
        self.failed: AgoraError | None = None  # why it has ended without a RESULT
        self.waits_since: float | None = None  # since when it waits for an offer, on the loop's clock
        self.watch = _Watch(call, ("COMPLETED",))

    @property
    def home(self) -> Home:
        """The home of the thread."""
        return home_of(self.request) or {}


class NetworkCall(Call):
    """The client's side of a job, which Network.request returns. It is used as a Call. If the relay that decides the
    thread is silent, the job continues in a new thread at another relay. The members of Call are about the newest
    thread. Once an offer is accepted, the offer of the same agent is accepted in a new thread too, unless it costs
    more."""

    def __init__(
        self,
        network: Network,
        payload: dict[str, Any],
        *,
        to: str | None,
        limits: Limits,
        seal: bool,
        allow_plain: bool,
        ttl: int,
    ):
        self._network, self._payload, self._ttl = network, payload, ttl
        super().__init__(
            network.clients[0], "", "", recipient=to, limits=limits, seal=seal, allow_plain=allow_plain
        )
        self._intent = payload["intent"]
        self._legs: list[_Leg] = []
        self._expires = network.now() + ttl
        self._root: str | None = None
        self._offer_made: tuple[Offer, float | None, datetime.datetime | None] | None = None  # that was accepted
        self._found: list[Offer] = []
        self._news = asyncio.Event()
        self._done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._done.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._try_after = 0.0  # on the loop's clock: when to look for another relay again
        self._reading: set[asyncio.Task[None]] = set()
        self._supervisor: asyncio.Task[None] | None = None

    # --- What a caller uses

    async def offers(self) -> AsyncGenerator[Offer, None]:
        """See Call.offers. It yields the offers of all threads of the job."""
        next = 0
        while True:
            news = self._news
            while next < len(self._found):
                next += 1
                yield self._found[next - 1]
            if self._done.done():
                self._done.result()
            if self._done.done() or self._offer_made:
                return
            await news.wait()

    async def _offers_now(self) -> list[Offer]:
        record = await self._client.thread(self.thread, self._me)
        leg = self._legs[-1]
        return [offer for event in record.events if (offer := leg.call._offer(event))]

    async def accept(
        self, offer: Offer, *, max_cost: float | None = None, deadline: datetime.datetime | None = None
    ) -> None:
        """See Call.accept. If the relay is silent, this returns, and the job continues at another relay."""
        if self.agent not in (None, offer.agent):
            raise Unacceptable(f"the job has an ACCEPT for {self.agent}; make a new request for another agent")
        leg = next((leg for leg in self._legs if leg.call.request_id == offer.request_id), self._legs[-1])
        why = leg.call._objection(offer, leg.call._limits_with(max_cost, deadline))
        if why:
            raise Unacceptable(why)
        self.agent, self._offer_made = offer.agent, (offer, max_cost, deadline)
        try:
            if leg is self._legs[-1]:
                await self._accept_at(leg, offer)
            else:
                for newer in [o for o in self._found if o.request_id == self.request_id and o.agent == offer.agent]:
                    await self._accept_again(self._legs[-1], newer)
        except Unacceptable:
            if not any(leg.call._accepts for leg in self._legs):
                self.agent = self._offer_made = None
            raise
        finally:
            self._tell()

    async def result(self, *, seconds: float | None = None) -> Result:
        """See Call.result. The first RESULT of the agent counts, in any thread of the job."""
        if self.agent is None:
            raise ValueError("there is no result to wait for; accept an offer first")
        async with asyncio.timeout(seconds):
            return await asyncio.shield(self._done)

    async def state(self) -> CallState:
        """See Call.state. It reads the newest thread."""
        return await self._legs[-1].call.state()

    async def cancel(self, reason: str = "") -> None:
        """See Call.cancel. It ends the newest thread. The others are cancelled too, while they wait for an ACCEPT."""
        await self._legs[-1].call.cancel(reason)

    async def close(self) -> None:
        """Ends the tasks of the job. The threads stay as they are."""
        await self._end_tasks({self._supervisor, *self._reading} if self._supervisor else self._reading)

    async def _end_tasks(self, tasks: set[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- Threads

    async def _begin(self, client: Client) -> bool:
        """Opens the first thread. Returns whether the relay says that it can be the home. Raises what Client.request
        raises."""
        try:
            await self._ask(client, self._recipient, self._ttl)
        except _Silent:
            return False
        self._supervisor = self._network.keep(self._supervise())
        return True

    async def _ask(self, client: Client, to: str | None, ttl: int) -> None:
        """Opens a thread at a relay. If the relay is silent, it counts as opened."""

        def on_call(call: Call, request: Envelope) -> None:
            leg = _Leg(client, call, request)
            if self._legs and self._legs[-1].client is client:  # signed once more, with another time
                self._legs.pop()
            self._legs.append(leg)
            self._show(leg)
            if len(self._legs) == 1:
                self._root = content_hash(request)

        continues = self._root
        try:
            await self._insist(
                client,
                lambda refused: client._open(
                    self._payload,
                    to=to,
                    limits=self._limits or Limits(),
                    seal=self.seal,
                    allow_plain=self.allow_plain,
                    ttl=ttl,
                    continues=continues,
                    on_call=on_call,
                    on_refused=refused,
                ),
            )
        except _Silent:
            if not self._legs or self._legs[-1].client is not client:
                raise
            self._legs[-1].is_silent = True
        leg = self._legs[-1]
        leg.waits_since = asyncio.get_running_loop().time()
        self._reading.add(self._network.keep(self._read(leg)))

    def _show(self, leg: _Leg) -> None:
        """Sets the members of Call from a thread."""
        self.thread, self.request_id, self._client = leg.call.thread, leg.call.request_id, leg.client

    async def _insist(self, client: Client, post: Callable[[Callable[[], None]], Awaitable[T]]) -> T:
        """Posts a message until there is a valid answer. Raises _Silent if there is none for too long, or if the relay
        is caught."""
        loop, patience = asyncio.get_running_loop(), self._network.timing.silence
        try:
            async with asyncio.timeout(patience) as limit:
                return await post(lambda: limit.reschedule(loop.time() + patience))
        except TimeoutError:
            raise _Silent from None
        except NoProof:
            if not self._network.is_caught(client):
                raise
            raise _Silent from None
        except UnknownOutcome as err:
            raise _Silent from err
        except Refused as err:
            is_home = err.details.get("reason") != "home"  # else another relay answers at this address
            if is_home and not (isinstance(err, RelayError) and not err.is_answer):
                raise
            raise _Silent from err

    async def _accept_at(self, leg: _Leg, offer: Offer) -> None:
        _, max_cost, deadline = self._offer_made or (None, None, None)
        try:
            await self._insist(leg.client, lambda refused: leg.call._accept(offer, max_cost, deadline, refused))
        except _Silent:
            leg.is_silent = True

    async def _accept_again(self, leg: _Leg, offer: Offer) -> None:
        """Accepts the offer of the agent in a new thread (RELAYS R-16)."""
        first = self._offer_made[0] if self._offer_made else offer
        dearer = (offer.price or 0.0) > (first.price or 0.0) or offer.price and offer.currency != first.currency
        if dearer or leg.call._accepts:
            log.warning("an offer of %s is not accepted, because it costs more than the first one", offer.agent)
            return
        try:
            await self._accept_at(leg, offer)
        except AgoraError as err:
            log.warning("accepting the offer of %s again failed: %s", offer.agent, err)

    # --- Reading

    async def _read(self, leg: _Leg) -> None:
        """Reads a thread until it or the job ends."""
        pause = Backoff()
        while True:
            try:
                for event in await leg.watch.next():
                    await self._take(leg, event)
                if not leg.watch.reached:
                    continue
                failed: AgoraError = RelayError("GONE", "the relay does not show the RESULT", status=404)
            except AgoraError as err:
                failed = err
            if isinstance(failed, RelayError) and (leg.is_silent or not await self._is_home(leg)):
                leg.is_silent = True  # another relay answers there, or the REQUEST is not there; that may change
                leg.watch = _Watch(leg.call, ("COMPLETED",))
                await pause.wait()
                continue
            leg.failed = failed
            if leg is self._legs[-1] and not leg.is_silent and not self._network.is_caught(leg.client):
                self._end(failed)
            else:
                log.info("the thread %s at %s has ended: %s", leg.call.thread, leg.client.url, failed)
            return

    async def _is_home(self, leg: _Leg) -> bool:
        """Whether the relay is still the home of the thread."""
        try:
            return (await leg.client.about()).did == leg.home.get("did", "")
        except RelayError:
            return False

    async def _take(self, leg: _Leg, event: Event) -> None:
        if event.type == "OFFER" and (offer := leg.call._offer(event)):
            if self.agent is None:
                leg.has_offer = True
                self._found.append(offer)
                self._tell()
            elif offer.agent == self.agent:
                leg.has_offer = True
                if leg is self._legs[-1] and not leg.call._accepts:
                    await self._accept_again(leg, offer)
        elif event.type == "RESULT" and event.sender == self.agent and leg.call._for_me(event):
            leg.call._check_seal(event)
            if not self._done.done():
                self._done.set_result(Result.of(event))
            self._tell()

    def _end(self, failed: AgoraError) -> None:
        if not self._done.done():
            self._done.set_exception(failed)
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # --- Continuing

    async def _supervise(self) -> None:
        """Continues the job when that is necessary, until it ends."""
        try:
            while not self._done.done():
                if why := self._why_continue():
                    await self._continue(why)
                leg = self._legs[-1]
                lost = not self._offer_made or leg.is_silent or leg.watch.failing_since is not None
                if lost and self._network.now() > self._expires:
                    self._end(RelayError("NO_ANSWER", "the request has expired, and no relay goes on with it"))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._network.timing.tick):
                        await asyncio.shield(self._done)
        except AgoraError:
            pass  # the job has ended with this error
        finally:
            await self._end_tasks(self._reading)

    def _why_continue(self) -> str:
        """Why the job must be continued at another relay (RELAYS R-15); empty: it need not."""
        leg, now, timing = self._legs[-1], asyncio.get_running_loop().time(), self._network.timing
        if now < self._try_after or len(self._legs) > MAX_CONTINUATIONS:
            return ""
        if self._network.is_caught(leg.client):
            return "is caught"
        failing = leg.watch.failing_since
        if leg.is_silent or failing is not None and now - failing >= timing.silence:
            return "is silent"
        limits = self._limits or Limits()
        ends = min(self._expires, limits.deadline.timestamp() if limits.deadline else self._expires)
        waited = 0.0 if leg.waits_since is None else now - leg.waits_since
        patience = min(timing.offer, max(ends - self._network.now() + waited, 0.0) / 4)
        directed = leg.call._recipient is not None and not leg.has_offer and not leg.call._accepts
        return "shows no offer" if directed and waited >= patience else ""

    async def _continue(self, why: str) -> None:
        """Opens a thread at the next relay."""
        left, to, before = self._legs[-1], self.agent or self._recipient, len(self._legs)
        ttl = int(self._expires - self._network.now())
        if ttl >= 1:
            for client in await self._network.homes(to, after=left.client):
                try:
                    await self._ask(client, to, ttl)
                    break
                except (AgoraError, _Silent) as err:
                    log.warning("the job cannot be continued at %s: %s", client.url, err)
                    del self._legs[before:]
                    self._show(left)
        if len(self._legs) == before:
            log.warning("%s %s, and there is no other relay at which the job can be continued", _name(left.client), why)
            self._try_after = asyncio.get_running_loop().time() + self._network.timing.silence
            if left.failed:
                self._end(left.failed)
            return
        news = f"{_name(left.client)} {why}; continued at {_name(self._client)}"
        log.warning("%s", news)
        self._network.on_continue(news)
        if left.failed is None:
            self._network.keep(self._leave(left))

    async def _leave(self, leg: _Leg) -> None:
        """Cancels a thread that the job has left, unless there is an ACCEPT (RELAYS R-16)."""
        pause = Backoff()
        while not leg.call._accepts and self._network.now() < self._expires:
            try:
                await leg.call.cancel()
                return
            except AgoraError as err:
                if permanent(err) and err.details.get("reason") != "home":
                    return
            await pause.wait()


def _name(client: Client) -> str:
    return urllib.parse.urlsplit(client.url).netloc

"""The same client without asyncio: every method blocks, and iterators take the place of async iterators.

    with Client(url, me) as client:
        call = client.request("echo", {"text": "hi"})

A Client may be used from several threads. Ctrl-C ends a call, as a cancellation does in asyncio."""
from __future__ import annotations

import asyncio
import concurrent.futures
import datetime
import threading
import time
from typing import Any, AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping, TypeVar

from . import call as _call
from . import client as _client
from . import network as _network
from .book import ATTEMPTS
from .call import CallState, Rule
from .didkey import Identity
from .envelope import Envelope
from .errors import AgoraError, UnknownOutcome
from .follow import PAGE, CursorStore, Event
from .join import Place
from .links import Home
from .network import RelayInfo
from .outlook import Outlook
from .payloads import Job, Offer, Price, Result
from .proof import Finding, VerifiedProof
from .protocol import DRAFT_TTL
from .proving import Proofs
from .records import About, Agent, AgentPage, Receipt, Thread
from .state import State
from .transport import Transport

T = TypeVar("T")


class _Loop:
    """An event loop in its own thread. The thread ends with close."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agora-client", daemon=True)
        self._thread.start()

    def run(self, job: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine and returns its result. If this thread is interrupted, the coroutine is cancelled first."""
        if threading.current_thread() is self._thread:
            job.close()
            raise RuntimeError("this would wait for itself; use agora_relay.Client in async functions")
        if self._loop.is_closed():
            job.close()
            raise RuntimeError("the client is closed")
        ended = threading.Event()
        future = asyncio.run_coroutine_threadsafe(_and_tell(job, ended), self._loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():  # such as KeyboardInterrupt in this thread
                future.cancel()
                ended.wait(5)
            raise

    def iterate(self, source: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yields what an async generator yields. When the caller ends the loop early, the generator ends too."""
        try:
            while True:
                try:
                    value = self.run(_next(source))
                except StopAsyncIteration:
                    return
                yield value
        finally:
            if not self._loop.is_closed() and threading.current_thread() is not self._thread:
                self.run(_close(source))

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Runs a last coroutine, cancels all others, and ends the thread."""
        if self._loop.is_closed():
            last.close()
            return
        self.run(_cancel_others())
        self.run(last)
        self.run(_shut_down(self._loop))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _and_tell(job: Coroutine[Any, Any, T], ended: threading.Event) -> T:
    try:
        return await job
    finally:
        ended.set()


async def _next(source: AsyncGenerator[T, None]) -> T:
    return await source.__anext__()


async def _close(source: AsyncGenerator[Any, None]) -> None:
    await source.aclose()


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _called(function: Callable[[], T]) -> T:
    return function()


async def _shut_down(loop: asyncio.AbstractEventLoop) -> None:
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


class Client:
    """A client of the relay at url, as the identity me. See agora_relay.Client for all arguments and methods."""

    def __init__(
        self,
        url: str,
        me: Identity | None = None,
        *,
        require_parties: bool = False,
        transport: Transport | None = None,
        clock: Callable[[], float] = time.time,
        attempts: int = _client.ATTEMPTS,
        proofs: Proofs = "prefer",
    ):
        self._client = _client.Client(
            url,
            me,
            require_parties=require_parties,
            transport=transport,
            clock=clock,
            attempts=attempts,
            proofs=proofs,
        )
        self._loop = _Loop()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all calls of other threads, closes the connections, and ends the client's thread. Unlike an
        agora_relay.Client, a closed client cannot be used again: its methods raise RuntimeError."""
        self._loop.close(self._client.close())

    @property
    def me(self) -> Identity | None:
        """The client's identity."""
        return self._client.me

    @property
    def url(self) -> str:
        """See agora_relay.Client.url."""
        return self._client.url

    def now(self) -> float:
        """See agora_relay.Client.now."""
        return self._client.now()

    def post(
        self,
        type: str,
        payload: Mapping[str, Any],
        *,
        to: str | None = None,
        thread: str | None = None,
        ttl: int = DRAFT_TTL,
        seal: bool = False,
        home: Home | None = None,
        re: str | None = None,
        continues: str | None = None,
    ) -> Receipt:
        """See agora_relay.Client.post."""
        links: dict[str, Any] = {"home": home, "re": re, "continues": continues}
        return self._loop.run(self._client.post(type, payload, to=to, thread=thread, ttl=ttl, seal=seal, **links))

    def post_envelope(self, envelope: Envelope) -> Receipt:
        """See agora_relay.Client.post_envelope."""
        return self._loop.run(self._client.post_envelope(envelope))

    def post_all(self, envelopes: Iterable[Envelope]) -> list[Receipt | AgoraError]:
        """See agora_relay.Client.post_all."""
        return self._loop.run(self._client.post_all(list(envelopes)))

    def follow(
        self,
        *,
        recipient: str | None = None,
        broadcast: bool = False,
        sender: str | None = None,
        type: str | None = None,
        thread: str | None = None,
        cursor: CursorStore | None = None,
        from_oldest: bool = False,
        since: datetime.datetime | None = None,
        page: int = PAGE,
    ) -> Iterator[Event]:
        """See agora_relay.Client.follow."""
        return self._loop.iterate(
            self._client.follow(
                recipient=recipient,
                broadcast=broadcast,
                sender=sender,
                type=type,
                thread=thread,
                cursor=cursor,
                from_oldest=from_oldest,
                since=since,
                page=page,
            )
        )

    def thread(self, id: str, client: str | None = None) -> Thread:
        """See agora_relay.Client.thread."""
        return self._loop.run(self._client.thread(id, client))

    def agents(
        self,
        *,
        intent: str | None = None,
        text: str | None = None,
        online: bool = False,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> AgentPage:
        """See agora_relay.Client.agents."""
        return self._loop.run(
            self._client.agents(intent=intent, text=text, online=online, limit=limit, cursor=cursor)
        )

    def directory(
        self, *, intent: str | None = None, text: str | None = None, online: bool = False
    ) -> Iterator[Agent]:
        """See agora_relay.Client.directory."""
        return self._loop.iterate(self._client.directory(intent=intent, text=text, online=online))

    def agent(self, did: str) -> Agent:
        """See agora_relay.Client.agent."""
        return self._loop.run(self._client.agent(did))

    def about(self) -> About:
        """See agora_relay.Client.about."""
        return self._loop.run(self._client.about())

    def health(self) -> str:
        """See agora_relay.Client.health."""
        return self._loop.run(self._client.health())

    def relay_did(self) -> str:
        """See agora_relay.Client.relay_did."""
        return self._loop.run(self._client.relay_did())

    def home(self) -> Home | None:
        """See agora_relay.Client.home."""
        return self._loop.run(self._client.home())

    def proves(self) -> bool:
        """See agora_relay.Client.proves."""
        return self._loop.run(self._client.proves())

    def proof(self, envelope: Envelope) -> tuple[str, VerifiedProof]:
        """See agora_relay.Client.proof."""
        return self._loop.run(self._client.proof(envelope))

    def request(
        self,
        intent: str,
        params: Any = None,
        *,
        to: str | None = None,
        max_cost: float | None = None,
        deadline: datetime.datetime | None = None,
        constraints: Mapping[str, Any] | None = None,
        seal: bool = False,
        allow_plain: bool = False,
        ttl: int = DRAFT_TTL,
        thread: str | None = None,
        title: str | None = None,
        description: str | None = None,
    ) -> Call:
        """See agora_relay.Client.request."""
        try:
            call = self._loop.run(
                self._client.request(
                    intent,
                    params,
                    to=to,
                    max_cost=max_cost,
                    deadline=deadline,
                    constraints=constraints,
                    seal=seal,
                    allow_plain=allow_plain,
                    ttl=ttl,
                    thread=thread,
                    title=title,
                    description=description,
                )
            )
        except UnknownOutcome as err:
            err.call = Call(self._loop, err.call)
            raise
        return Call(self._loop, call)

    def outlook(self, intent: str, *, to: str | None = None) -> Outlook:
        """See agora_relay.Client.outlook."""
        return self._loop.run(self._client.outlook(intent, to=to))

    def ask(
        self,
        intent: str,
        params: Any = None,
        *,
        rule: Rule = "cheapest",
        seconds: float | None = None,
        timeout: float | None = None,
        to: str | None = None,
        max_cost: float | None = None,
        deadline: datetime.datetime | None = None,
        constraints: Mapping[str, Any] | None = None,
        seal: bool = False,
        allow_plain: bool = False,
        ttl: int = DRAFT_TTL,
        thread: str | None = None,
        title: str | None = None,
        description: str | None = None,
    ) -> Result:
        """See agora_relay.Client.ask."""
        try:
            return self._loop.run(
                self._client.ask(
                    intent,
                    params,
                    rule=rule,
                    seconds=seconds,
                    timeout=timeout,
                    to=to,
                    max_cost=max_cost,
                    deadline=deadline,
                    constraints=constraints,
                    seal=seal,
                    allow_plain=allow_plain,
                    ttl=ttl,
                    thread=thread,
                    title=title,
                    description=description,
                )
            )
        except UnknownOutcome as err:
            err.call = err.call and Call(self._loop, err.call)
            raise

    def resume(
        self, thread: str, *, request_id: str | None = None, to: str | None = None, allow_plain: bool = False
    ) -> Call:
        """See agora_relay.Client.resume."""
        return Call(
            self._loop,
            self._loop.run(self._client.resume(thread, request_id=request_id, to=to, allow_plain=allow_plain)),
        )

    def serve(
        self,
        intents: str | Iterable[str],
        work: Callable[[Job], Any],
        *,
        quote: Callable[[Job], Any] | None = None,
        price: float | Price | None = None,
        manifest: Mapping[str, Any] | None = None,
        cursor: CursorStore | None = None,
        concurrency: int = 8,
        quote_seconds: float = 60.0,
        dropped: Callable[[Event], None] | None = None,
        state: State | None = None,
        attempts: int = ATTEMPTS,
    ) -> None:
        """See agora_relay.Client.serve. It runs until another thread calls close. After Ctrl-C it cancels what
        the agent does, and raises KeyboardInterrupt."""
        try:
            self._loop.run(
                self._client.serve(
                    intents,
                    work,
                    quote=quote,
                    price=price,
                    manifest=manifest,
                    cursor=cursor,
                    concurrency=concurrency,
                    quote_seconds=quote_seconds,
                    dropped=dropped,
                    state=state,
                    attempts=attempts,
                )
            )
        except concurrent.futures.CancelledError:
            pass  # another thread has called close


    def join(self, manifest: Mapping[str, Any], **options: Any) -> list[Place]:
        """See agora_relay.Client.join."""
        return self._loop.run(self._client.join(manifest, **options))

    def leave(self, state: State) -> list[Place]:
        """See agora_relay.Client.leave."""
        return self._loop.run(self._client.leave(state))

    def serve_a2a(self, handler: Callable[[Any], Any], **options: Any) -> None:
        """See agora_relay.Client.serve_a2a, and serve."""
        try:
            self._loop.run(self._client.serve_a2a(handler, **options))
        except concurrent.futures.CancelledError:
            pass  # another thread has called close


class Call:
    """The client's side of a thread. See agora_relay.Call. Only one thread may use it at a time."""

    def __init__(self, loop: _Loop, call: _call.Call):
        self._loop, self._call = loop, call

    @property
    def thread(self) -> str:
        """The id of the thread, for Client.resume."""
        return self._call.thread

    @property
    def agent(self) -> str | None:
        """The did:key of the agent whose offer was accepted, or None."""
        return self._call.agent

    @property
    def seal(self) -> bool:
        """Whether messages to the agent are sealed."""
        return self._call.seal

    def offers(self) -> Iterator[Offer]:
        """See agora_relay.Call.offers."""
        return self._loop.iterate(self._call.offers())

    def collect(self, *, seconds: float = 5.0) -> list[Offer]:
        """See agora_relay.Call.collect."""
        return self._loop.run(self._call.collect(seconds=seconds))

    def best(
        self,
        rule: Rule = "cheapest",
        *,
        seconds: float | None = None,
        max_cost: float | None = None,
        deadline: datetime.datetime | None = None,
    ) -> Offer:
        """See agora_relay.Call.best."""
        return self._loop.run(self._call.best(rule, seconds=seconds, max_cost=max_cost, deadline=deadline))

    def accept(
        self, offer: Offer, *, max_cost: float | None = None, deadline: datetime.datetime | None = None
    ) -> None:
        """See agora_relay.Call.accept."""
        self._loop.run(self._call.accept(offer, max_cost=max_cost, deadline=deadline))

    def result(self, *, seconds: float | None = None) -> Result:
        """See agora_relay.Call.result."""
        return self._loop.run(self._call.result(seconds=seconds))

    def state(self) -> CallState:
        """See agora_relay.Call.state."""
        return self._loop.run(self._call.state())

    def cancel(self, reason: str = "") -> None:
        """See agora_relay.Call.cancel."""
        self._loop.run(self._call.cancel(reason))


class Network:
    """A client of several relays, as the identity me. See agora_relay.Network for all arguments and methods. options
    are the further arguments of the constructor and of the methods there."""

    def __init__(self, relays: Iterable[str], me: Identity, **options: Any):
        self._network = _network.Network(relays, me, **options)
        self._loop = _Loop()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all calls of other threads, closes the connections, and ends the network's thread."""
        self._loop.close(self._network.close())

    def relays(self) -> list[RelayInfo]:
        """See agora_relay.Network.relays."""
        return self._loop.run(self._network.relays())

    def accuse(self, evidence: bytes) -> Finding:
        """See agora_relay.Network.accuse."""
        return self._loop.run(_called(lambda: self._network.accuse(evidence)))

    def trust(self, did: str) -> None:
        """See agora_relay.Network.trust."""
        self._loop.run(_called(lambda: self._network.trust(did)))

    def post(self, type: str, payload: Mapping[str, Any], **options: Any) -> Receipt:
        """See agora_relay.Network.post."""
        return self._loop.run(self._network.post(type, payload, **options))

    def agents(self, **options: Any) -> list[Agent]:
        """See agora_relay.Network.agents."""
        return self._loop.run(self._network.agents(**options))

    def agent(self, did: str) -> Agent:
        """See agora_relay.Network.agent."""
        return self._loop.run(self._network.agent(did))

    def request(self, intent: str, params: Any = None, **options: Any) -> Call:
        """See agora_relay.Network.request."""
        return Call(self._loop, self._loop.run(self._network.request(intent, params, **options)))

    def ask(self, intent: str, params: Any = None, **options: Any) -> Result:
        """See agora_relay.Network.ask."""
        return self._loop.run(self._network.ask(intent, params, **options))

    def follow(self, **options: Any) -> Iterator[Event]:
        """See agora_relay.Network.follow."""
        return self._loop.iterate(self._network.follow(**options))

    def serve(self, intents: str | Iterable[str], work: Callable[[Job], Any], **options: Any) -> None:
        """See agora_relay.Network.serve. It runs until another thread calls close."""
        try:
            self._loop.run(self._network.serve(intents, work, **options))
        except concurrent.futures.CancelledError:
            pass  # another thread has called close

    def join(self, manifest: Mapping[str, Any], **options: Any) -> list[Place]:
        """See agora_relay.Network.join."""
        return self._loop.run(self._network.join(manifest, **options))

    def leave(self) -> list[Place]:
        """See agora_relay.Network.leave."""
        return self._loop.run(self._network.leave())

    def serve_a2a(self, handler: Callable[[Any], Any], **options: Any) -> None:
        """See agora_relay.Network.serve_a2a. It runs until another thread calls close."""
        try:
            self._loop.run(self._network.serve_a2a(handler, **options))
        except concurrent.futures.CancelledError:
            pass  # another thread has called close

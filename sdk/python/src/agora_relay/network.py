"""Several relays, none of them trusted (RELAYS): one agent reads them all, and a job continues if one of them fails."""
from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import json
import os
import time
from typing import Any, AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping, TypeVar

from .answer import log
from .a2a import TurnServer
from .book import ATTEMPTS as ATTEMPTS_OF_WORK
from .call import Rule
from .client import ATTEMPTS, Client
from .desk import Inbox
from .dialler import Dialler, objection_to
from .didkey import Identity
from .envelope import Envelope, is_home, sign
from .errors import AgentError, AgoraError, Cancelled, Refused, RelayError
from .files import Path, replace
from .follow import PAGE, Event, Filter, Follower, load_cursor, seconds_of
from .join import Place
from .jsontext import parse
from .links import Home
from .netcall import NetworkCall, Timing
from .payloads import Job, Limits, Price, Result, request_payload
from .progress import Page, Progress
from .proof import Finding, verify_evidence, verify_proof
from .protocol import DRAFT_TTL
from .proving import Proofs
from .records import About, Agent, Receipt
from .servants import Servants
from .serve import Service
from .state import State
from .transport import StreamTransport, Transport

T = TypeVar("T")

MAX_RELAYS = 8
MAX_ANNOUNCED = 4  # relays in a manifest
MAX_DISCOVERED = 64  # relays that were found, and are used
LOOK_SECONDS = 10.0  # how long a relay may take to say who it is, or whom its directory has
QUEUED = 256  # events that wait for the reader of follow


@dataclasses.dataclass(frozen=True)
class RelayInfo:
    """One relay of a Network."""

    url: str
    about: About | None
    """Its document; None: it did not answer."""
    caught: str
    """Why it is not used any more; empty: it is used."""


class Network:
    """A client of several relays, the preferred one first, as the identity me. It has the methods of Client. It moves
    a job to another relay if the one that decides its thread fails.

        async with Network(["https://a.example", "https://b.example"], me) as network:
            result = await network.ask("echo", {"text": "hi"})

    state is where it keeps positions, handled events, jobs, and which relays are caught; by default in memory. With
    discover, it also contacts relays that agents and clients name (RELAYS R-13). evidence is a folder: there it writes
    what it has against a relay. on_continue gets a sentence when a job has moved. The other arguments are those of
    Client. Raises ValueError and TypeError for wrong ones."""

    def __init__(
        self,
        relays: Iterable[str],
        me: Identity,
        *,
        state: State | None = None,
        discover: bool = False,
        evidence: Path | None = None,
        on_continue: Callable[[str], None] = lambda news: None,
        require_parties: bool = False,
        transport: Transport | None = None,
        clock: Callable[[], float] = time.time,
        attempts: int = ATTEMPTS,
        proofs: Proofs = "prefer",
        timing: Timing = Timing(),
    ):
        urls = [relays] if isinstance(relays, str) else list(relays)
        if not 1 <= len(set(urls)) <= MAX_RELAYS:
            raise ValueError(f"a Network needs 1 to {MAX_RELAYS} relays, such as ['https://a.example']")
        self.me, self.timing, self.on_continue = me, timing, on_continue
        self.state = state or State()
        self.state.bind(me.did)
        self._discover, self._evidence = discover, evidence

        def client(url: str, transport: Transport) -> Client:
            made = Client(
                url, me, require_parties=require_parties, transport=transport, clock=clock, attempts=attempts,
                proofs=proofs,
            )
            made.in_network = True
            made._on_bad_proofs = lambda found: self._catch_bad_proofs(made, found)
            return made

        self._client, self._dialler = client, Dialler()
        self.clients = [client(url, transport or StreamTransport()) for url in dict.fromkeys(urls)]
        self._discovered: dict[str, Client] = {}
        self._kept: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Network:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends what runs for jobs, and closes the connections. The state stays open."""
        for task in self._kept:
            task.cancel()
        await asyncio.gather(*self._kept, return_exceptions=True)
        for client in [*self.clients, *self._discovered.values()]:
            await client.close()

    def now(self) -> float:
        """The time of the clock, in seconds since 1970, as the preferred relay has corrected it."""
        return self.clients[0].now()

    def keep(self, job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs a job in a task that ends with close."""
        task = asyncio.get_running_loop().create_task(job)
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)
        return task

    # --- Relays

    async def relays(self) -> list[RelayInfo]:
        """Shows each relay."""

        async def info(client: Client) -> RelayInfo:
            about = await self._look(client.about())
            did = about.did if about else client._relay_did or ""
            return RelayInfo(client.url, about, self.state.caught.get(did, ""))

        return list(await asyncio.gather(*map(info, self.clients)))

    async def homes(self, to: str | None, after: Client | None = None) -> list[Client]:
        """The relays at which a request can be opened, in the order of RELAYS R-11. to is the agent that is asked. With
        after, the list begins with the relay behind that one, and leaves that one out. Raises RelayError if the agent
        is not known."""
        found = await self._homes_of(to) if to else [(client, None) for client in self.clients]
        clients = [client for client, _ in found]
        if after in clients:
            at = clients.index(after)
            found = found[at + 1 :] + found[:at]
        usable = await asyncio.gather(*(self._is_usable(client, did) for client, did in found))
        return [client for (client, _), ok in zip(found, usable) if ok]

    async def _homes_of(self, to: str) -> list[tuple[Client, str | None]]:
        """The relays that an agent reads, as its newest manifest says, with their DIDs; else the relays whose directory
        has the agent."""
        rows = await asyncio.gather(*(self._look(client.agent(to)) for client in self.clients))
        manifests = _merged([row for row in rows if row]).manifests if any(rows) else []
        relays = relays_of(manifests[0].payload) if manifests else []
        if relays:
            named = [(self._client_of(home), home["did"]) for home in relays]
            return [(client, did) for client, did in named if client]
        return [(client, None) for client, row in zip(self.clients, rows) if row]

    def _client_of(self, home: Home) -> Client | None:
        """The client of a relay; None: it may not be contacted (RELAYS R-13)."""
        for client in self.clients:
            if client._relay_did == home["did"] or client._relay_did is None and client.url == home["url"]:
                return client
        if not self._discover or objection_to(home["url"]):
            return None
        known = self._discovered.get(home["did"])
        if known is None and len(self._discovered) < MAX_DISCOVERED:
            known = self._discovered[home["did"]] = self._client(home["url"], self._dialler)
        return known if known and known.url == home["url"] else None

    async def _is_usable(self, client: Client, did: str | None) -> bool:
        """Whether a relay can be a home: it has the expected DID and the feature home, and is not caught. Without did,
        the DID that it had before is expected."""
        home = await self._look(client.home())
        if home is None:
            log.warning("%s is left out: it does not answer, or cannot be a home", client.url)
            return False
        expected = did or await client.relay_did()
        if home["did"] != expected:
            log.warning("%s is left out: it is %s, and not %s", client.url, home["did"], expected)
        return home["did"] == expected and home["did"] not in self.state.caught

    async def _look(self, read: Awaitable[T]) -> T | None:
        """What a relay answers; None: it does not answer in time, or has no answer."""
        try:
            async with asyncio.timeout(min(LOOK_SECONDS, self.timing.silence)):
                return await read
        except (AgoraError, TimeoutError):
            return None

    # --- Relays that are caught

    def is_caught(self, client: Client) -> bool:
        """Whether a relay is caught (RELAYS R-17)."""
        return client._relay_did in self.state.caught

    def accuse(self, evidence: bytes) -> Finding:
        """Checks evidence (docs/PROOFS.md). If it is against a relay, the relay is not used any more, unless the
        evidence only shows that it has lost its data. Raises Refused if the evidence shows nothing."""
        finding = verify_evidence(evidence)
        proofs = parse(evidence, costly=1 << 20).get("proofs", [])
        if finding.relay is None:
            log.warning("%s has accepted two agents for one job", finding.client)
        elif finding.kind != "chain" and len({verify_proof(text).origin for text in proofs}) <= 1:
            self._catch(finding.relay, f"evidence of the kind {finding.kind}", evidence)
        else:
            log.warning("%s has lost messages, probably in a restore", finding.relay)
        return finding

    def trust(self, did: str) -> None:
        """Uses a relay again that was caught."""
        self.state.trust(did)

    def _catch_bad_proofs(self, client: Client, found: list[tuple[Envelope, str]]) -> None:
        proofs = [{"event": event, "proof": text} for event, text in found]
        self._catch(client._relay_did or "", "two proofs in a row do not hold", json.dumps(proofs).encode())

    def _catch(self, did: str, why: str, evidence: bytes) -> None:
        log.error("the relay %s is caught, and not used any more: %s", did, why)
        self.state.catch(did, why)
        if self._evidence is not None:
            replace(os.path.join(self._evidence, f"{did.rpartition(':')[2]}.json"), evidence)

    # --- Posting, and the directory

    async def post(
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
        """Posts a message to its home only, and without a home to the preferred relay. A MANIFEST goes to all relays,
        with their names. Returns the first receipt. Raises what Client.post raises."""
        if type == "MANIFEST":
            return (await self._publish(payload, ttl))[0]
        client = self.clients[0]
        if home:
            for client in self.clients:
                await self._look(client.relay_did())
            found = self._client_of(home)
            if found is None or home["did"] in self.state.caught:
                raise Refused("FORBIDDEN", f"the relay {home['did']} is none of this network, or it is caught")
            client = found
        return await client.post(
            type, payload, to=to, thread=thread, ttl=ttl, seal=seal, home=home, re=re, continues=continues
        )

    async def _publish(self, payload: Mapping[str, Any], ttl: int = DRAFT_TTL) -> tuple[Receipt, bool]:
        """Posts one manifest to all relays. Returns a receipt, and whether all have it. Raises what Client.post raises
        if none takes it."""
        homes = await asyncio.gather(*(self._look(client.home()) for client in self.clients))
        relays = [home for home in homes if home][:MAX_ANNOUNCED]
        first = self.clients[0]
        members = {"relays": relays} if relays else {}
        e = first._signed(first._draft("MANIFEST", members | dict(payload), None, None, {"ttl": ttl}), False)
        results = await asyncio.gather(*(c.post_envelope(e) for c in self.clients), return_exceptions=True)
        receipts = [result for result in results if isinstance(result, Receipt)]
        for client, result in zip(self.clients, results):
            if isinstance(result, BaseException):
                log.warning("posting the manifest to %s failed: %s", client.url, result)
                if not receipts:
                    raise result
        return receipts[0], len(receipts) == len(self.clients) and len(relays) == min(len(homes), MAX_ANNOUNCED)

    async def agents(
        self, *, intent: str | None = None, text: str | None = None, online: bool = False, limit: int | None = None
    ) -> list[Agent]:
        """The agents in the first pages of all directories, each once, with its newest manifest. A relay that does not
        answer is left out."""
        read = (self._look(c.agents(intent=intent, text=text, online=online, limit=limit)) for c in self.clients)
        pages = await asyncio.gather(*read)
        found: dict[str, list[Agent]] = {}
        for page in pages:
            for agent in page.agents if page else []:
                found.setdefault(agent.id, []).append(agent)
        return [_merged(rows) for rows in found.values()]

    async def agent(self, did: str) -> Agent:
        """One agent, as all directories show it. Its manifests are in the order of their times, the newest first.
        Raises RelayError with AGENT_NOT_FOUND."""
        rows = [row for row in await asyncio.gather(*(self._look(c.agent(did)) for c in self.clients)) if row]
        if not rows:
            raise RelayError("AGENT_NOT_FOUND", f"no relay of this network that answers has {did}", status=404)
        return _merged(rows)

    # --- Asking

    async def request(
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
        title: str | None = None,
        description: str | None = None,
    ) -> NetworkCall:
        """Asks for a service: an agent at the first of its relays that can be a home, all agents at the preferred
        relay. The arguments are those of Client.request. If that relay is silent, the job continues at another one.
        Raises RelayError if no relay can be a home, and what Client.request raises."""
        limits = Limits(max_cost, deadline)
        payload = request_payload(intent, params, limits, constraints, title, description)
        call = NetworkCall(self, payload, to=to, limits=limits, seal=seal, allow_plain=allow_plain, ttl=ttl)
        for client in await self.homes(to):
            if await call._begin(client):
                return call
        whose = f"that {to} reads " if to else ""
        raise RelayError(
            "NO_ANSWER",
            f"no relay {whose}can open this request: it must be one of this network, answer, have the feature home, "
            "and not be caught; relays() shows them",
            not_sent=True,
        )

    async def ask(
        self,
        intent: str,
        params: Any = None,
        *,
        rule: Rule = "cheapest",
        seconds: float = 5.0,
        timeout: float | None = None,
        **options: Any,
    ) -> Result:
        """Asks, accepts the best offer, and waits for the result, in all at most timeout seconds. After the first offer
        it waits seconds more for better ones, unless the rule is first. options are those of request. Without a result
        it cancels the request. Raises what request, best, accept and result raise, and TimeoutError."""
        call: NetworkCall | None = None
        try:
            async with asyncio.timeout(timeout):
                call = await self.request(intent, params, **options)
                offer = await call.best("first")
                await call.accept(offer if rule == "first" else await call.best(rule, seconds=seconds))
                return await call.result()
        except BaseException as err:
            if call and not isinstance(err, (AgentError, Cancelled)):
                with contextlib.suppress(AgoraError, TimeoutError):
                    async with asyncio.timeout(self.timing.silence):
                        await call.cancel()
            raise
        finally:
            if call:
                await call.close()

    # --- Reading

    async def follow(
        self,
        *,
        recipient: str | None = None,
        broadcast: bool = False,
        sender: str | None = None,
        type: str | None = None,
        thread: str | None = None,
        from_oldest: bool = False,
        since: datetime.datetime | None = None,
        page: int = PAGE,
    ) -> AsyncGenerator[Event, None]:
        """Yields the events of all relays in the order of their arrival, each once (RELAYS R-12). The positions are in
        the state of the network. An event counts as handled when the caller asks for the next one. A relay that is down
        delays nothing. Raises RelayError if all relays refuse to be read."""
        inbox = Inbox(self.state)
        queue: asyncio.Queue[tuple[Event, Page] | RelayError] = asyncio.Queue(QUEUED)
        filter = Filter(recipient, broadcast, sender, type, thread)

        async def read(client: Client) -> None:
            did = await client._patient_did()
            progress = Progress(self.state.cursor(did))
            follower = Follower(
                client._session, filter, from_oldest=from_oldest, page=page, since=seconds_of(since) if since else None
            )

            async def on_page(events: list[Event], cursor: str) -> None:
                page = progress.begin(cursor)
                for event in events:
                    closed = event.closed and event.recipient == self.me.did
                    if did not in self.state.caught and not closed and inbox.is_new(event, self.now()):
                        page.hold()
                        await queue.put((event, page))
                await page.release()

            follower.on_page = on_page
            follower.begin(await load_cursor(progress.store))
            try:
                while True:
                    await follower.step()
            except RelayError as err:
                await queue.put(err)

        tasks = [asyncio.create_task(read(client)) for client in self.clients]
        refused = 0
        try:
            while True:
                found = await queue.get()
                if isinstance(found, RelayError):
                    refused += 1
                    log.warning("a relay refuses to be read: %s", found)
                    if refused == len(tasks):
                        raise found
                    continue
                event, held = found
                yield event
                inbox.done(event, self.now())
                await held.release()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def serve(
        self,
        intents: str | Iterable[str],
        work: Callable[[Job], Any],
        *,
        quote: Callable[[Job], Any] | None = None,
        price: float | Price | None = None,
        manifest: Mapping[str, Any] | None = None,
        concurrency: int = 8,
        quote_seconds: float = 60.0,
        dropped: Callable[[Event], None] | None = None,
        attempts: int = ATTEMPTS_OF_WORK,
    ) -> None:
        """Runs one agent at all relays until it is cancelled. The arguments are those of Client.serve. It answers at
        the home of a thread only, and works once for a job (RELAYS R-18). Its manifest names the relays. Raises what
        Client.serve raises, RelayError only if all relays refuse to be read."""
        service, desk = Service.of(
            intents,
            work,
            quote=quote,
            price=price,
            manifest=manifest,
            concurrency=concurrency,
            quote_seconds=quote_seconds,
            dropped=dropped,
            state=self.state,
            attempts=attempts,
        )
        await Servants(self, dataclasses.replace(service, manifest=None), desk).run(service.manifest)

    async def serve_a2a(
        self,
        handler: Callable[[Any], Any],
        *,
        intents: str | Iterable[str] = (),
        work: Callable[[Job], Any] | None = None,
        quote: Callable[[Job], Any] | None = None,
        price: float | Price | None = None,
        **options: Any,
    ) -> None:
        """See Client.serve_a2a. It serves the A2A gateways of all relays."""
        server = TurnServer(lambda: self.clients, handler, intents, work, quote, price, self.now())
        await self.serve(server.intents, server.work, quote=server.quote, **options)

    async def join(self, manifest: Mapping[str, Any], **options: Any) -> list[Place]:
        """See Client.join. It joins at all relays, with the state of the network. If some fail, it raises the first
        error after it has tried all."""
        return await self._at_each(lambda client: client.join(manifest, state=self.state, **options))

    async def leave(self) -> list[Place]:
        """See Client.leave, and join."""
        return await self._at_each(lambda client: client.leave(self.state))

    async def _at_each(self, act: Callable[[Client], Awaitable[list[Place]]]) -> list[Place]:
        places: list[Place] = []
        failed: Refused | None = None
        for client in self.clients:
            try:
                places += await act(client)
            except Refused as err:
                failed = failed or err
        if failed:
            raise failed
        return places


def relays_of(manifest: Mapping[str, Any]) -> list[Home]:
    """The relays in the payload of a manifest (RELAYS R-10); empty: it names none, or they are malformed."""
    relays = manifest.get("relays")
    if not isinstance(relays, list) or not 1 <= len(relays) <= MAX_ANNOUNCED:
        return []
    homes = [{name: relay.get(name) for name in ("did", "url")} for relay in relays if isinstance(relay, dict)]
    valid = len(homes) == len(relays) and all(map(is_home, homes)) and len({h["did"] for h in homes}) == len(homes)
    return [{"did": str(home["did"]), "url": str(home["url"])} for home in homes] if valid else []


def _merged(rows: list[Agent]) -> Agent:
    """One agent, as several directories show it."""
    manifests = {event.hash: event for row in rows for event in row.manifests}
    seen = [row.last_seen for row in rows if row.last_seen]
    newest = sorted(manifests.values(), key=lambda event: event.ts, reverse=True)
    return Agent(rows[0].id, any(row.online for row in rows), max(seen, default=None), newest)

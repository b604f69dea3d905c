"""The client of a relay."""
from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import logging
import time
import urllib.parse
from typing import Any, AsyncGenerator, Callable, Iterable, Mapping

from .a2a import TurnServer
from .answer import (
    MAX_DIRECTORY,
    MAX_DOCUMENT,
    MAX_RECORD,
    MAX_ROWS,
    MAX_SHORT,
    MAX_THREAD,
    Envelopes,
    Spec,
    TooLong,
    split_list,
    text_of,
)
from .book import ATTEMPTS as ATTEMPTS_OF_WORK
from .call import Call, Rule, continue_request, resume_call
from .didkey import Identity, key_of
from .envelope import Envelope, check_envelope, format_time, is_home, new_id, sign, thread_of, valid_id
from .errors import (
    AgentError,
    AgoraError,
    Cancelled,
    Endless,
    Gone,
    NoOffer,
    Refused,
    RelayError,
    UnknownOutcome,
)
from .follow import (
    PAGE,
    CursorStore,
    Event,
    Filter,
    Follower,
    cursor_of,
    load_cursor,
    save_cursor,
    seconds_of,
    wanted,
)
from .join import Place, join, joining, leave
from .jsontext import canonicalize
from .links import Home, content_hash, home_of
from .outlook import Outlook, doubt, outlook
from .payloads import Job, Limits, Price, Result, request_payload
from .postall import post_all
from .proof import VerifiedProof, verify_proof
from .protocol import DRAFT_TTL, SETTLES
from .proving import Proofs, check_rule, proved
from .records import About, Agent, AgentPage, Receipt, Thread, agent_of, malformed, row_of
from .sealing import seal as seal_envelope
from .serve import Agent as Serving
from .serve import Service
from .state import State
from .session import (
    EXCHANGE_SECONDS,
    HEALTH,
    WELL_KNOWN,
    Session,
    has_feature,
    is_other_loopback,
    monotonic,
    quote,
    same_origin,
    unauthorized,
)
from .transport import StreamTransport, Transport
from .waiting import POST_PATIENCE, READ_PATIENCE, Backoff, Recent

log = logging.getLogger("agora_relay")

GATEWAYS = {"hub": "hub", "jobs": "registry of jobs", "channel": "channel gateway", "a2a": "A2A gateway"}
ATTEMPTS = 8  # how often a message is sent before post gives up, with about 45 s of pauses in total
LAST_SECONDS = 10.0  # how long a CANCEL may take after a failure
HOME_SECONDS = 3600.0  # how long the document of a home counts (RELAYS R-4)
MAX_IDLE_PAGES = 100  # pages of the directory in a row without a new agent
MAX_PAGES = 100_000  # pages of the directory in total



class Client:
    """A client of the relay at url, such as https://relay.example, as the identity me. Without me it can only read.

    It verifies every message, and checks that the message matches the request, before it uses it. What only the relay
    claims decides what it asks next. Use it in one event loop; any number of tasks may use it at once.

        async with Client(url, me) as client:
            call = await client.request("echo", {"text": "hi"})

    require_parties allows only relays that show a directed message to its two parties only (PROTOCOL §8). clock
    returns seconds since 1970. attempts is how often post sends a message before it gives up.

    proofs says whether the client checks that the relay proves what it has accepted (docs/PROOFS.md). "off": never.
    "prefer": each proof that the relay gives must hold. "required": nothing counts without a proof.

    Raises ValueError for a bad url and an unknown value of proofs, and TypeError if me is no Identity."""

    def __init__(
        self,
        url: str,
        me: Identity | None = None,
        *,
        require_parties: bool = False,
        transport: Transport | None = None,
        clock: Callable[[], float] = time.time,
        attempts: int = ATTEMPTS,
        proofs: Proofs = "prefer",
    ):
        check_rule(proofs)
        if me is not None and not isinstance(me, Identity):
            raise TypeError("me must be an Identity; pass load_or_create_key('agent.key')")
        self.me, self.proofs = me, proofs
        self.in_network = False  # whether a Network uses this client
        self._attempts = attempts
        self._session = Session(url, me, transport or StreamTransport(), clock, require_parties)
        self._relay_did: str | None = None
        self._bad_proofs: list[tuple[Envelope, str]] = []  # at most two; none after a good one
        self._on_bad_proofs: Callable[[list[tuple[Envelope, str]]], None] = lambda found: None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections. The client can be used again."""
        await self._session.transport.close()

    @property
    def url(self) -> str:
        """The relay's URL, without a slash at the end."""
        return self._session.base

    def now(self) -> float:
        """The time of the client's clock in seconds since 1970, corrected by the relay's if that was necessary."""
        return self._session.now()

    def identity(self) -> Identity:
        """The client's identity. Raises ValueError if it has none."""
        if self.me is None:
            raise ValueError("this needs an identity; pass one to Client, such as load_or_create_key('my.key')")
        return self.me

    # --- Posting

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
        """Signs a message and posts it. ttl is in seconds. With seal, only the recipient to can read the payload.

        home is the relay that decides the thread, as Client.home returns it. re is the hash of the message that this
        one answers. continues is the hash of the first REQUEST of the job (RELAYS §1, §2, §4). They become members
        of meta. If this relay is not the home, nothing is sent, and Refused is raised.

        It sends the same bytes again after a temporary failure (no connection, 429, 5xx), and waits as Retry-After
        says. If the relay refuses the timestamp, it corrects its clock and signs once more with the same id.

        Raises UnknownOutcome if the relay may have stored the message, also NoProof; otherwise Refused or RelayError,
        and the relay has not stored it."""
        members = {"home": home, "re": re, "continues": continues}
        meta = {name: value for name, value in members.items() if value is not None}
        return await self._post(type, payload, to=to, thread=thread, ttl=ttl, seal=seal, meta=meta)

    async def post_envelope(self, envelope: Envelope) -> Receipt:
        """Posts a message that is signed already. It retries as post does, but never changes the message. Raises what
        post raises."""
        return await self._post_envelope(envelope, retry_limited=True)

    async def post_all(self, envelopes: Iterable[Envelope]) -> list[Receipt | AgoraError]:
        """Posts messages that are signed already, in this order, in few requests. Returns one entry for each message: a
        Receipt, mostly without cursor and thread, or the error that post_envelope would raise.

        It retries as post_envelope does. If the relay refuses a message only for the moment, it sends the message
        again, and also the refused ones behind it, because they may depend on it. It gives up after as many attempts
        in a row as post_envelope makes, if none of them brings a message a final result. A message that is not valid
        gets Refused, and is not sent. If the relay does not take many messages in one request, it posts them one by
        one."""
        return await post_all(self, self._session, envelopes, self._attempts)

    async def _post(
        self,
        type: str,
        payload: Mapping[str, Any],
        *,
        to: str | None,
        thread: str | None,
        ttl: int = DRAFT_TTL,
        seal: bool,
        meta: Mapping[str, Any] = {},
        retry_limited: bool = True,
        on_signed: Callable[[Envelope], None] = lambda e: None,
        on_refused: Callable[[], None] = lambda: None,
    ) -> Receipt:
        """Posts as post does. meta has further members of meta. on_signed gets the message before it is sent.
        on_refused is called when the relay has refused it, and it will be sent again."""
        draft = self._draft(type, payload, to, thread, {"ttl": ttl, **meta})
        e = self._signed(draft, seal)
        on_signed(e)
        try:
            return await self._post_envelope(e, retry_limited, on_refused)
        except (RelayError, UnknownOutcome) as err:
            refusal = err.__cause__ if isinstance(err, UnknownOutcome) else err
            stale = isinstance(refusal, RelayError) and refusal.code == "STALE_TIMESTAMP"
            if not stale or not isinstance(refusal, RelayError) or not self._session.correct_clock(refusal):
                raise
            unknown = isinstance(err, UnknownOutcome)
        e = self._signed(draft, seal)
        on_signed(e)
        try:
            return await self._post_envelope(e, retry_limited, on_refused)
        except RelayError as err:
            # The relay never stores two messages with one id. So DUPLICATE_ID means that it has the first one.
            if unknown and (err.code == "DUPLICATE_ID" or err.code not in SETTLES):
                raise UnknownOutcome(err, e) from err
            raise

    def _draft(
        self, type: str, payload: Mapping[str, Any], to: str | None, thread: str | None, meta: dict[str, Any]
    ) -> Envelope:
        me, now, payload = self.identity(), self._session.now(), dict(payload)
        if (
            type == "REQUEST"
        ):  # the thread and the request share one id, because some agents answer with request_id alone
            id = payload.setdefault("request_id", thread or new_id("thread", now))
            thread = thread or (id if valid_id(id) else new_id("thread", now))
        draft: Envelope = {
            "version": "1.0",
            "id": new_id("msg", now),
            "type": type,
            "sender": {"id": me.did},
            "payload": payload,
            "meta": meta,
        }
        if to is not None:
            key_of(to)
            draft["recipient"] = {"id": to}
        if thread is not None:
            draft["thread"] = {"id": thread}
        return draft

    def _signed(self, draft: Envelope, seal: bool) -> Envelope:
        e = draft | {"ts": format_time(self._session.now())}
        # Parsing gives what the relay will read, also if the payload has tuples.
        e = json.loads(canonicalize(sign(seal_envelope(e) if seal else e, self.identity())))
        return check_envelope(e)

    async def _post_envelope(
        self, e: Envelope, retry_limited: bool, on_refused: Callable[[], None] = lambda: None
    ) -> Receipt:
        pause, may_be_stored = Backoff(), False
        for attempt in range(1, self._attempts + 1):
            try:
                receipt = await self._post_once(e)
            except RelayError as err:
                failed = err
            else:
                return await proved(self, receipt)
            # After a failure with an unknown effect an early retry is useful: it shows whether the relay has the
            # message.
            too_long = failed.no_effect and failed.retry_after > POST_PATIENCE
            if (
                not failed.temporary
                or too_long
                or attempt == self._attempts
                or failed.status == 429
                and not retry_limited
            ):
                break
            log.warning("posting failed, will be retried: %s", failed)
            if failed.is_answer:
                on_refused()
            elif home_of(e):  # another relay may answer there now
                self._session.document = None
            may_be_stored = may_be_stored or not failed.no_effect
            await pause.wait(min(failed.retry_after, POST_PATIENCE))
        if not failed.no_effect or may_be_stored and not (failed.from_relay and failed.code in SETTLES):
            raise UnknownOutcome(failed, e)
        raise failed

    async def _post_once(self, e: Envelope) -> Receipt:
        try:
            async with asyncio.timeout(EXCHANGE_SECONDS):
                await self._session.assure_parties()
                await self.assure_home(e)
                answer = await self._session.exchange("POST", "/events", Spec(MAX_SHORT), body=canonicalize(e))
        except TimeoutError:
            raise RelayError("NO_ANSWER", f"the relay did not answer within {EXCHANGE_SECONDS:.0f} s") from None
        return Receipt.of(answer, e)

    # --- Reading

    async def follow(
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
    ) -> AsyncGenerator[Event, None]:
        """Yields the events that match, in the relay's order, and waits for more without end. broadcast adds events
        without a recipient to those of recipient.

        It begins at the cursor in the store cursor. If there is none: at the relay's oldest event with from_oldest,
        else after since, else now. The cursor of a page is saved when the caller asks for the event after the page.
        So after a crash, at most one page of events comes again. Within one call, each event comes once.

        It yields only verified events. A payload that is sealed to this client is opened; an event whose payload
        cannot be opened is skipped. It retries failures of the network and the relay. If the relay does not know the
        cursor, it begins again with the oldest event. Raises RelayError if a retry would not help, and errors of the
        store."""
        filter = Filter(recipient, broadcast, sender, type, thread)
        follower = Follower(
            self._session, filter, from_oldest=from_oldest, page=page, since=seconds_of(since) if since else None
        )
        pages: list[tuple[list[Event], str]] = []

        async def on_page(events: list[Event], position: str) -> None:
            pages.append((events, position))

        follower.on_page = on_page
        follower.begin(await load_cursor(cursor))
        while True:
            await follower.step()
            for events, position in pages:
                for event in events:
                    if not (event.closed and self.me and event.recipient == self.me.did):
                        yield event
                await save_cursor(cursor, position)
            pages.clear()

    async def thread(self, id: str, client: str | None = None) -> Thread:
        """Reads the thread that client has opened with this id; without client, the oldest thread with this id. Raises
        RelayError, most often with THREAD_NOT_FOUND."""
        envelopes = Envelopes(MAX_THREAD)
        answer = await self._session.read(
            f"/threads/{quote(id)}", {"client": client} if client else {}, Spec(MAX_RECORD, "events", envelopes.add)
        )
        thread = Thread.of(answer, wanted(self.me, envelopes, lambda event: event.thread == id))
        if thread.id != id or client and thread.client != client:
            raise malformed("it is about another thread")
        return thread

    async def agents(
        self,
        *,
        intent: str | None = None,
        text: str | None = None,
        online: bool = False,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> AgentPage:
        """A page of the directory: agents with this intent, whose manifests contain this text, and that were online in
        the last five minutes. Rows whose manifest does not verify are skipped. Raises RelayError."""
        members = {
            "intent": intent,
            "q": text,
            "online": "true" if online else None,
            "cursor": cursor,
            "limit": str(limit) if limit else None,
        }
        agents: list[Agent] = []
        rows = 0

        def take(text: bytes) -> None:
            nonlocal rows
            rows += 1
            if rows > MAX_ROWS:
                raise TooLong(f"the response has more than {MAX_ROWS} agents")
            try:
                row = json.loads(text)
                if not isinstance(row, dict):
                    raise malformed("a row is not an object")
                manifest = json.dumps(row.pop("envelope", None), allow_nan=False).encode()
                agents.append(row_of(row, manifest, self.me))
            except (Refused, ValueError, RecursionError) as err:
                log.warning("a row of the directory was skipped: %s", err)

        answer = await self._session.read(
            "/agents", {name: value for name, value in members.items() if value}, Spec(MAX_DIRECTORY, "agents", take)
        )
        return AgentPage(agents, answer.get("hasMore") is True, cursor_of(answer))

    async def directory(
        self, *, intent: str | None = None, text: str | None = None, online: bool = False
    ) -> AsyncGenerator[Agent, None]:
        """Yields the agents that match. Raises RelayError, and Endless if the relay always claims to have more agents,
        but sends no new ones."""
        seen: Recent[tuple[str, str], None] = Recent(1 << 16)
        cursor, idle = "", 0
        for _ in range(MAX_PAGES):
            page = await self.agents(intent=intent, text=text, online=online, cursor=cursor)
            idle += 1
            for agent in page.agents:
                if seen.add((agent.id, agent.manifests[0].id), None):
                    idle = 0
                yield agent
            if not page.has_more:
                return
            if page.cursor in ("", cursor) or idle == MAX_IDLE_PAGES:
                break
            cursor = page.cursor
        raise Endless

    async def agent(self, did: str) -> Agent:
        """One agent with all its manifests. Those that do not verify are skipped. Raises RelayError, most often with
        AGENT_NOT_FOUND."""
        answer = await self._session.read(f"/agents/{quote(did)}", {}, Spec(MAX_DIRECTORY))
        envelopes = Envelopes(MAX_ROWS)
        try:
            row = split_list(json.dumps(answer.get("agent"), allow_nan=False).encode(), "manifests", envelopes.add)
        except (ValueError, RecursionError) as err:
            raise malformed(str(err)) from None
        envelopes.log()
        return agent_of(row, envelopes, did, self.me)

    async def about(self) -> About:
        """The relay's document: who it is, its limits, and who may read. Raises RelayError."""
        document = await self._session.read(WELL_KNOWN, {}, Spec(MAX_DOCUMENT))
        self._session.note(document)
        return About.of(document)

    async def health(self) -> str:
        """The version of the protocol that the relay uses. Raises RelayError if it does not work."""
        return text_of(await self._session.read(HEALTH, {}, Spec(MAX_SHORT)), "version")

    async def relay_did(self) -> str:
        """The relay's identity, with which it signs its notices. Raises RelayError."""
        if self._relay_did is None:
            self._relay_did = (await self.about()).did
        return self._relay_did

    async def home(self) -> Home | None:
        """The home of the threads that this client opens (RELAYS §1): this relay. None: the relay's document does not
        have the feature home. It reads the document at most once an hour. Raises RelayError."""
        try:
            about = await self._recent()
        except RelayError as err:
            if err.status not in (200, 404):
                raise
            return None  # the relay has no document, or a malformed one
        home: Any = {"did": about.did, "url": about.document.get("url")}
        return home if has_feature(about.document, "home") and is_home(home) else None

    async def assure_home(self, e: Envelope) -> None:
        """Raises Refused if a message names another home than this relay (RELAYS R-4), and RelayError if the relay
        does not say who it is."""
        home = home_of(e)
        if home is None:
            return
        try:
            did = (await self._recent()).did
        except RelayError as err:
            err.not_sent = True
            raise
        if did != home["did"]:
            raise Refused(
                "FORBIDDEN",
                f"{self.url} is {did}, and not the home of this thread, {home['did']}, so nothing was sent; use the "
                "URL of the home, or ask its operator whether it has a new key",
                details={"reason": "home", "home": home},
            )

    async def gateway(self) -> Any:
        """The DID of the relay's gateways, by a document that is not older than an hour. Raises RelayError."""
        gateways = (await self._recent()).document.get("gateways")
        return gateways.get("did") if isinstance(gateways, dict) else None

    async def gateway_names(self) -> list[str]:
        """The names of the relay's gateways, by a document that is not older than an hour. Raises RelayError."""
        gateways = (await self._recent()).document.get("gateways")
        about = gateways if isinstance(gateways, dict) else {}
        return [name for name in GATEWAYS if isinstance(about.get(name), dict) and about[name].get("url")]

    async def gateway_of(self, name: str) -> tuple[str, str]:
        """The relay's origin, for signed calls, and the URL of its gateway with this name. Raises Refused with a code
        such as NO_A2A if it has none, and RelayError."""
        document, base = (await self._recent()).document, self._session.base
        url = document.get("url")
        if isinstance(url, str) and is_other_loopback(url, base):
            # Another process may listen there, so only a document that is fetched from that address counts.
            base = url + urllib.parse.urlsplit(base).path
            document = await self._session.exchange("GET", WELL_KNOWN, Spec(MAX_DOCUMENT), base=base)
            url = document.get("url")
        gateways = document.get("gateways")
        about = gateways.get(name) if isinstance(gateways, dict) else None
        gateway = about.get("url") if isinstance(about, dict) else None
        if not isinstance(gateway, str):
            raise Refused(
                f"NO_{name.upper()}",
                f"this relay has no {GATEWAYS[name]}; its operator can start it with agora serve --{name}",
            )
        if not isinstance(url, str) or not same_origin(url, base) or not gateway.startswith(url + "/"):
            raise unauthorized("this relay must be reached at the url in its document; use that one if you trust it")
        return url, gateway.rstrip("/")

    async def call_gateway(self, *args: Any, **options: Any) -> dict[str, Any]:
        """See Session.call."""
        return await self._session.call(*args, **options)

    async def join(
        self,
        manifest: Mapping[str, Any],
        *,
        protocols: Iterable[str] = (),
        name: str = "",
        culture: str = "en",
        credits: float = 0,
        public: bool = False,
        listed: bool = False,
        proofs: bool = False,
        state: State | None = None,
    ) -> list[Place]:
        """Registers the agent at gateways of the relay, and returns where it can be reached now: at the hub, in the
        registry of jobs, from channels and over A2A. Serve HUB_INTENT, "chorus.channel.message" and "a2a.message" for
        what comes from hub, channels and A2A; jobs have the intents of the manifest, and cost credits.

        protocols are hub, jobs, channel and a2a; by default all that the relay has. name is the agent's name at the
        hub, by default the name in the manifest. culture is its language tag. With public everybody may call it over
        A2A; otherwise join makes a key. With listed the relay shows that endpoint, and proofs says that serve_a2a
        serves it. A registration that state remembers is repeated after a day, or if it has changed. Without state,
        each call makes another inbox and another key. Raises ValueError for options that are wrong, Refused and
        RelayError."""
        options = joining(
            manifest, name=name, culture=culture or "en", credits=credits, public=public, listed=listed, proofs=proofs
        )
        return await join(self, options, protocols, state or State())

    async def leave(self, state: State) -> list[Place]:
        """Removes what join has registered at this relay, by the state, and returns it. Raises what join raises."""
        return await leave(self, state)

    async def _recent(self) -> About:
        """The relay's document, not older than an hour."""
        known = self._session.document
        if known is None or monotonic() - self._session.document_at >= HOME_SECONDS:
            return await self.about()
        return About.of(dict(known))

    async def _patient_home(self) -> Home | None:
        """Returns what home returns. It retries temporary failures as post does."""
        pause = Backoff()
        for _ in range(self._attempts - 1):
            try:
                return await self.home()
            except RelayError as err:
                if not err.temporary:
                    raise
                log.warning("reading the relay's document failed, will be retried: %s", err)
                delay = err.retry_after
            await pause.wait(min(delay, POST_PATIENCE))
        return await self.home()

    async def proves(self) -> bool:
        """Whether the relay's document has the feature proofs, as it was read last. Raises RelayError."""
        if self._session.proves is None:
            try:
                await self.about()
            except RelayError as err:
                if err.status != 404:
                    raise
                self._session.proves = False  # the relay has no document
        return bool(self._session.proves)

    async def proof(self, envelope: Envelope) -> tuple[str, VerifiedProof]:
        """Reads the proof that the relay has this message in its log, and checks it. Returns its text and what it says.
        Raises Refused with INVALID_PROOF if it does not hold; RelayError, most often with NOT_FOUND."""
        query = {"sender": envelope["sender"]["id"], "id": envelope["id"]}
        try:
            text = (await self._session.read("/proofs", query, Spec(MAX_SHORT, is_text=True)))["text"]
        except RelayError as err:
            if err.code != "INVALID_ANSWER" or err.status != 200:
                raise
            raise Refused("INVALID_PROOF", "the answer of the relay is not a proof") from err
        return text, self._verify_proof(text, envelope, await self.relay_did())

    def _verify_proof(self, text: str, envelope: Envelope, relay: str) -> VerifiedProof:
        """Checks a proof of the relay. It reports two in a row that do not hold (RELAYS R-17). Raises Refused."""
        try:
            found = verify_proof(text, envelope, relay=relay)
        except Refused:
            self._bad_proofs = [*self._bad_proofs, (envelope, text)][-2:]
            if len(self._bad_proofs) == 2:
                self._on_bad_proofs(self._bad_proofs)
            raise
        self._bad_proofs = []
        return found

    async def _patient_did(self) -> str:
        """The identity of the relay, as soon as the relay says it."""
        pause = Backoff()
        while True:
            try:
                return await self.relay_did()
            except RelayError as err:
                log.warning("reading the document of %s failed, will be retried: %s", self.url, err)
                delay = min(err.retry_after, READ_PATIENCE)
            await pause.wait(delay)

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
        thread: str | None = None,
        title: str | None = None,
        description: str | None = None,
    ) -> Call:
        """Asks for a service: it opens a thread. to is the only agent that may offer; None: every agent. max_cost is
        in USD. constraints has further ones, as the protocol names them, such as max_latency_ms. With seal only the
        agent to can read the request, and only sealed answers count, unless allow_plain.

        If this client has opened the thread before, request returns its Call, in any state. So a program that has
        saved the id continues after a crash when it makes the same call. If that request was another one, it raises
        RelayError with INVALID_TRANSITION. Raises what post raises; UnknownOutcome has
        the Call, because there will be offers if the relay has stored the request."""
        limits = Limits(max_cost, deadline)
        payload = request_payload(intent, params, limits, constraints, title, description)
        payload |= {} if thread is None else {"request_id": thread}
        try:
            return await self._open(
                payload, to=to, limits=limits, seal=seal, allow_plain=allow_plain, ttl=ttl, thread=thread
            )
        except RelayError as err:
            if err.code != "INVALID_TRANSITION" or thread is None:
                raise
            return await continue_request(
                self,
                thread,
                intent=intent,
                params=params,
                to=to,
                limits=limits,
                seal=seal,
                allow_plain=allow_plain,
                refused=err,
            )

    async def _open(
        self,
        payload: Mapping[str, Any],
        *,
        to: str | None,
        limits: Limits,
        seal: bool,
        allow_plain: bool,
        ttl: int,
        thread: str | None = None,
        continues: str | None = None,
        on_call: Callable[[Call, Envelope], None] = lambda call, request: None,
        on_refused: Callable[[], None] = lambda: None,
    ) -> Call:
        """Posts a REQUEST with this payload, and returns its Call. continues is the root of the job that it continues.
        on_call gets the Call and the REQUEST before it is sent. Raises what request raises."""
        home = await self._patient_home()
        meta = ({"home": home} if home else {}) | ({"continues": continues} if continues else {})
        calls: list[Call] = []

        def signed(e: Envelope) -> None:
            call = Call(
                self,
                thread_of(e),
                e["payload"]["request_id"],
                recipient=to,
                limits=limits,
                seal=seal,
                allow_plain=allow_plain,
            )
            call._intent, call._home, call._asked = payload["intent"], home, content_hash(e)
            calls.append(call)
            on_call(call, e)

        try:
            await self._post(
                "REQUEST",
                payload,
                to=to,
                thread=thread,
                ttl=ttl,
                seal=seal,
                meta=meta,
                on_signed=signed,
                on_refused=on_refused,
            )
        except UnknownOutcome as err:
            err.call = calls[-1]
            raise
        return calls[-1]

    async def outlook(self, intent: str, *, to: str | None = None) -> Outlook:
        """Reads in the directory who announces an intent; with to, only what that agent announces. It takes three
        seconds at most. Raises RelayError."""
        return await outlook(self, intent, to)

    async def ask(
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
        """Asks, accepts the best acceptable offer, and waits for the result. rule and seconds are those of Call.best,
        timeout is that of Call.result in seconds, the others those of request.

        First it looks into the directory: a warning in the log says at once that nobody announces the intent, or that
        all are dearer than max_cost. It waits for offers anyway, and the Unacceptable that it raises then says the
        same. Without a result it cancels the request, unless thread is given: then the same call continues it. Raises
        what request, best, accept and result raise."""
        why = ""
        with contextlib.suppress(RelayError):  # the request says what is wrong with the relay
            why = doubt(await self.outlook(intent, to=to), intent, to=to, max_cost=max_cost)
        if why:
            log.warning("%s; waiting for an offer anyway", why)
        call: Call | None = None
        try:
            call = await self.request(
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
            if call.agent is None:
                await call.accept(await call.best(rule, seconds=seconds))
            return await call.result(seconds=timeout)
        except BaseException as err:
            call = call or getattr(err, "call", None)
            if call and thread is None and not isinstance(err, (AgentError, Cancelled, Gone)):
                is_over = await self._give_up(call)
                if is_over and isinstance(err, NoOffer):
                    raise NoOffer(err.why, is_open=False) from None
            raise

    async def _give_up(self, call: Call) -> bool:
        """Cancels a request that brought no result. Returns whether it has ended. If it may still be open, the log says
        how to cancel it."""
        try:
            async with asyncio.timeout(LAST_SECONDS):
                await call.cancel()
        except (AgoraError, TimeoutError) as err:
            if isinstance(err, RelayError) and err.code in ("INVALID_TRANSITION", "THREAD_NOT_FOUND"):
                return True  # it is not open
            log.warning(
                'the request may still be open: %s; end it with: (await client.resume("%s")).cancel()',
                err,
                call.thread,
            )
            return False
        return True

    async def resume(
        self, thread: str, *, request_id: str | None = None, to: str | None = None, allow_plain: bool = False
    ) -> Call:
        """The Call of a thread that this client has opened, in any state. request_id and to are those of the request;
        they are needed only if the relay no longer shows the request. Raises RelayError, most often with
        THREAD_NOT_FOUND, and Unproven."""
        record = await self.thread(thread, self.identity().did)
        return resume_call(self, record, request_id=request_id, recipient=to, allow_plain=allow_plain)

    # --- Serving

    async def serve(
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
        attempts: int = ATTEMPTS_OF_WORK,
    ) -> None:
        """Runs an agent until it is cancelled. It answers requests for its intents with offers. When a client accepts,
        it does the work and posts the result.

        A request to this agent for another intent gets the ERROR INTENT_NOT_SUPPORTED. A request to this agent with a
        max_cost below the price gets INSUFFICIENT_BUDGET. In both cases a request to all agents gets no answer. A
        sealed request gets sealed answers. Work is done at least once, and only one RESULT counts.

        price is the price of every job: a number of USD, or a Price; by default every job is free. The manifest
        announces it. quote(job) returns the price of one job in USD, a Quote, the payload of an OFFER, or None for no
        offer. work(job) returns the output, or a Delivery. Both may be async or blocking; blocking ones run in threads.
        They raise AgentError to choose the error for the client. Everything else that they raise becomes
        INTERNAL_ERROR.

        cursor stores the position across restarts: work that was accepted before a crash is done after it. manifest
        is the payload of a MANIFEST, which is kept in the directory; its id and its intents have defaults. At most
        concurrency jobs run at once. dropped is called with each REQUEST that gets no answer, because too many wait.

        A client may continue a job in another thread (RELAYS §4). The agent makes the same offer there, and works once
        for all threads of the job. It posts the outcome in each thread with an ACCEPT. It leaves out the first thread
        if another one has an ACCEPT. State is a file, so with it this holds through a crash. Work that a crash has
        ended is begun again, attempts times in all. Then the client gets an ERROR. With attempts=1 work is never
        repeated. The position is in state too, unless cursor is given.

        Unless proofs of the client is "off", the agent reads the proof of the ACCEPT before it works; with "prefer"
        only if the relay has the feature proofs. If the proof does not hold, the client gets the ERROR UNAVAILABLE.
        With "prefer", a missing proof, or a proof that names no REQUEST, is only logged, and the agent works.

        Raises TypeError and ValueError for wrong arguments, RelayError if the relay refuses to be read, and errors of
        the store."""
        service, desk = Service.of(
            intents,
            work,
            quote=quote,
            price=price,
            manifest=manifest,
            concurrency=concurrency,
            quote_seconds=quote_seconds,
            dropped=dropped,
            state=state,
            attempts=attempts,
        )
        if state:
            state.bind(self.identity().did)
        await Serving(self, service, desk, cursor, store_of=state.cursor if state and not cursor else None).run()

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
        """Runs an agent that answers A2A callers until it is cancelled. Each message of a caller is an A2ATurn.
        handler(turn) returns the last message as a str, an A2AEnd, or None. It may be async; a blocking one runs in a
        thread, and gets a turn whose methods block. It refuses turns that do not come from the relay's gateway, and
        signs each one that it ends. agora a2a publish makes the endpoint. Turns are free; intents, work, quote and
        price are for other intents. The other options, and the errors, are those of serve."""
        server = TurnServer(lambda: [self], handler, intents, work, quote, price, self.now())
        await self.serve(server.intents, server.work, quote=server.quote, **options)

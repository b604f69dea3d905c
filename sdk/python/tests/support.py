"""What the tests share: an event loop whose time passes at once, and a relay in memory."""
from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import json
import os
import pathlib
import selectors
import threading
import unittest
import urllib.parse

import agora_relay
import rules
from agora_relay import BodyTooLong, Client, Identity, Network, Refused, Response, TransportFailed
from agora_relay.protocol import STATUS

from . import ROOT

START = 1_770_033_600.0  # the wall clock when a virtual loop starts, in seconds since 1970


class _Selector(selectors.DefaultSelector):
    """Passes the time of a loop instead of waiting, unless a thread is at work."""

    def select(self, timeout=None):
        if self.loop.executing and timeout != 0:
            return super().select(5)  # what the package itself does in a thread ends soon
        busy = any(t.name == "agora-work" for t in threading.enumerate())
        events = super().select(0.02 if busy and timeout != 0 else 0)
        if not events and timeout is None and not busy:
            raise RuntimeError("nothing will ever happen in this loop")
        if not events and timeout:
            self.loop.passed += timeout
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop without waiting: when nothing is ready, its clock jumps to the next timer."""

    def __init__(self):
        selector = _Selector()
        selector.loop, self.passed, self.executing = self, 0.0, 0
        super().__init__(selector)

    def time(self):
        return self.passed

    def run_in_executor(self, executor, func, *args):
        self.executing += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(lambda _: setattr(self, "executing", self.executing - 1))
        return future


def virtual(test):
    """Runs an async test in a virtual loop, and checks that no task is left."""

    @functools.wraps(test)
    def run(self):
        loop = VirtualLoop()

        async def body():
            async with asyncio.timeout(7 * 86400):
                await test(self)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            self.assertEqual(others, set(), "tasks are left")

        try:
            loop.run_until_complete(body())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    return run


def answer(status, members, **headers):
    """An answer of a relay."""
    headers = {name.replace("_", "-"): [str(value)] for name, value in headers.items()}
    return Response(status, headers, json.dumps(members).encode())


def refusal(code, status, retryable=False, **details):
    """A refusal of a relay. The detail retry_after becomes a header."""
    headers = {"retry_after": details.pop("retry_after")} if "retry_after" in details else {}
    return answer(
        status,
        {"ok": False, "error": code, "message": "a test", "retryable": retryable, "details": details},
        **headers,
    )


def hash_of(e):
    """The content hash of a message, in hex."""
    return hashlib.sha256(agora_relay.canonicalize(e)).hexdigest()


def proof_of(me, e, request="-"):
    """The proof by me that e is in a log of two leaves. request is the hash in its leaf."""

    def line(raw):
        return base64.b64encode(raw).decode()

    def sha256(*parts):
        return hashlib.sha256(b"".join(parts)).digest()

    received = agora_relay.format_time(agora_relay.instant(e["ts"]) / 1e9)
    leaf = f"agora-leaf/1\nsalt {'A' * 22}\nevent {hash_of(e)}\nreceived {received}\nrequest {request}\n".encode()
    start = sha256(b"\0agora-log/1\n")
    origin = f"{me.did}/00000001"
    body = f"{origin}\n2\n{line(sha256(bytes([1]), start, sha256(bytes([0]), leaf)))}\n"
    id = sha256(origin.encode(), bytes([10, 1]), me.public_key)[:4]
    head = f"c2sp.org/tlog-proof@v1\nextra {line(leaf)}\nindex 1\n{line(start)}\n\n"
    return f"{head}{body}\n— {origin} {line(id + me.sign_bytes(body.encode()))}\n"


class FakeRelay:
    """A relay in memory, which is also the transport of its clients. A hook may change, lose or refuse requests: it
    gets the request and a function that answers it. It uses the rules of threads in
    testvectors/interop/python/rules.py. """

    url = "http://relay.test"

    def __init__(self):
        self.identity, self.ledger = Identity.generate(), rules.Ledger()
        self.db, self.skew, self.hook = "a", 0.0, None
        self.events, self.transitions = [], {}
        self.posts, self.polls, self.requests = [], 0, []
        self.bulks, self.refusals = [], []  # the lines of each bulk request; for each of the next ones: see post_bulk
        self.reads, self.features, self.gateway = "open", [], None
        # What the relay gives as the proof of a message, in the receipt and at /proofs; None: none. Each gets the right
        # proof and the message.
        self.given = self.shown = lambda proof, e: None
        self.asked = []  # the ids of messages whose proofs were read
        self.changed = asyncio.Event()

    def client(self, me=None, **options):
        options.setdefault("clock", self.wall)
        return Client(self.url, me, transport=self, **options)

    def wall(self):
        return START + asyncio.get_running_loop().time()

    def now(self):
        return self.wall() + self.skew

    async def close(self):
        pass

    async def send(self, method, url, headers, body, limit):
        parts = urllib.parse.urlsplit(url)
        self.requests.append((method, parts.path, headers))
        if parts.path == "/.well-known/agora.json":
            about = {"did": self.identity.did, "url": self.url, "reads": self.reads, "features": self.features}
            about |= {"gateways": {"did": self.gateway}} if self.gateway else {}
            response = answer(200, {"ok": True} | about)
        else:

            async def next():
                return await self.serve(method, parts, body)

            response = await (self.hook(method, parts, next) if self.hook else next())
        if isinstance(response, Exception):
            raise response
        if len(response.body) > limit:
            raise BodyTooLong(response)
        return response

    async def serve(self, method, parts, body):
        query = {name: values[0] for name, values in urllib.parse.parse_qs(parts.query).items()}
        try:
            if parts.path == "/events/bulk":
                return self.post_bulk(body, query.get("proofs") == "true")
            if parts.path == "/proofs":
                return self.proof(query)
            if method == "POST":
                return self.post(body)
            if parts.path == "/events":
                return await self.poll(query)
            if parts.path.startswith("/threads/"):
                return self.thread(urllib.parse.unquote(parts.path[9:]), query.get("client"))
            if parts.path.startswith("/agents"):
                return self.agents(urllib.parse.unquote(parts.path[8:]))
            if parts.path == "/health":
                return answer(200, {"ok": True, "version": "1.0.0"})
        except Refused as err:
            return refusal(err.code, STATUS.get(err.code, 400), **err.details)
        return refusal("NOT_FOUND", 404)

    # --- Posts

    def post(self, body):
        e = agora_relay.read_envelope(body)
        self.posts.append(e["id"])
        now = int(self.now() * 1e9)
        try:
            rules.check_meant(e, self.url, now)
            home = e.get("meta", {}).get("home")
            if home and home["did"] != self.identity.did:  # RELAYS R-2
                raise Refused("FORBIDDEN", "another home", details={"reason": "home", "home": home})
        except Refused as err:
            if err.code == "STALE_TIMESTAMP":
                err.details["now"] = agora_relay.format_time(self.now())
            raise
        agora_relay.verify(e)
        state, client, duplicate = self.ledger.take(e, now)
        if not duplicate:
            if client:
                step = {
                    "type": e["type"],
                    "from": "",
                    "to": state,
                    "by": e["sender"]["id"],
                    "id": e["id"],
                    "at": e["ts"],
                }
                self.transitions.setdefault((client, agora_relay.thread_of(e)), []).append(step)
            self.add(e)
        receipt = {
            "ok": True,
            "id": e["id"],
            "cursor": f"{self.db}-{len(self.events)}",
            "duplicate": duplicate,
            "expiresAt": agora_relay.format_time(agora_relay.instant(e["ts"]) / 1e9 + e["meta"]["ttl"]),
        }
        if client:
            receipt["thread"] = {"id": agora_relay.thread_of(e), "client": client, "state": state}
        proof = None if duplicate else self.given(self.right_proof(e), e)
        if proof is not None:
            receipt["proof"] = proof
        return answer(200, receipt)

    def right_proof(self, e):
        requests = [other for other, _ in self.events if other["type"] == "REQUEST"]
        same = [other for other in requests if agora_relay.thread_of(other) == agora_relay.thread_of(e)]
        return proof_of(self.identity, e, hash_of(same[0]) if same else "-")

    def proof(self, query):
        self.asked.append(query["id"])
        found = [e for e, _ in self.events if (e["sender"]["id"], e["id"]) == (query["sender"], query["id"])]
        proof = self.shown(self.right_proof(found[0]), found[0]) if found else None
        return refusal("NOT_FOUND", 404) if proof is None else Response(200, {}, proof.encode())

    def post_bulk(self, body, proofs):
        """Posts each line. self.refusals has, for each of the next requests, the refusals of lines by their numbers.
        The member "stop" has the number of the line at which the relay stops, and the reason."""
        *lines, rest = body.split(b"\n")
        assert rest == b"", "the last line does not end"
        self.bulks.append(lines)
        refused, results = self.refusals.pop(0) if self.refusals else {}, []
        end, stopped = refused.get("stop", (len(lines), None))
        for n, line in enumerate(lines[:end]):
            try:
                results.append(refused[n] if n in refused else json.loads(self.post(line).body))
            except Refused as err:
                results.append({"error": err.code, "message": err.message, "details": err.details})
        for result in results:
            for name in ("ok", "cursor", "thread", *([] if proofs else ["proof"])):
                result.pop(name, None)
        return answer(200, {"ok": True, "results": results} | ({"stopped": stopped} if stopped else {}))

    def add(self, e):
        """Stores an event without any check."""
        self.events.append((e, self.now()))
        self.changed.set()
        self.changed = asyncio.Event()

    def alive(self):
        """The events that have not expired, with their positions."""
        return [
            (n, e)
            for n, (e, _) in enumerate(self.events, 1)
            if agora_relay.instant(e["ts"]) / 1e9 + e["meta"]["ttl"] > self.now()
        ]

    # --- Reads

    async def poll(self, query):
        self.polls += 1
        until = asyncio.get_running_loop().time() + float(query["timeout"])
        if "cursor" in query:
            db, _, number = query["cursor"].rpartition("-")
            if query["cursor"] != "0" and db != self.db:
                return refusal("INVALID_REQUEST", 400, reason="unknown_cursor")
            position = int(number)
        else:
            since = agora_relay.instant(query["since"]) / 1e9
            position = sum(arrived <= since for _, arrived in self.events)
        while True:
            found = [(n, e) for n, e in self.alive() if n > position and self.matches(e, query)][
                : int(query.get("limit", 100))
            ]
            left = until - asyncio.get_running_loop().time()
            if found or left <= 0:
                break
            try:
                async with asyncio.timeout(left):
                    await self.changed.wait()
            except TimeoutError:
                pass
        cursor = f"{self.db}-{found[-1][0] if found else max(position, len(self.events))}"
        return answer(200, {"ok": True, "events": [e for _, e in found], "hasMore": False, "cursor": cursor})

    def matches(self, e, query):
        to = e.get("recipient", {}).get("id")
        return (
            ("recipient" not in query or to == query["recipient"] or query.get("broadcast") and to is None)
            and query.get("sender") in (None, e["sender"]["id"])
            and query.get("type") in (None, e["type"])
            and query.get("thread") in (None, agora_relay.thread_of(e))
        )

    def record(self, id, client=None):
        """A thread as the relay shows it. Raises Refused."""
        now = int(self.now() * 1e9)
        for t in self.ledger.threads.get(id, []):
            if client in (None, t["client"]):
                steps, state = list(self.transitions[t["client"], id]), t["state"]
                if t["deadline"] is not None and now >= t["deadline"]:
                    state = "ERROR"
                    steps.append(
                        {"type": "TIMEOUT", "from": "", "to": "ERROR", "at": agora_relay.format_time(self.now())}
                    )
                record = {
                    "id": id,
                    "client": t["client"],
                    "state": state,
                    "requestId": t["request_id"],
                    "offers": [{"agent": agent, "id": "o", "at": steps[0]["at"]} for agent in t["offers"]],
                    "transitions": steps,
                }
                if t["agent"]:
                    record["agent"] = t["agent"]
                if state in ("PENDING", "ACTIVE"):
                    record["deadline"] = agora_relay.format_time(t["deadline"] / 1e9)
                return record
        raise Refused("THREAD_NOT_FOUND", "no such thread")

    def thread(self, id, client):
        events = [e for _, e in self.alive() if agora_relay.thread_of(e) == id]
        return answer(200, {"ok": True, "events": events, "expired": 0, "thread": self.record(id, client)})

    def agents(self, did):
        manifests = [e for _, e in self.alive() if e["type"] == "MANIFEST"]
        rows = [{"id": e["sender"]["id"], "online": True, "lastSeen": e["ts"], "envelope": e} for e in manifests]
        if not did:
            return answer(200, {"ok": True, "agents": rows, "hasMore": False})
        own = [e for e in manifests if e["sender"]["id"] == did]
        if not own:
            return refusal("AGENT_NOT_FOUND", 404)
        return answer(200, {"ok": True, "agent": {"id": did, "online": True, "manifests": own}})


class _Dead(set):
    def __init__(self):
        self.changed = asyncio.Event()

    def add(self, name):
        super().add(name)
        self.changed.set()
        self.changed = asyncio.Event()


class Internet:
    """Several relays in memory, and the transport of their clients. The hosts in dead do not answer."""

    def __init__(self, *names):
        self.relays, self.dead = {}, _Dead()
        for name in names:
            self.relays[name] = relay = FakeRelay()
            relay.url, relay.features = f"https://{name}.example", ["home"]
        self.urls = [relay.url for relay in self.relays.values()]

    async def send(self, method, url, *rest):
        name = urllib.parse.urlsplit(url).hostname.partition(".")[0]
        if name in self.dead or name not in self.relays:
            raise TransportFailed("no relay answers there", sent=False)
        dies = asyncio.create_task(self.death(name))
        sends = asyncio.create_task(self.relays[name].send(method, url, *rest))
        try:
            await asyncio.wait([dies, sends], return_when=asyncio.FIRST_COMPLETED)
            if not sends.done():
                raise TransportFailed("the connection broke", sent=True)
            return sends.result()
        finally:
            for task in (dies, sends):
                task.cancel()
            await asyncio.gather(dies, sends, return_exceptions=True)

    async def death(self, name):
        """Waits until a relay is dead."""
        while name not in self.dead:
            await self.dead.changed.wait()

    def network(self, me, names=None, **options):
        urls = [self.relays[name].url for name in names] if names else self.urls
        wall = next(iter(self.relays.values())).wall
        return Network(urls, me, transport=self, **{"clock": wall} | options)

    async def close(self):
        pass


class MemoryCursor:
    """A cursor in memory, with the history of what was saved."""

    def __init__(self, cursor=None):
        self.saved = [cursor] if cursor else []

    def load(self):
        return self.saved[-1] if self.saved else None

    def save(self, cursor):
        self.saved.append(cursor)


class RelayTest(unittest.TestCase):
    """A test with a relay in memory, which setup makes in the loop of the test."""

    def setup(self):
        self.relay = FakeRelay()
        self.alice, self.bob = Identity.generate(), Identity.generate()
        return self.relay


class Serving:
    """Runs an agent during an async with block."""

    def __init__(self, client, intents, work, **options):
        self.run = lambda: client.serve(intents, work, **options)

    async def __aenter__(self):
        self.task = asyncio.create_task(self.run())
        return self.task

    async def __aexit__(self, *_):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def lost():
    """The error of a connection that breaks after the request was sent."""
    return TransportFailed("the connection broke", sent=True)


def binary():
    """The path of a built relay. Without one the test is skipped, or fails under CI=true."""
    path = os.environ.get("AGORA_BINARY", "")
    if os.path.isfile(path):
        return path
    if os.environ.get("CI") == "true":
        raise AssertionError("AGORA_BINARY must name a built relay, such as bin/agora; run: make build")
    raise unittest.SkipTest("set AGORA_BINARY to a built relay, such as bin/agora")


def vectors(name):
    """A file of the public vectors, in AGORA_VECTORS. Without them the test is skipped, or fails under CI=true."""
    folder = os.environ.get("AGORA_VECTORS", "")
    if not folder:
        if os.environ.get("CI") == "true":
            raise AssertionError("AGORA_VECTORS must name the folder of the public vectors")
        raise unittest.SkipTest("set AGORA_VECTORS to the folder of the public vectors")
    return pathlib.Path(folder if os.path.isabs(folder) else ROOT / folder) / name

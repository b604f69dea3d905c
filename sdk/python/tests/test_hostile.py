"""Nothing that a hostile relay or a hostile agent sends can end a reader or an agent. The values of all members are
replaced by values of other types, also where the signature is good."""
import asyncio
import contextlib
import copy
import json

from agora_relay import AgoraError, Refused, check_envelope, format_time, parse, sign
from agora_relay.answer import MAX_EVENT, Envelopes, read_answer, Spec
from agora_relay.errors import RelayError
from agora_relay.jsontext import costly_numbers, depth_of
from agora_relay.transport import Response

from .support import RelayTest, Serving, answer, refusal, virtual

# Values in place of others. The first ones make other languages fail when they convert or compare values.
ODD = [
    parse(text.encode())
    for text in (
        '{"toString":1}',
        '{"__class__":1}',
        "[[]]",
        "[]",
        "{}",
        "null",
        "true",
        "-1.5",
        "1e300",
        "9007199254740993",
        '""',
        '"x"',
        '"\\u0000"',
        '"\\ud83d\\ude00"',
    )
]

PAYLOADS = {
    "REQUEST": {
        "intent": "echo",
        "title": "t",
        "description": "d",
        "params": {"a": "b"},
        "constraints": {"max_cost_usd": 1, "deadline": "2099-01-01T00:00:00Z", "max_latency_ms": 5},
    },
    "OFFER": {
        "price": {"amount": 1, "currency": "USD"},
        "plan": "p",
        "eta_seconds": 1,
        "valid_until": "2099-01-01T00:00:00Z",
    },
    "RESULT": {"status": "success", "output": 1, "artifacts": [1], "metrics": {"a": 1}},
    "ERROR": {"code": "UNAVAILABLE", "message": "m", "details": {"a": "b"}},
}


def paths(value, at=()):
    """The paths of all values in value, except value itself."""
    names = range(len(value)) if isinstance(value, list) else value if isinstance(value, dict) else ()
    for name in names:
        yield (*at, name)
        yield from paths(value[name], (*at, name))


def variants(value):
    """All copies of value with one odd value."""
    for path in list(paths(value)):
        for odd in ODD:
            changed = copy.deepcopy(value)
            holder = changed
            for name in path[:-1]:
                holder = holder[name]
            holder[path[-1]] = odd
            yield changed


class Hostile(RelayTest):
    def message(self, type="REQUEST", id="m1", payload=None, **more):
        e = {
            "version": "1.0",
            "id": id,
            "ts": format_time(self.relay.wall()),
            "type": type,
            "sender": {"id": self.alice.did, "name": "A", "url": "https://a.example"},
            "recipient": {"id": self.bob.did},
            "payload": {"request_id": "t"} | (PAYLOADS[type] if payload is None else payload),
            "thread": {"id": "t"},
            "meta": {"ttl": 86400, "hop": 1, "relay": ["https://r.example"]},
        } | more
        return sign(e, self.alice)

    @virtual
    async def test_only_refused(self):
        self.setup()
        for type in PAYLOADS:
            for e in [*variants(self.message(type)), *ODD]:
                with contextlib.suppress(Refused):
                    check_envelope(e)
                envelopes = Envelopes(1)
                envelopes.add(json.dumps(e).encode())
                self.assertEqual(len(envelopes.valid), 0)

    @virtual
    async def test_follow_outlives_odd_events(self):
        self.setup()
        all = list(variants(self.message("OFFER")))
        for e in [*all, self.message("OFFER", "good")]:
            self.relay.events.append((e, self.relay.now()))
        self.relay.matches = lambda e, query: True
        self.relay.alive = lambda: [(n, e) for n, (e, _) in enumerate(self.relay.events, 1)]
        async with contextlib.aclosing(self.relay.client(self.bob).follow(from_oldest=True, page=1000)) as events:
            async for event in events:
                if event.id == "good":
                    break

    @virtual
    async def test_odd_answers(self):
        """Methods fail with errors of the package only."""
        self.setup()
        at, offer = format_time(self.relay.wall()), self.message("OFFER")
        manifest = self.message("MANIFEST", payload={"id": "main"})
        record = {
            "id": "t",
            "client": self.bob.did,
            "state": "ERROR",
            "requestId": "t",
            "agent": self.alice.did,
            "deadline": at,
            "offers": [{"agent": self.alice.did, "id": "a", "at": at}],
            "transitions": [{"from": "PENDING", "to": "ERROR", "type": "TIMEOUT", "by": self.bob.did, "id": "a"}],
        }
        row = {"id": self.alice.did, "online": True, "lastSeen": at}
        rates = {"rates": {"postsPerAgent": {"perSecond": 20, "burst": 40}}}
        document = {"did": self.alice.did, "url": self.relay.url, "reads": "parties", "limits": rates}
        receipt = {"id": "m", "cursor": "c", "duplicate": False, "expiresAt": at, "thread": {"id": "t", "state": "x"}}
        cases = [
            ({"thread": record, "events": [offer], "expired": 0}, lambda c: c.thread("t")),
            ({"thread": record, "events": [offer], "expired": 0}, lambda c: c.resume("t", request_id="r")),
            ({"agents": [row | {"envelope": manifest}], "hasMore": False, "cursor": "c"}, lambda c: c.agents()),
            ({"agent": row | {"manifests": [manifest]}}, lambda c: c.agent(self.alice.did)),
            (document, lambda c: c.about()),
            (document, lambda c: c.agents()),
            (receipt, lambda c: c.post("CANCEL", {}, thread="t")),
        ]
        for members, act in cases:
            for odd in variants({"ok": True} | members):
                transport = _Fixed(odd)
                client = self.relay.client(self.bob, attempts=1)
                client._session.transport = transport
                with self.subTest(odd=odd), contextlib.suppress(AgoraError):
                    await act(client)

    @virtual
    async def test_odd_refusals(self):
        self.setup()
        body = {"ok": False, "error": "UNAUTHORIZED", "message": "m", "details": {"now": "x", "reason": "time"}}
        for odd in variants(body):
            for status in (400, 401, 429):
                response = answer(status, odd, www_authenticate="Agora")
                with self.assertRaises(RelayError):
                    read_answer("http://relay.test", response, Spec(1 << 16), 0.0)
                self.relay.hook = lambda method, parts, next: _later(response)
                with self.subTest(odd=odd), contextlib.suppress(AgoraError):
                    await self.relay.client(self.bob).thread("t")

    @virtual
    async def test_calls_outlive_odd_payloads(self):
        self.setup()
        for type, state in (("OFFER", "PENDING"), ("RESULT", "COMPLETED"), ("ERROR", "ERROR")):
            for odd in variants(PAYLOADS[type]):
                e = self.message(type, payload={"request_id": "t"} | odd)
                step = {"type": type, "to": state, "by": self.alice.did, "id": e["id"], "from": ""}
                record = {"id": "t", "client": self.bob.did, "state": state, "requestId": "t", "transitions": [step]}
                self.relay.hook = lambda method, parts, next: _later(
                    answer(200, {"ok": True, "events": [e], "cursor": "c", "thread": record, "expired": 0})
                )
                call = await self.relay.client(self.bob).resume("t", request_id="t")
                call.agent = None if type == "OFFER" else self.alice.did
                with self.subTest(odd=odd), contextlib.suppress(AgoraError):
                    await (call.best(seconds=1, max_cost=5) if type == "OFFER" else call.result(seconds=60))

    @virtual
    async def test_an_agent_outlives_odd_requests(self):
        self.setup()
        agent, client = self.relay.client(self.bob), self.relay.client(self.alice)
        for i, odd in enumerate(variants(PAYLOADS["REQUEST"])):
            id = f"odd_{i}"
            self.relay.add(self.message("REQUEST", id, {"request_id": id} | odd, thread={"id": id}))
        async with Serving(agent, "echo", lambda job: job.params, concurrency=64):
            call = await client.request("echo", "hello", to=self.bob.did)
            await call.accept(await call.best("first"))
            self.assertEqual((await call.result()).output, "hello")

    @virtual
    async def test_smaller_pages(self):
        """If a page is too long, the reader asks for fewer events."""
        self.setup()
        for number in range(100):
            e = self.message(id=f"m{number}", payload={"request_id": "t", "intent": "x" * 120_000})
            self.relay.events.append((e, self.relay.now()))
        limits = []

        def hook(method, parts, next):
            limits.append(parts.query.partition("limit=")[2].partition("&")[0])
            return next()

        self.relay.hook = hook
        ids = []
        async with contextlib.aclosing(self.relay.client(self.bob).follow(from_oldest=True)) as events:
            async for event in events:
                ids.append(event.id)
                if len(ids) == 100:
                    break
        self.assertEqual(ids, [f"m{number}" for number in range(100)])
        self.assertEqual(limits[:3], ["100", "50", "100"])

    def test_elements_are_not_parsed_together(self):
        """A large element only makes itself invalid, and the number of elements is checked while they are read."""
        envelopes = Envelopes(3)
        large = b'"' + b"x" * MAX_EVENT + b'"'
        body = b'{"ok":true,"events":[' + large + b",[],{}]}"
        read_answer("", Response(200, {}, body), Spec(1 << 23, "events", envelopes.add), 0.0)
        self.assertEqual((envelopes.received, envelopes.invalid), (3, 3))
        many = Envelopes(3)
        with self.assertRaises(RelayError) as raised:
            body = b'{"ok":true,"events":[' + b"[]," * (1 << 20) + b"{}]}"
            read_answer("", Response(200, {}, body), Spec(1 << 23, "events", many.add), 0.0)
        self.assertEqual((raised.exception.details, many.received), ({"reason": "too_long"}, 4))

    def test_depth_and_costly_numbers(self):
        for text, depth in [
            (b"1", 0),
            (b"[]", 1),
            (b'{"a":[{"b":"[[["}]}', 3),
            (b'"\\"[["', 0),
            (b"[[],[[]]]", 3),
            (b"[" * 70 + b"]" * 70, 70),
            (b"[[[", 3),
        ]:
            self.assertEqual(depth_of(text), depth, text)
        self.assertGreater(depth_of(b"[" * 1000 + b"]" * 1000, 64), 64)
        for text, count in [("[1,2.5,1E5]", 0), ("[1e-400,0.1]", 1), ("0." + "0" * 310 + "1", 1), ("1" * 18, 1)]:
            self.assertEqual(costly_numbers(text), count, text)
        for text in (b"1e400", b"-1e999", b"9" * 400, b'"\\ud800"', b'{"\\udc00":1}', b'["\\udc00\\ud800"]'):
            with self.assertRaises(Refused):
                parse(text)
        self.assertEqual(parse(b'"\\ud83d\\ude00"'), "😀")


class _Fixed:
    """A transport that always gives the same answer. A receipt has the id of the message."""

    def __init__(self, members):
        self.members = members

    async def send(self, method, url, headers, body, limit):
        members = self.members
        if body and members.get("id") == "m":
            members = members | {"id": json.loads(body)["id"]}
        return answer(200, members)

    async def close(self):
        pass


async def _later(response):
    await asyncio.sleep(0)
    return response

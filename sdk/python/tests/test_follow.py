"""Following: nothing is lost, nothing comes twice, and no relay can make the reader run in a hot loop."""
import asyncio
import contextlib
import datetime
import json

from agora_relay import Identity, RelayError, format_time, seal, sign

from .support import MemoryCursor, RelayTest, START, answer, lost, refusal, virtual


class Follows(RelayTest):
    def event(self, number, who=None, **more):
        """Stores a broadcast REQUEST in the relay."""
        who = who or self.alice
        e = {
            "version": "1.0",
            "id": f"m{number}",
            "ts": format_time(self.relay.wall()),
            "type": "REQUEST",
            "sender": {"id": who.did},
            "payload": {"intent": "x", "request_id": f"r{number}"},
            "meta": {"ttl": 86400},
        } | more
        e = sign(e, who)
        self.relay.add(e)
        return e

    async def take(self, count, seconds=1000, client=None, **options):
        """The ids of the first events, or of those that come in time."""
        ids = []
        client = client or self.relay.client(self.bob)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), contextlib.aclosing(client.follow(**options)) as events:
                async for event in events:
                    ids.append(event.id)
                    if len(ids) == count:
                        break
        return ids

    @virtual
    async def test_where_it_begins(self):
        self.setup()
        self.event(1)
        await asyncio.sleep(10)
        self.event(2)
        asyncio.get_running_loop().call_later(5, self.event, 3)
        self.assertEqual(await self.take(1), ["m3"])
        self.assertEqual(await self.take(3, from_oldest=True), ["m1", "m2", "m3"])
        since = datetime.datetime.fromtimestamp(START + 5, datetime.timezone.utc)
        self.assertEqual(await self.take(2, since=since), ["m2", "m3"])
        self.assertEqual(await self.take(2, cursor=MemoryCursor("a-1"), from_oldest=True), ["m2", "m3"])
        with self.assertRaisesRegex(ValueError, "time zone"):
            await self.take(1, since=datetime.datetime(2026, 1, 1))

    @virtual
    async def test_cursor_is_saved_after_its_page(self):
        self.setup()
        for number in range(1, 8):
            self.event(number)
        for store_class in (MemoryCursor, AsyncCursor):
            store = store_class()
            self.assertEqual(await self.take(3, cursor=store, from_oldest=True, page=3), ["m1", "m2", "m3"])
            self.assertEqual(store.saved, [])  # the caller ended in the third event
            self.assertEqual(await self.take(4, cursor=store, from_oldest=True, page=3), ["m1", "m2", "m3", "m4"])
            self.assertEqual(store.saved, ["a-3"])
            self.assertEqual(await self.take(9, seconds=5, cursor=store), ["m4", "m5", "m6", "m7"])
            self.assertEqual(store.saved, ["a-3", "a-7"])

    @virtual
    async def test_filters_and_lies(self):
        self.setup()
        self.event(1, recipient={"id": self.bob.did})
        self.event(2, recipient={"id": self.alice.did})
        self.event(3)
        forged = self.event(4)
        forged["payload"]["intent"] = "y"
        self.relay.matches = lambda e, query: True  # the relay ignores the filter
        self.relay.events += self.relay.events  # and repeats itself
        self.assertEqual(
            await self.take(9, 60, from_oldest=True, recipient=self.bob.did, broadcast=True), ["m1", "m3"]
        )
        self.assertEqual(await self.take(9, 60, from_oldest=True, recipient=self.bob.did), ["m1"])
        self.assertEqual(
            await self.take(9, 60, from_oldest=True, thread="r2", sender=self.alice.did, type="REQUEST"), ["m2"]
        )

    @virtual
    async def test_large_pages(self):
        """A large page is read in a thread, because that takes time."""
        self.setup()
        for number in range(4):
            self.event(number, payload={"intent": "x", "request_id": "r", "params": "x" * 100_000})
        self.relay.add(self.event(4) | {"payload": {"intent": "x", "request_id": "r", "params": "x" * (2 << 20)}})
        self.event(5)
        self.assertEqual(await self.take(6, from_oldest=True), ["m0", "m1", "m2", "m3", "m4", "m5"])

    @virtual
    async def test_opens(self):
        self.setup()
        base = {
            "version": "1.0",
            "ts": format_time(self.relay.wall()),
            "type": "REQUEST",
            "sender": {"id": self.alice.did},
            "payload": {"intent": "x", "request_id": "r", "params": "secret"},
            "meta": {"ttl": 300},
        }
        other = Identity.generate()
        for id, to, key in [("good", self.bob, self.bob), ("bad", self.bob, other), ("foreign", other, other)]:
            e = seal(base | {"id": id, "recipient": {"id": key.did}})
            self.relay.add(sign(e | {"recipient": {"id": to.did}}, self.alice))
        events = []
        async with contextlib.aclosing(self.relay.client(self.bob).follow(from_oldest=True)) as all:
            async for event in all:
                events.append((event.id, event.opened, event.closed, event.payload.get("params")))
                if event.id == "foreign":
                    break
        self.assertEqual(events, [("good", True, False, "secret"), ("foreign", False, True, None)])

    @virtual
    async def test_lost_database(self):
        self.setup()
        for number in (1, 2):
            self.event(number)
        store = MemoryCursor("b-7")
        self.assertEqual(await self.take(2, cursor=store), ["m1", "m2"])

    @virtual
    async def test_refused_for_good(self):
        self.setup()

        async def hook(*_):
            return refusal("INVALID_REQUEST", 400)

        self.relay.hook = hook
        with self.assertRaises(RelayError):
            await self.take(1, from_oldest=True)

    @virtual
    async def test_broken_store(self):
        self.setup()
        self.event(1)

        class Broken(MemoryCursor):
            def save(self, cursor):
                raise OSError("disk full")

        with self.assertRaisesRegex(OSError, "disk full"):
            await self.take(2, cursor=Broken(), from_oldest=True)

    @virtual
    async def test_flaky_relay(self):
        self.setup()
        troubles = [
            lost(),
            refusal("RATE_LIMITED", 429, True, retry_after=1),
            refusal("UNAVAILABLE", 503, True, retry_after=1),
            answer(502, {}),
            answer(200, {"ok": True}),
            answer(200, {"ok": True, "events": [], "cursor": 7}),
            "late",
            "twice",
        ]
        turn = 0

        async def hook(method, parts, next):
            nonlocal turn
            turn += 1
            what = troubles[turn // 2 % len(troubles)] if turn % 2 else "pass"
            if what == "late":
                await asyncio.sleep(3)
            if what == "twice":
                page = json.loads((await next()).body)
                page["events"] += page["events"][:1]
                return answer(200, page)
            return what if not isinstance(what, str) else await next()

        self.relay.hook = hook
        loop = asyncio.get_running_loop()
        for number in range(40):
            loop.call_later(number * 2, self.event, number)
        self.assertEqual(await self.take(41, 600, from_oldest=True), [f"m{number}" for number in range(40)])

    @virtual
    async def test_no_hot_loop(self):
        for page in (
            {"events": [], "cursor": "a-0"},
            {"events": "repeat", "cursor": "a-0"},
            {"events": "repeat"},
            {},
            None,
        ):
            self.setup()
            known = [self.event(1)]
            count = 0

            async def hook(method, parts, next):
                nonlocal count
                count += 1
                if page is None:
                    return lost()
                body = {"ok": True, "cursor": f"a-{count}"} | page
                return answer(200, body | {"events": known if page.get("events") == "repeat" else []})

            self.relay.hook = hook
            await self.take(99, 120, from_oldest=True)
            with self.subTest(page=page):
                self.assertLess(count, 250)
                self.assertGreater(count, 4)

    @virtual
    async def test_retry_after_is_honoured(self):
        self.setup()

        async def hook(*_):
            return refusal("RATE_LIMITED", 429, True, retry_after=100)

        self.relay.hook = hook
        await self.take(1, 350, from_oldest=True)
        self.assertEqual(self.relay.polls, 0)
        self.assertLessEqual(len([r for r in self.relay.requests if r[1] == "/events"]), 4)

    @virtual
    async def test_polls_are_signed_on_open_relays(self):
        self.setup()
        await self.take(1, 5, from_oldest=True)
        await self.relay.client(self.bob).agents()
        signed = {path: "Authorization" in headers for _, path, headers in self.relay.requests}
        self.assertEqual(signed, {"/.well-known/agora.json": False, "/events": True, "/agents": False})


class AsyncCursor(MemoryCursor):
    async def load(self):
        await asyncio.sleep(0)
        return super().load()

    async def save(self, cursor):
        await asyncio.sleep(1)
        super().save(cursor)

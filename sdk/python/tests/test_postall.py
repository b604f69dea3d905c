"""Posting many messages at once: the order, what is sent again, and what is known afterwards."""
import asyncio
import json
import time
from unittest import mock

from agora_relay import (
    Client,
    Identity,
    Receipt,
    Refused,
    RelayError,
    TransportFailed,
    UnknownOutcome,
    canonicalize,
    format_time,
    postall,
    sign,
    sync,
)

from . import test_relay
from .support import RelayTest, answer, lost, refusal, virtual

LIMITED = {"error": "RATE_LIMITED", "message": "slowly", "retryAfter": 3}
TOO_LARGE = {"error": "PAYLOAD_TOO_LARGE", "message": "too large"}
UNAVAILABLE = {"error": "UNAVAILABLE", "message": "the disk is full"}
STALE = {"error": "STALE_TIMESTAMP", "message": "too late"}


def conversation(me, to, now, threads=2):
    """The messages of some threads: each thread has a REQUEST, then its CANCEL."""
    all = []
    for thread in range(threads):
        for type in ("REQUEST", "CANCEL"):
            payload = {"request_id": f"t{thread}"} | ({"intent": "x"} if type == "REQUEST" else {})
            e = {
                "version": "1.0",
                "id": f"{type.lower()}-{thread}",
                "ts": format_time(now),
                "type": type,
                "sender": {"id": me.did},
                "recipient": {"id": to.did},
                "thread": {"id": f"t{thread}"},
                "payload": payload,
                "meta": {"ttl": 3600},
            }
            all.append(sign(e, me))
    return all


class PostsAll(RelayTest):
    def trouble(self, *answers):
        """The relay gives these answers to bulk requests, one after the other. "pass" lets the relay answer; "lose"
        too, but the answer gets lost."""
        left = list(answers)

        async def hook(method, parts, next):
            what = left.pop(0) if left and parts.path == "/events/bulk" else "pass"
            if what == "lose":
                await next()
                return lost()
            return await next() if what == "pass" else what

        self.relay.hook = hook

    def messages(self, threads=2):
        return conversation(self.alice, self.bob, self.relay.wall(), threads)

    async def post(self, messages, **options):
        return await self.relay.client(self.alice, **options).post_all(messages)

    def codes(self, outcomes):
        """The codes of the errors, with ? if the outcome is unknown; empty for a receipt."""
        return [
            ""
            if isinstance(one, Receipt)
            else "?" + one.__cause__.code
            if isinstance(one, UnknownOutcome)
            else one.code
            for one in outcomes
        ]

    def stored(self):
        return [e["id"] for e, _ in self.relay.events]

    @virtual
    async def test_order(self):
        self.setup()
        messages = self.messages(threads=5)
        with mock.patch.object(postall, "BULK_MESSAGES", 4):
            outcomes = await self.post(iter(messages))
        ids = [e["id"] for e in messages]
        self.assertEqual([receipt.id for receipt in outcomes], ids)
        self.assertEqual(self.stored(), ids)
        lines = [canonicalize(e) for e in messages]
        self.assertEqual(self.relay.bulks, [lines[:4], lines[4:8], lines[8:]])
        first = outcomes[0]
        self.assertEqual((first.cursor, first.thread, first.state, first.duplicate), ("", "", "", False))
        self.assertEqual((first.expires_at.timestamp(), first.envelope), (self.relay.wall() + 3600, messages[0]))
        with mock.patch.object(postall, "BULK_BYTES", 2 * len(lines[0]) + 10):
            again = await self.post(messages)
        self.assertEqual([receipt.duplicate for receipt in again], [True] * 10)
        self.assertEqual([len(bulk) for bulk in self.relay.bulks[3:]], [2] * 5)
        self.assertEqual(await self.post([]), [])

    @virtual
    async def test_the_largest_requests(self):
        self.setup()
        self.assertEqual(self.codes(await self.post(self.messages(threads=501))), [""] * 1002)
        large = self.messages()[0] | {"payload": {"request_id": "t0", "intent": "x" * 100_000}}
        await self.post([large] * 50)
        self.assertEqual([len(bulk) for bulk in self.relay.bulks], [1000, 2, 41, 9])

    @virtual
    async def test_a_lost_answer(self):
        self.setup()
        self.trouble("lose")
        with self.assertLogs("agora_relay", "WARNING") as logged:
            outcomes = await self.post(self.messages())
        self.assertEqual([receipt.duplicate for receipt in outcomes], [True] * 4)
        self.assertEqual((len(self.stored()), len(self.relay.bulks)), (4, 2))
        self.assertIn("posting 4 messages will be continued: ", logged.output[0])

    @virtual
    async def test_a_limited_line(self):
        """The CANCEL behind the limited REQUEST is refused too, and sent again with it."""
        self.setup()
        messages = self.messages(threads=3)
        self.relay.refusals = [{2: LIMITED}]
        began = asyncio.get_running_loop().time()
        outcomes = await self.post(messages)
        self.assertEqual(self.codes(outcomes), [""] * 6)
        self.assertEqual([receipt.id for receipt in outcomes], [e["id"] for e in messages])
        self.assertEqual(self.relay.bulks[1:], [[canonicalize(e) for e in messages[2:4]]])
        self.assertGreaterEqual(asyncio.get_running_loop().time() - began, 3)

    @virtual
    async def test_the_size_follows_the_relay(self):
        self.setup()
        stop = {"stop": (3, LIMITED)}
        self.relay.refusals = [stop, stop, {}, {}, {"stop": (0, LIMITED)}]
        outcomes = await self.post(self.messages(threads=15))
        self.assertEqual(self.codes(outcomes), [""] * 30)
        self.assertEqual([len(bulk) for bulk in self.relay.bulks], [30, 3, 3, 6, 12, 1, 2, 4, 8])

    @virtual
    async def test_outcomes(self):
        for refusals, want, requests in [
            ([{"stop": (3, TOO_LARGE)}], ["", "", "", ""], 2),
            ([{"stop": (1, LIMITED)}], ["", "", "", ""], 3),
            ([{"stop": (0, TOO_LARGE)}], ["PAYLOAD_TOO_LARGE", "THREAD_NOT_FOUND", "", ""], 2),
            ([{"stop": (0, LIMITED)}] * 8, ["RATE_LIMITED"] * 4, 8),
            ([{"stop": (0, LIMITED)}] * 7, [""] * 4, 10),  # the last ones have 1, 2 and 1 messages
            ([{0: LIMITED, 1: LIMITED}, {0: LIMITED, 1: LIMITED}], [""] * 4, 4),
            ([{3: {"error": "NEW"}}], ["", "", "", "NEW"], 1),
            ([{3: LIMITED | {"retryAfter": 121}}], ["", "", "", "RATE_LIMITED"], 1),  # longer than a post waits
            ([{3: LIMITED | {"retryAfter": 10**400}}], ["", "", "", "RATE_LIMITED"], 1),
            # The attempts count anew after a request that has settled a message.
            ([{"stop": (0, LIMITED)}] * 7 + [{}] + [{"stop": (0, LIMITED)}] * 7, [""] * 4, 17),
            # The relay may have stored a line before it failed.
            ([{3: UNAVAILABLE}] + [{0: UNAVAILABLE}] * 7 + [{0: UNAVAILABLE}], ["", "", "", "?UNAVAILABLE"], 9),
            ([{3: UNAVAILABLE}, {0: STALE}], ["", "", "", "?STALE_TIMESTAMP"], 2),
            ([{"stop": (3, UNAVAILABLE)}, {0: STALE}], ["", "", "", "?STALE_TIMESTAMP"], 2),
            ([{3: UNAVAILABLE | {"details": {"stored": False}}}, {0: STALE}], ["", "", "", "STALE_TIMESTAMP"], 2),
        ]:
            self.setup()
            self.relay.refusals = list(refusals)
            with self.subTest(refusals=refusals):
                outcomes = await self.post(self.messages())
                self.assertEqual(self.codes(outcomes), want)
                self.assertEqual((len(self.relay.bulks), self.relay.refusals), (requests, []))

    @virtual
    async def test_the_refusal(self):
        self.setup()
        self.relay.refusals = [{3: {"error": "FORBIDDEN", "message": "m" * 2000, "details": {"a": 1}}}]
        *_, refused = await self.post(self.messages())
        self.assertIsInstance(refused, RelayError)
        self.assertEqual((refused.message, refused.details, refused.status), ("m" * 1024, {"a": 1}, 403))
        self.relay.refusals = [{3: LIMITED | {"retryAfter": 150}}]
        *_, refused = await self.post(self.messages())
        self.assertEqual((refused.retry_after, refused.retryable), (150, True))

    @virtual
    async def test_failed_requests(self):
        not_sent = TransportFailed("no connection", sent=False)
        for answers, refusals, want, requests in [
            ([answer(502, {})], [], [""] * 4, 2),
            ([refusal("RATE_LIMITED", 429, True, retry_after=60)], [], [""] * 4, 2),
            (["lose"] * 7, [], [""] * 4, 8),
            ([lost()] * 8, [], ["?NO_ANSWER"] * 4, 8),
            ([not_sent] * 8, [], ["NO_ANSWER"] * 4, 8),
            ([refusal("UNAVAILABLE", 503, True, stored=False)] * 8, [], ["UNAVAILABLE"] * 4, 8),
            ([refusal("UNAVAILABLE", 503, True)] * 8, [], ["?UNAVAILABLE"] * 4, 8),
            ([refusal("RATE_LIMITED", 429, True, retry_after=121)], [], ["RATE_LIMITED"] * 4, 1),
            ([refusal("FORBIDDEN", 403)], [], ["FORBIDDEN"] * 4, 1),
            ([answer(413, {}), answer(413, {})], [], [""] * 4, 5),  # a proxy takes only small bodies
            ([answer(413, {})] * 3, [], ["INVALID_ANSWER", "THREAD_NOT_FOUND", "", ""], 5),
            ([lost()] + [not_sent] * 7, [], ["?NO_ANSWER"] * 4, 8),
            (["lose"], [{}, {"stop": (0, TOO_LARGE)}], ["?PAYLOAD_TOO_LARGE", "", "", ""], 3),
            (["lose"], [{}, {0: STALE}], ["?STALE_TIMESTAMP", "", "", ""], 2),
            # This proves that no earlier attempt was stored.
            ([lost()], [{0: {"error": "INVALID_REQUEST"}}], ["INVALID_REQUEST", "THREAD_NOT_FOUND", "", ""], 2),
        ]:
            self.setup()
            self.trouble(*answers)
            self.relay.refusals = list(refusals)
            with self.subTest(answers=answers, refusals=refusals):
                messages = self.messages()
                outcomes = await self.post(messages)
                self.assertEqual(self.codes(outcomes), want)
                self.assertEqual(len([path for _, path, _ in self.relay.requests if path == "/events/bulk"]), requests)
                for e, outcome in zip(messages, outcomes):
                    self.assertEqual(outcome.envelope if not isinstance(outcome, RelayError) else e, e)

    @virtual
    async def test_the_rest_after_a_failure(self):
        """The messages that were not sent yet get the same error. They are certainly not stored."""
        self.setup()
        self.trouble(*[lost()] * 8)
        with mock.patch.object(postall, "BULK_MESSAGES", 3):
            self.assertEqual(self.codes(await self.post(self.messages())), ["?NO_ANSWER"] * 3 + ["NO_ANSWER"])

    @virtual
    async def test_no_bulk_route(self):
        for status in (404, 405):
            self.setup()
            self.trouble(refusal("NOT_FOUND", status))
            messages = self.messages()
            outcomes = await self.post([*messages[:3], messages[1] | {"id": "b"}])
            self.assertEqual(self.codes(outcomes), ["", "", "", "INVALID_SIGNATURE"])
            self.assertEqual(outcomes[0].state, "PENDING")
            paths = [path for _, path, _ in self.relay.requests]
            self.assertEqual(paths, ["/.well-known/agora.json", "/events/bulk"] + ["/events"] * 4)

    @virtual
    async def test_no_bulk_route_after_a_lost_answer(self):
        """The relay has stored the messages, and then a proxy or an older relay answers."""
        self.setup()
        self.trouble("lose", answer(404, {}))
        bulk_hook = self.relay.hook

        async def hook(method, parts, next):
            return refusal("STALE_TIMESTAMP", 400) if parts.path == "/events" else await bulk_hook(method, parts, next)

        self.relay.hook = hook
        outcomes = await self.post(self.messages())
        self.assertEqual(self.codes(outcomes), ["?STALE_TIMESTAMP"] * 4)

    @virtual
    async def test_hostile_answers(self):
        """Each counts as an answer with an unknown effect."""
        self.setup()
        ids = [{"id": e["id"]} for e in self.messages()]
        refused = {"error": "FORBIDDEN"}
        for members in (
            {"results": ids + ids[:1]},
            {"results": ids[::-1]},
            {"results": ids[:3]},
            {"results": ids[:3], "stopped": None},
            {"results": ids[:3], "stopped": {}},
            {"results": ids[:3], "stopped": "RATE_LIMITED"},
            {"results": ids[:3], "stopped": {"error": 1}},
            {"results": []},
            {"results": {}},
            {"results": 7},
            {},
            {"results": ids[:3] + [{}]},
            {"results": ids[:3] + [None]},
            {"results": ids[:3] + [[refused]]},
            {"results": ids[:3] + [{"error": ["FORBIDDEN"]}]},
            {"results": ids[:3] + [ids[3] | {"expiresAt": "soon"}]},
            {"results": [refused] * 2000},
            {"results": [refused | {"message": "x" * (1 << 20)}] * 4},
            {"ok": False, "results": [refused] * 4},
        ):
            for attempts, want in ((1, ["?INVALID_ANSWER"] * 4), (2, [""] * 4)):
                self.setup()
                self.trouble(answer(200, {"ok": True} | members))
                with self.subTest(members=str(members)[:100], attempts=attempts):
                    outcomes = await self.post(self.messages(), attempts=attempts)
                    self.assertEqual(self.codes(outcomes), want)

    @virtual
    async def test_odd_answers(self):
        """Odd members that do not matter, and an answer that stops although all is done."""
        self.setup()
        expires = format_time(self.relay.wall() + 1e9)
        results = [{"id": e["id"], "expiresAt": expires, "thread": [], "duplicate": 1} for e in self.messages()]
        results[3] = {"error": "FORBIDDEN", "message": 7, "details": [1], "retryAfter": "3"}
        self.trouble(answer(200, {"ok": True, "results": results, "stopped": LIMITED}))
        began = asyncio.get_running_loop().time()
        outcomes = await self.post(self.messages())
        self.assertEqual(self.codes(outcomes), ["", "", "", "FORBIDDEN"])
        self.assertEqual(asyncio.get_running_loop().time(), began)
        self.assertEqual(outcomes[0].expires_at.timestamp(), self.relay.wall() + 3600)  # its signed ttl
        self.assertEqual((outcomes[0].duplicate, outcomes[3].details, outcomes[3].retry_after), (False, {}, 0))

    @virtual
    async def test_hanging_relay(self):
        self.setup()

        async def hang(*_):
            await asyncio.sleep(1e6)

        self.relay.hook = hang
        began = asyncio.get_running_loop().time()
        self.assertEqual(self.codes(await self.post(self.messages(), attempts=2)), ["?NO_ANSWER"] * 4)
        self.assertTrue(180 <= asyncio.get_running_loop().time() - began < 185)

    @virtual
    async def test_cancelled(self):
        self.setup()

        async def slow(method, parts, next):
            await asyncio.sleep(0.3)
            return await next()

        for seconds in (0, 0.2, 5, 29.9):  # before and in a request, and in a pause
            self.relay.hook = slow
            self.relay.refusals = [{"stop": (1, LIMITED | {"retryAfter": 60})}]
            with self.subTest(seconds=seconds), self.assertRaises(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.post(self.messages())
        self.trouble(answer(404, {}))
        by_bulk = self.relay.hook

        async def hook(method, parts, next):
            return await (by_bulk if parts.path == "/events/bulk" else slow)(method, parts, next)

        self.relay.hook = hook
        with self.assertRaises(TimeoutError):
            async with asyncio.timeout(0.5):
                await self.post(self.messages())

    @virtual
    async def test_messages_that_are_not_valid(self):
        self.setup()
        messages = self.messages()
        bad = [5, {}, messages[0] | {"payload": {"request_id": "t", "n": float("nan")}}, messages[0] | {"ts": "now"}]
        outcomes = await self.post([bad[0], *messages[:2], *bad[1:], *messages[2:]])
        self.assertEqual(
            self.codes(outcomes),
            ["INVALID_REQUEST", "", "", "UNSUPPORTED_VERSION", "INVALID_REQUEST", "INVALID_REQUEST", "", ""],
        )
        self.assertEqual(self.relay.bulks, [[canonicalize(e) for e in messages]])
        with mock.patch.object(postall, "BULK_MESSAGES", 1):
            outcomes = await self.post([*bad, *bad])
        self.assertTrue(all(type(one) is Refused for one in outcomes))
        self.assertEqual(len(self.relay.bulks), 1)

    @virtual
    async def test_private_reads_are_required(self):
        self.setup()
        outcomes = await self.post(self.messages(), require_parties=True)
        self.assertEqual(self.codes(outcomes), ["UNAUTHORIZED"] * 4)
        self.assertEqual(self.relay.bulks, [])


class RealPostsAll(test_relay.RealRelay):
    def messages(self):
        me, agent = Identity.generate(), Identity.generate()
        messages = conversation(me, agent, time.time(), threads=600)
        late = sign(messages[1] | {"id": "late", "thread": {"id": "none"}, "payload": {"request_id": "none"}}, me)
        return me, messages[:700] + [late] + messages[700:]

    def check(self, outcomes, messages, duplicate):
        self.assertEqual(len(outcomes), len(messages))
        late = outcomes.pop(700)
        self.assertIsInstance(late, RelayError)
        self.assertEqual((late.code, late.status), ("THREAD_NOT_FOUND", 404))
        for outcome, e in zip(outcomes, messages[:700] + messages[701:]):
            self.assertIsInstance(outcome, Receipt)
            self.assertEqual((outcome.id, outcome.duplicate), (e["id"], duplicate))
            self.assertAlmostEqual(outcome.expires_at.timestamp(), time.time() + 3600, delta=300)

    def test_post_all(self):
        """More messages than one request takes, one that is refused, and all of them again. They are in order."""
        me, messages = self.messages()

        async def main():
            async with Client(self.url, me) as client:
                self.check(await client.post_all(messages), messages, False)
                self.check(await client.post_all(messages), messages, True)
                ids = []
                async for event in client.follow(sender=me.did, from_oldest=True):
                    ids.append(event.id)
                    if len(ids) == 1200:
                        return ids

        self.assertEqual(asyncio.run(main()), [e["id"] for e in messages if e["id"] != "late"])

    def test_sync(self):
        me, messages = self.messages()
        with sync.Client(self.url, me) as client:
            self.check(client.post_all(e for e in messages), messages, False)

"""Posting: what is retried, what is known afterwards, and the clock."""
import asyncio

from agora_relay import Client, RelayError, Refused, TransportFailed, UnknownOutcome

from .support import RelayTest, answer, lost, refusal, virtual


class Posts(RelayTest):
    def trouble(self, *answers):
        """The relay gives these answers to posts, one after the other. "pass" lets the relay answer; "lose" too, but
        the answer gets lost."""
        left = list(answers)

        async def hook(method, parts, next):
            what = left.pop(0) if left and method == "POST" else "pass"
            if what == "lose":
                await next()
                return lost()
            return await next() if what == "pass" else what

        self.relay.hook = hook

    async def request(self, **options):
        client = self.relay.client(self.alice, **options)
        return await client.post("REQUEST", {"intent": "x"})

    @virtual
    async def test_retries(self):
        for answers in (
            ["lose"],
            ["lose"] * 7,
            [lost()],
            [TransportFailed("no connection", sent=False)] * 7,
            [refusal("UNAVAILABLE", 503, True, retry_after=1)],
            [refusal("RATE_LIMITED", 429, True, retry_after=60)],
            [refusal("INTERNAL_ERROR", 500, True)],
            [answer(502, {})],
            [answer(200, {"ok": True, "id": "another"})],
            [answer(200, {"no": "relay"})],
            [refusal("X", 408)],
        ):
            self.setup()
            self.trouble(*answers)
            with self.subTest(answers=answers):
                with self.assertLogs("agora_relay", "WARNING") as logged:
                    receipt = await self.request()
                self.assertEqual(len(logged.output), len(answers))
                self.assertIn("posting failed, will be retried: ", logged.output[0])
                self.assertEqual((len(self.relay.events), receipt.state), (1, "PENDING"))
                self.assertEqual(receipt.duplicate, "lose" in answers)
                self.assertEqual(len(set(self.relay.posts)), 1)

    @virtual
    async def test_outcomes(self):
        stale = refusal("STALE_TIMESTAMP", 400)  # without the relay's time
        not_sent, limited = TransportFailed("no connection", sent=False), refusal("RATE_LIMITED", 429, True)
        for answers, want in [
            ([refusal("FORBIDDEN", 403)], "FORBIDDEN"),
            ([refusal("RATE_LIMITED", 429, True, retry_after=121)], "RATE_LIMITED"),  # longer than a post waits
            ([limited] * 8, "RATE_LIMITED"),
            ([not_sent] * 8, "NO_ANSWER"),
            ([refusal("UNAVAILABLE", 503, True, stored=False)] * 8, "UNAVAILABLE"),
            ([stale], "STALE_TIMESTAMP"),
            (["lose"] * 8, None),
            ([refusal("UNAVAILABLE", 503, True)] * 8, None),
            ([answer(200, {"ok": True})] * 8, None),
            (["lose"] + [not_sent] * 7, None),
            (["lose", stale], None),
            ([lost(), refusal("EXPIRED", 400)], None),
            # These prove that no earlier attempt was stored, because a relay checks for duplicates first.
            ([lost(), refusal("INVALID_TRANSITION", 409)], "INVALID_TRANSITION"),
            ([lost(), refusal("FORBIDDEN", 403)], "FORBIDDEN"),
            ([lost(), refusal("DUPLICATE_ID", 409)], "DUPLICATE_ID"),
        ]:
            self.setup()
            self.trouble(*answers)
            with self.subTest(answers=answers), self.assertRaises((RelayError, UnknownOutcome)) as caught:
                await self.request()
            self.assertEqual(caught.exception.code, want or "UNKNOWN_OUTCOME")
            if want is None:
                self.assertFalse(caught.exception.retryable)
                self.relay.hook = None
                receipt = await self.relay.client(self.alice).post_envelope(caught.exception.envelope)
                self.assertEqual(receipt.duplicate, "lose" in answers)

    @virtual
    async def test_wrong_clock(self):
        for skew in (-600, 600, 86000, -86000):
            self.setup()
            self.relay.skew = skew
            client = self.relay.client(self.alice)
            first = await client.post("REQUEST", {"intent": "x"})
            second = await client.post("REQUEST", {"intent": "x"})
            self.assertAlmostEqual(client.now(), self.relay.now(), delta=1)
            self.assertEqual(self.relay.posts, [first.id, first.id, second.id])
        self.setup()
        self.relay.skew = 100_000  # more than a day
        with self.assertRaises(RelayError) as caught:
            await self.request()
        self.assertEqual(caught.exception.code, "STALE_TIMESTAMP")
        self.assertEqual(len(self.relay.posts), 1)

    @virtual
    async def test_wrong_clock_and_a_lost_answer(self):
        """An impostor stores the first attempt and claims that it is stale. The relay refuses the second one."""
        self.setup()
        self.relay.skew = 200
        late = refusal("STALE_TIMESTAMP", 400, now="2026-02-02T12:06:00Z")
        self.trouble("lose", late)
        with self.assertRaises(UnknownOutcome) as caught:
            await self.request()
        self.assertEqual(caught.exception.__cause__.code, "DUPLICATE_ID")
        self.assertEqual(len(self.relay.events), 1)

    @virtual
    async def test_hanging_relay(self):
        self.setup()

        async def hang(*_):
            await asyncio.sleep(1e6)

        self.relay.hook = hang
        began = asyncio.get_running_loop().time()
        with self.assertRaises(UnknownOutcome):
            await self.request(attempts=2)
        self.assertLess(asyncio.get_running_loop().time() - began, 65)

    @virtual
    async def test_cancelled(self):
        self.setup()
        for seconds in (0, 0.2, 5, 29.9):

            async def slow(method, parts, next):
                await asyncio.sleep(0.3)
                return lost()

            self.relay.hook = slow
            with self.assertRaises(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.request(attempts=100)

    @virtual
    async def test_refused_before_it_is_sent(self):
        client = self.setup().client(self.alice)
        for payload, options, code in [
            ({"intent": "x", "params": float("nan")}, {}, "INVALID_REQUEST"),
            ({"intent": "x", "params": {1: 2}}, {}, "INVALID_REQUEST"),
            ({"intent": "x", "params": object()}, {}, "INVALID_REQUEST"),
            ({"intent": "x", "params": "\ud800"}, {}, "INVALID_REQUEST"),
            ({"intent": "x", "params": 2**60 + 1}, {}, "INVALID_REQUEST"),
            ({"intent": "x", "params": "x" * 200_000}, {}, "PAYLOAD_TOO_LARGE"),
            ({"intent": "x"}, {"to": "bob"}, "INVALID_DID"),
            ({"intent": "x"}, {"thread": "a b"}, "INVALID_REQUEST"),
            ({"intent": "x"}, {"ttl": 0}, "INVALID_REQUEST"),
            ({"intent": "x"}, {"ttl": 1.5}, "INVALID_REQUEST"),
            ({"intent": "x"}, {"seal": True}, "INVALID_REQUEST"),
        ]:
            with self.subTest(payload=str(payload)[:60], options=options), self.assertRaises(Refused) as caught:
                await client.post("REQUEST", payload, **options)
            self.assertEqual(caught.exception.code, code)
        loop = []
        loop.append(loop)
        with self.assertRaises(Refused):
            await client.post("REQUEST", {"intent": "x", "params": loop})
        self.assertEqual(self.relay.requests, [])
        with self.assertRaisesRegex(ValueError, "needs an identity"):
            await self.relay.client().post("REQUEST", {"intent": "x"})

    @virtual
    async def test_no_relay_at_the_url(self):
        self.setup()
        self.trouble(answer(501, {}), answer(501, {}))
        with self.assertRaises(UnknownOutcome) as caught:
            await self.request(attempts=2)
        self.assertRegex(str(caught.exception), "^[A-Z_]+: [A-Z_]+: .* not from an Agora relay; check its URL; it is")

    @virtual
    async def test_wrong_types(self):
        client = self.setup().client(self.alice)
        with self.assertRaisesRegex(TypeError, r"me must be an Identity; pass load_or_create_key"):
            self.relay.client("agent.key")
        with self.assertRaisesRegex(TypeError, r"pass FileCursor\('agent.cursor'\)"):
            await anext(client.follow(cursor="agent.cursor"))
        with self.assertRaisesRegex(TypeError, "max_cost must be a number of USD"):
            await client.request("x", max_cost="0.05")
        call = await client.request("x")
        with self.assertRaisesRegex(TypeError, "max_cost must be a number of USD"):
            await call.best(seconds=0, max_cost="0.05")

    def test_url(self):
        for url in (
            "relay.example",
            "ftp://relay.example",
            "http://",
            "http://h/?q",
            "http://h/#f",
            "http://u:p@h",
            "http://h:99999",
        ):
            with self.subTest(url=url), self.assertRaises(ValueError):
                Client(url)
        self.assertEqual(Client("http://h/relay//").url, "http://h/relay")

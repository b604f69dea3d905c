"""Asking in one call, and what the directory says about a request before it is sent."""
import asyncio
import copy
import logging
import re

from agora_relay import AgentError, Offer, Price, Quote, Unacceptable, new_thread
from agora_relay.outlook import distance, nearest
from agora_relay.payloads import price_of

from .support import RelayTest, Serving, refusal, virtual

UPPER = [{"id": "text.upper"}]


def fixed(price, currency="USD"):
    return {"model": "fixed", "currency": currency, "fixed_price": price}


class Asks(RelayTest):
    async def announced(self, **manifest):
        """A relay where bob announces something that he does not serve."""
        self.setup()
        if manifest:
            await self.relay.client(self.bob).post("MANIFEST", {"id": "main"} | manifest)
        return self.relay.client(self.alice)

    def types(self):
        return [e["type"] for e, _ in self.relay.events]

    def test_nearest(self):
        for a, b, want in [("", "", 0), ("ab", "", 2), ("abc", "abd", 1), ("abc", "acb", 1), ("upper", "super", 2)]:
            self.assertEqual((distance(a, b), distance(b, a)), (want, want))
        known = ["image.draw", "text.upper", "text.translate", "TEXT.Uper", "y", "z", "q"]
        self.assertEqual(nearest("text.uper", known)[:2], ["TEXT.Uper", "text.upper"])
        self.assertEqual(nearest("translate", known)[0], "text.translate")
        self.assertEqual(len(nearest("text.uper", known)), 5)

    @virtual
    async def test_result(self):
        client = await self.announced()
        work = lambda job: job.params["text"].upper()
        with self.assertNoLogs("agora_relay", "WARNING"):
            async with Serving(self.relay.client(self.bob), "text.upper", work, price=0.5, manifest={"name": "U"}):
                await asyncio.sleep(1)
                manifest = next(e for e, _ in self.relay.events if e["type"] == "MANIFEST")
                self.assertEqual(manifest["payload"]["pricing"], fixed(0.5))
                result = await client.ask("text.upper", {"text": "a"}, max_cost=1, rule="first")
        self.assertEqual((result.output, result.agent), ("A", self.bob.did))
        self.assertNotIn("CANCEL", self.types())

    @virtual
    async def test_why_nobody_offers(self):
        for manifest, intent, options, at_once, message in [
            (
                {"intents": UPPER},
                "text.uper",
                {},
                "nobody announces text.uper; the nearest names are text.upper; waiting",
                "nobody announces text.uper; the nearest names are text.upper",
            ),
            ({}, "text.upper", {}, "nobody announces text.upper; waiting", "nobody announces text.upper"),
            (
                {"intents": UPPER, "pricing": fixed(0.05)},
                "text.upper",
                {"max_cost": 0.01},
                "the cheapest agent announces 0.05 USD for text.upper, and max_cost is 0.01; waiting",
                "the cheapest agent announces 0.05 USD",
            ),
            (
                {"intents": UPPER, "pricing": fixed(0.05)},
                "text.upper",
                {"max_cost": 1},
                "",
                "agents that announce text.upper: 1, online: 1; perhaps the params",
            ),
            (
                {"intents": UPPER},
                "text.lower",
                {"to": True},
                "did:key:",
                "does not announce text.lower; the nearest names are text.upper",
            ),
        ]:
            client = await self.announced(**manifest)
            if options.get("to"):
                options = {"to": self.bob.did}
            with self.subTest(message), self.assertLogs("agora_relay") as logs:
                logging.getLogger("agora_relay").info("so that there is a line")
                with self.assertRaisesRegex(Unacceptable, re.escape(message)) as raised:
                    await client.ask(intent, {}, seconds=2, **options)
                self.assertTrue(raised.exception.retryable)
                self.assertTrue(str(raised.exception).endswith(". The request was cancelled"))
                if message.startswith("agents that"):
                    self.assertIn(f'directly, with the argument to="{self.bob.did}"', str(raised.exception))
                warnings = [record.getMessage() for record in logs.records if record.levelname == "WARNING"]
                self.assertEqual(len(warnings), 1 if at_once else 0, warnings)
                self.assertTrue(not at_once or warnings[0].startswith(at_once), warnings)
                self.assertEqual(self.types()[-2:], ["REQUEST", "CANCEL"])

    @virtual
    async def test_prices_that_say_nothing(self):
        odd = [None, {"model": "free"}, {"model": "metered"}, fixed(5, "EUR"), 5, "x", {"model": {}}, fixed(-1)]
        for pricing in [*odd, fixed("5"), fixed(True), {"model": "fixed", "currency": [], "fixed_price": 1}]:
            client = await self.announced(intents=[*UPPER, None, 5, {"id": {}}], pricing=pricing)
            found = await client.outlook("text.upper")
            self.assertEqual((found.agents, found.online, found.example), (1, 1, self.bob.did))
            self.assertEqual(found.price, 0.0 if pricing == {"model": "free"} else None)

    @virtual
    async def test_no_directory(self):
        client = await self.announced()

        async def hook(method, parts, next):
            return refusal("UNAVAILABLE", 503) if parts.path == "/agents" else await next()

        self.relay.hook = hook
        async with Serving(self.relay.client(self.bob), "x", lambda job: 1):
            self.assertEqual((await client.ask("x", rule="first")).output, 1)

    @virtual
    async def test_cancelling(self):
        client = await self.announced(intents=UPPER)

        def work(job):
            raise AgentError("X")

        async with Serving(self.relay.client(self.bob), "text.upper", work):
            with self.assertRaises(AgentError):
                await client.ask("text.upper", rule="first")
        self.assertNotIn("CANCEL", self.types())  # the agent has ended it
        with self.assertRaisesRegex(Unacceptable, "The request is still open: "):
            await client.ask("other", seconds=1, thread=new_thread())
        self.assertNotIn("CANCEL", self.types())  # the same call continues it

        async def hook(method, parts, next):
            return refusal("FORBIDDEN", 403) if method == "POST" and self.types()[-1] == "REQUEST" else await next()

        await client.request("last", {})
        self.relay.hook = None
        task = asyncio.create_task(client.ask("other", rule="first"))
        await asyncio.sleep(20)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        self.assertEqual(self.types()[-1], "CANCEL")
        asked = asyncio.create_task(client.ask("other", seconds=20))
        await asyncio.sleep(10)
        self.relay.hook = hook
        with self.assertLogs("agora_relay", "WARNING") as logs:
            with self.assertRaisesRegex(Unacceptable, "The request is still open: "):
                await asked
        self.assertRegex(logs.output[-1], r'may still be open: .*\(await client.resume\("thread_\w{26}"\)\).cancel\(\)')

    @virtual
    async def test_silence(self):
        """A call that waits long says after five seconds why there may be no offer."""
        client = await self.announced(intents=UPPER)
        call = await client.request("text.uper", {})
        with self.assertLogs("agora_relay", "WARNING") as logs, self.assertRaises(Unacceptable):
            await call.best(seconds=60)
        self.assertIn("no offer after 5 seconds; nobody announces text.uper", logs.output[0])

    @virtual
    async def test_prices_have_one_shape(self):
        await self.announced()
        price = Price(0.5, "EUR")
        self.assertEqual((price, price.amount, price.currency, f"{price}"), (0.5, 0.5, "EUR", "0.5"))
        self.assertEqual(copy.copy(price).currency, "EUR")
        self.assertEqual(Quote(price).payload(), {"price": {"amount": 0.5, "currency": "EUR"}})
        self.assertEqual(Quote(1, "EUR").payload(), {"price": {"amount": 1.0, "currency": "EUR"}})
        self.assertEqual(Price(0).pricing(), {"model": "free"})
        for bad, error in [("1", TypeError), (True, TypeError), (-1, ValueError), (float("nan"), ValueError)]:
            with self.assertRaises(error):
                price_of(bad)
        client = self.relay.client(self.alice)
        async with Serving(self.relay.client(self.bob), "x", lambda job: 1, quote=lambda job: Price(2, "EUR")):
            offer = await (await client.request("x")).best("first")
        self.assertEqual((offer.price, offer.price.currency, offer.currency, offer.in_usd), (2, "EUR", "EUR", False))
        self.assertIsInstance(offer, Offer)

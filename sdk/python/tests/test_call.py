"""Requests, offers, results: agent and client together, over a relay in memory."""
import asyncio
import datetime
import json

from agora_relay import (
    AgentError,
    Cancelled,
    Closed,
    Delivery,
    Gone,
    Identity,
    Plain,
    Quote,
    Refused,
    RelayError,
    Unacceptable,
    UnknownOutcome,
    Unproven,
    format_time,
    new_thread,
    seal,
    sign,
)

from .support import RelayTest, Serving, lost, refusal, virtual


class Conversations(RelayTest):
    @virtual
    async def test_whole_conversation(self):
        relay = self.setup()
        for seal_it in (False, True):
            for work in (lambda job: job.params["text"].upper(), self.upper):
                async with relay.client(self.bob) as agent, relay.client(self.alice) as client:
                    async with Serving(
                        agent, "shout", work, quote=lambda job: Quote(0.5, eta_seconds=2, plan="shout")
                    ):
                        to = self.bob.did if seal_it else None
                        call = await client.request(
                            "shout", {"text": "hi"}, max_cost=1, to=to, seal=seal_it, title="t"
                        )
                        offer = await call.best(seconds=5)
                        self.assertEqual(
                            (offer.agent, offer.price, offer.currency, offer.eta_seconds, offer.plan),
                            (self.bob.did, 0.5, "USD", 2, "shout"),
                        )
                        await call.accept(offer)
                        result = await call.result()
                        self.assertEqual(
                            (result.output, result.status, result.agent), ("HI", "success", self.bob.did)
                        )
                        self.assertEqual(result.event.sealed, seal_it)
                        state = await call.state()
                        self.assertEqual((state.state, state.agent), ("COMPLETED", self.bob.did))
                        clear = [e for e, _ in relay.events if "params" in e["payload"] or "output" in e["payload"]]
                        self.assertEqual(clear == [], seal_it)
                relay.events.clear()

    async def upper(self, job):
        return Delivery(job.params["text"].upper(), metrics={"n": 1})

    async def offer(self, client, call, agent=None, **payload):
        """Posts an offer by hand."""
        await self.relay.client(agent or self.bob).post(
            "OFFER", {"request_id": call.request_id} | payload, to=self.alice.did, thread=call.thread
        )

    @virtual
    async def test_best(self):
        client = self.setup().client(self.alice)
        call = await client.request("x", max_cost=10)
        prices = {"a": 3, "b": 1, "c": 2, "dear": 11}
        agents = {}
        for name, price in prices.items():
            agents[name] = Identity.generate()
            await self.offer(
                client,
                call,
                agents[name],
                price={"amount": price, "currency": "USD"},
                plan=name,
                eta_seconds={"a": 1, "b": 30, "c": 20, "dear": 0}[name],
            )
        for rule, want in [
            ("cheapest", "b"),
            ("fastest", "a"),
            ("first", "a"),
            (lambda x, y: (y.plan > x.plan) - (x.plan > y.plan), "c"),
        ]:
            self.assertEqual((await call.best(rule, seconds=1)).plan, want)
        self.assertEqual([offer.plan for offer in await call.collect(seconds=1)], list(prices))
        with self.assertRaises(ValueError):
            await call.best("dearest", seconds=1)

    @virtual
    async def test_first_returns_at_once(self):
        client = self.setup().client(self.alice)
        call = await client.request("x", max_cost=1)
        waiting = asyncio.create_task(call.best("first", seconds=600))
        await asyncio.sleep(3)
        await self.offer(client, call, price={"amount": 2, "currency": "USD"})
        await asyncio.sleep(3)
        self.assertFalse(waiting.done())
        await self.offer(client, call, price={"amount": 1, "currency": "USD"})
        await asyncio.sleep(0.1)
        self.assertEqual(waiting.result().price, 1)

    @virtual
    async def test_no_offer(self):
        client = self.setup().client(self.alice)
        call = await client.request("x", max_cost=1)
        with self.assertRaises(Unacceptable) as caught:
            await call.best(seconds=5)
        self.assertTrue(caught.exception.retryable)
        await self.offer(client, call, price={"amount": 2, "currency": "USD"})
        with self.assertRaisesRegex(Unacceptable, "it costs 2 USD"):
            await call.best(seconds=5)

    @virtual
    async def test_zero_seconds(self):
        client = self.setup().client(self.alice)
        call = await client.request("x", max_cost=1)
        self.assertEqual(await call.collect(seconds=0), [])
        with self.assertRaisesRegex(Unacceptable, "no offer in time"):
            await call.best(seconds=0)
        await self.offer(client, call, price={"amount": 1, "currency": "USD"})

        async def later(method, parts, next):
            for _ in range(3):
                await asyncio.sleep(0)  # as a network does
            return await next()

        self.relay.hook = later
        began = asyncio.get_running_loop().time()
        self.assertEqual([offer.price for offer in await call.collect(seconds=0)], [1])
        for rule in ("cheapest", "first"):
            self.assertEqual((await call.best(rule, seconds=0)).price, 1)
        self.assertEqual(asyncio.get_running_loop().time(), began)
        await call.cancel()
        with self.assertRaises(Cancelled):
            await call.collect(seconds=0)

    @virtual
    async def test_limits(self):
        relay = self.setup()
        client = relay.client(self.alice)

        def at(seconds):
            return datetime.datetime.fromtimestamp(relay.wall() + seconds, datetime.timezone.utc)

        usd = {"amount": 1, "currency": "USD"}
        for limits, payload, want in [
            ({}, {}, None),
            ({"max_cost": 1}, {"price": usd}, None),
            ({"max_cost": 1}, {}, None),
            ({"max_cost": 0.5}, {"price": usd}, "it costs 1 USD, and the limit is 0.5"),
            ({"max_cost": 5}, {"price": {"amount": 1, "currency": "EUR"}}, "cannot be compared"),
            ({"max_cost": 5}, {"price": {"amount": 0, "currency": "EUR"}}, None),
            ({}, {"price": {"currency": "USD"}}, "no number"),
            ({}, {"price": {"amount": -1, "currency": "USD"}}, "negative"),
            ({"deadline": at(100)}, {"eta_seconds": 50}, None),
            ({"deadline": at(100)}, {"eta_seconds": 101}, "too late"),
            ({}, {"valid_until": format_time(relay.wall() - 1)}, "valid until"),
        ]:
            with self.subTest(limits=limits, payload=payload):
                call = await client.request("x", **limits)
                await self.offer(client, call, **payload)
                [offer] = await call.collect(seconds=0.1)
                if want is None:
                    await call.accept(offer)
                    continue
                with self.assertRaisesRegex(Unacceptable, want):
                    await call.accept(offer)
        call, other = await client.request("x"), await client.request("x")
        await self.offer(client, call, price=usd)
        [offer] = await call.collect(seconds=0.1)
        with self.assertRaisesRegex(Unacceptable, "another request"):
            await other.accept(offer)
        with self.assertRaisesRegex(Unacceptable, "the limit is 0.9"):
            await call.accept(offer, max_cost=0.9)
        with self.assertRaisesRegex(Unacceptable, "too late"):
            await call.accept(offer, deadline=at(0))
        with self.assertRaises(ValueError):
            await call.result()

    @virtual
    async def test_strangers_are_ignored(self):
        relay = self.setup()
        client, stranger = relay.client(self.alice), Identity.generate()
        call = await client.request("x", to=self.bob.did)
        base = {
            "version": "1.0",
            "meta": {"ttl": 300},
            "thread": {"id": call.thread},
            "ts": format_time(relay.wall()),
        }
        good = {"request_id": call.request_id, "price": {"amount": 1, "currency": "USD"}}

        def event(who, type="OFFER", payload=good, to=None, **more):
            relay.add(
                sign(
                    base
                    | {"id": f"m{len(relay.events)}", "type": type, "sender": {"id": who.did}, "payload": payload}
                    | ({"recipient": {"id": to}} if to else {})
                    | more,
                    who,
                )
            )

        event(stranger)  # not the agent that was asked
        event(self.bob, payload=good | {"request_id": "other"})
        event(self.bob, to=stranger.did)
        event(self.bob, payload=good | {"price": "free"})  # malformed
        event(self.bob, payload=good | {"valid_until": "tomorrow"})
        event(stranger, "ERROR", {"code": "X", "message": "m", "request_id": call.request_id})
        forged = sign(
            base | {"id": "forged", "type": "OFFER", "sender": {"id": self.bob.did}, "payload": good}, stranger
        )
        relay.add(forged)
        self.assertEqual(await call.collect(seconds=2), [])
        event(self.bob)  # without a recipient, as some agents do
        [offer] = await call.collect(seconds=2)
        self.assertEqual(offer.agent, self.bob.did)

    @virtual
    async def test_ends(self):
        relay = self.setup()
        client, agent = relay.client(self.alice), relay.client(self.bob)
        call = await client.request("x", to=self.bob.did)
        await agent.post(
            "ERROR",
            {"request_id": call.request_id, "code": "UNAVAILABLE", "message": "busy\x1b[2J", "details": {"a": 1}},
            to=self.alice.did,
            thread=call.thread,
        )
        with self.assertRaises(AgentError) as caught:
            await call.best(seconds=5)
        err = caught.exception
        self.assertEqual(
            (err.code, err.message, err.sender, err.retryable, err.details),
            ("UNAVAILABLE", "busy\x1b[2J", self.bob.did, True, {"a": 1}),
        )
        self.assertNotIn("\x1b", str(err))

        call = await client.request("x")  # nobody offers
        with self.assertRaises(AgentError) as caught:
            await call.best(seconds=1000)
        self.assertEqual((caught.exception.code, caught.exception.sender), ("TIMEOUT", relay.identity.did))

        call = await client.request("x")
        await self.offer(client, call)
        await call.accept(await call.best("first", seconds=1))
        with self.assertRaises(TimeoutError):
            await call.result(seconds=10)
        await call.cancel("enough")
        with self.assertRaises(Cancelled):
            await call.result()

        call = await client.request("x")  # an offer that is withdrawn does not end the thread
        await self.offer(client, call)
        await agent.post(
            "ERROR",
            {"request_id": call.request_id, "code": "X", "message": "m"},
            to=self.alice.did,
            thread=call.thread,
        )
        self.assertEqual(len(await call.collect(seconds=5)), 1)
        self.assertEqual((await call.state()).offers, 0)

    @virtual
    async def test_result_expired(self):
        relay = self.setup()
        client, agent = relay.client(self.alice), relay.client(self.bob)
        call = await client.request("x")
        await self.offer(client, call)
        await call.accept(await call.best("first", seconds=1))
        await agent.post(
            "RESULT", {"request_id": call.request_id, "status": "s"}, to=self.alice.did, thread=call.thread, ttl=10
        )
        await asyncio.sleep(60)
        with self.assertRaises(Gone):
            await call.result()

    @virtual
    async def test_resume(self):
        relay = self.setup()
        for kill_after in ("request", "accept", "result"):
            for seal_it in (False, True):
                with self.subTest(kill_after=kill_after, seal=seal_it):
                    work = asyncio.Event()

                    async def slow(job):
                        await work.wait()
                        return job.params

                    async with Serving(relay.client(self.bob), "echo", slow, quote=lambda job: 1):
                        thread = new_thread()
                        options = {"to": self.bob.did, "max_cost": 2, "seal": seal_it, "thread": thread}
                        call = await relay.client(self.alice).request("echo", [1, 2], **options)
                        if kill_after != "request":
                            await call.accept(await call.best(seconds=1))
                        if kill_after == "result":
                            work.set()
                            await asyncio.sleep(1)
                        # The process is gone. The next one knows the id of the thread.
                        client = relay.client(self.alice)
                        again = await client.request("echo", [1, 2], **options)
                        resumed = await client.resume(thread)
                        self.assertEqual(resumed.seal, seal_it)
                        if kill_after == "request":
                            self.assertIsNone(again.agent)
                            if seal_it:  # its own sender cannot decrypt it
                                with self.assertRaisesRegex(Unacceptable, "pass max_cost"):
                                    await resumed.accept((await resumed.collect(seconds=1))[0])
                            await again.accept(await resumed.best(seconds=1, max_cost=2))
                        else:
                            self.assertEqual(again.agent, self.bob.did)
                        work.set()
                        self.assertEqual((await again.result()).output, [1, 2])
                        resumed = await client.resume(thread)
                        self.assertEqual((await resumed.result()).output, [1, 2])

    @virtual
    async def test_thread_of_another_request(self):
        relay = self.setup()
        client = relay.client(self.alice)
        first = {"intent": "a", "params": {"n": 1}, "max_cost": 1}
        await client.request(**first, thread="t1")
        for changed, names in (
            ({"intent": "b"}, "intent"),
            ({"to": self.bob.did}, "recipient"),
            ({"to": self.bob.did, "seal": True}, "recipient, seal"),
            ({"params": {"n": 2}}, "params"),
            ({"params": None}, "params"),
            ({"max_cost": 2}, "max_cost"),
            ({"max_cost": None}, "max_cost"),
        ):
            with self.subTest(changed=changed), self.assertRaises(RelayError) as caught:
                await client.request(**first | changed, thread="t1")
            self.assertEqual((caught.exception.code, caught.exception.status), ("INVALID_TRANSITION", 409))
            self.assertRegex(
                str(caught.exception),
                rf"opened with another request \(what differs: {names}\); use a new id, or resume\(thread\)",
            )
        await client.request("a", {"n": 1.0}, max_cost=1.0, thread="t1")
        with self.assertRaises(RelayError) as caught:
            await client.resume("unknown")
        self.assertEqual(caught.exception.code, "THREAD_NOT_FOUND")

    @virtual
    async def test_resume_believes_signatures_only(self):
        relay = self.setup()
        client = relay.client(self.alice)
        call = await client.request("x", ttl=10, thread="t")
        await asyncio.sleep(60)
        relay.record = lambda id, client: {
            "id": "t",
            "client": self.alice.did,
            "state": "ACTIVE",
            "requestId": "other",
            "agent": self.bob.did,
            "offers": [],
            "transitions": [],
        }
        with self.assertRaises(Unproven):
            await client.resume("t")
        resumed = await client.resume("t", request_id="t", to=self.bob.did)
        self.assertEqual((resumed.agent, resumed.request_id), (None, "t"))
        self.assertEqual(call.thread, "t")

    @virtual
    async def test_lying_record(self):
        relay = self.setup()
        client = relay.client(self.alice)
        call = await client.request("x")
        good = relay.record(call.thread)
        for change in (
            {"id": "u"},
            {"client": self.bob.did},
            {"state": 7},
            {"offers": [1]},
            {"transitions": "x"},
            {"deadline": "soon"},
        ):
            relay.record = lambda id, client, change=change: good | change
            with self.assertRaises(RelayError) as caught:
                await call.state()
            self.assertEqual(caught.exception.code, "INVALID_ANSWER")

    @virtual
    async def test_unknown_outcome_of_a_request(self):
        relay = self.setup()

        async def hook(method, parts, next):
            response = await next()
            return lost() if method == "POST" and lose else response

        lose, relay.hook = True, hook
        client = relay.client(self.alice)
        with self.assertRaises(UnknownOutcome) as caught:
            await client.request("x")
        lose = False
        call = caught.exception.call
        await self.offer(client, call)
        lose = True
        with self.assertRaises(UnknownOutcome):
            await call.accept(await call.best("first", seconds=60))
        lose = False
        self.assertIsNone(call.agent)
        self.assertEqual(((await call.state()).state, call.agent), ("ACTIVE", self.bob.did))

    @virtual
    async def test_plain_and_closed_answers(self):
        relay = self.setup()
        client, agent = relay.client(self.alice), relay.client(self.bob)

        def to_me(type, payload, call, key=None):
            e = {
                "version": "1.0",
                "id": f"m{len(relay.events)}",
                "type": type,
                "sender": {"id": self.bob.did},
                "recipient": {"id": self.alice.did},
                "payload": payload | {"request_id": call.request_id},
                "meta": {"ttl": 300},
                "thread": {"id": call.thread},
                "ts": format_time(relay.wall()),
            }
            if key:  # sealed to another key
                e = seal(e | {"recipient": {"id": key.did}}) | {"recipient": {"id": self.alice.did}}
            relay.post(json.dumps(sign(e, self.bob)).encode())

        for allow in (False, True):
            call = await client.request("x", to=self.bob.did, seal=True, allow_plain=allow)
            to_me("OFFER", {}, call)
            if allow:
                await call.accept(await call.best("first", seconds=1))
                to_me("RESULT", {"status": "s", "output": 1}, call)
                self.assertEqual((await call.result()).output, 1)
            else:
                with self.assertRaises(Plain):
                    await call.best("first", seconds=1)
        call = await client.request("x", to=self.bob.did, seal=True)
        to_me("OFFER", {"plan": "p"}, call, Identity.generate())
        with self.assertRaises(Closed):
            await call.best("first", seconds=1)
        call = await client.request("x", to=self.bob.did, seal=True)
        to_me("ERROR", {"code": "UNAVAILABLE", "message": "m"}, call)
        with self.assertRaises(Plain) as caught:
            await call.best("first", seconds=1)
        self.assertEqual(caught.exception.error.code, "UNAVAILABLE")
        with self.assertRaises(Refused):
            await client.request("x", seal=True)  # nobody to seal to
        self.assertIsNotNone(agent)

    @virtual
    async def test_forgotten_by_the_relay(self):
        relay = self.setup()
        call = await relay.client(self.alice).request("x")

        async def hook(method, parts, next):
            return refusal("THREAD_NOT_FOUND", 404) if parts.path.startswith("/threads") else await next()

        relay.hook = hook
        with self.assertRaises(RelayError):
            await call.best(seconds=600)

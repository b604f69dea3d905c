"""Serving: who gets which answer, restarts, cancellation, blocking functions, floods."""
import asyncio
import contextlib
import json
import threading

from agora_relay import AgentError, Call, Delivery, Identity, RelayError, format_time, seal, sign

from .support import MemoryCursor, RelayTest, Serving, lost, refusal, virtual


class Serves(RelayTest):
    async def ask(self, intent="x", client=None, seconds=5, **options) -> Call:
        """Makes a request, and accepts the first offer."""
        call = await (client or self.relay.client(self.alice)).request(intent, **options)
        await call.accept(await call.best("first", seconds=seconds))
        return call

    @virtual
    async def test_refusals(self):
        self.setup()

        def quote(job):
            if job.params == "raise":
                raise AgentError("BUSY", "come back later", details={"at": 5})
            if job.params == "fail":
                raise ValueError("a secret")
            return {
                "none": None,
                "bad": "free",
                "nan": float("nan"),
                "dear": 3,
                "dict": {"price": {"amount": 2, "currency": "EUR"}},
                "number": {"price": 0.5, "eta_seconds": 1},
            }[job.params]

        async with Serving(self.relay.client(self.bob), ["x", "y"], lambda job: None, quote=quote):
            client = self.relay.client(self.alice)
            for intent, params, code, message in [
                ("z", None, "INTENT_NOT_SUPPORTED", "x, y"),
                ("x", "raise", "BUSY", "come back later"),
                ("x", "fail", "INTERNAL_ERROR", "its log"),
                ("x", "bad", "INTERNAL_ERROR", ""),
                ("x", "none", "UNAVAILABLE", "no offer"),
                ("x", "nan", "INTERNAL_ERROR", ""),
                ("x", "dear", "INSUFFICIENT_BUDGET", "3 USD"),
            ]:
                with self.subTest(params=params), self.assertRaises(AgentError) as caught:
                    await (await client.request(intent, params, to=self.bob.did, max_cost=1)).best(seconds=5)
                self.assertEqual(caught.exception.code, code)
                self.assertIn(message, caught.exception.message)
                self.assertNotIn("secret", caught.exception.message)
                call = await client.request(intent, params, max_cost=1)  # a broadcast gets no answer at all
                self.assertEqual(await call.collect(seconds=5), [])
            for params, want in (("dict", (2, "EUR", None)), ("number", (0.5, "USD", 1))):
                call = await client.request("y", params, max_cost=1)
                [offer] = await call.collect(seconds=2)
                self.assertEqual((offer.price, offer.currency, offer.eta_seconds), want)
            await client.post("REQUEST", {"intent": "x", "constraints": {"max_cost_usd": "much"}}, to=self.bob.did)
            await asyncio.sleep(1)
            self.assertEqual(self.relay.events[-1][0]["payload"]["code"], "INVALID_REQUEST")

    @virtual
    async def test_gateway(self):
        self.setup()
        served = self.relay.client(self.bob)
        async with Serving(served, ["a2a.message", "chorus.channel.message"], lambda job: job.params):
            client = self.relay.client(self.alice)
            for intent in ("a2a.message", "chorus.channel.message"):
                for gateway, seals, taken in ((None, True, False), (client, False, False), (client, True, True)):
                    self.relay.gateway = gateway and self.alice.did
                    await served.about()  # it reads the document again after an hour
                    call = await client.request(intent, 1, to=self.bob.did, seal=seals)
                    if taken:
                        self.assertEqual((await call.best("first", seconds=5)).agent, self.bob.did)
                        continue
                    with self.subTest(intent=intent, seals=seals), self.assertRaises(AgentError) as caught:
                        await call.best("first", seconds=5)
                    self.assertEqual(caught.exception.code, "FORBIDDEN")

    @virtual
    async def test_work_fails(self):
        self.setup()
        works = {
            "secret": ValueError("a secret"),
            "busy": AgentError("UNAVAILABLE", "busy"),
            "exit": SystemExit(3),
            "stop": asyncio.CancelledError(),
            "big": "x" * 200_000,
            "nan": float("nan"),
            "odd": object(),
        }

        def work(job):
            value = works[job.params]
            if isinstance(value, BaseException):
                raise value
            return value

        async def async_work(job):
            return work(job)

        for function, names in ((work, list(works)), (async_work, [name for name in works if name != "exit"])):
            async with Serving(self.relay.client(self.bob), "x", function):
                for name in names:
                    call = await self.ask(params=name)
                    with self.subTest(name=name), self.assertRaises(AgentError) as caught:
                        await call.result(seconds=60)
                    self.assertEqual(caught.exception.code, "UNAVAILABLE" if name == "busy" else "INTERNAL_ERROR")
                    self.assertNotIn("secret", caught.exception.message)

    @virtual
    async def test_job(self):
        self.setup()
        jobs = []

        def work(job):
            jobs.append(job)
            return Delivery({"n": job.params["n"] + 1}, status="partial", artifacts=[1], metrics={"s": 2})

        async with Serving(self.relay.client(self.bob), "x", work):
            call = await self.ask(params={"n": 1}, max_cost=7, title="T", description="D")
            result = await call.result()
        [job] = jobs
        self.assertEqual(
            (job.intent, job.client, job.thread, job.title, job.description, job.limits.max_cost),
            ("x", self.alice.did, call.thread, "T", "D", 7),
        )
        self.assertEqual(
            (result.output, result.status, result.artifacts, result.metrics), ({"n": 2}, "partial", [1], {"s": 2})
        )

    @virtual
    async def test_cancel(self):
        self.setup()
        stopped = []

        async def work(job):
            try:
                await asyncio.sleep(10_000)
            finally:
                stopped.append(job.params)

        def blocking(job):
            stopped.append(job.cancelled.wait(20))

        for function, want in ((work, "p"), (blocking, True)):
            stopped.clear()
            store = MemoryCursor()
            async with Serving(self.relay.client(self.bob), "x", function, cursor=store, concurrency=1):
                call = await self.ask(params="p")
                await asyncio.sleep(0.1)
                await call.cancel()
                for _ in range(100):
                    await asyncio.sleep(0.1)
                self.assertEqual(stopped, [want])
                self.assertEqual(store.saved[-1], f"a-{len(self.relay.events)}")  # the ACCEPT counts as handled
                again = await self.ask(params="p")  # the slot is free again
                await again.cancel()

    @virtual
    async def test_crash(self):
        """The agent stops between ACCEPT and RESULT, and at other times. The next process does the work."""
        self.setup()
        for stop_at in ("quote", "offer", "work", "result"):
            for store in (MemoryCursor(), None):
                with self.subTest(stop_at=stop_at, store=store):
                    done, reached = [], asyncio.Event()

                    async def quote(job):
                        if stop_at == "quote" and not reached.is_set():
                            reached.set()
                            await asyncio.sleep(1e4)
                        return 0

                    async def work(job):
                        if stop_at == "work" and not reached.is_set():
                            reached.set()
                            await asyncio.sleep(1e4)
                        done.append(job.thread)
                        return "done"

                    async def hook(method, parts, next):
                        response = await next()
                        last = self.relay.events[-1][0]["type"] if self.relay.events else ""
                        if method == "POST" and last.lower() == stop_at and not reached.is_set():
                            reached.set()
                            await asyncio.sleep(1e4)
                        return response

                    self.relay.hook = hook
                    first = asyncio.create_task(
                        self.relay.client(self.bob).serve("x", work, quote=quote, cursor=store)
                    )
                    asking = asyncio.create_task(self.ask(seconds=100))
                    await reached.wait()
                    await asyncio.sleep(1)
                    first.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await first
                    async with Serving(self.relay.client(self.bob), "x", work, quote=quote, cursor=store):
                        call = await asking
                        self.assertEqual((await call.result(seconds=100)).output, "done")
                        await asyncio.sleep(5)
                    self.assertEqual(done, [call.thread])
                    results = [
                        e for e, _ in self.relay.events if e["type"] == "RESULT" and e["thread"]["id"] == call.thread
                    ]
                    self.assertEqual(len(results), 1)

    @virtual
    async def test_cursor_waits_for_the_slowest(self):
        self.setup()
        store, go = MemoryCursor(), asyncio.Event()

        async def work(job):
            if job.params == "slow":
                await go.wait()

        async with Serving(self.relay.client(self.bob), "x", work, cursor=store):
            slow = await self.ask(params="slow")
            accepted = len(self.relay.events)
            await (await self.ask(params="fast")).result()
            await asyncio.sleep(100)
            self.assertLess(int(store.saved[-1][2:]), accepted)
            go.set()
            await slow.result()
            await asyncio.sleep(100)
            self.assertEqual(store.saved[-1], f"a-{len(self.relay.events)}")

    @virtual
    async def test_broken_store(self):
        self.setup()

        class Broken(MemoryCursor):
            def save(self, cursor):
                raise OSError("disk full")

        await self.relay.client(self.alice).request("x")
        with self.assertRaisesRegex(OSError, "disk full"):
            await self.relay.client(self.bob).serve("x", lambda job: None, cursor=Broken())

    @virtual
    async def test_expired_request(self):
        """The REQUEST expires before the ACCEPT. The agent has it in memory, unless it was started anew."""
        self.setup()
        async with Serving(self.relay.client(self.bob), "x", lambda job: job.params):
            call = await self.relay.client(self.alice).request("x", 5, ttl=30)
            offer = await call.best("first", seconds=5)
            await asyncio.sleep(60)
            await call.accept(offer)
            self.assertEqual((await call.result()).output, 5)
            call = await self.relay.client(self.alice).request("x", 5, ttl=30)
            offer = await call.best("first", seconds=5)
        await asyncio.sleep(60)
        await call.accept(offer)
        async with Serving(self.relay.client(self.bob), "x", lambda job: job.params):
            with self.assertRaisesRegex(AgentError, "UNAVAILABLE"):
                await call.result()

    @virtual
    async def test_trusts_signatures_only(self):
        """The relay claims that an offer was accepted, but shows no ACCEPT of the client."""
        self.setup()
        done = []
        async with Serving(self.relay.client(self.bob), "x", done.append):
            call = await self.relay.client(self.alice).request("x")
            await call.best("first", seconds=5)
            self.relay.record = lambda id, client=None: {
                "id": id,
                "client": client,
                "state": "ACTIVE",
                "agent": self.bob.did,
                "requestId": call.request_id,
                "offers": [],
                "transitions": [],
            }
            accept = {
                "version": "1.0",
                "id": "a",
                "type": "ACCEPT",
                "sender": {"id": self.alice.did},
                "recipient": {"id": self.bob.did},
                "payload": {"request_id": call.request_id},
                "meta": {"ttl": 300},
                "thread": {"id": call.thread},
                "ts": format_time(self.relay.wall()),
            }
            mallory = Identity.generate()
            self.relay.add(sign(accept, mallory))  # not signed by its sender
            self.relay.add(sign(accept | {"sender": {"id": mallory.did}}, mallory))
            self.relay.add(sign(accept | {"payload": {"request_id": "other"}}, self.alice))
            self.relay.add(sign(accept | {"id": "b", "recipient": {"id": mallory.did}}, self.alice))
            await asyncio.sleep(60)
        self.assertEqual(done, [])

    @virtual
    async def test_sealed_messages_that_cannot_be_opened(self):
        self.setup()
        other = Identity.generate()
        async with Serving(self.relay.client(self.bob), "x", lambda job: 1):
            e = {
                "version": "1.0",
                "id": "s",
                "type": "REQUEST",
                "sender": {"id": self.alice.did},
                "recipient": {"id": other.did},
                "payload": {"intent": "x", "request_id": "r", "params": 1},
                "meta": {"ttl": 300},
                "thread": {"id": "t"},
                "ts": format_time(self.relay.wall()),
            }
            e = sign(seal(e) | {"recipient": {"id": self.bob.did}}, self.alice)
            await self.relay.client(self.alice).post_envelope(e)
            await asyncio.sleep(5)
            answer = self.relay.events[-1][0]
        self.assertEqual((answer["type"], answer["payload"]["code"]), ("ERROR", "INVALID_REQUEST"))
        self.assertIn("sealed", answer["payload"])  # a sealed message gets a sealed answer

    @virtual
    async def test_flaky_relay(self):
        """Every third request fails, in turn in each way. The agent works once for each request."""
        self.setup()
        troubles = [
            lost(),
            refusal("RATE_LIMITED", 429, True, retry_after=1),
            refusal("UNAVAILABLE", 503, True, retry_after=1),
            "lose",
            "twice",
            "late",
        ]
        turn, done = 0, []

        async def hook(method, parts, next):
            nonlocal turn
            turn += 1
            what = troubles[turn // 3 % len(troubles)] if turn % 3 == 0 else "pass"
            if not isinstance(what, str):
                return what
            if what in ("lose", "twice") and not (what == "lose" and method == "GET"):
                await next()
            if what == "late":
                await asyncio.sleep(0.8)
            return lost() if what == "lose" else await next()

        self.relay.hook = hook
        ahead, behind = lambda: self.relay.wall() + 600, lambda: self.relay.wall() - 600

        async def one(number):
            to = self.bob.did if number % 2 else None
            client = self.relay.client(Identity.generate(), clock=behind)
            call = await self.ask(params=number, to=to, seal=to is not None, client=client, seconds=120)
            return (await call.result(seconds=200)).output

        def work(job):
            done.append(job.params)
            return job.params

        async with Serving(self.relay.client(self.bob, clock=ahead), "x", work):
            outputs = await asyncio.gather(*map(one, range(12)))
        self.assertEqual(outputs, list(range(12)))
        self.assertEqual(sorted(done), list(range(12)))

    @virtual
    async def test_concurrency_is_shared(self):
        self.setup()
        running, most, order = 0, 0, []

        async def work(job):
            nonlocal running, most
            running += 1
            most = max(most, running)
            order.append(job.params)
            await asyncio.sleep(10)
            running -= 1

        greedy, modest = self.relay.client(self.alice), self.relay.client(Identity.generate())
        async with Serving(self.relay.client(self.bob), "x", work, concurrency=3):
            calls = [await self.ask(params="greedy", client=greedy) for _ in range(9)]
            calls.append(await self.ask(params="modest", client=modest))
            await asyncio.gather(*(call.result() for call in calls))
        self.assertEqual(most, 3)
        self.assertLess(order.index("modest"), 6)

    @virtual
    async def test_blocking_functions_run_in_parallel(self):
        self.setup()
        barrier = threading.Barrier(4)

        def work(job):
            barrier.wait(10)  # breaks unless four run at once
            return threading.current_thread() is not threading.main_thread()

        async with Serving(self.relay.client(self.bob), "x", work, concurrency=4):
            calls = await asyncio.gather(*(self.ask() for _ in range(4)))
            self.assertEqual([(await call.result()).output for call in calls], [True] * 4)

    @virtual
    async def test_slot_of_a_blocking_function(self):
        """A blocking function cannot be stopped. It keeps its slot until it returns, so at most concurrency run."""
        self.setup()
        started, go = [], threading.Event()

        def work(job):
            started.append(job.params)
            go.wait(30)

        async with Serving(self.relay.client(self.bob), "x", work, concurrency=1):
            first = await self.ask(params=1)
            while not started:
                await asyncio.sleep(0.1)
            await first.cancel()
            second = await self.ask(params=2)
            for _ in range(10):
                await asyncio.sleep(0.1)
            self.assertEqual(started, [1])
            go.set()
            await second.result()
        self.assertEqual(started, [1, 2])

    @virtual
    async def test_work_is_not_repeated_to_post_its_result(self):
        self.setup()
        done = []

        async def hook(method, parts, next):
            return lost() if method == "POST" and done and asyncio.get_running_loop().time() < 300 else await next()

        self.relay.hook = hook
        async with Serving(self.relay.client(self.bob), "x", lambda job: done.append(1)):
            call = await self.ask()
            await call.result(seconds=1000)
        self.assertEqual(done, [1])

    @virtual
    async def test_slow_quotes_end(self):
        self.setup()

        async def quote(job):
            await asyncio.sleep(1e5)

        async with Serving(
            self.relay.client(self.bob), "x", lambda job: 1, quote=quote, quote_seconds=3, concurrency=1
        ):
            with self.assertRaisesRegex(AgentError, "INTERNAL_ERROR"):
                await (await self.relay.client(self.alice).request("x", to=self.bob.did)).best(seconds=60)

    @virtual
    async def test_work_ends_long_after_the_timeout(self):
        self.setup()
        ended = []

        async def work(job):
            try:
                await asyncio.sleep(1e5)
            finally:
                ended.append(asyncio.get_running_loop().time())

        async with Serving(self.relay.client(self.bob), "x", work):
            await self.ask()
            await asyncio.sleep(4000)
        self.assertAlmostEqual(ended[0], 3900, delta=10)  # an hour, and five minutes for wrong clocks

    @virtual
    async def test_manifest_is_renewed(self):
        self.setup()
        manifest = {"name": "A"}
        async with Serving(self.relay.client(self.bob), "x", lambda job: 1, manifest=manifest):
            await asyncio.sleep(26 * 3600)
            client = self.relay.client()
            self.assertEqual([a.id async for a in client.directory()][0], self.bob.did)
            self.assertEqual(
                (await client.agent(self.bob.did)).manifests[0].payload,
                {"id": "main", "name": "A", "intents": [{"id": "x"}], "pricing": {"model": "free"}},
            )
        self.assertEqual(len(self.relay.events), 3)

    @virtual
    async def test_rate_limit(self):
        """The relay allows two posts a second. All requests get an offer, and no result is late."""
        self.setup()
        tokens, counted = 4.0, 0.0

        async def hook(method, parts, next):
            nonlocal tokens, counted
            now = asyncio.get_running_loop().time()
            tokens, counted = min(4.0, tokens + 2 * (now - counted)), now
            if method != "POST" or body_sender() != self.bob.did:
                return await next()
            if tokens < 1:
                return refusal("RATE_LIMITED", 429, True, limit="postsPerAgent", retry_after=1)
            tokens -= 1
            return await next()

        def body_sender():
            return self.sender

        send = self.relay.send

        async def spy(method, url, headers, body, limit):
            self.sender = json.loads(body)["sender"]["id"] if body else None
            return await send(method, url, headers, body, limit)

        self.relay.send, self.relay.hook = spy, hook
        async with Serving(self.relay.client(self.bob), "x", lambda job: job.params):

            async def one(number):
                call = await self.ask(params=number, client=self.relay.client(Identity.generate()), seconds=250)
                return (await call.result(seconds=250)).output

            self.assertEqual(await asyncio.gather(*map(one, range(30))), list(range(30)))

    @virtual
    async def test_flood(self):
        """A flood of one key does not keep another client waiting, and what is dropped is reported."""
        self.setup()
        from agora_relay import queue

        dropped, slow = [], True

        async def quote(job):
            await asyncio.sleep(1 if slow else 0)
            return 0

        length, queue.QUEUE_LENGTH = queue.QUEUE_LENGTH, 20
        self.addCleanup(setattr, queue, "QUEUE_LENGTH", length)
        async with Serving(
            self.relay.client(self.bob), "x", lambda job: 1, quote=quote, concurrency=1, dropped=dropped.append
        ):
            flooder = self.relay.client(Identity.generate())
            for _ in range(60):
                await flooder.request("x")
            await asyncio.sleep(3)
            call = await self.relay.client(self.alice).request("x")
            began = asyncio.get_running_loop().time()
            await call.best("first", seconds=60)
            self.assertLess(asyncio.get_running_loop().time() - began, 4)
        self.assertGreater(len(dropped), 30)

    @virtual
    async def test_cancelled_at_every_moment(self):
        """Wherever serve is cancelled, it ends at once, leaves no task, and loses nothing."""
        self.setup()
        for moment in range(30):
            store, done = MemoryCursor(), []

            async def hook(method, parts, next):
                await asyncio.sleep(0.1)
                return await next()

            self.relay.hook = hook

            async def work(job):
                await asyncio.sleep(0.3)
                done.append(job.thread)
                return 1

            agent = asyncio.create_task(self.relay.client(self.bob).serve("x", work, cursor=store))
            asking = asyncio.create_task(self.ask(seconds=200))
            await asyncio.sleep(moment * 0.1)
            agent.cancel()
            await asyncio.gather(agent, return_exceptions=True)
            async with Serving(self.relay.client(self.bob), "x", work, cursor=store):
                call = await asking
                self.assertEqual((await call.result(seconds=200)).output, 1)
            self.relay.events.clear()
            self.relay.db += "a"  # old cursors are unknown

    @virtual
    async def test_bad_options(self):
        self.setup()
        client = self.relay.client(self.bob)
        for intents, options in (([], {}), ("", {}), ([""], {}), ("x", {"concurrency": 0})):
            with self.assertRaises(ValueError):
                await client.serve(intents, lambda job: 1, **options)
        with self.assertRaises(ValueError):
            await self.relay.client().serve("x", lambda job: 1)
        with self.assertRaisesRegex(TypeError, "quote must be a function, such as lambda job: 0.01"):
            await client.serve("x", lambda job: 1, quote=0.01)
        with self.assertRaisesRegex(TypeError, "work must be a function"):
            await client.serve("x", "output")
        with self.assertRaisesRegex(TypeError, r"pass FileCursor\('agent.cursor'\)"):
            await client.serve("x", lambda job: 1, cursor="agent.cursor")

        async def refuse(*_):
            return refusal("FORBIDDEN", 403)

        self.relay.hook = refuse
        with self.assertRaises(RelayError):
            await client.serve("x", lambda job: 1)

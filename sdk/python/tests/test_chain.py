"""Homes and links: RELAYS §1 and §2."""
import asyncio
import datetime

from agora_relay import AgentError, Gone, Identity, Refused, Unacceptable, UnknownOutcome, check_envelope, content_hash, sign

from .support import RelayTest, Serving, lost, proof_of, virtual


class ChainTest(RelayTest):
    def setup(self):
        relay = super().setup()
        relay.features = ["home"]
        return relay

    @property
    def home(self):
        return {"did": self.relay.identity.did, "url": self.relay.url}

    def stored(self, type):
        return [e for e, _ in self.relay.events if e["type"] == type]


class Clients(ChainTest):
    @virtual
    async def test_chain(self):
        """R-3, R-6: all messages of a thread have its home, and the one that they answer."""
        relay = self.setup()
        async with Serving(relay.client(self.bob), "x", lambda job: job.params):
            client = relay.client(self.alice)
            call = await client.request("x", 1, to=self.bob.did)
            await call.accept(await call.best("first", seconds=5))
            self.assertEqual((await call.result(seconds=60)).output, 1)
            with self.assertRaises(AgentError):  # before an OFFER, an ERROR answers the REQUEST
                await (await client.request("y", to=self.bob.did)).best(seconds=5)
            other = await client.request("x", to=self.bob.did)
            await other.cancel()
        first, second, third = map(content_hash, self.stored("REQUEST"))
        [offer, *_], [accept], [result] = map(self.stored, ("OFFER", "ACCEPT", "RESULT"))
        [error], [cancel] = map(self.stored, ("ERROR", "CANCEL"))
        links = [(e["meta"]["re"]) for e in (offer, accept, result, error, cancel)]
        self.assertEqual(links, [first, content_hash(offer), content_hash(accept), second, third])
        self.assertEqual([e["meta"]["home"] for e, _ in relay.events], [self.home] * len(relay.events))
        self.assertNotIn("re", self.stored("REQUEST")[0]["meta"])

    @virtual
    async def test_cancel_and_error_after_the_accept(self):
        """R-6: a CANCEL and an ERROR after the ACCEPT answer the ACCEPT."""
        relay, go = self.setup(), asyncio.Event()

        async def work(job):
            if job.params == "wait":
                await go.wait()
            raise AgentError("BUSY")

        async with Serving(relay.client(self.bob), "x", work):
            for params in ("fail", "wait"):
                call = await relay.client(self.alice).request("x", params)
                await call.accept(await call.best("first", seconds=5))
                if params == "wait":
                    await (await relay.client(self.alice).resume(call.thread)).cancel()
                else:
                    with self.assertRaisesRegex(AgentError, "BUSY"):
                        await call.result(seconds=60)
        accepts = [content_hash(e) for e in self.stored("ACCEPT")]
        self.assertEqual([e["meta"]["re"] for e in self.stored("ERROR") + self.stored("CANCEL")], accepts)

    @virtual
    async def test_a_relay_without_the_feature(self):
        relay = self.setup()
        relay.features = []
        async with Serving(relay.client(self.bob), "x", lambda job: 1):
            call = await relay.client(self.alice).request("x")
            await call.accept(await call.best("first", seconds=5))
            await call.result(seconds=60)
        for e, _ in relay.events:
            self.assertEqual(e["meta"].keys(), {"ttl"})

    async def answered(self, type, change, in_network=False):
        """What a client makes of an answer whose meta is changed."""
        relay, client = self.relay, self.relay.client(self.alice)
        client.in_network = in_network
        agent = relay.client(self.bob)
        call = await client.request("x")
        meta = {"home": self.home, "re": content_hash(self.stored("REQUEST")[-1])}
        request_id = {"request_id": call.request_id}

        async def post(type, meta):
            meta = {name: value for name, value in meta.items() if value is not None}
            return await agent._post(
                type, request_id | {"status": "success", "code": "BUSY", "message": "m"}, to=self.alice.did,
                thread=call.thread, seal=False, meta=meta,
            )

        await post("OFFER", meta | (change if type == "OFFER" else {}))
        offers = await call.collect(seconds=1)
        if type == "OFFER":
            return len(offers)
        await call.accept(offers[0])
        meta["re"] = content_hash(self.stored("ACCEPT")[-1])
        await post(type, meta | change)
        try:
            await call.result(seconds=2)
        except AgentError as err:
            return err.code == "BUSY"
        except (TimeoutError, Gone):
            return 0
        return 1

    @virtual
    async def test_answers_that_do_not_count(self):
        """R-3, R-7: a client ignores, and logs, an answer with another home, or without the right re."""
        elsewhere = "https://other.example"
        for type in ("OFFER", "RESULT", "ERROR"):
            for change, counts in [
                ({}, True),
                ({"re": None}, False),
                ({"re": "ab" * 32}, False),
                ({"home": None}, False),
                ({"home": elsewhere}, False),
            ]:
                with self.subTest(type=type, change=change):
                    self.setup()
                    if change.get("home"):
                        change = {"home": self.home | {"url": elsewhere}}
                    if counts:
                        self.assertEqual(await self.answered(type, change), 1)
                        continue
                    with self.assertLogs("agora_relay", "WARNING") as lines:
                        self.assertEqual(await self.answered(type, change), 0)
                    self.assertIn(f"the {type}", "".join(lines.output))
                    self.assertIn("is ignored", "".join(lines.output))

    @virtual
    async def test_agent_without_homes(self):
        """A client hires an agent that knows no homes. A Network does not, because it could not continue the job."""
        for type in ("OFFER", "RESULT", "ERROR"):
            for in_network in (False, True):
                self.setup()
                counts = await self.answered(type, {"home": None, "re": None}, in_network)
                self.assertEqual(counts, not in_network)

    @virtual
    async def test_re_without_a_home(self):
        """R-7: without a home, re is checked only if there is one."""
        for re, counts in ((None, 1), ("ab" * 32, 0)):
            self.setup().features = []
            client = self.relay.client(self.alice)
            call = await client.request("x")
            await self.relay.client(self.bob).post(
                "OFFER", {"request_id": call.request_id}, to=self.alice.did, thread=call.thread, re=re
            )
            self.assertEqual(len(await call.collect(seconds=1)), counts)

    @virtual
    async def test_no_second_accept(self):
        """R-16: one REQUEST never gets ACCEPTs for two agents, also if the first one was refused."""
        relay = self.setup()
        carol = Identity.generate()
        async with Serving(relay.client(self.bob), "x", lambda job: 1), Serving(
            relay.client(carol), "x", lambda job: 1
        ):
            call = await relay.client(self.alice, attempts=1).request("x")
            first, second = await call.collect(seconds=2)

            async def hook(method, parts, next):
                return lost() if method == "POST" else await next()

            relay.hook = hook
            with self.assertRaises(UnknownOutcome):
                await call.accept(first)
            relay.hook = None
            with self.assertRaisesRegex(Unacceptable, "make a new request"):
                await call.accept(second)
            await call.accept(first)
            self.assertEqual((await call.result(seconds=60)).agent, first.agent)

    @virtual
    async def test_resume(self):
        """A call that is resumed still checks which message each answer names, and names its own."""
        relay = self.setup()
        async with Serving(relay.client(self.bob), "x", lambda job: 1):
            await relay.client(self.alice).request("x", thread="t")
            call = await relay.client(self.alice).resume("t")
            await call.accept(await call.best("first", seconds=5, max_cost=1), max_cost=1)
            again = await relay.client(self.alice).resume("t")
            self.assertEqual((await again.result(seconds=60)).output, 1)
        offer, accept = self.stored("OFFER")[0], self.stored("ACCEPT")[0]
        self.assertEqual(accept["meta"], {"ttl": 86400, "home": self.home, "re": content_hash(offer)})

    @virtual
    async def test_drafts(self):
        """R-1, R-5: the members of meta, and their form."""
        relay = self.setup()
        client = relay.client(self.alice)
        receipt = await client.post("REQUEST", {"intent": "x"}, home=self.home, continues="ab" * 32)
        self.assertEqual(receipt.envelope["meta"], {"ttl": 86400, "home": self.home, "continues": "ab" * 32})
        for type, meta in [
            ("REQUEST", {"home": "https://a.example"}),
            ("REQUEST", {"home": self.home | {"more": 1}}),
            ("REQUEST", {"home": {"did": self.home["did"]}}),
            ("REQUEST", {"home": self.home | {"did": "did:key:z"}}),
            ("REQUEST", {"home": self.home | {"url": "https://a.example/"}}),
            ("REQUEST", {"home": self.home | {"url": "ftp://a.example"}}),
            ("REQUEST", {"re": "AB" * 32}),
            ("REQUEST", {"re": None}),
            ("REQUEST", {"continues": "ab"}),
            ("OFFER", {"continues": "ab" * 32}),
        ]:
            e = receipt.envelope | {"type": type, "meta": {"ttl": 60} | meta}
            with self.subTest(meta=meta), self.assertRaises(Refused) as caught:
                check_envelope(sign(e, self.alice))
            self.assertEqual(caught.exception.code, "INVALID_REQUEST")


class Homes(ChainTest):
    @virtual
    async def test_another_key(self):
        """R-4: nothing is posted at an address that another relay has taken over."""
        relay = self.setup()
        async with Serving(relay.client(self.bob), "x", lambda job: 1):
            client = relay.client(self.alice)
            call = await client.request("x")
            offer = await call.best("first", seconds=5)
            relay.identity = Identity.generate()
            await asyncio.sleep(1)
            posts = len(relay.posts)
            await asyncio.sleep(3601)
            with self.assertRaisesRegex(Refused, "nothing was sent"):
                await client.post("CANCEL", {}, thread=call.thread, home=offer.event.envelope["meta"]["home"])
            self.assertEqual(len(relay.posts), posts)

    @virtual
    async def test_the_document_is_read_once_an_hour(self):
        """R-4."""
        relay = self.setup()
        client = relay.client(self.alice)

        def reads():
            return sum(path == "/.well-known/agora.json" for _, path, _ in relay.requests)

        await client.request("x")
        before = reads()
        await client.request("x")
        self.assertEqual(reads(), before)
        await asyncio.sleep(3601)
        await client.post("REQUEST", {"intent": "x"}, home=self.home)
        self.assertEqual(reads(), before + 1)

    @virtual
    async def test_post_all(self):
        """R-4, for many messages at once."""
        relay = self.setup()
        client = relay.client(self.alice)
        other = {"did": Identity.generate().did, "url": "https://b.example"}
        ts = datetime.datetime.fromtimestamp(relay.wall(), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        messages = [
            sign(
                {"version": "1.0", "id": f"m{i}", "ts": ts, "type": "REQUEST", "sender": {"id": self.alice.did},
                 "thread": {"id": f"t{i}"}, "payload": {"intent": "x"}, "meta": {"ttl": 60, "home": home}},
                self.alice,
            )
            for i, home in enumerate([self.home, other, self.home])
        ]
        outcomes = await client.post_all(messages)
        self.assertEqual([getattr(one, "code", "stored") for one in outcomes], ["stored", "FORBIDDEN", "stored"])
        self.assertEqual(relay.posts, ["m0", "m2"])


class Agents(ChainTest):
    async def accepted(self, change=None, features=("home",), shown=None):
        """Whether an agent works after an ACCEPT whose meta is changed."""
        relay, done = self.relay, []
        relay.features = list(features)
        relay.shown = shown or (lambda proof, e: proof)
        async with Serving(relay.client(self.bob), "x", done.append):
            client = relay.client(self.alice, proofs="off")
            call = await client.request("x", to=self.bob.did)
            offer = await call.best("first", seconds=5)
            meta = {"home": self.home, "re": offer.event.hash} | (change or {})
            meta = {name: value for name, value in meta.items() if value is not None}
            payload = {"request_id": call.request_id}
            await client._post("ACCEPT", payload, to=self.bob.did, thread=call.thread, seal=False, meta=meta)
            await asyncio.sleep(100)
        return len(done)

    @virtual
    async def test_accepts_that_do_not_count(self):
        """R-3, R-7, R-8: the agent begins to work only for an ACCEPT of its own OFFER, with the home of the
        REQUEST."""
        for change, works in [
            ({}, 1), ({"re": "ab" * 32}, 0), ({"re": None}, 0), ({"home": None}, 0), ({"home": None, "re": None}, 0),
        ]:
            with self.subTest(change=change):
                self.setup()
                self.assertEqual(await self.accepted(change), works)

    @virtual
    async def test_an_accept_that_is_not_in_the_log(self):
        """R-8: the proof of the ACCEPT is by the home, and names the REQUEST."""
        def other(proof, e):
            return proof_of(Identity.generate(), e, content_hash(self.stored("REQUEST")[0]))

        for shown, works in [(None, 1), (other, 0), (lambda proof, e: proof_of(self.relay.identity, e, "ab" * 32), 0)]:
            self.setup()
            self.assertEqual(await self.accepted(features=("home", "proofs"), shown=shown), works)

    @virtual
    async def test_cancel(self):
        """R-7: a CANCEL that answers something else does not stop the work."""
        for re, ends in (("ab" * 32, False), (None, False), ("", True)):
            relay, stopped = self.setup(), []

            async def work(job):
                try:
                    await asyncio.sleep(50)
                except asyncio.CancelledError:
                    stopped.append(1)
                    raise

            async with Serving(relay.client(self.bob), "x", work):
                client = relay.client(self.alice)
                call = await client.request("x")
                await call.accept(await call.best("first", seconds=5))
                await asyncio.sleep(1)
                re = content_hash(self.stored("ACCEPT")[0]) if re == "" else re
                await client.post("CANCEL", {}, thread=call.thread, home=self.home, re=re)
                await asyncio.sleep(10)
                self.assertEqual(bool(stopped), ends)

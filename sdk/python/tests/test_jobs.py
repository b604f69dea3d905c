"""An agent whose client continues a job in another thread (RELAYS R-18)."""
import asyncio
import contextlib
import json
import pathlib
import tempfile

from agora_relay import AgentError, Refused, State, content_hash
from agora_relay.payloads import Limits

from .support import MemoryCursor, Serving, refusal, virtual
from .test_chain import ChainTest


class JobTest(ChainTest):
    def setup(self):
        self.works, self.quotes, self.go, self.stopped = [], [], asyncio.Event(), []
        return super().setup()

    async def work(self, job):
        self.works.append(job.params)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.stopped.append(job.params)
            raise
        return "done"

    def quote(self, job):
        self.quotes.append(job.params)
        return len(self.quotes)

    def serving(self, **options):
        return Serving(self.relay.client(self.bob), "x", self.work, quote=self.quote, **options)

    async def accepted(self, root=None, params=1, client=None):
        """A call with an accepted offer. It continues the REQUEST root."""
        call = await (client or self.relay.client(self.alice))._open(
            {"intent": "x", "params": params},
            to=self.bob.did,
            limits=Limits(),
            seal=False,
            allow_plain=False,
            ttl=86400,
            continues=root,
        )
        call.offer = await call.best("first", seconds=10)
        await call.accept(call.offer)
        await asyncio.sleep(1)
        return call

    @property
    def root(self):
        return content_hash(self.stored("REQUEST")[0])


class Continuations(JobTest):
    @virtual
    async def test_same_terms_and_works_once(self):
        """In a continuation, the agent offers the same terms. It works once after an ACCEPT in any thread of the job.
        It posts the outcome in each continuation after the ACCEPT there, and not in the first thread."""
        self.setup()
        state, places = State(), []
        async with self.serving(state=state):
            first = await self.accepted()
            places += [job["thread"]["first"] for job in state.book.jobs.values()]
            second = await self.accepted(self.root)
            other = await self.accepted(self.root)
            places += [job["thread"]["first"] for job in state.book.jobs.values()]
            self.assertEqual(places, [True, False])  # whether the first REQUEST opened the newest thread
            self.assertEqual([first.offer.price, second.offer.price], [1, 1])
            self.go.set()
            for call in (second, other):
                self.assertEqual((await call.result(seconds=60)).output, "done")
            third = await self.accepted(self.root)
            self.assertEqual((await third.result(seconds=60)).output, "done")
            with self.assertRaises(TimeoutError):
                await first.result(seconds=60)
        self.assertEqual((self.works, self.quotes), ([1], [1]))
        results = [e["thread"]["id"] for e in self.stored("RESULT")]
        self.assertEqual(sorted(results[:2]), sorted([second.thread, other.thread]))
        self.assertEqual(results[2:], [third.thread])

    @virtual
    async def test_another_job(self):
        """§4: a REQUEST of another client, or with another payload, is a new job."""
        relay = self.setup()
        self.go.set()
        async with self.serving():
            await self.accepted()
            await self.accepted(self.root, params=2)
            await self.accepted(self.root, client=relay.client(relay.identity))
            await self.accepted()  # it continues nothing
        self.assertEqual(self.works, [1, 2, 1, 1])

    @virtual
    async def test_cancel(self):
        """CANCEL in an older thread does not stop the work; a CANCEL in the newest one does."""
        self.setup()
        async with self.serving():
            first = await self.accepted()
            second = await self.accepted(self.root)
            await first.cancel()
            await asyncio.sleep(1)
            self.assertEqual(self.stopped, [])
            await second.cancel()
            await asyncio.sleep(1)
            self.assertEqual(self.stopped, [1])
            third = await self.accepted(self.root)
            with self.assertRaisesRegex(AgentError, "UNAVAILABLE: the job was cancelled"):
                await third.result(seconds=60)
        self.assertEqual(self.works, [1])

    @virtual
    async def test_cancel_before_the_work(self):
        self.setup()
        async with self.serving(concurrency=1):
            await self.accepted(params=0)  # it has the only slot
            call = await self.accepted()
            root = content_hash(self.stored("REQUEST")[-1])
            await call.cancel()
            again = await self.accepted(root)
            self.go.set()
            self.assertEqual((await again.result(seconds=60)).output, "done")
        self.assertEqual(self.works, [0, 1])

    @virtual
    async def test_timeout(self):
        """The timeout of an older thread does not stop the work."""
        self.setup()
        async with self.serving():
            await self.accepted()
            await asyncio.sleep(3000)
            second = await self.accepted(self.root)
            await asyncio.sleep(3500)
            self.assertEqual(self.stopped, [])
            self.go.set()
            self.assertEqual((await second.result(seconds=60)).output, "done")

    @virtual
    async def test_the_older_post_ends(self):
        """While the outcome cannot be posted to the older thread, the client continues. Then the agent gives up the
        older thread, so its events count as handled."""
        relay, store = self.setup(), MemoryCursor()
        self.go.set()
        first, post = None, relay.post

        async def hook(method, parts, next):
            return refusal("UNAVAILABLE", 503) if parts.path == f"/threads/{first}" else await next()

        def refuse(body):
            e = json.loads(body)
            if e["type"] == "RESULT" and e["thread"]["id"] == self.stored("REQUEST")[0]["thread"]["id"]:
                raise Refused("UNAVAILABLE", "a test")
            return post(body)

        relay.hook, relay.post = hook, refuse
        async with self.serving(cursor=store):
            first = (await self.accepted()).thread
            await asyncio.sleep(20)
            second = await self.accepted(self.root)
            self.assertEqual((await second.result(seconds=200)).output, "done")
            await asyncio.sleep(500)
            self.assertEqual(store.saved[-1], f"a-{len(relay.events)}")
        self.assertEqual(self.works, [1])

    @virtual
    async def test_an_older_post_is_repeated(self):
        """For a long time the outcome cannot be posted in a continuation. It is posted there later, though another
        continuation is newer."""
        relay = self.setup()
        post, refused = relay.post, []

        def refuse(body):
            e = json.loads(body)
            if e["type"] == "RESULT" and e["thread"]["id"] in refused:
                raise Refused("UNAVAILABLE", "a test")
            return post(body)

        relay.post = refuse
        async with self.serving():
            await self.accepted()
            second = await self.accepted(self.root)
            third = await self.accepted(self.root)
            refused.append(second.thread)
            self.go.set()
            self.assertEqual((await third.result(seconds=60)).output, "done")
            await asyncio.sleep(300)
            refused.clear()
            self.assertEqual((await second.result(seconds=200)).output, "done")

    @virtual
    async def test_full(self):
        """When all jobs are accepted and not over, the agent makes no offers. A job that is over makes room."""
        from agora_relay import book

        self.setup()
        limit, book.MAX_OF_CLIENT = book.MAX_OF_CLIENT, 2
        self.addCleanup(setattr, book, "MAX_OF_CLIENT", limit)
        async with self.serving():
            for _ in range(2):
                await self.accepted()
            with self.assertRaisesRegex(AgentError, "UNAVAILABLE: this agent has as many accepted jobs"):
                await self.accepted()
            self.go.set()
            await asyncio.sleep(5)
            await self.accepted()
        self.assertEqual(len(self.works), 3)


class Crashes(JobTest):
    def setup(self):
        temp = tempfile.TemporaryDirectory()
        self.addCleanup(temp.cleanup)
        self.path = temp.name + "/state"
        return super().setup()

    def state(self):
        made = State(self.path)
        self.addCleanup(made.close)
        return made

    @contextlib.asynccontextmanager
    async def crashing(self, **options):
        """An agent whose file stays as it is at the end of the block, as after a crash."""
        async with self.serving(**options):
            yield
            text = pathlib.Path(self.path).read_text()
        pathlib.Path(self.path).write_text(text)

    @virtual
    async def test_orderly_ends(self):
        """An agent that ends in order while it works repeats the work, and that counts as no attempt."""
        self.setup()
        for end in range(5):
            async with self.serving(state=self.state(), attempts=1):
                call = await self.accepted() if end == 0 else call
                await asyncio.sleep(5)
        self.go.set()
        async with self.serving(state=self.state(), attempts=1):
            self.assertEqual((await call.result(seconds=60)).output, "done")
        self.assertEqual(len(self.works), 6)

    @virtual
    async def test_outcome_of_an_expired_request(self):
        """After a crash, work that had ended is delivered also if the REQUEST has expired."""
        relay, post, refusing = self.setup(), self.relay.post, [True]

        def refuse(body):
            if refusing and json.loads(body)["type"] == "RESULT":
                return refusal("UNAVAILABLE", 503)
            return post(body)

        relay.post = refuse
        self.go.set()
        async with self.crashing(state=self.state()):
            call = await self.accepted()
            await asyncio.sleep(5)
        refusing.clear()
        relay.events = [(e, received) for e, received in relay.events if e["type"] != "REQUEST"]
        async with self.serving(state=self.state()):
            self.assertEqual((await call.result(seconds=60)).output, "done")
        self.assertEqual(self.works, [1])

    @virtual
    async def test_attempts(self):
        """A job that had begun and not ended is repeated, attempts times in all; with attempts 1 it is never repeated
        and gets ERROR INTERNAL_ERROR ("interrupted")."""
        for attempts in (1, 2):
            self.setup()
            for crash in range(attempts):
                async with self.crashing(state=self.state(), attempts=attempts):
                    call = await self.accepted() if crash == 0 else call
                    await asyncio.sleep(5)
                    self.assertEqual(len(self.works), crash + 1)
            async with self.serving(state=self.state(), attempts=attempts):
                with self.assertRaisesRegex(AgentError, "INTERNAL_ERROR: interrupted"):
                    await call.result(seconds=60)
            async with self.serving(state=self.state(), attempts=attempts):
                again = await self.accepted(self.root)
                with self.assertRaisesRegex(AgentError, "INTERNAL_ERROR: interrupted"):
                    await again.result(seconds=60)
            self.assertEqual(len(self.works), attempts)

    @virtual
    async def test_terms_after_a_crash(self):
        """The terms are in the file before the OFFER is posted, so that a crash after the post does not lose them."""
        relay, before, post = self.setup(), [], None
        post = relay.post

        def save(body):
            if json.loads(body)["type"] == "OFFER":
                before.append(pathlib.Path(self.path).read_text())
            return post(body)

        relay.post = save
        async with self.serving(state=self.state()):
            first = await self.accepted()
        pathlib.Path(self.path).write_text(before[0])
        self.go.set()
        async with self.serving(state=self.state()):
            again = await self.accepted(self.root)
        self.assertEqual([first.offer.price, again.offer.price, self.quotes], [1, 1, [1]])

    @virtual
    async def test_a_full_disk(self):
        """An agent that cannot write its file makes no OFFER, and ends."""
        relay, state = self.setup(), self.state()

        def fail(line, sync):
            raise OSError("the disk is full")

        state.book._write = fail
        await relay.client(self.alice)._open(
            {"intent": "x"}, to=self.bob.did, limits=Limits(), seal=False, allow_plain=False, ttl=600, continues=None
        )
        with self.assertRaisesRegex(OSError, "the disk is full"):
            await relay.client(self.bob).serve("x", self.work, state=state)
        self.assertEqual(self.stored("OFFER"), [])

    @virtual
    async def test_without_a_file(self):
        """Without a file, work is done at least once."""
        self.setup()
        for crash in range(5):
            async with self.serving():
                call = await self.accepted() if crash == 0 else call
                await asyncio.sleep(5)
        self.go.set()
        async with self.serving():
            self.assertEqual((await call.result(seconds=60)).output, "done")
        self.assertEqual(len(self.works), 6)

    @virtual
    async def test_outcome_after_a_crash(self):
        """The outcome, the terms and the handled events survive a crash."""
        self.setup()
        self.go.set()
        async with self.serving(state=self.state()):
            first = await self.accepted()
            await first.result(seconds=60)
            await asyncio.sleep(40)
        requests = len(self.relay.requests)
        async with self.serving(state=self.state()):
            await asyncio.sleep(5)
            self.assertFalse([path for _, path, _ in self.relay.requests[requests:] if path.startswith("/threads/")])
            again = await self.accepted(self.root)
            self.assertEqual((again.offer.price, (await again.result(seconds=60)).output), (1, "done"))
        self.assertEqual((self.works, self.quotes), ([1], [1]))

    @virtual
    async def test_another_identity(self):
        self.setup()
        async with self.serving(state=self.state()):
            await self.accepted()
        with self.assertRaisesRegex(ValueError, "use another file"):
            await self.relay.client(self.alice).serve("x", self.work, state=self.state())
        with self.assertRaisesRegex(ValueError, "attempts must be 1"):
            await self.relay.client(self.alice).serve("x", self.work, attempts=0)

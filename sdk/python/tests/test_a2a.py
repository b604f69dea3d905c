"""Agents that answer A2A callers, at a real relay (docs/A2A.md). They need AGORA_BINARY."""
import asyncio
import contextlib
import json
import pathlib
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

from agora_relay import (
    A2AEnd,
    AgentError,
    Client,
    Identity,
    Network,
    Refused,
    StreamTransport,
    TransportFailed,
    save_key,
    sync,
)

from .support import binary
from .test_relay import RealRelay, line_of


class Watched(StreamTransport):
    """Counts the requests with progress, and loses the answers to some."""

    def __init__(self, lose=()):
        super().__init__()
        self.posts, self.lose = 0, lose

    async def send(self, method, url, headers, body, limit):
        response = await super().send(method, url, headers, body, limit)
        if "/work/" in url and url.endswith("/events"):
            self.posts += 1
            if self.posts in self.lose:
                raise TransportFailed("the answer was lost", sent=True)
        return response


def texts(task):
    return ["".join(p.get("text", "") for p in a["parts"]) for a in task.get("artifacts", [])]


async def eventually(holds):
    """Waits until a condition at the relay holds."""
    for _ in range(600):
        if await asyncio.to_thread(holds):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("waited in vain")


class TestTurns(unittest.IsolatedAsyncioTestCase):
    @classmethod
    def setUpClass(cls):
        cls.agora = binary()
        temp = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temp.cleanup)
        cls.folder = pathlib.Path(temp.name)
        command = [cls.agora, "serve", "--addr", "127.0.0.1:0", "--log-level", "warn", "--a2a", "--data"]
        relay = RealRelay.start([*command, cls.folder / "data"], cls.addClassCleanup)
        cls.url = line_of(relay, r"listening on (http\S+)")[1]

    def setUp(self):
        self.me, folder = Identity.generate(), pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        save_key(folder / "bob.key", self.me)
        manifest = folder / "bob.json"
        manifest.write_text(json.dumps({"id": "x", "name": "Bob", "intents": [{"id": "a2a.message"}]}))
        made = self.run_agora(
            "publish", "--key", folder / "bob.key", "--relay", self.url, "--manifest", manifest, "--public"
        )
        self.base = json.loads(made)["url"].rstrip("/")

    def run_agora(self, *args):
        return subprocess.run([self.agora, "a2a", *args], check=True, capture_output=True, text=True).stdout

    def verify(self, task):
        """Fails unless the agent has signed what the task has."""
        self.run_agora("verify", self.base, "--task", task)

    @contextlib.asynccontextmanager
    async def serving(self, handler, lose=(), network=False, **options):
        watched = Watched(lose)
        make = Network([self.url], self.me) if network else Client(self.url, self.me, transport=watched)
        async with make as client:
            task = asyncio.create_task(client.serve_a2a(handler, **options))
            try:
                yield watched
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def post(self, path, body):
        request = urllib.request.Request(
            self.base + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        return urllib.request.urlopen(request, timeout=30)

    def _say(self, text, task=None, at_once=False):
        message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": text}]} | ({"taskId": task} if task else {})
        with self.post("/message:send", {"message": message, "configuration": {"returnImmediately": at_once}}) as answer:
            return json.load(answer)["task"]

    async def say(self, *args, **options):
        return await asyncio.to_thread(self._say, *args, **options)

    def task(self, id):
        with urllib.request.urlopen(f"{self.base}/tasks/{id}", timeout=30) as answer:
            return json.load(answer)

    def stream(self, text, saw):
        """The events of a message. It calls saw after the first chunk."""
        events = []
        message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": text}]}
        with self.post("/message:stream", {"message": message}) as answer:
            for line in answer:
                if line.startswith(b"data: "):
                    events.append(json.loads(line[6:]))
                    if "artifactUpdate" in events[-1]:
                        saw()
        return events

    async def test_progress(self):
        """A-16, A-33, A-43: it sends progress while it works, and signs the turn; async and blocking."""
        seen = threading.Event()

        async def counts(turn):
            self.assertEqual((turn.turn, turn.caller["kind"], turn.history, turn.text), (1, "anonymous", [], "hello"))
            await turn.update("counting")
            out = turn.artifact("count")
            await out.write("0")
            await asyncio.to_thread(seen.wait)  # the caller has the first chunk before the turn ends
            for i in range(1, 100):
                await out.write(str(i % 10))
            await out.close()
            await turn.artifact(metadata={"n": 1.5}).close({"data": {"a": [1]}})
            return turn.done("done")

        def blocks(turn):
            turn.update("counting")
            out = turn.artifact("count")
            out.write("0")
            seen.wait()
            for i in range(1, 100):
                out.write(str(i % 10))
            out.close()
            turn.artifact(metadata={"n": 1.5}).close({"data": {"a": [1]}})
            return "done"

        for handler in (counts, blocks):
            seen.clear()
            async with self.serving(handler) as watched:
                began = time.monotonic()
                events = await asyncio.to_thread(self.stream, "hello", seen.set)
            self.assertLessEqual(watched.posts, 1 + (time.monotonic() - began) / 0.1)  # a request every 100 ms
            chunks = [e["artifactUpdate"] for e in events if "artifactUpdate" in e]
            chunks = [c for c in chunks if c["artifact"]["artifactId"] == "1.1"]
            self.assertTrue(2 <= len(chunks) < 20, len(chunks))
            self.assertEqual([bool(c.get("append")) for c in chunks], [False] + [True] * (len(chunks) - 1))
            self.assertTrue(chunks[-1]["lastChunk"])
            task = await asyncio.to_thread(self.task, events[0]["task"]["id"])
            self.assertEqual(task["status"]["state"], "TASK_STATE_COMPLETED")
            self.assertEqual(texts(task)[0], "0123456789" * 10)
            self.assertEqual(task["artifacts"][1]["parts"], [{"data": {"a": [1]}}])
            self.assertEqual(task["status"]["message"]["parts"], [{"text": "done"}])
            await asyncio.to_thread(self.verify, task["id"])

    async def test_question(self):
        """A-19, A-43: a question ends the turn, and the answer opens turn 2; at one relay, and in a network."""

        async def handler(turn):
            await turn.artifact().close(f"part {turn.turn}")
            if turn.turn == 1:
                return turn.ask("Which colour?")
            self.assertEqual([m["parts"][0]["text"] for m in turn.history], ["paint", "Which colour?"])

        for network in (False, True):
            async with self.serving(handler, network=network):
                asked = await self.say("paint")
                self.assertEqual(asked["status"]["state"], "TASK_STATE_INPUT_REQUIRED")
                self.assertEqual(asked["status"]["message"]["parts"], [{"text": "Which colour?"}])
                await asyncio.to_thread(self.verify, asked["id"])
                ended = await self.say("blue", asked["id"])
                self.assertEqual((ended["status"]["state"], texts(ended)), ("TASK_STATE_COMPLETED", ["part 1", "part 2"]))
                await asyncio.to_thread(self.verify, asked["id"])

    async def test_repeat(self):
        """A-34, A-43: a repeated run replaces what the last one has sent, also if an answer was lost."""

        async def first(turn):
            await turn.artifact().write("old")
            await turn.artifact().write("left")
            await asyncio.Event().wait()

        async def second(turn):
            out = turn.artifact()
            for word in ("new", "er"):
                await out.write(word)
                await asyncio.sleep(0.12)

        async with self.serving(first):
            id = (await self.say("hello", at_once=True))["id"]
            await eventually(lambda: len(texts(self.task(id))) == 2)
        async with self.serving(second, lose=(2,)):
            await eventually(lambda: self.task(id)["status"]["state"] == "TASK_STATE_COMPLETED")
        self.assertEqual(texts(await asyncio.to_thread(self.task, id)), ["newer", "left"])
        await asyncio.to_thread(self.verify, id)

    async def test_ends(self):
        """A-18, A-22, A-35, A-39, A-41: other ends, a cancel, and large content."""
        cancelled, late = asyncio.Event(), []

        async def handler(turn):
            match turn.text:
                case "reject":
                    return A2AEnd("TASK_STATE_REJECTED", turn.reply("no"))
                case "text":
                    return "only a text"
                case "invalid":
                    await turn.artifact().write("half")
                    raise AgentError("INVALID_REQUEST", "why")
                case "state":
                    return A2AEnd("TASK_STATE_WORKING")
                case "large":
                    return turn.done("x" * 81_920)
                case "part":
                    await turn.artifact().write("x" * 250_000)
                case "hold":
                    await turn.update("holding")
                    try:
                        await asyncio.Event().wait()
                    finally:
                        late.append(turn)
                        cancelled.set()
                case text:
                    await turn.artifact().close(*["y" * 20_000] * 40, text)

        expected = {
            "reject": ("REJECTED", "no"),
            "text": ("COMPLETED", "only a text"),
            "invalid": ("REJECTED", "why"),
            "state": ("FAILED", "operator"),
            "large": ("FAILED", "more than 81920 bytes"),
            "part": ("FAILED", "operator"),
        }
        async with self.serving(handler):
            for words, (state, said) in expected.items():
                task = await self.say(words)
                self.assertEqual((words, task["status"]["state"]), (words, f"TASK_STATE_{state}"))
                self.assertIn(said, task["status"]["message"]["parts"][0]["text"])
                self.assertEqual(texts(task), ["half"] if words == "invalid" else [])
            held = (await self.say("hold", at_once=True))["id"]
            await eventually(lambda: len(self.task(held)["history"]) > 1)
            (await asyncio.to_thread(self.post, f"/tasks/{held}:cancel", {})).close()
            await asyncio.wait_for(cancelled.wait(), 20)
            await asyncio.sleep(0)
            with self.assertRaises(Refused):
                await late[0].update("late")
            large = "z" * 200_000  # it has no room in a REQUEST
            ended = await self.say(large)
            self.assertTrue(texts(ended)[0].endswith("y" + large))
            await asyncio.to_thread(self.verify, ended["id"])

    async def test_others(self):
        """A-16: other intents go to work, and only a turn of the gateway to the handler."""
        options = {"intents": "echo", "work": lambda job: job.params, "price": 0.5}
        async with self.serving(lambda turn: "turn", **options), Client(self.url, Identity.generate()) as client:
            self.assertEqual((await self.say("x"))["status"]["message"]["parts"], [{"text": "turn"}])  # turns are free
            result = await client.ask("echo", {"n": 1}, to=self.me.did, max_cost=1.0, timeout=30)
            self.assertEqual(result.output, {"n": 1})
            with self.assertRaisesRegex(AgentError, "FORBIDDEN"):
                await client.ask("a2a.message", {}, to=self.me.did, timeout=30)
            for wrong in ({"handler": None}, {"handler": print, "intents": "echo"}):
                with self.assertRaises(TypeError):
                    await client.serve_a2a(**wrong)

    async def test_sync(self):
        """A-16: agora_relay.sync serves turns too, until its client is closed."""
        client = sync.Client(self.url, self.me)
        thread = threading.Thread(target=client.serve_a2a, args=[lambda turn: turn.text.upper()])
        thread.start()
        task = await self.say("hello")
        await asyncio.to_thread(client.close)
        await asyncio.to_thread(thread.join, 20)
        self.assertEqual(task["status"]["message"]["parts"], [{"text": "HELLO"}])
        self.assertFalse(thread.is_alive())

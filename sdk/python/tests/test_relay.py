"""The package against the built relay and its command line: processes that are killed, agora_relay.sync, sealing both
ways, the programs of the README. They need AGORA_BINARY."""
import asyncio
import contextlib
import io
import json
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

from agora_relay import (
    AgentError,
    Client,
    Identity,
    NoProof,
    RelayError,
    canonicalize,
    format_time,
    content_hash,
    load_key,
    new_thread,
    save_key,
    sign,
    sync,
    verify_proof,
)

from . import ROOT
from .support import binary

SOURCES = str(ROOT / "sdk/python/src")


def line_of(process, pattern, seconds=20):
    """Waits for a line of a process that has the pattern, and returns the match."""
    deadline = time.monotonic() + seconds
    seen = ""
    with contextlib.suppress(queue.Empty):
        while text := process.lines.get(timeout=max(deadline - time.monotonic(), 0)):
            seen += text
            if match := re.search(pattern, text):
                return match
    raise AssertionError(f"the process has not printed {pattern}, but:\n{seen}")


class RealRelay(unittest.TestCase):
    reads, log = "open", "off"

    @classmethod
    def setUpClass(cls):
        cls.agora = binary()
        temp = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temp.cleanup)
        cls.folder = pathlib.Path(temp.name)
        cls.relay = cls.start(
            [
                cls.agora,
                "serve",
                "--addr",
                "127.0.0.1:0",
                "--data",
                cls.folder / "data",
                "--log-level",
                "warn",
                "--reads",
                cls.reads,
                "--transparency",
                cls.log,
            ],
            cls.addClassCleanup,
        )
        cls.url = line_of(cls.relay, r"listening on (http\S+)")[1]

    @staticmethod
    def start(command, cleanup, folder=None, sources=SOURCES, **variables):
        environment = os.environ | {"PYTHONPATH": str(sources), "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"} | variables
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            # A shell lets what runs in its background ignore SIGINT. Programs inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        process.lines = queue.Queue()

        def read():
            for line in process.stdout:
                process.lines.put(line)
            process.lines.put("")

        reader = threading.Thread(target=read)
        reader.start()

        def stop():
            process.kill()
            reader.join()
            process.stdout.close()
            process.wait()

        cleanup(stop)
        return process

    def program(self, name, text):
        """Starts a Python program."""
        path = self.folder / f"{self.id()}.{name}.py"
        path.write_text(text)
        return self.start([sys.executable, path], self.addCleanup)

    def cli(self, *args, **options):
        run = subprocess.run(
            [self.agora, *map(str, args)],
            capture_output=True,
            text=True,
            timeout=30,
            **options,
            env=os.environ | {"AGORA_RELAY": self.url},
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout

    def keys(self):
        alice, bob = Identity.generate(), Identity.generate()
        for name, me in (("alice", alice), ("bob", bob)):
            save_key(self.folder / f"{self.id()}.{name}.key", me)
        return alice, bob, self.folder / f"{self.id()}.alice.key", self.folder / f"{self.id()}.bob.key"


class Killed(RealRelay):
    """What survives kill -9."""

    AGENT = """
import asyncio, sys, time
from agora_relay import Client, FileCursor, load_or_create_key

async def work(job):
    print("work", job.params, flush=True)
    while {wait}:
        await asyncio.sleep(1)
    return job.params

async def main():
    async with Client("{url}", load_or_create_key("{folder}/{name}.key")) as client:
        print("did", client.me.did, flush=True)
        await client.serve("{name}", work, cursor=FileCursor("{folder}/{name}.cursor"))

asyncio.run(main())
"""
    CLIENT = """
import sys
from agora_relay import load_or_create_key
from agora_relay.sync import Client

with Client("{url}", load_or_create_key("{folder}/{name}.client.key")) as client:
    call = client.request("{name}", "params", thread="{name}")
    print("asked", flush=True)
    if call.agent is None:
        call.accept(call.best("first"))
        print("accepted", flush=True)
    print("result", call.result().output, flush=True)
"""

    def test_kill_9(self):
        """The agent is killed between ACCEPT and RESULT. The client is killed while it waits. Both are started
        again."""
        values = {"url": self.url, "folder": self.folder, "name": f"kill{self.reads}"}
        agent = self.program("agent", self.AGENT.format(**values, wait=True))
        line_of(agent, "did did:key")
        client = self.program("client", self.CLIENT.format(**values))
        line_of(client, "accepted")
        line_of(agent, "work params")
        for process in (agent, client):
            process.send_signal(signal.SIGKILL)
            process.wait()
        client = self.program("client again", self.CLIENT.format(**values))
        line_of(client, "asked")
        agent = self.program("agent again", self.AGENT.format(**values, wait=False))
        line_of(agent, "work params")
        line_of(client, "result params")
        self.assertEqual(client.wait(10), 0)
        time.sleep(0.3)
        agent.send_signal(signal.SIGKILL)
        agent.wait()
        agent = self.program("agent for the last time", self.AGENT.format(**values, wait=False))
        line_of(agent, "did did:key")
        with self.assertRaises(AssertionError):  # the agent does no work a second time
            line_of(agent, "work", seconds=1.5)


class KilledOnPrivateRelay(Killed):
    reads = "parties"


class Programs(RealRelay):
    def test_interrupt(self):
        """Ctrl-C ends an agent at once, also while a blocking function runs."""
        agent = self.program(
            "agent",
            f"""
import time
from agora_relay import Identity
from agora_relay.sync import Client

def work(job):
    print("work", flush=True)
    time.sleep(1000)

with Client("{self.url}", Identity.generate()) as client:
    print("ready", flush=True)
    client.serve("interrupt{self.reads}", work)
""",
        )
        line_of(agent, "ready")
        with sync.Client(self.url, Identity.generate()) as client:
            call = client.request(f"interrupt{self.reads}")
            call.accept(call.best("first"))
            line_of(agent, "work")
        began = time.monotonic()
        agent.send_signal(signal.SIGINT)
        self.assertNotEqual(agent.wait(10), 0)
        self.assertLess(time.monotonic() - began, 8)

    def test_readme(self):
        """The two programs of the README, as they are, for this relay."""
        text = (ROOT / "sdk/python/README.md").read_text()
        programs = {}
        for name in ("agent.py", "client.py"):
            [program] = re.findall(f"```python\n(# {name}\n.*?)```", text, re.DOTALL)
            self.assertLessEqual(len(program.splitlines()), 20)
            programs[name] = program.replace("http://127.0.0.1:8789", self.url).replace(
                '_key("', f'_key("{self.folder}/{self.reads}.'
            )
            self.assertIn(self.url, programs[name])
        agent = self.program("agent.py", programs["agent.py"])
        line_of(agent, "I am did:key")
        client = self.program("client.py", programs["client.py"])
        line_of(client, "HELLO")
        self.assertEqual(client.wait(10), 0)
        agent.send_signal(signal.SIGINT)
        self.assertEqual(agent.wait(10), 0)

    def test_resume_of_the_readme(self):
        text = (ROOT / "sdk/python/README.md").read_text()
        [snippet] = re.findall("```python\n(job = pathlib.*?)```", text, re.DOTALL)
        lines = "".join("    " + line + "\n" for line in snippet.splitlines()).replace(
            '"job.thread"', repr(f"{self.folder}/job")
        )
        code = (
            ("import pathlib\nfrom agora_relay import Quote, new_thread\nasync def main(client):\n" + lines)
            .replace('"shout"', f'"resume{self.reads}"')
            .replace("seconds=5", "seconds=1")
        )
        scope, thread = {}, new_thread()
        exec(code, scope)

        async def main():
            async with Client(self.url, Identity.generate()) as agent, Client(
                self.url, Identity.generate()
            ) as client:
                serving = asyncio.create_task(agent.serve(f"resume{self.reads}", lambda job: job.params["text"]))
                file = self.folder / "job"
                for crashed in (False, True, True):  # the last time: after the result, before the file was deleted
                    if crashed:
                        file.write_text(thread)
                    with contextlib.redirect_stdout(io.StringIO()) as printed:
                        await scope["main"](client)
                    self.assertEqual((printed.getvalue(), file.exists()), ("hello\n", False))
                serving.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await serving

        asyncio.run(main())


class Proofs(RealRelay):
    log = "on"

    def test_proofs(self):
        alice, bob, *_ = self.keys()
        with (
            sync.Client(self.url, alice, proofs="required") as client,
            sync.Client(self.url, bob, proofs="required") as agent,
        ):
            threading.Thread(target=agent.serve, args=("x", lambda job: job.params)).start()
            for seal in (False, True):
                call = client.request("x", 7, to=bob.did, seal=seal)
                call.accept(call.best("first", seconds=20))
                self.assertEqual(call.result(seconds=20).output, 7)
            e = {
                "version": "1.0",
                "id": "m",
                "ts": format_time(time.time()),
                "type": "REQUEST",
                "sender": {"id": alice.did},
                "recipient": {"id": bob.did},
                "thread": {"id": "t"},
                "payload": {"request_id": "t", "intent": "y"},
                "meta": {"ttl": 60},
            }
            e = sign(e, alice)
            [first], again = client.post_all([e]), client.post_envelope(e)
            self.assertEqual((first.duplicate, again.duplicate, client.proves()), (False, True, True))
            for text in (first.proof, again.proof, client.proof(e)[0]):
                verify_proof(text, e, relay=client.relay_did())


class ProofsOnPrivateRelay(Proofs):
    reads = "parties"


class CommandLine(RealRelay):
    def test_no_proofs(self):
        alice, *_ = self.keys()
        with sync.Client(self.url, alice) as client, sync.Client(self.url, alice, proofs="required") as strict:
            self.assertIsNone(client.post("REQUEST", {"intent": "x"}).proof)
            with self.assertRaises(NoProof) as caught:
                strict.post("REQUEST", {"intent": "x"})
            self.assertEqual(caught.exception.__cause__.code, "NOT_FOUND")

    def test_sealing_with_the_command_line(self):
        """The client is Go's command line, and then the agent is."""
        alice, bob, alice_key, bob_key = self.keys()
        with sync.Client(self.url, bob) as agent:
            threading.Thread(target=agent.serve, args=("seal.a", lambda job: {"got": job.params})).start()
            self.cli(
                "send",
                "request",
                "--key",
                alice_key,
                "--intent",
                "seal.a",
                "--to",
                bob.did,
                "--thread",
                "sa",
                "--params",
                '{"n":1.50}',
                "--seal",
            )
            self.cli("follow", "--key", alice_key, "--count", "1", "--timeout", "20s")
            self.cli("send", "accept", "--key", alice_key, "--thread", "sa", "--max-cost", "1")
            out = self.cli(
                "follow", "--key", alice_key, "--thread", "sa", "--count", "2", "--timeout", "20s", "--json"
            )
        last = json.loads(out.splitlines()[-1])
        self.assertIn("sealed", last["envelope"]["payload"])
        self.assertEqual(last["opened"]["output"], {"got": {"n": 1.5}})

        with sync.Client(self.url, alice) as client:
            call = client.request("seal.b", ["a secret"], to=bob.did, seal=True, thread="sb")
            self.cli("send", "offer", "--key", bob_key, "--thread", "sb", "--price", "0.5")
            offer = call.best("first", seconds=20, max_cost=0.5)
            self.assertTrue(offer.event.sealed)
            call.accept(offer)
            self.cli("send", "result", "--key", bob_key, "--thread", "sb", "--output", '{"done":true}')
            result = call.result(seconds=20)
            self.assertEqual((result.output, result.event.sealed, offer.price), ({"done": True}, True, 0.5))
            self.cli("verify", "-", input=canonicalize(result.envelope).decode())
            self.assertTrue(client.resume("sb").seal)

    def test_sync_face(self):
        alice, bob, *_ = self.keys()
        with sync.Client(self.url, alice) as client, sync.Client(self.url, bob) as agent:
            self.assertEqual(
                (client.health(), client.about().private, client.url, client.me), ("1.0.0", False, self.url, alice)
            )
            self.assertEqual(client.relay_did(), client.about().did)
            done = threading.Event()

            def serve():
                agent.serve(["sync"], lambda job: job.params * 2, quote=lambda job: 0.01, manifest={"name": "Sync"})
                done.set()  # close ends it without an error

            threading.Thread(target=serve).start()
            call = client.request("sync", 21, max_cost=1)
            offers = []
            for offer in call.offers():
                offers.append(offer.price)
                break  # the iterator ends
            self.assertEqual(offers, [0.01])
            self.assertEqual(call.collect(seconds=0.1)[0].agent, bob.did)
            with self.assertRaises(TimeoutError):
                other = client.request("nobody")
                other._call.agent = bob.did  # as if it were accepted
                other.result(seconds=0.2)
            call.accept(offer)
            self.assertEqual(
                (call.result(seconds=20).output, call.state().state, call.agent, call.seal),
                (42, "COMPLETED", bob.did, False),
            )
            again = client.resume(call.thread)
            self.assertEqual(again.result().output, 42)
            with self.assertRaises(RelayError):
                again.cancel("too late")
            events = []
            for event in client.follow(thread=call.thread, from_oldest=True):
                events.append(event.type)
                if len(events) == 4:
                    break
            self.assertEqual(events, ["REQUEST", "OFFER", "ACCEPT", "RESULT"])
            self.assertEqual(client.thread(call.thread).state, "COMPLETED")
            deadline = time.monotonic() + 20
            while (
                bob.did not in [found.id for found in client.directory(intent="sync")] and time.monotonic() < deadline
            ):
                time.sleep(0.1)
            self.assertEqual(client.agent(bob.did).manifests[0].payload["name"], "Sync")
            self.assertEqual(client.agents(text="Sync").agents[0].id, bob.did)
            receipt = client.post("REQUEST", {"intent": "x"})
            self.assertTrue(client.post_envelope(receipt.envelope).duplicate)
            self.assertAlmostEqual(client.now(), time.time(), delta=5)
            agent.close()
            self.assertTrue(done.wait(10))
            with self.assertRaisesRegex(RuntimeError, "closed"):
                agent.health()
            agent.close()

    def test_sync_client_in_its_own_functions(self):
        alice, bob, *_ = self.keys()
        with (
            sync.Client(self.url, bob) as agent,
            sync.Client(self.url, Identity.generate()) as other,
            sync.Client(self.url, alice) as client,
        ):

            async def work(job):
                return agent.health()  # would wait for itself

            threading.Thread(target=agent.serve, args=("nested", work)).start()
            call = client.request("nested")
            call.accept(call.best("first", seconds=20))
            with self.assertRaises(AgentError):
                call.result(seconds=20)

            threading.Thread(target=other.serve, args=("nested2", lambda job: other.health())).start()  # a thread may
            call = client.request("nested2")
            call.accept(call.best("first", seconds=20))
            self.assertEqual(call.result(seconds=20).output, "1.0.0")

    def test_no_thread_is_left(self):
        alice, *_ = self.keys()
        before = threading.active_count()
        for _ in range(3):
            with sync.Client(self.url, alice) as client:
                client.health()
                events = client.follow(from_oldest=True)
                client.post("REQUEST", {"intent": "x"})
                next(events)
        self.assertEqual(threading.active_count(), before)

    def test_load_key(self):
        *_, bob_key = self.keys()
        self.assertIn(load_key(bob_key).did, self.cli("did", load_key(bob_key).did))

    def test_chain(self):
        """RELAYS R-3, R-6: the relay takes the members that this package writes, and no copy for another home."""
        alice, bob, *_ = self.keys()
        with sync.Client(self.url, alice) as client, sync.Client(self.url, bob) as agent:
            threading.Thread(target=agent.serve, args=("chain", lambda job: job.params)).start()
            call = client.request("chain", 1)
            call.accept(call.best("first", seconds=20))
            self.assertEqual(call.result(seconds=20).output, 1)
            events = [event.envelope for event in client.thread(call.thread).events]
            for e, answered in zip(events, [None, *events]):
                self.assertEqual(e["meta"]["home"], client.home())
                self.assertEqual(e["meta"].get("re"), answered and content_hash(answered))
            with self.assertRaises(RelayError) as caught:
                other = {"did": alice.did, "url": "https://other.example"}
                e = events[0] | {"id": "copy", "meta": {"ttl": 60, "home": other}}
                client._client.assure_home = mock.AsyncMock()
                client.post_envelope(sign(e, alice))
            self.assertEqual(caught.exception.details["reason"], "home")

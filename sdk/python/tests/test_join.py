"""An agent that joins the gateways of a relay (BRIDGE B-14, B-15), at a real relay. They need AGORA_BINARY."""
import asyncio
import contextlib
import json
import pathlib
import tempfile
import unittest
import urllib.error
import urllib.request

from agora_relay import HUB_INTENT, Client, Identity, Network, Refused, RelayError, State, hub_message, hub_output, sync
from agora_relay.join import agent_uuid, joining

from .support import binary
from .test_relay import RealRelay, line_of

SHARED = json.loads((pathlib.Path(__file__).parents[3] / "client/testdata/join.json").read_text())
MANIFEST = {"id": "cap", "name": "\u00dcbersetzer Bot", "intents": [{"id": "text.upper"}, {"id": "mit leer"}]}


class TestSums(unittest.TestCase):
    def test_all_languages(self):
        """B-14: the sums and the id are the same as in the other languages, so an agent can change its language."""
        o = SHARED["options"]
        options = joining(
            o["manifest"], name="", culture="en", credits=o["credits"], public=o["public"], listed=False, proofs=False
        )
        self.assertEqual({name: options.sum(name) for name in SHARED["sums"]}, SHARED["sums"])
        self.assertEqual(agent_uuid(SHARED["did"]), SHARED["uuid"])


class TestJoin(unittest.IsolatedAsyncioTestCase):
    @classmethod
    def setUpClass(cls):
        temp = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temp.cleanup)
        cls.folder = pathlib.Path(temp.name)
        command = [binary(), "serve", "--addr", "127.0.0.1:0", "--log-level", "warn"]
        command += ["--hub", "--jobs", "--channel", "--a2a", "--data"]
        relay = RealRelay.start([*command, cls.folder / "data"], cls.addClassCleanup)
        cls.url = line_of(relay, r"listening on (http\S+)")[1]

    def http(self, path, body, key="", method="POST"):
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    async def test_join(self):
        """B-14: the agent registers once at each gateway, also over a restart, again if it changes, and leaves all."""
        me, path = Identity.generate(), self.folder / "state"
        digits = me.did.removeprefix("did:key:z6Mk")[:6]
        async with Client(self.url, me) as client:
            state = State(path)
            places = await client.join(MANIFEST, credits=0.1, state=state)
            self.assertEqual([p.protocol for p in places], ["hub", "jobs", "channel", "a2a"])
            hub, jobs, channel, a2a = places
            self.assertTrue(hub.address.startswith("bersetzer-Bot@"))
            self.assertEqual((jobs.address, jobs.skipped), (agent_uuid(me.did), ["mit leer"]))
            self.assertIn("/channel/inbox/sk_", channel.address)
            self.assertTrue(a2a.address.endswith(me.did.removeprefix("did:key:") + "/") and a2a.key.startswith("aa_"))
            listed = await asyncio.to_thread(self.http, f"/jobs/agents/{jobs.address}", None, method="GET")
            self.assertEqual(listed["owner_id"], me.did)
            state.close()
            state = State(path)
            self.assertEqual(await client.join(MANIFEST, credits=0.1, state=state), places)
            async with Client(self.url, Identity.generate()) as other:
                taken = (await other.join(MANIFEST, protocols=["hub"]))[0].address
            self.assertRegex(taken, "^bersetzer-Bot-[1-9A-Za-z]{6}@")
            changed = await client.join(MANIFEST, name="bob", credits=0.1, state=state)
            self.assertTrue(changed[0].address.startswith("bob@"))
            self.assertEqual([p.address for p in changed[1:]], [p.address for p in places[1:]])
            self.assertNotIn(digits, changed[0].address)
            self.assertEqual([p.address for p in await client.leave(state)], [p.address for p in changed])
            self.assertEqual(await client.leave(state), [])
            state.close()
        with self.assertRaises(urllib.error.HTTPError):
            await asyncio.to_thread(self.http, f"/jobs/agents/{jobs.address}", None, method="GET")

    async def test_refusals(self):
        async with Client(self.url, Identity.generate()) as client:
            with self.assertRaisesRegex(ValueError, "hub, jobs, channel, a2a"):
                await client.join(MANIFEST, protocols=["mail"])
            with self.assertRaisesRegex(ValueError, "intents"):
                await client.join({"name": "x"})
            with self.assertRaisesRegex(RelayError, "joining hub: .*culture"):
                await client.join(MANIFEST, protocols=["hub"], culture="EN")
            with self.assertRaisesRegex(RelayError, "joining jobs: "):
                await client.join(MANIFEST, protocols=["jobs"], credits=-1)
            with self.assertRaisesRegex(Refused, "name of a skill"):
                await client.join({"intents": [{"id": "mit leer"}]}, protocols=["jobs"])

    async def test_hub(self):
        """B-8, B-9, B-15: a message of the hub reaches the agent, and its reply the sender."""
        me = Identity.generate()
        async with Network([self.url], me) as network:
            (place,) = await network.join({"name": "Echo", "intents": [{"id": "echo"}]}, protocols=["hub"])

            async def work(job):
                return hub_output(hub_message(job)["envelope"]["original_text"].upper())

            task = asyncio.create_task(network.serve(HUB_INTENT, work))
            try:
                await asyncio.to_thread(self.talk, place.address)
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def talk(self, address):
        host = address.partition("@")[2]
        card = {"card_version": "0.3", "user_culture": "en", "supported_languages": ["en"]}
        alice = self.http("/hub/register", {"agent_id": f"alice@{host}", "agent_card": card})["data"]["api_key"]
        said = {"chorus_version": "0.4", "sender_id": f"alice@{host}", "original_text": "hello", "sender_culture": "en"}
        self.http("/hub/messages", {"receiver_id": address, "envelope": said}, alice)
        for _ in range(300):
            rows = self.http("/hub/agent/messages", None, alice, "GET")["data"]
            if any(row["envelope"]["original_text"] == "HELLO" for row in rows):
                return
            asyncio.run(asyncio.sleep(0.02))
        self.fail("there is no reply")

    def test_sync(self):
        with sync.Client(self.url, Identity.generate()) as client:
            state = State()
            (place,) = client.join(MANIFEST, protocols=["a2a"], public=True, proofs=True, state=state)
            card = self.http(place.address.removeprefix(self.url) + ".well-known/agent-card.json", None, method="GET")
            self.assertEqual((card["name"], len(card["signatures"]), place.key), ("\u00dcbersetzer Bot", 2, ""))
            self.assertEqual(client.leave(state), [place])

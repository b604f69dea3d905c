"""What other versions of the three clients have made: testvectors/fixtures."""
import gzip
import json
import pathlib
import re
import sys
import tarfile
import tempfile
import time
import unittest

import agora_relay
from agora_relay import FileCursor, load_key
from agora_relay.envelope import check_envelope, verify
from agora_relay.sealing import is_sealed, open_payload

from . import test_relay
from .support import binary

FIXTURES = pathlib.Path(__file__).parents[3] / "testvectors/fixtures"


class Fixtures(unittest.TestCase):
    def test_files_and_conversations(self):
        made = sorted(FIXTURES.glob("*/*.json.gz"))
        self.assertGreaterEqual(len(made), 3)
        for path in made:
            with self.subTest(path=str(path)), tempfile.TemporaryDirectory() as name:
                recorded, folder = json.loads(gzip.decompress(path.read_bytes())), pathlib.Path(name)
                for file, text in recorded["files"].items():
                    (folder / file).touch(0o600)
                    (folder / file).write_text(text)
                language = path.name.split(".")[0]
                client = load_key(folder / f"{language}-client.key")
                load_key(folder / f"{language}-agent.key")
                if language != "go":
                    cursor = FileCursor(folder / f"{language}-agent.cursor").load()
                    self.assertTrue(re.fullmatch("[0-9a-f]{8}-[0-9]+", cursor or ""), cursor)
                for kind in ("plain", "sealed"):
                    self.check(recorded[kind], client, f"HELLO, {language.upper()}")

    def check(self, events, client, output):
        for e in events:
            verify(check_envelope(e))
        self.assertEqual([e["type"] for e in events], ["REQUEST", "OFFER", "ACCEPT", "RESULT"])
        result = events[-1]
        payload = open_payload(result, client) if is_sealed(result) else result["payload"]
        self.assertEqual(payload["output"], output)

    def test_names(self):
        promised = sorted(FIXTURES.glob("*/python.txt.gz"))
        self.assertTrue(promised)
        for path in promised:
            names = gzip.decompress(path.read_bytes()).decode().split()
            self.assertGreater(len(names), 20)
            self.assertEqual([name for name in names if name not in agora_relay.__all__], [], path)


class OldPackages(unittest.TestCase):
    """A client of each version's package hires its agents and those of this version. They need AGORA_BINARY."""

    def test_trades(self):
        agora = binary()
        packages = [p for p in sorted(FIXTURES.glob("*/packages.tar.gz")) if p.parent.name != agora_relay.__version__]
        self.assertTrue(packages)
        for path in packages:
            with self.subTest(path=str(path)), tempfile.TemporaryDirectory() as name:
                with tarfile.open(path) as archive:
                    archive.extractall(name)
                command = [agora, "serve", "--addr", "127.0.0.1:0", "--data", f"{name}/data", "--log-level", "warn"]
                relay = test_relay.RealRelay.start(command, self.addCleanup)
                url = test_relay.line_of(relay, r"listening on (http\S+)")[1]
                old = pathlib.Path(name) / "python"
                for who, package in (("old", old), ("new", test_relay.SOURCES)):
                    self.trade(who, name, url, agent=package, client=old)

    def trade(self, who, folder, url, **sources):
        def party(role):
            command = [sys.executable, FIXTURES / "party.py", role, who]
            return test_relay.RealRelay.start(command, self.addCleanup, folder, sources[role], AGORA_RELAY=url)

        agent = party("agent")
        deadline = time.monotonic() + 60
        while not (pathlib.Path(folder) / f"{who}-agent.key").exists():
            self.assertLess(time.monotonic(), deadline, "the agent has made no key")
            time.sleep(0.02)
        client = party("client")
        if client.wait(timeout=120) != 0:
            self.fail("".join(list(client.lines.queue)))
        agent.kill()


if __name__ == "__main__":
    unittest.main()

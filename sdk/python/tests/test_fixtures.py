"""What other versions of the three clients have made: testvectors/fixtures."""
import gzip
import json
import pathlib
import re
import tempfile
import unittest

from agora_relay import FileCursor, load_key
from agora_relay.envelope import check_envelope, verify
from agora_relay.sealing import is_sealed, open_payload

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


if __name__ == "__main__":
    unittest.main()

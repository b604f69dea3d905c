"""Key files and cursors on disk."""
import json
import os
import pathlib
import subprocess
import tempfile
import threading
import unittest

from agora_relay import (
    FileCursor,
    Identity,
    Refused,
    format_key_file,
    load_key,
    load_or_create_key,
    read_key_file,
    save_key,
)

from .support import binary


class Files(unittest.TestCase):
    def setUp(self):
        temp = tempfile.TemporaryDirectory()
        self.addCleanup(temp.cleanup)
        self.folder = pathlib.Path(temp.name)
        self.path = self.folder / "my.key"

    def test_key(self):
        me = Identity.generate()
        save_key(self.path, me)
        self.assertEqual(self.path.stat().st_mode & 0o777, 0o600)
        self.assertEqual((load_key(self.path).did, load_or_create_key(str(self.path)).seed), (me.did, me.seed))
        with self.assertRaisesRegex(Refused, "load_or_create_key"):
            read_key_file("{}")
        with self.assertRaises(FileExistsError):
            save_key(self.path, Identity.generate())
        self.assertEqual(load_key(self.path).did, me.did)
        self.assertEqual(os.listdir(self.folder), ["my.key"])
        with self.assertRaisesRegex(FileNotFoundError, "keygen"):
            load_key(self.folder / "none")
        with self.assertRaisesRegex(FileNotFoundError, "folder .*none' does not exist") as caught:
            load_or_create_key(self.folder / "none/my.key")
        self.assertEqual(caught.exception.filename, str(self.folder / "none/my.key"))

    def test_bad_key_files(self):
        me, other = Identity.generate(), Identity.generate()
        good = json.loads(format_key_file(me))
        save_key(self.path, me)
        for mode in (0o640, 0o604, 0o660):
            self.path.chmod(mode)
            with self.assertRaisesRegex(Refused, "chmod 600"):
                load_key(self.path)
        for text in (
            "",
            "x",
            "[]",
            "{}",
            json.dumps(good | {"kty": "RSA"}),
            json.dumps(good | {"kid": other.did}),
            json.dumps(good | {"x": "A" * 43}),
            json.dumps(good | {"d": "AAAA"}),
            json.dumps(good | {"d": 5}),
            "[" * 100_000,
        ):
            path = self.folder / "bad.key"
            path.write_text(text)
            path.chmod(0o600)
            for read in (lambda: load_key(path), lambda: load_or_create_key(path), lambda: read_key_file(text)):
                with self.assertRaises(Refused) as caught:
                    read()
                self.assertEqual(caught.exception.code, "INVALID_KEY")
                self.assertNotIn(good["d"], str(caught.exception))
            self.assertEqual(path.read_text(), text)

    def test_race(self):
        """Several threads create the key at the same time. All get the same one."""
        found = []
        threads = [
            threading.Thread(target=lambda: found.append(load_or_create_key(self.path).did)) for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((len(found), len(set(found)), os.listdir(self.folder)), (16, 1, ["my.key"]))

    def test_same_bytes_as_agora(self):
        agora = binary()
        subprocess.run([agora, "keygen", self.path], check=True, capture_output=True)
        me = load_key(self.path)
        self.assertEqual(format_key_file(me), self.path.read_text())
        ours = self.folder / "ours.key"
        save_key(ours, me)
        self.assertEqual((ours.read_bytes(), ours.stat().st_mode), (self.path.read_bytes(), self.path.stat().st_mode))
        shown = subprocess.run(
            [agora, "sign", "--key", ours, "-"],
            capture_output=True,
            text=True,
            input=json.dumps({"type": "REQUEST", "thread": {"id": "t"}, "payload": {"intent": "x"}}),
        )
        self.assertIn(me.did, shown.stdout, shown.stderr)

    def test_cursor(self):
        cursor = FileCursor(self.folder / "cursor")
        self.assertIsNone(cursor.load())
        for text in ("a-1", "a-2"):
            cursor.save(text)
            self.assertEqual((cursor.load(), FileCursor(str(cursor.path)).load()), (text, text))
        self.assertEqual(os.listdir(self.folder), ["cursor"])
        cursor.path.write_text("x" * 2000)
        with self.assertRaisesRegex(ValueError, "too long"):
            cursor.load()
        with self.assertRaises(FileNotFoundError):
            FileCursor(self.folder / "none/cursor").save("a")

    def test_relative_names(self):
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.folder)
        self.assertEqual(load_or_create_key("my.key").did, load_key("my.key").did)
        FileCursor("cursor").save("a")

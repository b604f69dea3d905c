"""The parts: JSON, keys, envelopes, signatures, sealing. The vectors of the project and of third parties."""
import base64
import csv
import json
import math
import struct
import subprocess
import sys
import unittest

import agora_relay
from agora_relay import (
    Identity,
    Refused,
    canonical_text,
    canonicalize,
    check_envelope,
    decode64,
    did_of,
    encode64,
    format_time,
    instant,
    is_sealed,
    key_of,
    new_id,
    new_thread,
    parse,
    read_envelope,
    seal,
    sign,
    verifies,
    verify,
    verify_chain,
)
from agora_relay.answer import Envelopes, TooLong, permanent, retry_after, split_list
from agora_relay.errors import RelayError, safe

from . import ROOT
from .support import vectors

ALICE, BOB = Identity(b"\x01" * 32), Identity(b"\x02" * 32)


def form(text):
    """The canonical form of a text, or None if parse refuses it."""
    try:
        value = parse(text)
    except Refused as err:
        assert err.code == "INVALID_REQUEST", err
        return None
    canonical = canonicalize(value)
    assert canonicalize(parse(canonical)) == canonical, text
    return canonical


class Json(unittest.TestCase):
    def test_only_i_json(self):
        for text in (
            "",
            " ",
            "{",
            "{}{}",
            "{'a':1}",
            "[1,]",
            "01",
            "+1",
            ".5",
            "NaN",
            "-Infinity",
            '"\t"',
            "\ufeff{}",
            '{"a":1,"a":2}',
            '{"a":1,"\\u0061":1}',
            '[{"x":{"b":[],"b":[]}}]',
            '"\\ud800"',
            '{"\\udc00":1}',
            "1e400",
            "-1e400",
            '{"a":1}\0',
            "-",
            '"',
            '"\\',
            "9" * 400,
            "[" * 65 + "]" * 65,
            "[" * 100_000,
        ):
            with self.subTest(text=text[:50]):
                self.assertIsNone(form(text.encode()))
        for body in (b"\xff", b'"\xc0\x80"', b'"\xed\xa0\x80"', b"\xef\xbb\xbf1"):
            self.assertIsNone(form(body))

    def test_numbers(self):
        for text, value in [("5", 5), ("-5", -5), ("9007199254740992", 2**53), ("9007199254740993", 2**53)]:
            self.assertIs(type(parse(text.encode())), int)
            self.assertEqual(parse(text.encode()), value)
        for text in ("5.0", "1e3", "9007199254740994", "1" * 30, "-0"):
            self.assertIs(type(parse(text.encode())), float)
        self.assertEqual(
            canonical_text([1, 1.0, -0.0, 1e21, 1e-7, True, None, 10**20, (1,)]),
            "[1,1,0,1e+21,1e-7,true,null,100000000000000000000,[1]]",
        )
        for value in (
            float("nan"),
            math.inf,
            2**53 + 1,
            10**400,
            {1: 2},
            b"x",
            {"\ud800": 1},
            "\udfff",
            object(),
            {1, 2},
        ):
            with self.subTest(value=repr(value)[:40]), self.assertRaises(Refused):
                canonicalize(value)

    def test_costly_numbers(self):
        for number in ("123456789012345678", "1.00000000000000001", "-5e-324", "0.1e-307", "1e-400"):
            self.assertIsNotNone(form(f"[{','.join([number] * 1000)}]".encode()))
            self.assertIsNone(form(f"[{','.join([number] * 1001)}]".encode()))
        for number in ("12345678901234567", "0e-400", "1e-307", '"123456789012345678"'):
            self.assertIsNotNone(form(f"[{','.join([number] * 1001)}]".encode()))
        self.assertEqual(parse(b"[1e-400,[[]]]", depth=3, costly=1), [0.0, [[]]])

    def test_public_numbers(self):
        for name in ("jcs/es6_numbers.csv", "jcs/rfc8785_appendix_b.csv"):
            rows = list(csv.reader(vectors(name).read_text().splitlines()))
            self.assertGreater(len(rows), 10)
            for bits, want in rows:
                [number] = struct.unpack(">d", bytes.fromhex(bits.rjust(16, "0")))
                if want == "ERROR":
                    self.assertFalse(math.isfinite(number))
                    continue
                self.assertEqual((canonical_text(number), form(want.encode())), (want, want.encode()))

    def test_public_cyberphone(self):
        files = list(vectors("jcs/cyberphone/input").iterdir())
        self.assertEqual(len(files), 3)
        for path in files:
            self.assertEqual(
                form(path.read_bytes()), vectors(f"jcs/cyberphone/output/{path.name}").read_bytes().strip()
            )

    def test_public_nasty(self):
        for v in json.loads(vectors("jcs/nasty_json.json").read_bytes()):
            with self.subTest(v["name"]):
                want = bytes.fromhex(v["canonical_hex"]) if v["expect"] == "canonical" else None
                self.assertEqual(form(bytes.fromhex(v["input_hex"])), want)

    def test_public_parsing(self):
        files = list(vectors("json/jsontestsuite/test_parsing").iterdir())
        self.assertGreater(len(files), 100)
        for path in files:
            with self.subTest(path.name):
                accepted = form(path.read_bytes()) is not None
                want = path.name[0] == "y" and not path.name.startswith("y_object_duplicated_key")
                self.assertTrue(accepted == want or path.name[0] == "i")

    def test_public_strings(self):
        for text in json.loads(vectors("strings/blns.json").read_bytes()):
            self.assertEqual(parse(canonicalize({text: text})), {text: text})


class Keys(unittest.TestCase):
    def test_identity(self):
        self.assertEqual(ALICE.did, "did:key:z6Mkon3Necd6NkkyfoGoHxid2znGc59LU3K7mubaRcFbLfLX")
        self.assertEqual(did_of(key_of(ALICE.did)), ALICE.did)
        self.assertNotEqual(Identity.generate().did, Identity.generate().did)
        self.assertNotIn(ALICE.seed.hex(), repr(ALICE) + str(vars(ALICE).get("_key")))
        for seed in (b"", b"x" * 31, b"x" * 33, "x" * 32, None):
            with self.assertRaises(Refused) as caught:
                Identity(seed)
            self.assertEqual(caught.exception.code, "INVALID_KEY")

    def test_public_keys(self):
        valid = json.loads(vectors("didkey/ed25519_valid.json").read_bytes())
        bad = json.loads(vectors("didkey/must_reject.json").read_bytes())
        self.assertTrue(valid and bad)
        for v in valid:
            self.assertEqual(key_of(v["did"]).hex(), v["publicKeyHex"])
            if v.get("seed"):
                self.assertEqual(Identity(bytes.fromhex(v["seed"])).did, v["did"])
        for v in bad:
            with self.subTest(v["reason"]), self.assertRaises(Refused):
                key_of(v["did"])
        for did in (None, 5, {}, [ALICE.did]):
            with self.assertRaises(Refused):
                key_of(did)

    def test_public_signatures(self):
        counted = 0
        for group in json.loads(vectors("ed25519/wycheproof_ed25519.json").read_bytes())["testGroups"]:
            did = did_of(bytes.fromhex(group["publicKey"]["pk"]))
            for v in group["tests"]:
                counted += 1
                with self.subTest(v["comment"], tcId=v["tcId"]):
                    self.assertEqual(
                        verifies(bytes.fromhex(v["sig"]), bytes.fromhex(v["msg"]), did), v["result"] == "valid"
                    )
        self.assertGreater(counted, 50)

    def test_signature(self):
        e = sign(message(extra={"sig": "x"}), ALICE)
        verify(check_envelope(e))
        for change in (
            {"id": "m2"},
            {"more": 1},
            {"payload": {}},
            {"sig": None},
            {"sig": ""},
            {"sig": e["sig"] + "A"},
            {"sig": e["sig"] + "=="},
            {"sig": " " + e["sig"][1:]},
            {"sig": "A" * 86},
            {"sig": 5},
        ):
            with self.subTest(change=change), self.assertRaises(Refused) as caught:
                verify(e | change)
            self.assertEqual(caught.exception.code, "INVALID_SIGNATURE")
        for party in (None, {}, {"id": 5}, "x"):
            for name in ("sender", "recipient"):
                with self.assertRaises(Refused) as caught:
                    verify(e | {name: party})
                self.assertEqual(caught.exception.code, "INVALID_DID")


def message(**more):
    return {
        "version": "1.0",
        "id": "m1",
        "ts": "2026-02-02T12:00:00Z",
        "type": "REQUEST",
        "sender": {"id": ALICE.did},
        "payload": {"intent": "x", "request_id": "r"},
    } | more


class Messages(unittest.TestCase):
    def test_times(self):
        for text in (
            "2026-02-02T12:00:00Z",
            "2026-02-02t12:00:00Z",
            "2026-02-30T12:00:00Z",
            "2026-02-02T12:00:00,5Z",
            "2026-02-02T12:00:00+24:00",
            "2026-02-02T24:00:00Z",
            "2026-02-02T12:00:00",
            "\u0662026-02-02T12:00:00Z",
        ):
            ok = text == "2026-02-02T12:00:00Z"
            with self.subTest(text):
                if ok:
                    self.assertEqual(instant(text), 1_770_033_600 * 10**9)
                else:
                    self.assertRaises(Refused, instant, text)
        self.assertEqual(format_time(1_770_033_600.0625), "2026-02-02T12:00:00.062Z")
        self.assertEqual(format_time(-62135596800), "0001-01-01T00:00:00.000Z")
        for seconds in (1e12, float("inf"), float("nan"), -1e12):
            self.assertRaises(Refused, format_time, seconds)

    def test_ids(self):
        early, late = new_id("msg", 1_000_000.0), new_id("msg", 1_000_000.001)
        self.assertRegex(early, "^msg_[0-9a-hjkmnp-tv-z]{26}$")
        self.assertLess(early, late)
        self.assertNotEqual(new_thread(), new_thread())

    def test_base64(self):
        for data in (b"", b"a", b"ab", b"abc", bytes(range(256))):
            self.assertEqual(decode64(encode64(data)), data)
        for text in ("a", "ab=", "a+b/", "YR", "YQ==", None, 5, "Y Q"):
            self.assertIsNone(decode64(text))

    def test_sealing(self):
        e = message(recipient={"id": BOB.did}) | {"payload": {"intent": "x", "request_id": "r", "params": {"a": 1}}}
        sealed = sign(seal(e), ALICE)
        self.assertTrue(is_sealed(sealed))
        self.assertEqual(agora_relay.open(sealed, BOB), e["payload"])
        self.assertEqual(sorted(sealed["payload"]), ["intent", "request_id", "sealed"])
        for bad in (
            sign(sealed | {"id": "m2"}, ALICE),
            sealed | {"id": "m2"},
            e,
            sign(sealed | {"sender": {"id": BOB.did}}, BOB),
        ):
            with self.assertRaises(Refused) as caught:
                agora_relay.open(bad, BOB)
            self.assertEqual(str(caught.exception), "INVALID_REQUEST: the sealed payload cannot be opened")
        self.assertRaises(Refused, agora_relay.open, sealed, ALICE)
        for wrong in (
            message(),
            e | {"type": "MANIFEST"},
            e | {"payload": {"sealed": "x"}},
            e | {"recipient": {"id": "bob"}},
        ):
            self.assertRaises(Refused, seal, wrong)

    def test_limits(self):
        big = message(payload={"intent": "x", "request_id": "r", "p": "x" * 140_000})
        for check in (lambda: read_envelope(json.dumps(big).encode()), lambda: check_envelope(big)):
            with self.assertRaises(Refused) as caught:
                check()
            self.assertEqual(caught.exception.code, "PAYLOAD_TOO_LARGE")
        self.assertEqual(check_envelope(big, max_bytes=200_000), big)

    def test_safe(self):
        self.assertEqual(safe("a\x1b[2J\u202e\u00e9\U000e0001\n"), "a\\u001b[2J\\u202e\u00e9\\udb40\\udc01\\u000a")
        self.assertNotIn("\x1b", str(RelayError("X", "\x1b[2J")))

    def test_project_vectors(self):
        """testvectors/interop/python/vectors.py uses the package."""
        program = ROOT / "testvectors/interop/python/vectors.py"
        run = subprocess.run(
            [sys.executable, program, ROOT / "testvectors"], capture_output=True, text=True, timeout=60
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        lines = [line.split() for line in run.stdout.splitlines()]
        self.assertEqual(len(lines), len(list((ROOT / "testvectors").glob("*.json"))) - 1)  # protocol.json has no vectors
        self.assertTrue(all(int(passed) > 0 and failed == "0" for _, passed, failed in lines), run.stdout)

    def test_versions(self):
        version = (ROOT / "VERSION").read_text().strip()
        self.assertEqual(agora_relay.__version__, version)
        self.assertIn(f'version = "{version}"', (ROOT / "sdk/python/pyproject.toml").read_text().splitlines())


class Chains(unittest.TestCase):
    def test_which_message_is_wrong(self):
        cases = json.loads((ROOT / "testvectors/relays.json").read_bytes())["vectors"]
        for index, kind in enumerate(("offer", "accept", "result"), 1):
            broken = [v for v in cases if v["name"].startswith(f"chain-{kind}-")]
            self.assertGreater(len(broken), 5)
            for v in broken:
                with self.subTest(v["name"]), self.assertRaises(Refused) as raised:
                    verify_chain(parse(base64.b64decode(v["chain"])))
                self.assertEqual(raised.exception.details, {"index": index})
                self.assertIn(f"message {index + 1}, {kind.upper()}: ", raised.exception.message)
        for chain in (None, {}, "chain", []):
            with self.assertRaisesRegex(Refused, "two to four"):
                verify_chain(chain)
        self.assertRaises(Refused, verify_chain, [None, None])


class Answers(unittest.TestCase):
    def test_split_list(self):
        elements = []
        rest = split_list(
            b' { "a" : [1] , "events" : [ {"x":"]"} , 12 ,"s"] , "b":null } ', "events", elements.append
        )
        self.assertEqual((rest, elements), ({"a": [1], "b": None}, [b'{"x":"]"}', b"12", b'"s"']))
        self.assertEqual(split_list(b'{"events":null}', "events", elements.append), {})
        for text in (
            b"",
            b"[]",
            b"{",
            b"{}x",
            b'{"events":{}}',
            b'{"events":[1,]}',
            b'{"events":[1 2]}',
            b'{"events":[1',
            b"{1:2}",
            b'{"a":NaN}',
            b'{"a":1,}',
            b'{,"a":1}',
            b'{"a" 1}',
            b'{"events":[' + b"[" * 100_000,
        ):
            with self.subTest(text=text[:30]), self.assertRaises((ValueError, RecursionError)):
                split_list(text, "events", elements.append)
        long = b"1." + b"0" * 70_000
        self.assertEqual(split_list(b'{"a":' + long + b',"events":[' + long + b"]}", "events", elements.append), {"a": 1.0})
        self.assertEqual(elements[-1], long)
        for text in (b'{"a":"' + b"x" * 600_000 + b'"}', b'{"events":["' + b"x" * (5 << 20) + b'"]}'):
            with self.assertRaises(TooLong):
                split_list(text, "events", lambda _: None)

    def test_too_many_events(self):
        envelopes = Envelopes(2)
        with self.assertRaises(TooLong):
            split_list(b'{"events":[1,1,1]}', "events", envelopes.add)
        self.assertEqual((envelopes.valid, envelopes.invalid), ([], 2))

    def test_retry_after(self):
        for text, want in [
            ("5", 5),
            ("0", 0),
            ("", 0),
            ("-1", 0),
            ("x", 0),
            ("9" * 40, 2**31 - 1),
            ("\u0665", 0),
            ("Mon, 02 Feb 2026 12:00:10 GMT", 10),
            ("Mon, 02 Feb 2026 11:00:00 GMT", 0),
        ]:
            self.assertEqual(retry_after(text, 1_770_033_600), want)

    def test_permanent(self):
        for err, want in [
            (RelayError("FORBIDDEN", "", status=403), True),
            (RelayError("NO_ANSWER", ""), False),
            (RelayError("INVALID_ANSWER", "", status=404), False),
            (Refused("INVALID_REQUEST", ""), True),
            (RelayError("STALE_TIMESTAMP", "", status=400), False),
            (RelayError("RATE_LIMITED", "", status=429), False),
            (RelayError("RATE_LIMITED", "", status=429, details={"maxOffers": 100}), True),
            (ValueError(), False),
        ]:
            self.assertEqual(permanent(err), want, err)

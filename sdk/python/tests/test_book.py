"""The jobs of an agent (RELAYS R-18), and its file (R-12)."""
import json
import os
import pathlib
import stat
import tempfile
import unittest
from unittest import mock

from agora_relay import Identity, State, book, content_hash, seal, sign, state
from agora_relay.book import Book, job_key
from agora_relay.follow import Event

HOUR = 3600.0
NOW = 1_770_033_600.0
FIXTURE = pathlib.Path(__file__).parents[3] / "client/testdata/state.jsonl"  # each kind of line


def thread(number, home="did:key:zHome", first=False):
    return {"home": home, "id": f"t{number}", "accept": f"{number:064x}", "first": first}


def key(number, client="did:key:zClient"):
    return client, f"{number:064x}", "digest"


class Keys(unittest.TestCase):
    def request(self, me, payload, continues=None, number=1, to=None):
        e = {
            "version": "1.0", "id": f"m{number}", "ts": "2026-02-02T12:00:00Z", "type": "REQUEST",
            "sender": {"id": me.did}, "thread": {"id": f"t{number}"},
            "payload": {"intent": "x", "request_id": f"r{number}"} | payload, "meta": {"ttl": 60},
        }
        if continues:
            e["meta"]["continues"] = continues
        if to:
            e = seal(e | {"recipient": {"id": to.did}})
        return Event.of(sign(e, me), to)

    def test_what_is_one_job(self):
        """§4: the same client, root and payload, but for the request_id, after opening."""
        me, other, agent = Identity.generate(), Identity.generate(), Identity.generate()
        first = self.request(me, {"params": {"a": 1, "b": 2}})
        self.assertEqual(job_key(first)[1], content_hash(first.envelope))
        root = first.hash
        again = self.request(me, {"params": {"b": 2, "a": 1}}, root, 2)
        sealed = self.request(me, {"params": {"b": 2, "a": 1.0}}, root, 3, to=agent)
        self.assertEqual([job_key(again), job_key(sealed)], [job_key(first)] * 2)
        for e in (
            self.request(other, {"params": {"a": 1, "b": 2}}, root, 4),  # another client
            self.request(me, {"params": {"a": 1, "b": 3}}, root, 5),  # another payload
            self.request(me, {"params": {"a": 1, "b": 2}, "title": "t"}, root, 6),
            self.request(me, {"params": {"a": 1, "b": 2}}, "ab" * 32, 7),  # it continues something else
            self.request(me, {"params": {"a": 1, "b": 2}}, None, 8),
        ):
            self.assertNotEqual(job_key(e), job_key(first))


class Books(unittest.TestCase):
    def setUp(self):
        self.lines = []
        self.book = Book(lambda line, sync: self.lines.append((json.loads(json.dumps(line)), sync)))

    def offer(self, k, terms={"price": 1}, until=NOW + HOUR, now=NOW):
        return self.book.offered(k, terms, until, now)

    def test_terms(self):
        """In a continuation, the agent offers the same terms."""
        self.assertIsNone(self.book.terms(key(1)))
        self.offer(key(1))
        self.offer(key(1), {"price": 2})
        self.assertEqual(self.book.terms(key(1)), {"price": 1})
        self.book.accepted(key(1), thread(1), NOW)
        self.offer(key(1), {"price": 2})
        self.assertEqual(self.book.terms(key(1)), {"price": 1})
        self.assertIsNone(self.book.terms(key(2)))

    def test_limits(self):
        """The book has at most 1,024 jobs, and 128 of one client. Jobs without ACCEPT are forgotten first, then those
        that are over; when all are accepted and not over, the agent makes no offers."""
        for n in range(128):
            self.offer(key(n))
        self.book.accepted(key(0), thread(0), NOW)
        self.offer(key(128))
        self.assertEqual([key(n) in self.book.jobs for n in (0, 1, 2, 128)], [True, False, True, True])
        for n in range(2, 129):
            self.book.accepted(key(n), thread(n), NOW)
        self.assertFalse(self.book.has_room(key(500), NOW))
        self.assertTrue(self.book.has_room(key(500, "other"), NOW))
        self.assertTrue(self.book.has_room(key(2), NOW))  # a known job has its place
        self.book.finish(key(7), "RESULT", {}, NOW)
        self.book.ended(key(5), thread(5), NOW)
        for n, gone in ((500, 5), (501, 7)):
            self.assertTrue(self.book.has_room(key(n), NOW))
            self.offer(key(n))
            self.assertNotIn(key(gone), self.book.jobs)
            self.book.accepted(key(n), thread(n), NOW)
        self.assertFalse(self.book.has_room(key(502), NOW))
        for client in range(7):
            for n in range(128):
                self.offer(key(n, f"c{client}"))
        self.assertEqual(len(self.book.jobs), 1024)
        self.offer(key(1, "c8"))
        self.assertEqual(len(self.book.jobs), 1024)
        self.assertNotIn(key(0, "c0"), self.book.jobs)
        for k in list(self.book.jobs):
            self.book.accepted(k, thread(1), NOW)
        self.assertFalse(self.book.has_room(key(2, "c9"), NOW))

    def test_how_long(self):
        """A job is kept from its first OFFER until 24 hours after its end, or until the REQUEST expires if that is
        later."""
        self.offer(key(1), until=NOW + HOUR)
        self.book.expire(NOW + HOUR - 1)
        self.assertIn(key(1), self.book.jobs)
        self.book.expire(NOW + HOUR)
        self.assertNotIn(key(1), self.book.jobs)
        self.offer(key(2), until=NOW + HOUR)
        self.book.accepted(key(2), thread(1), NOW)
        self.book.begin(key(2), NOW, 3)
        self.book.expire(NOW + 100 * HOUR)  # it is not over
        self.book.finish(key(2), "RESULT", {"output": 1}, NOW + 100 * HOUR)
        self.book.expire(NOW + 124 * HOUR - 1)
        self.assertIn(key(2), self.book.jobs)
        self.book.expire(NOW + 124 * HOUR)
        self.assertNotIn(key(2), self.book.jobs)
        self.offer(key(3), until=NOW + 1000 * HOUR)
        self.book.accepted(key(3), thread(1), NOW)
        self.book.expire(NOW + 999 * HOUR)
        self.assertIn(key(3), self.book.jobs)

    def test_it_works_once(self):
        """After an ACCEPT in any thread of the job it works once. It posts the outcome in a continuation after
        the ACCEPT there, also if another one is newer."""
        b, k = self.book, key(1)
        self.offer(k)
        self.assertEqual(b.accepted(k, thread(1, first=True), NOW), "work")
        self.assertEqual(b.begin(k, NOW, 3), 1)
        self.assertEqual(b.accepted(k, thread(1, first=True), NOW), "work")  # it is tried again
        self.assertEqual(b.accepted(k, thread(2), NOW), "work")
        self.assertEqual([b.is_older(k, thread(n)) for n in (1, 2, 3)], [True, False, True])
        self.assertTrue(b.is_older(k, thread(2, "did:key:zOther")))
        self.assertIsNone(b.outcome(k))
        b.finish(k, "RESULT", {"output": 7}, NOW)
        self.assertEqual(b.outcome(k), ("RESULT", {"output": 7}))
        self.assertEqual([b.accepted(k, thread(n), NOW) for n in (4, 2)], ["answer"] * 2)
        self.assertEqual([b.is_older(k, thread(n)) for n in (4, 2)], [False, True])

    def test_order(self):
        """The order is the order of arrival. The thread of the first REQUEST is ignored once another has an ACCEPT.
        Other older threads are not ignored. With 6 older threads, further new ones are ignored."""
        b, k = self.book, key(1)
        self.offer(k)
        self.assertEqual([b.accepted(k, thread(n), NOW) for n in (2, 3, 2)], ["work"] * 3)
        self.assertEqual(b.accepted(k, thread(1, first=True), NOW), "old")
        self.assertEqual([b.accepted(k, thread(n), NOW) for n in range(4, 9)], ["work"] * 5)
        self.assertEqual(b.accepted(k, thread(9), NOW), "old")
        self.assertEqual([b.accepted(k, thread(n), NOW) for n in (8, 2)], ["work"] * 2)
        self.assertEqual(b.jobs[k]["earlier"], [thread(n)["accept"] for n in range(2, 8)])

    def test_the_end_of_a_thread(self):
        """Timeout, CANCEL or ERROR in an older thread does not stop the work; a CANCEL in the newest one does."""
        b, k = self.book, key(1)
        self.offer(k)
        b.accepted(k, thread(1, first=True), NOW)
        b.begin(k, NOW, 3)
        b.accepted(k, thread(2), NOW)
        self.assertFalse(b.ended(k, thread(1), NOW))
        self.assertTrue(b.ended(k, thread(2), NOW))
        self.assertFalse(b.ended(k, thread(2), NOW))
        self.assertEqual(b.accepted(k, thread(1, first=True), NOW), "old")
        self.assertEqual([b.accepted(k, thread(n), NOW) for n in (2, 3)], ["cancelled"] * 2)
        self.assertIsNone(b.outcome(k))
        never = key(2)  # the work had not begun: a continuation begins it
        self.offer(never)
        b.accepted(never, thread(1), NOW)
        self.assertTrue(b.ended(never, thread(1), NOW))
        self.assertEqual([b.accepted(never, thread(n), NOW) for n in (1, 2)], ["cancelled", "work"])

    def test_attempts(self):
        """A job that had begun and not ended is repeated, attempts times in all; then it gets ERROR INTERNAL_ERROR
        ("interrupted")."""
        for attempts in (1, 3):
            lines, k = [], key(1)
            for crash in range(attempts):
                b = Book(lambda line, sync: lines.append(json.loads(json.dumps(line))))
                for line in list(lines):
                    b.load(line)
                self.assertEqual(b.accepted(k, thread(1), NOW), "work")
                self.assertEqual(b.begin(k, NOW, attempts), crash + 1)
            b = Book()
            for line in lines:
                b.load(line)
            self.assertEqual(b.accepted(k, thread(2), NOW), "work")
            self.assertEqual(b.begin(k, NOW, attempts), 0)
            type, payload = b.outcome(k)
            self.assertEqual((type, payload["code"]), ("ERROR", "INTERNAL_ERROR"))
            self.assertIn("interrupted", payload["message"])
            self.assertEqual(b.accepted(k, thread(2), NOW), "answer")

    def test_what_is_written(self):
        """A job is on disk before its OFFER is posted, before the work begins, and after it has ended."""
        k = key(1)
        self.offer(k)
        self.book.accepted(k, thread(1), NOW)
        self.book.begin(k, NOW, 3)
        self.book.finish(k, "RESULT", {"output": 1}, NOW)
        self.assertEqual([sync for _, sync in self.lines], [True, False, True, True])
        self.assertEqual(self.lines[-1][0], ["job", {
            "client": k[0], "root": k[1], "payload": k[2], "until": "2026-02-03T12:00:00.000Z", "accepted": True,
            "begun": 1, "over": True, "offer": {"price": 1}, "thread": thread(1),
            "outcome": {"type": "RESULT", "payload": {"output": 1}},
        }])
        self.book.expire(NOW + 24 * HOUR)
        self.assertEqual(self.lines[-1][0], ["nojob", {"client": k[0], "root": k[1], "payload": k[2]}])
        copy = Book()
        for line, _ in self.lines:
            copy.load(line)
        self.assertEqual(copy.jobs, {})


def event(number, ttl=60, me=Identity(bytes(32))):
    return Event({
        "version": "1.0", "id": f"m{number}", "ts": "2026-02-02T12:00:00Z", "type": "REQUEST",
        "sender": {"id": me.did}, "payload": {}, "meta": {"ttl": ttl},
    }, {}, False)


class States(unittest.TestCase):
    def setUp(self):
        temp = tempfile.TemporaryDirectory()
        self.addCleanup(temp.cleanup)
        self.path = pathlib.Path(temp.name) / "state"
        self.now = 1_770_033_600.0  # 2026-02-02T12:00:00Z

    def state(self):
        made = State(self.path)
        self.addCleanup(made.close)
        return made

    def filled(self):
        made = self.state()
        made.bind("did:key:zMe")
        made.handled(event(1), self.now)
        made.book.offered(key(1), {"price": 1}, NOW + HOUR, NOW)
        made.catch("did:key:zBad", "a proof")
        made.catch("did:key:zGood", "a proof")
        made.trust("did:key:zGood")
        made.cursor("did:key:zRelay").save("a-1")
        made.cursor("did:key:zRelay").save("a-2")
        return made

    def check(self, made):
        self.assertEqual(made.cursor("did:key:zRelay").load(), "a-2")
        self.assertIsNone(made.cursor("did:key:zOther").load())
        self.assertEqual([made.has_handled(event(n), self.now) for n in (1, 2)], [True, False])
        self.assertEqual(made.book.terms(key(1)), {"price": 1})
        self.assertEqual(made.caught, {"did:key:zBad": "a proof"})

    def test_file(self):
        """R-12: each relay's cursor, the handled events, and the jobs survive. Nobody else can read the file."""
        self.filled().close()
        self.check(self.state())
        self.assertEqual(stat.S_IMODE(os.stat(self.path).st_mode), 0o600)
        first, second, *_ = self.path.read_text().splitlines()
        self.assertEqual(first, '["agora-state",1,"did:key:zMe"]')
        mark = content_hash(event(1).envelope)[:32]
        self.assertEqual(second, f'["e","{state.encode64(bytes.fromhex(mark))}",{int(self.now) + 60}]')
        with self.assertRaisesRegex(ValueError, "use another file"):
            self.state().bind("did:key:zOther")

    def test_torn_line(self):
        """A crash may cut off the last line, at every byte."""
        self.filled().close()
        text = self.path.read_bytes()
        last = text.rindex(b"\n", 0, -1) + 1
        for cut in range(last, len(text)):
            self.path.write_bytes(text[:cut])
            made = self.state()
            self.assertEqual(made.cursor("did:key:zRelay").load(), "a-1")
            made.cursor("did:key:zRelay").save("a-2")
            made.close()
            self.check(self.state())

    def test_every_line(self):
        """R-12: a file that another language has written opens. The lines that count are kept as they are."""
        lines = FIXTURE.read_text().splitlines(keepends=True)
        self.path.write_text("".join(lines))
        made = self.state()
        made.bind("did:key:zMe")
        self.assertEqual(made.cursor("did:key:zRelay").load(), "a-7")
        self.assertEqual(made.caught, {"did:key:zBad": "it lied"})
        kept = sorted(lines[n] for n in (0, 2, 3, 6, 7, 8, 11, 12))
        self.assertEqual(sorted(state._text(line).decode() for line in made._lines()), kept)
        job = json.loads(lines[7])[1]
        self.assertEqual(made.book.accepted(book.key_of_record(job), job["thread"], NOW), "answer")
        made.book.expire(state.instant("2099-02-02T01:40:00Z") / state.SECOND)
        self.assertEqual(len(made.book.jobs), 2)
        made.book.expire(state.instant("2099-02-02T01:40:01Z") / state.SECOND)
        self.assertEqual(len(made.book.jobs), 1)

    def test_another_file(self):
        for text in (
            "a-1\n", '{"kty":"OKP"}\n', '["agora-state",2,"x"]\n', '["agora-state",1,"x"]\n["e"]\n',
            '["agora-state",1,"x"]\n["new"]\n',
        ):
            self.path.write_text(text)
            with self.assertRaisesRegex(ValueError, "move the file away"):
                State(self.path)

    def test_order(self):
        """R-12: events and jobs are written before a cursor moves."""
        made = self.filled()
        made.handled(event(2), self.now)
        made.cursor("did:key:zRelay").save("a-3")
        kinds = [json.loads(line)[0] for line in self.path.read_text().splitlines()]
        self.assertEqual(kinds[-2:], ["e", "cursor"])

    def test_handled_events(self):
        """R-12: 65,536 at most, the earliest to expire forgotten first, and each only until it expires."""
        made = State()
        made.handled(event(0, ttl=10), self.now)
        made.handled(event(1, ttl=5), self.now)
        self.assertTrue(made.has_handled(event(1), self.now + 4) is False)  # the ttl is signed, so it is another event
        self.assertTrue(made.has_handled(event(1, ttl=5), self.now + 4))
        self.assertFalse(made.has_handled(event(1, ttl=5), self.now + 5))
        with mock.patch.object(state, "MAX_EVENTS", 3):
            for n, ttl in ((2, 100), (3, 7), (4, 100)):
                made.handled(event(n, ttl=ttl), self.now)
        all = ((0, 10), (1, 5), (2, 100), (3, 7), (4, 100))
        found = [made.has_handled(event(n, ttl=ttl), self.now) for n, ttl in all]
        self.assertEqual(found, [True, False, True, False, True])
        self.assertEqual(state.MAX_EVENTS, 65_536)

    def test_compaction(self):
        """R-12: a snapshot plus appended lines, compacted at 4 MB."""
        self.assertEqual(state.COMPACT_BYTES, 4 << 20)
        with mock.patch.object(state, "COMPACT_BYTES", 2000):
            made = self.filled()
            for n in range(1000):
                made.cursor("did:key:zRelay").save(f"a-{n}")
                self.assertLess(self.path.stat().st_size, 2100)
            made.cursor("did:key:zRelay").save("a-2")
            self.check(made)
            made.close()
            self.check(self.state())
            self.assertEqual([path.name for path in self.path.parent.iterdir()], ["state"])

    def test_in_memory(self):
        made = State()
        made.bind("did:key:zMe")
        made.cursor("did:key:zRelay").save("a-2")
        self.assertEqual(made.cursor("did:key:zRelay").load(), "a-2")

    def test_no_folder(self):
        with self.assertRaises(FileNotFoundError):
            State(self.path / "missing")

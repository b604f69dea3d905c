package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/store/sqlite/internal/dbfile"
	"github.com/agora-relay/agora/thread"
)

// sample returns a database file. Events 1 to 4 are a finished thread. Events 5 to 7 are a thread whose offer was
// withdrawn. Events 8 and 9 are a cancelled thread. Event 10 is a manifest. Event 11 is a REQUEST that timed out, and
// event 12 is the notice of the timeout. The threads have the numbers 1, 5, 8 and 11.
func sample(t testing.TB) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agora.db")
	s := openAt(t, path)
	client, agent, clock := key(1), key(2), key(3)
	must(t, completeThread(t.Context(), s, 1, func(relay.Receipt) {}))
	add := func(e relay.Entry) {
		t.Helper()
		_, err := s.Append(t.Context(), e)
		must(t, err)
	}
	add(signed(t, client, envelope.Draft{Thread: "two",
		Payload: envelope.Request{RequestID: "r", Intent: "translate"}}))
	add(signed(t, agent, envelope.Draft{Thread: "two", Payload: envelope.Offer{RequestID: "r"}}))
	add(signed(t, agent, envelope.Draft{Thread: "two",
		Payload: envelope.Failure{RequestID: "r", Code: "BUSY", Message: "no"}}))
	add(signed(t, client, envelope.Draft{Thread: "three",
		Payload: envelope.Request{RequestID: "r", Intent: "translate"}}))
	add(signed(t, client, envelope.Draft{Thread: "three", TTL: 25 * time.Hour,
		Payload: envelope.Cancel{RequestID: "r"}}))
	listed := signed(t, agent, envelope.Draft{Payload: envelope.Manifest{ID: "cap",
		Intents: []envelope.Intent{{ID: "translate"}}}})
	listed.Listing = &relay.Listing{ID: "cap", Intents: []string{"translate"}}
	add(listed)
	waiting := request(t, client, "")
	waiting.Received = waiting.Received.Add(-time.Hour)
	add(waiting)
	must(t, s.Expire(t.Context(), time.Now(), func(r thread.Thread, _ time.Time) []*envelope.Envelope {
		return []*envelope.Envelope{signed(t, clock,
			envelope.Draft{Recipient: client.DID(), Thread: r.ID, TTL: 25 * time.Hour,
				Payload: envelope.Failure{RequestID: r.RequestID, Code: envelope.AgentTimeout,
					Message: "time was up"}}).Envelope}
	}))
	must(t, s.Close())
	content, err := os.ReadFile(path)
	must(t, err)
	return content
}

// changeRecord returns SQL that changes the record of thread n in a database with this content.
func changeRecord(t *testing.T, content []byte, n int64, f func(*ledger.Thread)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agora.db")
	must(t, os.WriteFile(path, content, 0o600))
	row := rowsOf(t, path)[n]
	r, err := row.Decode()
	must(t, err)
	f(r)
	return fmt.Sprintf("UPDATE thread SET record = x'%x' WHERE n = %d", r.Encode(), n)
}

// rowsOf returns the threads of a database by their numbers. No store may have the database open.
func rowsOf(t testing.TB, path string) map[int64]ledger.Row {
	t.Helper()
	rows := map[int64]ledger.Row{}
	query(t, path, func(scan scanner) error {
		row, err := scanThread(scan)
		rows[row.Number] = row
		return err
	}, anyThread)
	return rows
}

func TestCheck(t *testing.T) {
	intact := sample(t)
	change := func(n int64, f func(*ledger.Thread)) string { return changeRecord(t, intact, n, f) }
	path := filepath.Join(t.TempDir(), "agora.db")
	for _, c := range []struct {
		name  string
		spoil string        // SQL, or the result of change
		later time.Duration // how long after now the check is made
		want  string        // part of a finding; empty: no finding is expected
	}{
		{"unchanged", "", 0, ""},
		{"checked long after", "", 100 * 24 * time.Hour, ""},
		{"an expired event without its body", "UPDATE event SET body = x''", 48 * time.Hour, ""},
		{"a forgotten event", "DELETE FROM event WHERE seq IN (1, 6)", time.Hour, ""},
		{"an event that was forgotten before the clock was set back", "DELETE FROM event WHERE seq IN (1, 6)",
			20 * time.Minute, ""},
		{"a thread removed when its events were",
			"DELETE FROM thread WHERE n = 1; DELETE FROM thread_role WHERE thread = 1", 48 * time.Hour, ""},
		{"a thread whose events were all removed", "DELETE FROM event WHERE thread = 1", 48 * time.Hour, ""},

		{"an event without its body", "UPDATE event SET body = x'' WHERE seq = 1", 0, "event 1 (\"msg_"},
		{"a changed body", "UPDATE event SET body = CAST(replace(CAST(body AS TEXT), 'translate', 'translete') AS " +
			"BLOB) WHERE seq = 5", 0,
			"signature is invalid"},
		{"a body that is not canonical", "UPDATE event SET body = CAST(' ' || body AS BLOB) WHERE seq = 5", 0,
			"not in canonical form"},
		{"a body in a wrapper object",
			"UPDATE event SET body = CAST('{\"envelope\":' || body || '}' AS BLOB) WHERE seq = 5", 0,
			"not in canonical form"},
		{"a body cut short", "UPDATE event SET body = substr(body, 1, 100) WHERE seq = 5", 0,
			"its body is not an envelope"},
		{"another sender", "UPDATE event SET sender = (SELECT id FROM party WHERE did = '" + string(key(3).DID()) +
			"') WHERE seq = 10", 0, "another sender than"},
		{"an unknown sender", "UPDATE event SET sender = 99 WHERE seq = 10", 0, "another sender than"},
		{"another id", "UPDATE event SET id = 'msg_x' WHERE seq = 10", 0, "another id than"},
		{"another recipient", "UPDATE event SET recipient = 0 WHERE seq = 1", 0, "another recipient than"},
		{"an unknown recipient", "UPDATE event SET recipient = 99 WHERE seq = 10", 0, "another recipient than"},
		{"another type", "UPDATE event SET type = 'CANCEL' WHERE seq = 5", 0, "another type than"},
		{"another time", "UPDATE event SET ts = ts + 1 WHERE seq = 5", 0, "another ts than"},
		{"a later expiry", "UPDATE event SET expires = expires + 1, forget = forget + 1 WHERE seq = 5", 0,
			"another expires than"},
		{"expiry at arrival", "UPDATE event SET expires = received WHERE seq = 5", 0, "another expires than"},
		{"forgotten before expiry", "UPDATE event SET forget = expires - 1 WHERE seq = 5", 0, "another forget than"},
		{"no thread", "UPDATE event SET thread = 0 WHERE seq = 12", 0, "another thread than"},
		{"a manifest in a thread", "UPDATE event SET thread = 1 WHERE seq = 10", 0, "missing in the index event_thread"},
		{"another thread", "UPDATE event SET thread = 8 WHERE seq = 5", 0, "the signed envelope says \"two\""},
		{"an event that is no step of its thread",
			"UPDATE thread SET record = (SELECT record FROM thread WHERE n = 8), id = 'three', client = 99 " +
				"WHERE n = 5", 0, "has no step for it"},

		{"a missing thread", "DELETE FROM thread WHERE n = 5", 0, "event 5 (\"msg_"},
		{"a missing event", "DELETE FROM event WHERE seq = 6", 0, "step by the OFFER"},
		{"a missing event that expires last", "DELETE FROM event WHERE seq = 9", time.Hour,
			"its last envelope expires at"},
		{"a missing notice", "DELETE FROM event WHERE seq = 12", time.Hour, "its last envelope expires at"},
		{"a record due too early", "UPDATE thread SET due = 1 WHERE n = 1", 0, "would be removed before"},
		{"another state", "UPDATE thread SET state = 1 WHERE n = 1", 0,
			"it is stored with the state \"PENDING\", but its record has the state \"COMPLETED\""},
		{"an unknown state", "UPDATE thread SET state = 5 WHERE n = 1", 0, "it is stored with the state \"\""},
		{"a keep too early", change(1, func(r *ledger.Thread) { r.Keep = r.Keep.Add(-1) }), 0,
			"its last envelope expires at"},
		{"a REQUEST that expires later",
			change(1, func(r *ledger.Thread) { r.RequestExpires = r.RequestExpires.Add(1) }), 0,
			"its REQUEST expires at"},
		{"no record", "UPDATE thread SET record = x'' WHERE n = 1", 0, "its record cannot be read"},
		{"a record of a later version", "UPDATE thread SET record = x'63' WHERE n = 1", 0, "has version 99"},
		{"another thread's record", "UPDATE thread SET record = (SELECT record FROM thread WHERE n = 5) WHERE n = 8",
			0, "which is not stored"},
		{"another agent", change(1, func(r *ledger.Thread) { r.Agent = key(3).DID() }), 0, "it should be {"},
		{"an offer put back", change(5, func(r *ledger.Thread) {
			s := r.Transitions[1]
			r.Offers = []thread.Offer{{Agent: s.By, ID: s.ID, At: s.At}}
		}), 0, "it should be {"},
		{"the last step missing", change(1, func(r *ledger.Thread) { r.Transitions = r.Transitions[:3] }), 0,
			"has no step for it"},
		{"a step in the middle missing",
			change(1, func(r *ledger.Thread) { r.Transitions = slices.Delete(r.Transitions, 2, 3) }), 0, "(step 3: "},
		{"a step to another state", change(1, func(r *ledger.Thread) { r.Transitions[3].To = thread.Failed }), 0,
			"it should be {"},
		{"a step at another time", change(1, func(r *ledger.Thread) { r.Transitions[0].At = time.Unix(0, 0) }), 0,
			"at another time than"},
		{"a step by another party", change(5, func(r *ledger.Thread) { r.Transitions[1].By = "x" }), 0,
			"step by the OFFER"},
		{"a first step that is no REQUEST",
			change(5, func(r *ledger.Thread) { r.Transitions[0].Type = envelope.TypeOffer }), 0,
			"does not begin with its client's REQUEST"},
		{"a step of another type", change(8, func(r *ledger.Thread) { r.Transitions[1].Type = envelope.TypeError }),
			0, "it should be {"},
		{"a timeout in a thread that had ended", change(8, func(r *ledger.Thread) {
			r.Transitions = append(r.Transitions,
				thread.Transition{To: thread.Failed, Type: thread.TypeTimeout, At: time.Now().Add(time.Hour)})
		}), 0, "no timeout was due"},

		{"a thread not found by its id", "DELETE FROM thread_role WHERE party = '' AND thread = 5", 0,
			"thread 5 (\"two\"): it is not found by its id and the party \"\""},
		{"a thread not found by its client", "DELETE FROM thread_role WHERE role = 2 AND thread = 5", 0,
			"not found by its id and the party \"" + string(key(1).DID())},
		{"a thread not found by its agent", "DELETE FROM thread_role WHERE role = 3", 0,
			"not found by its id and the party \"" + string(key(2).DID())},
		{"a thread not found by an agent that offered", "DELETE FROM thread_role WHERE role = 4 AND thread = 5", 0,
			"not found by its id and the party \"" + string(key(2).DID())},
		{"a thread found among the open threads", "UPDATE thread_role SET role = 1 WHERE role = 0 AND thread = 1", 0,
			"not found by its id and the party \"\""},
		{"a role in no thread", "INSERT INTO thread_role (id, party, role, thread) VALUES ('x', 'y', 4, 99)", 0,
			"thread 99 (\"x\"): it is found by its id, but it does not exist"},
		{"a role under another id", "UPDATE thread_role SET id = 'x' WHERE role = 4 AND thread = 5", 0,
			"thread 5 (\"x\"): it is found by its id, but it does not exist"},
		{"two threads with one id", "INSERT INTO thread_role (id, party, role, thread) SELECT 'two', party, role, " +
			"8 FROM thread_role WHERE thread = 5 AND role = 2", 0,
			"has several threads with this id"},

		{"a manifest without an event", "UPDATE manifest SET seq = 99", 0, "not a stored MANIFEST"},
		{"a manifest of another sender", "UPDATE manifest SET sender = sender + 1", 0, "listed with another sender"},
		{"a manifest that its intents do not find", "DELETE FROM manifest_intent", 0, "not found by its intents"},
		{"a manifest with other intents", "UPDATE manifest SET intents = '[]'", 0, "other intents"},

		{"an invalid last number", "INSERT INTO meta (name, value) VALUES ('last', '12x')", 0,
			"the last number given to an event is"},
		{"no epoch", "DELETE FROM meta", 0, "the epoch is"},
		{"an invalid epoch", "UPDATE meta SET value = '00000000'", 0, "the epoch is"},
		{"no schema", "PRAGMA user_version = 0", 0, "no relay wrote this database"},
		{"a newer schema", "PRAGMA user_version = 99", 0, "or a newer one"},
		{"an index dropped", "DROP INDEX thread_by_state", 0, "index thread_by_state is missing"},
		{"an event without a row in an index", "DELETE FROM event_ts WHERE seq = 3", 0, "missing in the index event_ts"},
		{"a row of an index without an event", "INSERT INTO event_forget VALUES (1, 99)", 0, "the index event_forget has a wrong row"},
		{"a row of an index with another value", "UPDATE event_unasked SET charged = charged + 1", 0, "event_unasked has a wrong row"},
		{"an event in both indexes of an inbox", "INSERT INTO event_asked SELECT recipient, seq FROM event_unasked", 0,
			"event_asked has a wrong row"},
		{"events that are not merged", "UPDATE meta SET value = '3' WHERE name = 'merged'; DELETE FROM event_sent WHERE seq > 3; " +
			"DELETE FROM event_thread WHERE seq > 4; DELETE FROM thread_role WHERE thread > 4; DELETE FROM thread_due WHERE thread > 4",
			0, ""},
		{"more merged than stored", "UPDATE meta SET value = '13' WHERE name = 'merged'", 0, "which is not a number given to an event"},
		{"an id used twice", "UPDATE meta SET value = '8' WHERE name = 'merged'; DELETE FROM event_sent WHERE seq > 8; " +
			"UPDATE event SET id = (SELECT id FROM event WHERE seq = 8) WHERE seq = 9", 0, "its sender has used its id before"},
		{"an id used twice by events that are not merged", "UPDATE meta SET value = '7' WHERE name = 'merged'; " +
			"DELETE FROM event_sent WHERE seq > 7; UPDATE event SET id = (SELECT id FROM event WHERE seq = 8) WHERE seq = 9", 0,
			"its sender has used its id before"},
		{"a thread that nothing wakes", "DELETE FROM thread_due WHERE thread = 5", 0, "thread 5 (\"two\"): nothing would end"},
		{"a thread that wakes too late", "UPDATE thread_due SET due = due + 1 WHERE thread = 5", 0, "thread 5 (\"two\"): nothing would end"},
		{"a thread that wakes early", "UPDATE thread_due SET due = due - 1", 0, ""},
		{"an extra table", "CREATE TABLE mine (x)", 0, "table \"mine\" does not belong to a relay"},
		{"a table dropped", "DROP TABLE manifest", 0, "table manifest is missing"},
		{"an index with the pages of another",
			"UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema WHERE name = 'manifest_by_expires') " +
				"WHERE name = 'thread_by_state'", 0, "database: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			must(t, os.WriteFile(path, intact, 0o600))
			if c.spoil != "" {
				spoil(t, path, c.spoil)
			}
			found, r := findings(t, path, time.Now().Add(c.later))
			var text strings.Builder
			for _, f := range found {
				text.WriteString(f.String() + "\n")
			}
			if (c.want == "") != (len(found) == 0) || !strings.Contains(text.String(), c.want) {
				t.Errorf("want %q, found (%+v):\n%s", c.want, r, text.String())
			}
		})
	}
}

func TestCheckCounts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	must(t, os.WriteFile(path, sample(t), 0o600))
	spoil(t, path, "UPDATE event SET body = x'' WHERE seq IN (2, 10)")
	_, r := findings(t, path, time.Now().Add(48*time.Hour))
	if want := (Report{Events: 12, Cut: 2, Threads: 4, Manifests: 1, Seq: 12}); r != want {
		t.Errorf("counted %+v, want %+v", r, want)
	}
}

// flip returns content with the bits of bit flipped in the byte at.
func flip(content []byte, at int, bit byte) []byte {
	spoiled := slices.Clone(content)
	spoiled[at] ^= bit
	return spoiled
}

func TestCheckFindsDamageOfTheFile(t *testing.T) {
	intact := sample(t)
	path := filepath.Join(t.TempDir(), "agora.db")
	const page = 4096
	for name, content := range map[string][]byte{
		"no database":                  []byte(strings.Repeat("not a database\n", 1000)),
		"the end missing":              intact[:len(intact)-page],
		"half a page":                  intact[:len(intact)-page/2],
		"a flipped page in the middle": flip(intact, len(intact)/page/2*page, 0x01),
		"the first page gone":          slices.Concat(make([]byte, page), intact[page:]),
	} {
		t.Run(name, func(t *testing.T) {
			must(t, os.WriteFile(path, content, 0o600))
			if found, _ := findings(t, path, time.Now()); len(found) == 0 {
				t.Error("no finding")
			}
		})
	}
}

// TestCheckFindsFlippedBits checks that a flipped bit is found, unless it changes nothing about envelopes, order or
// threads.
func TestCheckFindsFlippedBits(t *testing.T) {
	intact := sample(t)
	path := filepath.Join(t.TempDir(), "agora.db")
	must(t, os.WriteFile(path, intact, 0o600))
	want := contents(t, path)
	flips, noticed := 0, 0
	try := func(at int, bit byte) {
		flips++
		must(t, os.WriteFile(path, flip(intact, at, bit), 0o600))
		if found, _ := findings(t, path, time.Now()); len(found) > 0 {
			noticed++
			return
		}
		got := contents(t, path)
		for i := range max(len(got), len(want)) {
			if i >= len(got) || i >= len(want) || got[i] != want[i] {
				t.Fatalf("flipping bit %#x of byte %d was not noticed; from line %d on it changes\n%q\ninto\n%q", bit,
					at, i, want[i:], got[i:])
			}
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	most := 300
	if racing.Detector {
		most = 20
	}
	for flips < most {
		if at := random.IntN(len(intact)); intact[at] != 0 { // most zeros are free space
			try(at, 1<<random.IntN(8))
		}
	}
	// Among these bytes is the number of the manifest's event. The flip turns 10 into 8, which then comes after 9.
	for at, b := range intact {
		if b == 10 {
			try(at, 2)
		}
	}
	if noticed < flips/2 {
		t.Errorf("only %d of %d flipped bits were noticed", noticed, flips)
	}
	t.Logf("%d of %d flipped bits were noticed", noticed, flips)
}

// contents returns everything in a database that readers see, except when threads timed out. That time depends on the
// relay's settings, which are not in the database.
func contents(t testing.TB, path string) (lines []string) {
	t.Helper()
	add := func(text string) {
		query(t, path, func(scan scanner) error {
			var line string
			err := scan(&line)
			lines = append(lines, line)
			return err
		}, text)
	}
	rows := rowsOf(t, path)
	for _, n := range slices.Sorted(maps.Keys(rows)) {
		r, err := rows[n].Decode()
		must(t, err)
		if r.TimedOut() {
			r.Transitions[len(r.Transitions)-1].At = time.Time{}
		}
		text, err := json.Marshal(r)
		must(t, err)
		lines = append(lines, string(text))
	}
	add("SELECT concat_ws('|', seq, sender, id, recipient, type, thread, ts, body) FROM event ORDER BY seq")
	add("SELECT concat_ws('|', id, did) FROM party ORDER BY id")
	return lines
}

// TestCheckWhileAppending checks that Database reads one moment of a database in use, and that its context ends it.
func TestCheckWhileAppending(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agora.db")
	s := openAt(t, path)
	for range 20 {
		must(t, completeThread(t.Context(), s, 1, func(relay.Receipt) {}))
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if err := completeThread(ctx, s, 3, func(relay.Receipt) {}); err != nil && ctx.Err() == nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	for range 10 {
		found, r := findings(t, path, time.Now())
		if len(found) > 0 || r.Events < 80 || r.Events != int64(r.Seq) {
			t.Errorf("%+v: %v", r, found)
		}
	}
	stop()
	must(t, <-ended)
	if _, err := Database(ctx, path, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	if _, err := Database(t.Context(), filepath.Join(t.TempDir(), "none.db"), Options{}); err == nil {
		t.Error("no error for a missing file")
	}
}

// TestCheckComparesTheMark checks a database whose mark shows loss, is of another database, or is damaged.
func TestCheckComparesTheMark(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "agora.db")
	write := func(n int) (database, mark []byte) {
		s := openAt(t, path)
		for n := range n {
			_, err := s.Append(t.Context(), request(t, key(n+1), ""))
			must(t, err)
		}
		must(t, s.Close())
		database, err := os.ReadFile(path)
		must(t, err)
		mark, err = os.ReadFile(path + ".mark")
		must(t, err)
		return database, mark
	}
	older, _ := write(3)
	newer, marked := write(2)
	for name, c := range map[string]struct {
		database, mark []byte
		want           string
	}{
		"unchanged":           {newer, marked, ""},
		"no mark":             {newer, nil, ""},
		"an older copy":       {older, marked, "events 4 to 5 were acknowledged"},
		"of another database": {newer, []byte(dbfile.Mark{Epoch: 7, Seq: 1}.String()), "belongs to another database"},
		"damaged":             {newer, marked[1:], "damaged"},
	} {
		must(t, os.WriteFile(path, c.database, 0o600))
		must(t, os.RemoveAll(path+".mark"))
		if c.mark != nil {
			must(t, os.WriteFile(path+".mark", c.mark, 0o600))
		}
		var found []string
		_, err := Database(t.Context(), path, Options{Found: func(f Finding) { found = append(found, f.String()) }})
		must(t, err)
		if c.want == "" && len(found) > 0 || c.want != "" && (len(found) != 1 || !strings.Contains(found[0], c.want)) {
			t.Errorf("%s: found %q, want %q", name, found, c.want)
		}
	}
}

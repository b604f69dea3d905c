package hub_test

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/gateway/hub"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
)

// texts returns the texts of a history.
func (f *fixture) texts(key, query string) (texts []string) {
	f.t.Helper()
	for _, row := range f.history(key, query) {
		texts = append(texts, row["envelope"].(object)["original_text"].(string))
	}
	return texts
}

// H-20: since works by number and by time.
func TestSince(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	alice, bob := f.register("alice@b"), f.register("bob@b")
	for _, text := range []string{"1", "2", "3"} {
		f.send(alice, "alice@b", "bob@b", text)
	}
	f.send(bob, "bob@b", "alice@b", "4")
	rows := f.history(alice, "")
	id := func(n int) string { return fmt.Sprintf("%.0f", rows[n-1]["id"]) }
	at := func(n int, later time.Duration, zone *time.Location) string {
		ts, err := time.Parse(time.RFC3339, rows[n-1]["timestamp"].(string))
		if err != nil {
			t.Fatal(err)
		}
		return url.QueryEscape(ts.Add(later).In(zone).Format(time.RFC3339Nano))
	}
	east := time.FixedZone("", 5*3600+1800)
	for query, want := range map[string]string{
		"": "1234", "?since=0": "1234", "?since=" + id(1): "234", "?since=" + id(4): "", "?since=000" + id(2): "34",
		"?since=99999999999999999999999999": "",

		"?since=" + at(1, 0, time.UTC): "1234", "?since=" + at(2, 0, time.UTC): "234", "?since=" + at(2, 0, east): "234",
		"?since=" + at(2, 1, time.UTC): "34", "?since=" + at(2, time.Millisecond, time.UTC): "34",
		"?since=" + at(4, 0, time.UTC): "4", "?since=" + at(4, 1, time.UTC): "",
		"?since=" + at(2, 0, time.UTC) + "&limit=2": "23",
		"?since=" + id(1) + "&limit=2":              "23",
		"?since=1950-01-01T00:00:00Z":               "1234",
		"?since=0000-01-01T00:00:00Z":               "1234",
		"?since=9999-12-31T23:59:59Z":               "",
		"?limit=1":                                  "1", "?limit=4": "1234",
		"?limit=10000": "1234", "?other=1&since=" + id(3): "4",
	} {
		if got := strings.Join(f.texts(alice, query), ""); got != want {
			t.Errorf("GET /agent/messages%s: %q, want %q", query, got, want)
		}
	}
	for query := range strings.FieldsSeq(`?since= ?since=-1 ?since=%2B1 ?since=1.0 ?since=1e3 ?since=0x1 ?since=x ?since=２
		?since=%201 ?since=1%20 ?since=2026-03-20 ?since=2026-03-20T10:00:00 ?since=2026-03-20T10:00:00+01:00
		?since=2026-03-20T25:00:00Z ?since=2026-02-30T10:00:00Z ?since=1&since=1 ?since=%zz ?limit=1;since=1
		?limit= ?limit=0 ?limit=10001 ?limit=-1 ?limit=x ?limit=1.5 ?limit=99999999999999999999 ?limit=1&limit=1`) {
		f.want(f.get("/agent/messages"+query, alice), 400, "ERR_VALIDATION")
	}
	// has_more is there only if the limit cuts the list.
	for query, want := range map[string]bool{"?limit=3": true, "?limit=4": false, "?limit=5": false, "": false} {
		a := f.get("/agent/messages"+query, alice)
		if a.has(`"has_more":true}`) != want || a.has("has_more") != want {
			t.Errorf("GET /agent/messages%s: %v", query, a)
		}
	}
}

// TestSinceConfirms: since=N confirms what the agent has received with ids up to N; a time confirms nothing.
func TestSinceConfirms(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	alice, bob := f.register("alice@b"), f.register("bob@b")
	for _, text := range []string{"1", "2", "3"} {
		f.send(alice, "alice@b", "bob@b", text)
	}
	f.send(bob, "bob@b", "alice@b", "4")
	rows := f.history(bob, "?limit=2") // hands out the messages 1 and 2
	check := func(want string) {
		t.Helper()
		var got []string
		for _, row := range f.history(alice, "?limit=3") {
			got = append(got, row["state"].(string))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("the states are %q, want %q", got, want)
		}
	}
	check("sent sent queued")
	f.history(bob, "?since="+url.QueryEscape(rows[0]["timestamp"].(string))+"&limit=2")
	check("sent sent queued")
	f.history(bob, fmt.Sprintf("?since=%.0f&limit=1", rows[0]["id"]))
	check("delivered sent queued")
	f.history(bob, "?since=99999&limit=1") // nothing has this id, and message 3 was not received
	check("delivered delivered queued")
}

// TestHistoryRows checks the form of the rows.
func TestHistoryRows(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	alice := f.register("alice@b")
	bob := f.register("bob@b")
	hook := newFixedHook(t)
	hook.reply = `{"status":"ok","error_code":"NONE","detail":"\u0000 <&>","secret":"x"}`
	f.register("hook@b", object{"endpoint": hook.URL})
	f.send(alice, "alice@b", "hook@b", "by webhook")
	i := f.open(bob, nil)
	i.frame()
	f.send(alice, "alice@b", "bob@b", "by stream")
	i.message()
	i.close()
	f.register("carol@b")
	f.send(alice, "alice@b", "carol@b", "<not> & yet\u2028")
	eventually(t, "the stream is closed", func() bool {
		return f.get("/health", "").data("inbox_connections") == 0.
	})
	f.send(alice, "alice@b", "bob@b", "by poll")
	last := f.history(bob, "")[1]
	f.want(f.post("/agent/ack", bob, object{"trace_ids": []any{last["trace_id"]}, "response": object{
		"status": "error", "error_code": "BUSY", "detail": "later"}}), 200, "")
	body := string(f.get("/agent/messages", alice).Body)
	const ts, trace = `"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"`, `"trace_id":"[0-9a-f-]{36}"`
	row := func(id int, receiver, text, rest string) string {
		return fmt.Sprintf(`\{"id":%d,%s,"sender_id":"alice@b","receiver_id":"%s","envelope":\{"chorus_version":"0.4",`+
			`"original_text":"%s","sender_culture":"en","sender_id":"alice@b"\},%s\}`, id, trace, receiver, text, rest)
	}
	form := `^\{"success":true,"data":\[` + strings.Join([]string{
		row(1, "hook@b", "by webhook", `"delivered_via":"webhook","timestamp":`+ts+`,"state":"delivered",`+
			`"receiver_response":\{"status":"ok","error_code":"NONE","detail":"\\u0000 <&>"\},"acknowledged_at":`+ts),
		row(2, "bob@b", "by stream", `"delivered_via":"sse","timestamp":`+ts+`,"state":"sent"`),
		row(3, "carol@b", "<not> & yet\u2028", `"delivered_via":"queued","timestamp":`+ts+`,"state":"queued"`),
		row(4, "bob@b", "by poll", `"delivered_via":"poll","timestamp":`+ts+`,"state":"failed","error_code":"BUSY",`+
			`"detail":"later","receiver_response":\{"status":"error","error_code":"BUSY","detail":"later"\},`+
			`"acknowledged_at":`+ts),
	}, ",") + `\],"metadata":\{"timestamp":` + ts + `\}\}\n$`
	if !regexp.MustCompile(form).MatchString(body) {
		t.Errorf("the history is\n%s, want\n%s", body, form)
	}
}

// H-21: id and timestamp strictly grow, through restarts and clock steps.
func TestIDsAndTimesGrow(t *testing.T) {
	t.Parallel()
	f := startLocal(t, func(f *fixture) { f.options.Retention = time.Hour })
	key := f.register("a@b")
	var rows []object
	step := func(text string) {
		t.Helper()
		post := func(int) call { return call{"POST", "/messages", key, messageTo("a@b", "a@b", text), nil} }
		for _, a := range f.inParallel(4, post) {
			f.want(a, 202, "")
		}
		rows = append(rows, f.history(key, "")...)
	}
	step("now")
	f.wait(-30 * time.Minute)
	step("the clock is set back")
	f.Restart()
	step("after a restart")
	f.wait(-24 * time.Hour)
	f.Restart()
	step("set back and restarted")
	f.wait(100 * time.Hour)
	f.hub.SweepNow(t.Context())
	f.wait(-100 * time.Hour)
	step("old messages were removed, and the clock is set back")
	f.Restart()
	step("after another restart")
	f.wait(200 * time.Hour)
	step("the clock is set forward")

	compare := func(a, b object) int {
		if a["id"] != b["id"] {
			return int(a["id"].(float64) - b["id"].(float64))
		}
		return 0
	}
	slices.SortFunc(rows, compare)
	rows = slices.CompactFunc(rows, func(a, b object) bool { return compare(a, b) == 0 })
	if len(rows) != 28 {
		t.Fatalf("%d messages have different ids, want 28", len(rows))
	}
	order := map[string]int{}
	for i, row := range rows {
		text := row["envelope"].(object)["original_text"].(string)
		if _, seen := order[text]; !seen {
			order[text] = i / 4
		}
		if order[text] != i/4 {
			t.Errorf("message %v %q is not in order", row["id"], text)
		}
		if i > 0 && rows[i-1]["timestamp"].(string) >= row["timestamp"].(string) {
			t.Errorf("message %v has the timestamp %v, the one before has %v", row["id"], row["timestamp"],
				rows[i-1]["timestamp"])
		}
	}
}

// H-22: an agent sees only its own rows.
func TestOwnRowsOnly(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	alice, bob, carol := f.register("alice@b"), f.register("bob@b"), f.register("carol@b")
	f.send(alice, "alice@b", "bob@b", "alice to bob")
	f.send(bob, "bob@b", "alice@b", "bob to alice")
	f.send(carol, "carol@b", "alice@b", "carol to alice")
	f.send(carol, "carol@b", "carol@b", "carol to carol")
	f.want(f.post("/messages", f.Operator, messageTo("bob@b", "alice@b", "operator as alice to bob")), 202, "")
	for key, want := range map[string][]string{
		alice: {"alice to bob", "bob to alice", "carol to alice", "operator as alice to bob"},
		bob:   {"alice to bob", "bob to alice", "operator as alice to bob"},
		carol: {"carol to alice", "carol to carol"},
	} {
		for _, query := range []string{"?since=0", "?since=2000-01-01T00:00:00Z", "", "?limit=10000"} {
			if got := f.texts(key, query); !slices.Equal(got, want) {
				t.Errorf("the history%s is %q, want %q", query, got, want)
			}
		}
	}
	// Streams have only what was sent to their agents.
	for key, want := range map[string][]string{alice: {"bob to alice", "carol to alice"}, carol: {"carol to carol"}} {
		i := f.open(key, map[string]string{"Last-Event-ID": "0"})
		f.send(alice, "alice@b", "alice@b", "the end for alice")
		f.send(carol, "carol@b", "carol@b", "the end for carol")
		got := i.texts(len(want))
		if next := i.message().text(); !slices.Equal(got, want) || !strings.HasPrefix(next, "the end") {
			t.Errorf("the stream has %q and %q, want %q", got, next, want)
		}
	}
	f.want(f.get("/agent/messages", ""), 401, "ERR_UNAUTHORIZED")
	f.want(f.get("/agent/messages", f.Operator), 403, "ERR_FORBIDDEN")
}

// stored returns how many rows a table has.
func (f *fixture) stored(table string) int64 {
	f.t.Helper()
	var row []int64
	if err := f.Relay.View(f.t.Context(), relay.Peer{Local: true}, func(q relay.Querier) (err error) {
		row, err = integers(q, 1, "SELECT COUNT(*) FROM "+table)
		return err
	}); err != nil {
		f.t.Fatal(err)
	}
	return row[0]
}

// TestRetention: messages are kept as long as --hub-retention says.
func TestRetention(t *testing.T) {
	t.Parallel()
	f := startLocal(t, func(f *fixture) { f.options = hub.Options{Retention: time.Hour} })
	alice, bob := f.register("alice@b"), f.register("bob@b")
	hook := newFixedHook(t)
	hook.status = 500
	f.register("hook@b", object{"endpoint": hook.URL})
	for _, to := range []string{"alice@b", "bob@b", "hook@b"} {
		f.send(alice, "alice@b", to, "old")
	}
	f.history(alice, "")
	f.wait(time.Hour - moment)
	f.hub.SweepNow(t.Context())
	if n := len(f.history(alice, "")); n != 3 {
		t.Errorf("%d messages are left before their time is over, want 3", n)
	}
	f.send(alice, "alice@b", "bob@b", "new")
	f.wait(2 * moment)
	f.hub.SweepNow(t.Context())
	for name, key := range map[string]string{"alice": alice, "bob": bob} {
		if texts := f.texts(key, ""); !slices.Equal(texts, []string{"new"}) {
			t.Errorf("%s has %q", name, texts)
		}
	}
	for table, want := range map[string]int64{"hub_message": 1, "hub_delivery": 1, "hub_entry": 2, "gate_outbox": 0} {
		if n := f.stored(table); n != want {
			t.Errorf("%s has %d rows, want %d", table, n, want)
		}
	}
	health := f.get("/health", "")
	if health.data("messages_stored") != 1. || health.data("messages_queued") != 0. {
		t.Errorf("the health is %v", health)
	}
}

// wantHistory checks how many messages an agent's history has, and the id of the first one.
func (f *fixture) wantHistory(name, key string, count int64, first float64) {
	f.t.Helper()
	rows := f.history(key, "?limit=1")
	entries := f.stored("hub_entry e JOIN hub_agent a ON a.n = e.agent WHERE a.address = '" + name + "'")
	if entries != count || rows[0]["id"] != first {
		f.t.Errorf("%s has %d messages, and the first is %v; want %d and %v", name, entries, rows[0]["id"], count, first)
	}
}

// TestHistoryCount: each agent keeps the newest 10,000 messages.
func TestHistoryCount(t *testing.T) {
	racing.Skip(t, "10,000 messages are too many for the race detector")
	t.Parallel()
	f := startLocal(t)
	alice, bob := f.register("alice@b"), f.register("bob@b")
	f.register("carol@b")
	f.store("alice@b", "bob@b", 9_999, 100, 1)
	f.send(alice, "alice@b", "carol@b", "the 10,000th of alice")
	f.wantHistory("alice@b", alice, 10_000, 1)
	if rows := f.history(alice, ""); len(rows) != 10_000 || rows[9_999]["id"] != 10_000. {
		t.Errorf("without limit the history has %d messages", len(rows))
	}
	f.send(alice, "alice@b", "carol@b", "the 10,001st of alice")
	f.wantHistory("alice@b", alice, 10_000, 2)
	f.wantHistory("bob@b", bob, 9_999, 1) // still has what alice has no longer
	f.send(bob, "bob@b", "alice@b", "the 10,000th of bob")
	f.send(bob, "bob@b", "alice@b", "the 10,001st of bob")
	f.wantHistory("bob@b", bob, 10_000, 2)
	f.wantHistory("alice@b", alice, 10_000, 4)
	if n := f.stored("hub_message"); n != 10_002 { // the first one is in no history
		t.Errorf("%d messages are stored, want 10,002", n)
	}
}

// TestHistoryBytes: each agent keeps the newest 64 MiB of messages.
func TestHistoryBytes(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	alice, bob := f.register("alice@b"), f.register("bob@b")
	f.register("carol@b")
	const large = 1 << 20
	f.store("alice@b", "bob@b", 63, large, 1)
	f.store("alice@b", "bob@b", 1, large-200, 1)
	send := func(size int) {
		t.Helper()
		body := `{"receiver_id":"carol@b","envelope":` + envelopeOf("alice@b", size) + `}`
		f.want(f.post("/messages", alice, body), 202, "")
	}
	send(200)
	f.wantHistory("alice@b", alice, 65, 1)
	send(100)
	f.wantHistory("alice@b", alice, 65, 2)
	f.wantHistory("bob@b", bob, 64, 1)
	// What is queued for the agent stays, although it is older: the agent does not have it yet.
	f.queue("alice@b", "alice@b", 1, large)
	f.store("alice@b", "bob@b", 63, large, 1)
	for range 3 { // each message removes at most 50 others
		send(100)
	}
	if texts := f.history(alice, "?limit=1"); texts[0]["receiver_id"] != "alice@b" {
		t.Errorf("the history begins with %v", texts)
	}
}

// H-21: the newest message is removed after --hub-retention like any other, and the next timestamp is still later.
func TestNewestMessageExpires(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	key := f.register("a@b")
	f.send(key, "a@b", "a@b", "old")
	old := f.history(key, "")[0]["timestamp"].(string)
	f.Ahead.Store(int64(721 * time.Hour))
	f.Restart() // removes what has expired
	eventually(t, "the message is removed", func() bool { return len(f.history(key, "")) == 0 })
	f.Ahead.Store(int64(-time.Hour))
	f.Restart()
	f.send(key, "a@b", "a@b", "new")
	if now := f.history(key, "")[0]["timestamp"].(string); now <= old {
		t.Errorf("the timestamp is %s after %s", now, old)
	}
}

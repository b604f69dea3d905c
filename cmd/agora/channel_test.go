package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// fakeGateway answers the requests of the channel commands and the jobs commands with fixed texts, and keeps the
// requests.
type fakeGateway struct {
	*httptest.Server
	answers map[string]string // by method and path after /channel; a number before the text is the status
	// during runs while a request is in progress, whose context ends when its client leaves; nil: nothing.
	during func(context.Context)

	mu    sync.Mutex
	asked []string // method, path, body
	auth  string   // the Authorization of the last request
}

func newFakeGateway(t *testing.T, answers map[string]string) *fakeGateway {
	f := &fakeGateway{answers: answers}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		path := strings.TrimPrefix(r.URL.Path, "/channel")
		f.mu.Lock()
		defer f.mu.Unlock()
		f.asked = append(f.asked, strings.TrimSpace(r.Method+" "+path+" "+string(body)))
		f.auth = r.Header.Get("Authorization")
		if f.during != nil {
			f.during(r.Context())
		}
		route := r.Method + " " + path
		if cursor := r.URL.Query().Get("cursor"); cursor != "" {
			route += " after " + cursor
		}
		text, known := f.answers[route]
		if !known {
			text = `404 {"ok":false,"error":"NOT_FOUND","message":"nothing here"}`
		}
		status := 200
		if _, err := fmt.Sscanf(text, "%d ", &status); err == nil {
			_, text, _ = strings.Cut(text, " ")
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(f.Close)
	return f
}

// runChannel runs agora channel with arguments in one text, in which words are separated by |.
func runChannel(t *testing.T, stdin, args string) (stdout, stderr string, code int) {
	t.Helper()
	var out, problems bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	env := cli.Environment{Ctx: ctx, Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &problems}
	code = run(env, append([]string{"channel"}, strings.Split(args, "|")...))
	return out.String(), problems.String(), code
}

// newKeyFile writes a key of this kind to a new file.
func newKeyFile(t *testing.T, kind string, mode os.FileMode) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), kind+".key")
	if err := os.WriteFile(name, []byte(kind+strings.Repeat("A", 43)+"\n"), mode); err != nil {
		t.Fatal(err)
	}
	return name
}

// answersOfChannel are the answers of a gateway with one channel.
func answersOfChannel() map[string]string {
	const c = "/channels/ch_1"
	return map[string]string{
		"POST /channels":                 `201 {"ok":true,"channel":{"id":"ch_1","name":"ops"},"key":"ck_new"}`,
		"POST " + c + "/members":         `201 {"ok":true,"member":{"name":"eve"},"key":"cm_new"}`,
		"GET " + c + "/members":          `{"ok":true,"members":[{"name":"alice"}]}`,
		"POST " + c + "/messages":        `201 {"ok":true,"deliveries":2,"event":{"seq":12,"id":"msg_1"}}`,
		"DELETE " + c + "/members/alice": `{"ok":true}`,
		"GET " + c + "/connections":      `{"ok":true,"connections":[{"name":"bot","host":"a.example","status":"active","queued":1,"dead":2,"mcp":"object"}]}`,
		"POST " + c + "/connections":     `409 {"ok":false,"error":"CONFLICT","message":"the name is taken"}`,
		"PUT " + c + "/connections/bot":  `{"ok":true,"connection":{"name":"bot","host":"b.example","status":"active","queued":0,"dead":0,"mcp":"array"}}`,
		"GET " + c + "/events": `{"ok":true,"cursor":7,"events":[{"seq":1,"ts":"2026-03-20T10:00:00.000Z","sender":"alice","kind":"member","type":"message","content":"two\nlines"},` +
			`{"seq":2,"sender":"bot","kind":"agent","type":"status","status":"thinking"},{"seq":3,"sender":"bot","kind":"agent","type":"error","message":"no wind","code":"tool_error"},` +
			`{"seq":4,"sender":"bot","kind":"agent","type":"tool_call","name":"web","args":{}},{"seq":5,"sender":"bot","kind":"agent","type":"tool_result","content":"3"},` +
			`{"seq":6,"sender":"bot","kind":"agent","type":"tool_result","content":{"x":1}},{"seq":7,"sender":"bot","kind":"agent","type":"dance","x":1}]}`,
	}
}

// channelCommand is a command of agora channel, and what it must do. Its words are separated by |.
type channelCommand struct {
	args, stdin    string
	code           int
	stdout, stderr string // what is in the output; empty: nothing is printed
}

// checkCommands runs commands.
func checkCommands(t *testing.T, commands []channelCommand) {
	t.Helper()
	for _, c := range commands {
		stdout, stderr, code := runChannel(t, c.stdin, c.args)
		if code != c.code || !strings.Contains(stdout, c.stdout) || (c.stdout == "") != (stdout == "") ||
			!strings.Contains(stderr, c.stderr) || (c.stderr == "") != (stderr == "") {
			t.Errorf("agora channel %s ends with %d and prints %q and %q", c.args, code, stdout, stderr)
		}
	}
}

// wasAsked checks that a gateway got these requests.
func (f *fakeGateway) wasAsked(t *testing.T, requests ...string) {
	t.Helper()
	for _, want := range requests {
		if asked := strings.Join(f.asked, "\n"); !strings.Contains(asked, want) {
			t.Errorf("%s was not asked for in\n%s", want, asked)
		}
	}
}

// TestChannelOwner runs the commands of owners and operators.
func TestChannelOwner(t *testing.T) {
	f := newFakeGateway(t, answersOfChannel())
	owner, member, operator := newKeyFile(t, "ck_", 0o600), newKeyFile(t, "cm_", 0o600), newKeyFile(t, "op_", 0o600)
	t.Setenv("AGORA_CHANNEL_URL", f.URL+"/channel/channels/ch_1")
	saved := filepath.Join(t.TempDir(), "saved.key")
	checkCommands(t, []channelCommand{
		{"new|ops|--url|" + f.URL + "/channel|--operator-key|" + operator, "", 0, `{"url":"` + f.URL + `/channel/channels/ch_1","name":"ops","key":"ck_new"}` + "\n", ""},
		{"new|ops|--url|" + f.URL + "/channel|--operator-key|" + owner, "", 1, "", "this needs the operator's key (op_…)"},
		{"new|ops|--url|" + f.URL + "/channel|--operator-key|" + operator + "|--save|" + operator, "", 1, "", "exists and is not overwritten"},
		{"new|ops|--url|" + f.URL + "/channel|--operator-key|" + operator + "|--save|missing/x", "", 1, "", "--save"},
		{"member|eve|--channel-key|" + owner + "|--save|" + saved, "", 0, `{"name":"eve","url":"` + f.URL + `/channel/channels/ch_1","keyFile":"` + saved + `"}`, ""},
		{"member|eve|--channel-key|" + member, "", 1, "", "this needs the channel's key (ck_…), which agora channel new prints; " + member + " has a member's key"},
		{"roster|--channel-key|" + owner, "", 0, "alice                 member\nbot                   agent   active, at a.example, 1 waiting, 2 not delivered, mcp object\n", ""},
		{"roster|--json|--channel-key|" + operator, "", 0, `{"kind":"member","name":"alice"}` + "\n" + `{"kind":"agent","name":"bot","host":"a.example",`, ""},
		{"connect|bot|https://b.example/x|--channel-key|" + owner, "", 1, "", "the name is taken; if bot is this agent, --replace gives it"},
		{"connect|bot|-|--replace|--mcp|array|--channel-key|" + owner, " https://b.example/y \n", 0, `{"name":"bot","host":"b.example","status":"active","queued":0,"dead":0,"mcp":"array"}`, ""},
		{"connect|bot|-|--mcp|list|--channel-key|" + owner, "", 2, "", "want object, array or none"},
		{"remove|alice|--channel-key|" + owner, "", 0, "", "removed the member alice"},
		{"remove|bot|--channel-key|" + owner, "", 1, "", "404"},
		{"remove|nobody|--channel-key|" + owner, "", 1, "", "no member and no agent with this name"},
	})
	if text, err := os.ReadFile(saved); err != nil || string(text) != "cm_new\n" {
		t.Errorf("saved %q, %v", text, err)
	}
	f.wasAsked(t, `PUT /channels/ch_1/connections/bot {"mcp":"array","url":"https://b.example/y"}`, `DELETE /channels/ch_1/members/alice`)
}

// TestChannelMember runs the commands of members.
func TestChannelMember(t *testing.T) {
	f := newFakeGateway(t, answersOfChannel())
	owner, member := newKeyFile(t, "ck_", 0o600), newKeyFile(t, "cm_", 0o600)
	t.Setenv("AGORA_CHANNEL_URL", f.URL+"/channel/channels/ch_1")
	checkCommands(t, []channelCommand{
		{"say|hi|--channel-key|" + member, "", 0, `{"seq":12,"id":"msg_1","deliveries":2}` + "\n", ""},
		{"say|-|--channel-key|" + member, "from stdin\n", 0, `"seq":12`, ""},
		{"say|-|--channel-key|" + member, "\n", 1, "", "the message is empty"},
		{"say|-|--channel-key|" + member, "\xff", 1, "", "not UTF-8"},
		{"say|hi|--channel-key|" + owner, "", 1, "", "this needs a member's key (cm_…)"},
		{"say|hi|--channel-key|" + newKeyFile(t, "cm_", 0o644), "", 1, "", "chmod 600"},
		{"say|hi|--channel-key|" + newKeyFile(t, "sk_", 0o600), "", 1, "", "does not contain a key: want ck_, cm_ or op_ and 43 characters"},
		{"say|hi|--channel-key|nothing", "", 1, "", "nothing"},
		{"read|--json|--limit|1|--channel-key|" + member, "", 0, `{"seq":1,"ts":"2026-03-20T10:00:00.000Z","sender":"alice","kind":"member","type":"message","content":"two\nlines"}` + "\n", ""},
		{"read|--timeout|1s|--channel-key|" + member, "", 2, "", "--timeout needs --follow"},
		{"read|--after|7|--limit|1|--follow|--timeout|200ms|--channel-key|" + member, "", 1, "", "0 of 1 events came within 200ms"},
		{"read|--after=-1|--channel-key|" + member, "", 2, "", "must not be negative"},
	})
	f.wasAsked(t, `POST /channels/ch_1/messages {"content":"from stdin"}`)
	stdout, _, code := runChannel(t, "", "read|--limit|7|--channel-key|"+member)
	when := fmt.Sprintf("%-23s", time.Date(2026, 3, 20, 10, 0, 0, 0, time.UTC).Local().Format(time.DateTime+" MST"))
	none := fmt.Sprintf("%-23s", "-")
	want := "   1  " + when + "  alice: two\n      lines\n   2  " + none + "  bot (agent) is thinking\n   3  " + none + "  bot (agent) reports an error: no wind (tool_error)\n" +
		"   4  " + none + "  bot (agent) calls the tool web\n   5  " + none + "  bot (agent) got a result: 3\n"
	if code != cli.ExitOK || !strings.HasPrefix(stdout, want) || !strings.Contains(stdout, `sent {"seq":7,`) {
		t.Errorf("read prints\n%s\nwant\n%s", stdout, want)
	}
}

// deliveriesOf returns the answers to polls after 0 to 4 events: a delivery that eve has forged, another REQUEST of the
// gateway gate, a delivery that nobody can answer any more, and a delivery. With --count a poll asks for one event.
func deliveriesOf(t *testing.T, bob, eve, gate didkey.Key) (pages []string) {
	t.Helper()
	var events []*envelope.Envelope
	for i, sender := range []didkey.Key{eve, gate, gate, gate} {
		intent, sent := client.ChannelIntent, time.Now()
		switch i {
		case 1:
			intent = "other"
		case 2:
			sent = sent.Add(-25 * time.Hour)
		}
		e, err := envelope.Draft{Recipient: bob.DID(), Seal: true, TTL: 48 * time.Hour, Payload: envelope.Request{RequestID: "dlv_1", Intent: intent,
			Params: json.RawMessage(`{"inbox":"in_1","channel":{"id":"ch_1"},"message":{"id":"m","sender":"alice","content":"hi"},"callback":"https://x.example/out/tok","mcp":[]}`)}}.Sign(sender, sent)
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
	for i := range len(events) + 1 {
		page, err := json.Marshal(map[string]any{"ok": true, "events": events[i:min(i+1, len(events))], "cursor": fmt.Sprint(min(i+1, len(events)))})
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, string(page))
	}
	return pages
}

// TestChannelAgent runs the commands of an agent with an inbox.
func TestChannelAgent(t *testing.T) {
	t.Parallel()
	bob, gate, eve := newKey(t), newKey(t), newKey(t)
	const inbox = `{"id":"in_1","label":"ops","owner":"BOB","createdAt":"2026-03-20T10:00:00Z"}`
	owned := strings.ReplaceAll(inbox, "BOB", string(bob.DID()))
	f := newFakeGateway(t, map[string]string{
		"GET /inboxes": `{"ok":true,"inboxes":[` + owned + `]}`, "DELETE /inboxes/in_1": `{"ok":true}`,
		"DELETE /inboxes/in_2": `403 {"ok":false,"error":"FORBIDDEN","message":"not yours"}`,
	})
	f.answers["GET /.well-known/agora.json"] = fmt.Sprintf(`{"ok":true,"did":%q,"url":%q,"gateways":{"did":%q,"channel":{"url":%q}}}`,
		gate.DID(), f.URL, gate.DID(), f.URL+"/channel")
	f.answers["POST /inboxes"] = `201 {"ok":true,"inbox":` + owned + `,"url":"` + f.URL + `/channel/inbox/sk_1"}`
	f.answers["POST /inboxes/in_1/rotate"] = `{"ok":true,"url":"` + f.URL + `/channel/inbox/sk_2"}`
	for cursor, page := range deliveriesOf(t, bob, eve, gate) {
		f.answers[fmt.Sprintf("GET /events after %d", cursor)] = page
	}
	key := filepath.Join(t.TempDir(), "bob.key")
	if err := didkey.Save(key, bob); err != nil {
		t.Fatal(err)
	}
	with := "|--key|" + key + "|--relay|" + f.URL
	delivery := `{"id":"dlv_1","inbox":"in_1","channel":{"id":"ch_1"},"message":{"id":"m","sender":"alice","content":"hi"},"callback":"https://x.example/out/tok","mcp":[]}` + "\n"
	for _, test := range []struct {
		args           string
		code           int
		stdout, stderr string
	}{
		{"inbox|new|--label|ops" + with, 0, owned[:len(owned)-1] + `,"url":"` + f.URL + `/channel/inbox/sk_1"}` + "\n", ""},
		{"inbox|list" + with, 0, owned + "\n", ""},
		{"inbox|rotate|in_1" + with, 0, `{"id":"in_1","url":"` + f.URL + `/channel/inbox/sk_2"}` + "\n", ""},
		{"inbox|rotate|1" + with, 2, "", "want the id of an inbox"},
		{"inbox|delete|in_1" + with, 0, "", "deleted the inbox in_1"},
		{"inbox|delete|in_2" + with, 1, "", "has no inbox in_2; agora channel inbox list"},
		{"follow|--count|1" + with, 0, delivery, "only the relay's gateway sends this"},
		{"follow|--count|1|--timeout|300ms" + with, 1, "", "0 of 1 messages arrived within 300ms"}, // it continues after the first
		{"follow|--cursor-file|" + key + ".cursor|--count|2|--timeout|3s" + with, 1, delivery, "1 of 2 messages arrived within 3s"},
		{"follow|--count=-1" + with, 2, "", "must not be negative"},
	} {
		stdout, stderr, code := runChannel(t, "", test.args)
		if code != test.code || stdout != test.stdout || !strings.Contains(stderr, test.stderr) || (test.stderr == "") != (stderr == "") {
			t.Errorf("agora channel %s ends with %d and prints\n%s%s", test.args, code, stdout, stderr)
		}
	}
	f.answers["GET /inboxes"] = `{"ok":true,"inboxes":[]}`
	if _, stderr, code := runChannel(t, "", "inbox|list"+with); code != cli.ExitOK || !strings.Contains(stderr, "inbox new creates one") {
		t.Errorf("%d, %s", code, stderr)
	}
	f.answers["GET /.well-known/agora.json"] = fmt.Sprintf(`{"ok":true,"did":%q,"url":%q}`, gate.DID(), f.URL)
	for _, command := range []string{"inbox|new", "follow"} {
		if _, stderr, code := runChannel(t, "", command+with); code != cli.ExitFailed || !strings.Contains(stderr, "agora serve --channel") {
			t.Errorf("%s without a gateway ends with %d and prints %s", command, code, stderr)
		}
	}
}

// TestChannelProbe probes an agent that takes everything and says nothing, and one that echoes. The package agentprobe
// tests the checks.
func TestChannelProbe(t *testing.T) {
	f := newFakeGateway(t, map[string]string{"POST /inbox/sk_1": `{}`})
	fast := "|--wait|200ms|--quiet|20ms"
	stdout, stderr, code := runChannel(t, f.URL+"/inbox/sk_1\n", "probe|-"+fast)
	if code != cli.ExitFailed || !strings.Contains(stdout, "\nfail        answers ") || !strings.Contains(stdout, "\n\n5 passed, 4 failed, ") || strings.Contains(stdout, "sk_1") || stderr != "" {
		t.Errorf("%d\n%s%s", code, stdout, stderr)
	}
	if !strings.Contains(f.asked[0], `"message":{"content":"This is a test`) {
		t.Errorf("asked %s", f.asked[0])
	}
	stdout, stderr, code = runChannel(t, "", "probe|"+f.URL+"/inbox/sk_1|--json"+fast)
	var report struct {
		Results []struct{ Name, Status string }
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != cli.ExitFailed || !strings.Contains(stderr, "pass        delivery") || len(report.Results) < 25 || report.Results[0].Status != "pass" {
		t.Errorf("%d, %v\n%s", code, err, stdout)
	}
	for args, want := range map[string]string{"probe|nothing": "want a connection string", "probe|http://x/y|--url|z": "--url|URL at which", "probe|http://x/y|--wait|0s": "must be positive"} {
		want, other, _ := strings.Cut(want, "|")
		if _, stderr, code := runChannel(t, "", args); code != cli.ExitUsage || !strings.Contains(stderr, want) && !strings.Contains(stderr, other) {
			t.Errorf("%s ends with %d: %s", args, code, stderr)
		}
	}
}

package mcpserver_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
)

// TestTools checks what a host sees of each tool, before it calls one.
func TestTools(t *testing.T) {
	alice := newAgent(t, startRelay(t), 0, 0)
	listed, err := alice.session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	reads := []string{"find_agents", "read_message", "spending", "verify"}
	ends := []string{"accept_offer", "cancel", "deliver", "fail_job"}
	var names []string
	for _, tool := range listed.Tools {
		names = append(names, tool.Name)
		hints := tool.Annotations
		if hints.ReadOnlyHint != slices.Contains(reads, tool.Name) || *hints.DestructiveHint != slices.Contains(ends, tool.Name) ||
			!*hints.OpenWorldHint || tool.OutputSchema != nil || len(tool.Description) < 50 {
			t.Errorf("%s: %+v, %d characters", tool.Name, hints, len(tool.Description))
		}
		if schemas := fmt.Sprint(tool.InputSchema); strings.Contains(schemas, "null") {
			t.Errorf("%s has a schema with null: %s", tool.Name, schemas)
		}
	}
	want := []string{"accept_offer", "ask", "cancel", "deliver", "fail_job", "find_agents", "follow_up", "inbox", "next_job",
		"offer_work", "read_message", "spending", "verify"}
	if !slices.Equal(names, want) {
		t.Errorf("the tools are %q", names)
	}
	// Each tool that a text names exists, so that an LLM with nothing but the descriptions finds its way.
	texts := alice.session.InitializeResult().Instructions
	for _, tool := range listed.Tools {
		texts += tool.Description
	}
	prompts, err := alice.session.ListPrompts(t.Context(), nil)
	if err != nil || len(prompts.Prompts) != 3 {
		t.Fatalf("prompts: %v, %v", prompts, err)
	}
	for _, p := range prompts.Prompts {
		arguments := map[string]string{}
		for _, a := range p.Arguments {
			if _, err := alice.session.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: p.Name}); err == nil {
				t.Errorf("%s works without its argument", p.Name)
			}
			arguments[a.Name] = "WHAT"
		}
		filled, err := alice.session.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: p.Name, Arguments: arguments})
		if err != nil {
			t.Fatal(err)
		}
		text, ok := filled.Messages[0].Content.(*mcp.TextContent)
		if !ok || strings.Contains(text.Text, "WHAT") != (len(arguments) > 0) || strings.Contains(text.Text, "%!") {
			t.Errorf("%s: %+v", p.Name, filled.Messages[0].Content)
		}
		texts += text.Text
	}
	for _, word := range regexp.MustCompile(`[a-z]+_[a-z]+`).FindAllString(texts, -1) {
		if !slices.Contains(append(names, "en_zh"), word) {
			t.Errorf("a text names %s, which is no tool", word)
		}
	}
}

// TestInbox checks what inbox shows: what is new, the last page again, and everything again; also after a restart of the
// server, and after the relay has lost its data.
func TestInbox(t *testing.T) {
	r := startRelay(t)
	alice, eve := newAgent(t, r, 0, 0), newAgent(t, r, 0, 0)
	send := func(n int) {
		for range n {
			if _, _, err := eve.client.Post(t.Context(), envelope.Draft{Payload: envelope.Request{Intent: "x"}, Recipient: alice.did}); err != nil {
				t.Fatal(err)
			}
		}
	}
	check := func(from string, want int, more bool) {
		t.Helper()
		var got struct {
			Messages []struct{ Type, From string }
			More     bool
		}
		alice.call("inbox", map[string]any{"from": from}, &got)
		if len(got.Messages) != want || got.More != more || want > 0 && (got.Messages[0].From != string(eve.did) || got.Messages[0].Type != "REQUEST") {
			t.Errorf("%s: %+v, want %d messages", from, got, want)
		}
	}
	check("new", 0, false)
	send(2)
	check("new", 2, false)
	check("new", 0, false)
	check("last", 2, false)
	alice.reconnect()
	check("new", 0, false)
	send(25)
	check("new", 20, true)
	check("last", 20, true)
	check("new", 5, false)
	check("oldest", 20, true)
	alice.refused("inbox", map[string]any{"from": "yesterday"}, "new last oldest")
	r.stop()
	for _, end := range []string{"", "-wal", "-shm"} {
		_ = os.Remove(r.database + end) // not all of them exist
	}
	files, err := filepath.Glob(r.database + "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if err := os.RemoveAll(f); err != nil {
			t.Fatal(err)
		}
	}
	r.start(strings.TrimPrefix(r.URL, "http://"))
	send(1)
	check("new", 1, false)
}

// TestVerify checks valid, changed and malformed messages.
func TestVerify(t *testing.T) {
	alice := newAgent(t, startRelay(t), 0, 0)
	e, err := envelope.Draft{Payload: envelope.Request{Intent: "x"}}.Sign(alice.key, time.Now().Add(-1000*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	var object any
	if err := json.Unmarshal(e.Canonical(), &object); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		envelope any
		valid    bool
	}{
		"object": {object, true}, "text": {string(e.Canonical()), true},
		"changed": {strings.Replace(string(e.Canonical()), `"x"`, `"y"`, 1), false},
		"twice":   {strings.Replace(string(e.Canonical()), `{`, `{"version":"1.0",`, 1), false},
		"number":  {7, false}, "nothing": {"", false}, "large": {strings.Repeat(" ", 10) + "[" + strings.Repeat("1,", 1<<20) + "1]", false},
	} {
		var got struct {
			Valid    bool
			Why      string
			Contents struct{ From string }
		}
		alice.call("verify", map[string]any{"envelope": c.envelope}, &got)
		if got.Valid != c.valid || c.valid != (got.Contents.From == string(alice.did)) || c.valid == (got.Why != "") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestMistakes checks that wrong arguments get an answer that says what is right.
func TestMistakes(t *testing.T) {
	r := startRelay(t)
	alice, eve := newAgent(t, r, 0, 0), newAgent(t, r, 0, 0)
	service := func(intent string, price float64) []any {
		return []any{map[string]any{"intent": intent, "price_usd": price}}
	}
	for _, c := range []struct {
		tool string
		args map[string]any
		want string
	}{
		{"ask", map[string]any{"intent": ""}, "find_agents"},
		{"ask", map[string]any{"intent": "x", "accept": "all"}, "show first cheapest"},
		{"ask", map[string]any{"intent": "x", "seal": true}, "seal needs agent"},
		{"ask", map[string]any{"intent": "x", "agent": "bob"}, "did:key"},
		{"ask", map[string]any{"intent": "x", "agent": string(alice.did)}, "your own DID"},
		{"ask", map[string]any{"intent": "x", "wait_seconds": 601}, "0 to 600"},
		{"follow_up", map[string]any{"thread": "no such thread"}, "the name of a thread"},
		{"follow_up", map[string]any{"thread": "thread_1"}, "made no request"},
		{"accept_offer", map[string]any{"thread": alice.ask("x"), "offer": "0"}, "has no offer"},
		{"next_job", nil, "offer_work first"},
		{"offer_work", map[string]any{"name": "A", "services": []any{}}, "1 to 20"},
		{"offer_work", map[string]any{"name": "A", "services": service("x", -1)}, "must be a number from 0"},
		{"offer_work", map[string]any{"name": "A", "services": service("x", 1e12)}, "must be a number from 0"},
		{"deliver", map[string]any{"thread": "t", "client": "bob", "output": 1}, "did:key"},
		{"deliver", map[string]any{"thread": alice.ask("x"), "client": string(alice.did), "output": 1}, "never was yours"},
		{"fail_job", map[string]any{"thread": "t", "client": string(eve.did), "reason": ""}, "reason"},
		{"read_message", map[string]any{"message": "0"}, "thread, or agent"},
		{"read_message", map[string]any{"message": "0", "thread": alice.ask("x")}, "no such message"},
		{"find_agents", map[string]any{"after": "!"}, "after must be"},
	} {
		alice.refused(c.tool, c.args, c.want)
	}
}

// TestSealedJob checks that a sealed request stays sealed until its result, and that others see nothing of it.
func TestSealedJob(t *testing.T) {
	r := startRelay(t)
	alice, bob, eve := newAgent(t, r, 0, 0), newAgent(t, r, 0, 0), newAgent(t, r, 0, 0)
	bob.offer("echo", 0)
	job := bob.nextJob(30)
	var asked requestView
	alice.call("ask", map[string]any{"intent": "echo", "input": "my secret", "agent": string(bob.did), "seal": true, "wait_seconds": 20}, &asked)
	alice.call("accept_offer", acceptArgs(asked), nil)
	taken := job()
	if !strings.Contains(taken.Request.Text, "my secret") {
		t.Errorf("the job is %+v", taken)
	}
	bob.call("deliver", deliverTo(taken, "his secret"), nil)
	if v := alice.offers(asked.Thread); v.State != "done" || !strings.Contains(v.Result.Text, "his secret") {
		t.Errorf("done: %+v", v)
	}
	if text := eve.resource("agora://thread/" + asked.Thread); strings.Contains(text, "his secret") || strings.Contains(text, "my secret") ||
		!strings.Contains(text, "sealed payload of RESULT") {
		t.Errorf("others see %s", text)
	}
}

// recorder keeps all that a server has sent and logged.
type recorder struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

// TestKeyStaysLocal checks that nothing that a server sends to its client or to the relay, or logs, has the seed, while
// all tools, resources and prompts are used, and fail.
func TestKeyStaysLocal(t *testing.T) {
	r := startRelay(t)
	alice, bob := newAgent(t, r, 0, 0), newAgent(t, r, 0, 0)
	var seen recorder
	alice.options.Log = slog.New(slog.NewTextHandler(&seen, nil))
	var err error
	alice.options.Client, err = client.New(r.URL, alice.key, client.Options{Logger: alice.options.Log, Attempts: 1,
		HTTPClient: &http.Client{Transport: recording{&seen}}})
	if err != nil {
		t.Fatal(err)
	}
	alice.reconnect()
	bob.offer("echo", 0)
	bob.work("ok")
	listed, err := alice.session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	use := func() {
		thread := "thread_1"
		if text, failed := alice.try("ask", map[string]any{"intent": "echo", "accept": "first", "wait_seconds": 20}, nil); !failed {
			thread = regexp.MustCompile(`thread_\w+`).FindString(text)
		}
		arguments := map[string]any{"intent": "x", "thread": thread, "offer": "x", "client": string(alice.did), "agent": string(bob.did),
			"message": "x", "output": 1, "reason": "x", "envelope": "{}", "name": "x", "wait_seconds": 0,
			"services": []any{map[string]any{"intent": "y", "price_usd": 1}}}
		for _, tool := range listed.Tools {
			given := map[string]any{}
			schema, err := json.Marshal(tool.InputSchema)
			if err != nil {
				t.Fatal(err)
			}
			var known struct{ Properties map[string]any }
			if err := json.Unmarshal(schema, &known); err != nil {
				t.Fatal(err)
			}
			for name := range known.Properties {
				if value, ok := arguments[name]; ok {
					given[name] = value
				}
			}
			text, _ := alice.try(tool.Name, given, nil)
			_, _ = seen.Write([]byte(text))
		}
		for _, uri := range []string{"agora://thread/" + thread, "agora://agent/" + string(bob.did), "agora://agent/x"} {
			result, err := alice.session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
			if err == nil {
				_, _ = seen.Write([]byte(result.Contents[0].Text))
			} else {
				_, _ = seen.Write([]byte(err.Error()))
			}
		}
	}
	use()
	r.setFilter(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusBadGateway); return true })
	use()
	r.setFilter(nil)
	file, err := os.ReadFile(filepath.Join(alice.options.Folder, "agent.key"))
	if err != nil {
		t.Fatal(err)
	}
	var key struct{ D string }
	if err := json.Unmarshal(file, &key); err != nil {
		t.Fatal(err)
	}
	seed, err := base64.RawURLEncoding.DecodeString(key.D)
	if err != nil || len(seed) != 32 {
		t.Fatalf("the seed has %d bytes: %v", len(seed), err)
	}
	text := seen.text.String()
	if !strings.Contains(text, string(alice.did)) || !strings.Contains(text, `"type":"ACCEPT"`) {
		t.Fatalf("little was recorded: %s", text)
	}
	for _, form := range []string{key.D, hex.EncodeToString(seed), base64.StdEncoding.EncodeToString(seed)[:42], string(seed)} {
		if strings.Contains(text, form) {
			t.Errorf("the seed leaves the server as %q", form)
		}
	}
}

// recording records the bodies of requests.
type recording struct{ to *recorder }

func (c recording) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.GetBody != nil {
		body, err := r.GetBody()
		if err != nil {
			return nil, err
		}
		var text bytes.Buffer
		if _, err := text.ReadFrom(body); err != nil {
			return nil, err
		}
		_, _ = c.to.Write(text.Bytes())
	}
	return http.DefaultTransport.RoundTrip(r)
}

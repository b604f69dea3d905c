package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/trade"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/profile"
)

// atHome lets the test have its own configuration, and no variables of agora. It returns its folder.
func atHome(t *testing.T) (folder string) {
	t.Helper()
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	folder, err := profile.Folder()
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

// atTerminal runs a command on a terminal with 80 columns. typed is what a person types.
func atTerminal(t *testing.T, typed string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = run(cli.Environment{Ctx: t.Context(), Stdin: strings.NewReader(typed), Stdout: &out, Stderr: &err, StdinIsTerminal: true,
		StdoutIsTerminal: true, StderrIsTerminal: true, Width: func() int { return 80 }}, args)
	return code, out.String(), err.String()
}

// seedDID returns the key of a seed of 32 equal bytes, so that outputs can be compared with a text.
func seedKey(t *testing.T, b byte) didkey.Key {
	t.Helper()
	key, err := didkey.FromSeed(bytes.Repeat([]byte{b}, 32))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// lineTime is the time of the messages in tests of lines.
var lineTime = time.Date(2026, 11, 24, 22, 59, 58, 0, time.UTC)

// conversation returns a message of each type, between alice, bob and everybody.
func conversation(t *testing.T, alice, bob didkey.Key) (all []*envelope.Envelope) {
	t.Helper()
	number := 0.02
	add := func(from didkey.Key, to didkey.DID, p envelope.Payload) {
		t.Helper()
		thread := "thread_01m7wge1pwtpq86hase50257b1"
		if _, ok := p.(envelope.Manifest); ok {
			thread = ""
		}
		e, err := envelope.Draft{Payload: p, Recipient: to, Thread: thread, SenderName: "me", TS: lineTime}.Sign(from, lineTime)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	add(bob, "", envelope.Manifest{ID: "m", Name: "alice", Intents: []envelope.Intent{{ID: "translation.en_zh"}, {ID: "echo"}}})
	add(alice, "", envelope.Request{RequestID: "r1", Intent: "translation.en_zh", Params: json.RawMessage(`{"text":"Hello, and a long text"}`),
		Constraints: &envelope.Constraints{MaxCostUSD: &number}})
	add(bob, alice.DID(), envelope.Offer{RequestID: "r1", Price: &envelope.Price{Amount: 0.01, Currency: "USD"}, ETASeconds: 2, Plan: "Slowly"})
	add(alice, bob.DID(), envelope.Accept{RequestID: "r1", Terms: &envelope.Terms{PriceUSD: &number}})
	add(bob, alice.DID(), envelope.Result{RequestID: "r1", Status: "success", Output: json.RawMessage(`{"translation":"你好，你好，你好，你好，你好，你好，你好"}`)})
	add(bob, alice.DID(), envelope.Failure{RequestID: "r1", Code: "BUSY", Message: "a\nb\x1b[31m"})
	add(alice, bob.DID(), envelope.Cancel{RequestID: "r1", Reason: "never mind"})
	return all
}

// TestLines compares the lines of messages on a terminal with 80 columns, without and with colours.
func TestLines(t *testing.T) {
	folder := atHome(t)
	alice, bob := seedKey(t, 1), seedKey(t, 2)
	for _, c := range []struct {
		to      int
		named   bool
		noColor string
		want    string
	}{
		{len("everybody"), true, "1", `
Tue 24 Nov 2026 CET
23:59:58  MANIFEST            bob         → everybody
          "alice" translation.en_zh echo
23:59:58  REQUEST   …50257b1  me          → everybody
          translation.en_zh ≤ 0.02 USD {"text":"Hello, and a long text"}
23:59:58  OFFER     …50257b1  bob         → me         0.01 USD in 2s Slowly
23:59:58  ACCEPT    …50257b1  me          → bob        0.02 USD
23:59:58  RESULT    …50257b1  bob         → me
          {"translation":"你好，你好，你好，你好，你好，你好，你好"}
23:59:58  ERROR     …50257b1  bob         → me         BUSY a\u000ab\u001b[31m
23:59:58  CANCEL    …50257b1  me          → bob        never mind
`},
		{len("me"), false, "", `
Tue 24 Nov 2026 CET
23:59:58  <35>MANIFEST<0>            z6Mko…VBiyH → e…  "alice" translation.en_zh echo
23:59:58  <34>REQUEST<0>   …50257b1  me          → e…
          translation.en_zh ≤ 0.02 USD {"text":"Hello, and a long text"}
23:59:58  <33>OFFER<0>     …50257b1  z6Mko…VBiyH → me  0.01 USD in 2s Slowly
23:59:58  <36>ACCEPT<0>    …50257b1  me          → z…  0.02 USD
23:59:58  <32>RESULT<0>    …50257b1  z6Mko…VBiyH → me
          {"translation":"你好，你好，你好，你好，你好，你好，你好"}
23:59:58  <31>ERROR<0>     …50257b1  z6Mko…VBiyH → me  BUSY a\u000ab\u001b[31m
23:59:58  <31>CANCEL<0>    …50257b1  me          → z…  never mind
`},
	} {
		t.Setenv("NO_COLOR", c.noColor)
		if c.named {
			if _, err := profile.NewNames(folder).Set(t.Context(), "bob", bob.DID()); err != nil {
				t.Fatal(err)
			}
		} else if err := profile.NewNames(folder).Remove(t.Context(), "bob"); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		env := cli.Environment{Stdout: &out, Raw: &out, Stderr: &out, StdoutIsTerminal: true}
		l := trade.NewLiner(env, env.People(alice.DID()), c.to, true)
		for _, e := range conversation(t, alice, bob) {
			if err := l.Print(l.Message(e)); err != nil {
				t.Fatal(err)
			}
		}
		got := "\n" + ownColours.ReplaceAllString(out.String(), "<$1>")
		if got != c.want {
			t.Errorf("got:\n%s\nwant:\n%s", got, c.want)
		}
		for line := range strings.Lines(ownColours.ReplaceAllString(out.String(), "")) {
			if n := cli.Columns(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%d columns: %s", n, line)
			}
		}
	}
}

// TestColours checks when there are colours.
func TestColours(t *testing.T) {
	for _, c := range []struct {
		terminal       bool
		noColor, kind  string
		coloured, want bool
	}{{true, "", "xterm", true, true}, {false, "", "xterm", true, false}, {true, "1", "xterm", true, false}, {true, "", "dumb", true, false}} {
		t.Setenv("NO_COLOR", c.noColor)
		t.Setenv("TERM", c.kind)
		env := cli.Environment{StdoutIsTerminal: c.terminal}
		if got := env.Styled("COMPLETED") != "COMPLETED"; got != c.want {
			t.Errorf("terminal %v, NO_COLOR %q, TERM %s: colours %v", c.terminal, c.noColor, c.kind, got)
		}
	}
}

// TestCells checks the shortening of cells, in columns of a terminal.
func TestCells(t *testing.T) {
	for _, c := range []struct {
		shorten func(string, int) string
		text    string
		most    int
		want    string
	}{
		{cli.WithoutEnd, "hello", 5, "hello"}, {cli.WithoutEnd, "hello!", 5, "hell…"}, {cli.WithoutEnd, "你好你好", 7, "你好你…"}, {cli.WithoutEnd, "你好你好", 6, "你好…"},
		{cli.WithoutEnd, "e\u0301e\u0301e\u0301", 2, "e\u0301…"}, {cli.WithoutEnd, "abc", 1, "…"}, {cli.WithoutEnd, "", 0, ""},
		{cli.WithoutMiddle, "abcdefgh", 5, "ab…gh"}, {cli.WithoutMiddle, "abcdefgh", 6, "abc…gh"}, {cli.WithoutMiddle, "你好你好", 6, "你…好"},
		{cli.Shortened, "two words", 5, "two …"}, {cli.Shortened, "twowords", 5, "tw…ds"},
	} {
		if got := c.shorten(c.text, c.most); got != c.want || cli.Columns(got) > max(c.most, 0) && c.text != "" {
			t.Errorf("%q in %d columns is %q, want %q", c.text, c.most, got, c.want)
		}
	}
	for since, want := range map[time.Duration]string{-time.Hour: "0s", 59 * time.Second: "59s", time.Minute: "1m", 3 * time.Hour: "3h",
		47 * time.Hour: "47h", 48 * time.Hour: "2d", 90000 * time.Hour: "3750d"} {
		if got := cli.Age(since); got != want {
			t.Errorf("%v is %s, want %s", since, got, want)
		}
	}
	bob := seedKey(t, 2).DID()
	if got := cli.ShortDID(bob); got != string(bob)[8:16]+"…"+string(bob)[50:] {
		t.Errorf("%s is shown as %s", bob, got)
	}
	for _, odd := range []didkey.DID{"", "did:key:", "x", hostile} {
		if found := foundIn(cli.ShortDID(odd)); len(found) > 0 || cli.Columns(cli.ShortDID(odd)) > 15 {
			t.Errorf("%q is shown as %q", odd, cli.ShortDID(odd))
		}
	}
}

// TestTablesOnATerminal compares the tables of a real relay.
func TestTablesOnATerminal(t *testing.T) {
	folder := atHome(t)
	origin := startRelay(t, time.Now)
	me, bob, eve := newKey(t), newKey(t), newKey(t)
	if _, err := profile.NewNames(folder).Set(t.Context(), "bob", bob.DID()); err != nil {
		t.Fatal(err)
	}
	post := func(from didkey.Key, to didkey.DID, p envelope.Payload, thread string) {
		t.Helper()
		c, err := client.New(origin, from, client.Options{})
		if err == nil {
			_, _, err = c.Post(t.Context(), envelope.Draft{Payload: p, Recipient: to, Thread: thread})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	intents := []envelope.Intent{{ID: "translation.en_zh"}, {ID: "a.very.long.name.of.a.service"}}
	post(bob, "", envelope.Manifest{ID: "m", Name: "eve", Intents: intents, Pricing: &envelope.Pricing{Model: "free"}}, "")
	post(eve, "", envelope.Manifest{ID: "m", Name: "bob", Intents: intents[:1],
		Pricing: &envelope.Pricing{Model: "metered", Currency: "USD", MeteredRate: 0.002, MeteredUnit: "page"}}, "")
	post(me, bob.DID(), envelope.Request{RequestID: "r1", Intent: "translation.en_zh"}, "thread_01m7wge1pwtpq86hase50257b1")
	post(eve, me.DID(), envelope.Request{RequestID: "r1", Intent: "a.very.long.name.of.a.service.with.many.words"}, "from-eve")
	t.Setenv("AGORA_KEY", keyFile(t, me))
	t.Setenv("AGORA_RELAY", origin)
	short := cli.ShortDID(eve.DID())
	numbers := regexp.MustCompile(`\b[0-9]+s `)
	for command, want := range map[string][]string{
		"agents": {"AGENT            SEEN    NAME   PRICE           INTENTS", "bob              <32>online<0>  \"eve\"  free            translation.en_zh a.very.long.n…",
			short + "  <32>online<0>  \"bob\"  0.002 USD/page  translation.en_zh"},
		"threads": {"STATE    AGE  INTENT          WITH             THREAD",
			"<33>PENDING<0>  Ns   a.very.….words  " + short + "  from-eve", "<33>PENDING<0>  Ns   transla….en_zh  bob              thread_01m7wge1pwtpq86hase50257b1"},
		"agents bob": {"agent    bob  " + string(bob.DID()), "seen     <32>online<0>", "", "name     \"eve\"", "price    free",
			"intents  translation.en_zh a.very.long.name.of.a.service", "ask      agora ask translation.en_zh --to bob"},
	} {
		code, stdout, stderr := atTerminal(t, "", strings.Fields(command)...)
		got := numbers.ReplaceAllString(ownColours.ReplaceAllString(stdout, "<$1>"), "Ns ")
		if code != cli.ExitOK || stderr != "" {
			t.Errorf("agora %s: %d, %s", command, code, stderr)
		}
		for _, line := range want {
			if !strings.Contains("\n"+got, "\n"+line+"\n") {
				t.Errorf("agora %s does not print\n%s\nbut\n%s", command, line, got)
			}
		}
		for line := range strings.Lines(ownColours.ReplaceAllString(stdout, "")) {
			if n := cli.Columns(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("agora %s: %d columns: %s", command, n, line)
			}
		}
	}
}

// TestInitAsks checks that agora init asks on a terminal, asks again after a wrong answer, and changes nothing if the
// answers end.
func TestInitAsks(t *testing.T) {
	folder := atHome(t)
	origin := startRelay(t, time.Now)
	t.Setenv("AGORA_RELAY", origin)
	for _, typed := range []string{"", "alice", "alice\n", "alice\n\n", strings.Repeat("x", 1<<20)} {
		code, _, stderr := atTerminal(t, typed, "init")
		if _, err := os.Stat(folder); code != cli.ExitFailed || !strings.Contains(stderr, "nothing was changed") || err == nil {
			t.Errorf("%.20q: %d, %s, %v", typed, code, stderr, err)
		}
	}
	code, stdout, stderr := atTerminal(t, "not a name\nalice\n\ntwo/words\ntranslation.en_zh echo\ncheap\n0.01\nperhaps\nyes\n", "init")
	for _, part := range []string{"Your name", "The relay [" + origin + "]: ", "name      alice  (new)", "the manifest is announced"} {
		if !strings.Contains(stdout, part) {
			t.Errorf("there is no %q in\n%s", part, stdout)
		}
	}
	for _, part := range []string{"a name has 1 to", "want a name such as translation.en_zh", "want a number such as 0.01", "want yes or no"} {
		if strings.Count(stderr, part) != 1 {
			t.Errorf("there is no %q in\n%s", part, stderr)
		}
	}
	if code != cli.ExitOK {
		t.Errorf("ended with %d", code)
	}
	if code, stdout, _ := atTerminal(t, "", "init"); code != cli.ExitOK || !strings.Contains(stdout, "Nothing has changed") {
		t.Errorf("the second run ended with %d: %s", code, stdout)
	}
	if _, stdout, _ := atTerminal(t, "", "agents"); !strings.Contains(stdout, "me ") || !strings.Contains(stdout, "0.01 USD") {
		t.Errorf("the agents are:\n%s", stdout)
	}
}

// TestInitDoesNotHang checks that agora init reads nothing if standard input or output is not a terminal.
func TestInitDoesNotHang(t *testing.T) {
	atHome(t)
	t.Setenv("AGORA_RELAY", "http://127.0.0.1:1")
	for i, terminal := range [][2]bool{{false, true}, {true, false}, {false, false}} {
		var stdout, stderr bytes.Buffer
		code := run(cli.Environment{Ctx: t.Context(), Stdin: unreadable{t}, Stdout: &stdout, Stderr: &stderr, StdinIsTerminal: terminal[0],
			StdoutIsTerminal: terminal[1]}, []string{"init", "--profile", fmt.Sprintf("p%d", i)})
		if code != cli.ExitOK || !strings.Contains(stdout.String(), "(new)") {
			t.Errorf("%v: %d, %s%s", terminal, code, stdout.String(), stderr.String())
		}
	}
}

// TestInitWithFlagsDoesNotAsk checks that agora init with any flag reads nothing on a terminal either. What follows it may
// be further commands that were pasted with it.
func TestInitWithFlagsDoesNotAsk(t *testing.T) {
	atHome(t)
	t.Setenv("AGORA_RELAY", startRelay(t, time.Now))
	for i, flags := range []string{"--name alice", "--relay http://127.0.0.1:1", "--key " + filepath.Join(t.TempDir(), "a.key"),
		"--intent echo", "--intent echo --price 1", "--intent echo --announce"} {
		var stdout, stderr bytes.Buffer
		code := run(cli.Environment{Ctx: t.Context(), Stdin: unreadable{t}, Stdout: &stdout, Stderr: &stderr, StdinIsTerminal: true,
			StdoutIsTerminal: true}, append([]string{"init", "--profile", fmt.Sprintf("f%d", i)}, strings.Fields(flags)...))
		if code != cli.ExitOK || !strings.Contains(stdout.String(), "(new)") {
			t.Errorf("%s: %d, %s%s", flags, code, stdout.String(), stderr.String())
		}
	}
}

// unreadable is an input that must not be read.
type unreadable struct{ t *testing.T }

func (u unreadable) Read([]byte) (int, error) {
	u.t.Error("the input was read")
	return 0, errors.New("unreadable")
}

// TestFormat checks templates: texts are escaped, wrong fields are usage errors, and rows lack nothing by accident.
func TestFormat(t *testing.T) {
	parse := func(text string) *cli.RowFormat {
		t.Helper()
		f := new(cli.RowFormat)
		if err := f.UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
		return f
	}
	row := trade.MessageRow{Type: hostile, Payload: map[string]any{"a\nb": []any{hostile, map[string]any{"c": hostile}}}}
	var out bytes.Buffer
	env := cli.Environment{Stdout: cli.EscapingWriter{Writer: &out}}
	for text, want := range map[string]string{"{{.Type}}": "", "{{.Payload}}": "", "{{json .Payload}}": "", "{{index .Payload \"a\\\\u000ab\"}}": "",
		"{{range .Payload}}{{.}}{{end}}": "", "{{printf \"%.3s\" .Intent}}|{{.Sealed}}": "|false\n"} {
		out.Reset()
		if err := env.PrintRow(parse(text), row); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if found := foundIn(out.String()); len(found) > 0 || strings.Count(out.String(), "\n") != 1 || want != "" && out.String() != want {
			t.Errorf("%s prints %q with %v", text, out.String(), found)
		}
	}
	if row.Type != hostile || row.Payload["a\nb"] == nil {
		t.Error("the row was changed")
	}
	for text, bad := range map[string]bool{"{{.Type}}": false, "{{.Typ}}": true, "{{.Payload.output.text}}": false, "{{.Payload.x}}": false,
		"{{range $k, $v := .Payload}}{{$v.y}}{{end}}": false, "{{with .From}}{{.Nope}}{{end}}": false, "{{json .}}": false, "{{if .Nope}}{{end}}": true} {
		if err := parse(text).Check(trade.MessageRow{Payload: map[string]any{}}); errors.Is(err, cli.ErrFormat) != bad {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{"{{", "{{.Type", "{{nosuch .}}", "{{end}}"} {
		if err := new(cli.RowFormat).UnmarshalText([]byte(text)); err == nil || strings.Contains(err.Error(), "template:") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestFollowConnectsAgain checks that follow says when the relay is gone, and when it is there again.
func TestFollowConnectsAgain(t *testing.T) {
	atHome(t)
	me := newKey(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	polls := 0
	url := hostileRelay(t, func(r *http.Request) string {
		if r.URL.Path != "/events" {
			return raw("404 Not Found", []byte(`{"ok":false}`))
		}
		if polls++; polls == 2 {
			return raw("503 Busy", []byte(`{"ok":false,"error":"UNAVAILABLE","message":"busy"}`))
		}
		return raw("200 OK", fmt.Appendf(nil, `{"ok":true,"events":[],"cursor":"%d","hasMore":false}`, polls))
	})
	var stdout bytes.Buffer
	stderr := watchedOutput{until: "connected again", found: cancel}
	code := run(cli.Environment{Ctx: ctx, Stdout: &stdout, Stderr: &stderr, StdoutIsTerminal: true}, []string{"follow", "--key", keyFile(t, me), "--relay", url})
	text := stderr.String()
	waiting, failed, again := strings.Index(text, "waiting for messages to "+cli.ShortDID(me.DID())+"…"), strings.Index(text, "will be retried"), strings.Index(text, "agora: connected again\n")
	if code != cli.ExitOK || waiting < 0 || failed < waiting || again < failed || stdout.Len() > 0 {
		t.Errorf("ended with %d and printed %q, %q", code, stdout.String(), text)
	}
}

// watchedOutput calls found when it contains a text.
type watchedOutput struct {
	bytes.Buffer
	until string
	found func()
}

func (w *watchedOutput) Write(p []byte) (int, error) {
	n, err := w.Buffer.Write(p)
	if strings.Contains(w.String(), w.until) {
		w.found()
	}
	return n, err
}

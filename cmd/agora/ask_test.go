package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/trade"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// asker runs agora ask with one key at one relay.
type asker struct {
	t        *testing.T
	url      string
	key      didkey.Key
	file     string
	terminal bool
	stdin    string
}

func newAsker(t *testing.T, url string) *asker {
	t.Helper()
	key := newKey(t)
	return &asker{t: t, url: url, key: key, file: keyFile(t, key)}
}

// asked is how a run ended.
type asked struct {
	code           int
	stdout, stderr string
}

// ask runs the command in this process.
func (a *asker) ask(args ...string) asked {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	code := run(cli.Environment{Ctx: ctx, Stdin: strings.NewReader(a.stdin), Stdout: &stdout, Stderr: &stderr,
		StdinIsTerminal: a.terminal, StderrIsTerminal: a.terminal}, append([]string{"ask", "--key", a.file, "--relay", a.url}, args...))
	return asked{code, stdout.String(), stderr.String()}
}

// want checks how a run ended. stdout must be equal, and stderr must contain the text.
func (r asked) want(t *testing.T, how trade.Outcome, stdout, stderr string) {
	t.Helper()
	if r.code != how.Code || r.stdout != stdout || !strings.Contains(r.stderr, stderr) {
		t.Errorf("ended with %d, want %d, and printed %q, want %q, and\n%s, want %q", r.code, how.Code, r.stdout, stdout, r.stderr, stderr)
	}
}

// story returns what --json has printed.
func (r asked) story(t *testing.T) (s trade.Story) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.stdout), &s); err != nil || strings.Count(r.stdout, "\n") != 1 {
		t.Fatalf("%v in %q, with %s", err, r.stdout, r.stderr)
	}
	if s.ExitCode != r.code {
		t.Errorf("exitCode %d, but the command ended with %d", s.ExitCode, r.code)
	}
	return s
}

// connectAs returns a client with this key.
func connectAs(t *testing.T, url string, key didkey.Key) *client.Client {
	t.Helper()
	c, err := client.New(url, key, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// sent counts the messages of this type that the asker has sent in the thread.
func (a *asker) sent(thread string, typ envelope.Type) (sent []*envelope.Envelope) {
	a.t.Helper()
	all, _, err := connectAs(a.t, a.url, a.key).Stored(a.t.Context(), client.Filter{Thread: thread, Sender: a.key.DID(), Type: typ})
	if err != nil {
		a.t.Fatal(err)
	}
	return all
}

// awaitSent waits until the asker has sent a message of this type in the thread, and returns it.
func (a *asker) awaitSent(thread string, typ envelope.Type) (sent *envelope.Envelope) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), time.Minute)
	defer cancel()
	err := connectAs(a.t, a.url, a.key).Follow(ctx, client.FollowOptions{FromOldest: true,
		Filter: client.Filter{Thread: thread, Sender: a.key.DID(), Type: typ}},
		func(_ context.Context, e *envelope.Envelope) error {
			sent = e
			return cli.ErrCountReached
		})
	if !errors.Is(err, cli.ErrCountReached) {
		a.t.Fatalf("the asker has sent no %s in the thread %s: %v", typ, thread, err)
	}
	return sent
}

// wantOnce checks that there is exactly one REQUEST and one ACCEPT in the thread.
func (a *asker) wantOnce(thread string) {
	a.t.Helper()
	if r, c := len(a.sent(thread, envelope.TypeRequest)), len(a.sent(thread, envelope.TypeAccept)); r != 1 || c != 1 {
		a.t.Errorf("thread %s has %d REQUESTs and %d ACCEPTs", thread, r, c)
	}
}

// serveAgent runs an agent until the test ends or stop is called. It echoes params, for this price in USD.
func serveAgent(t *testing.T, url, intent string, price float64, h client.Handler) (did didkey.DID, stop func()) {
	t.Helper()
	key := newKey(t)
	if h.Quote == nil {
		h.Quote = func(context.Context, client.Job) (envelope.Offer, error) {
			return envelope.Offer{Price: &envelope.Price{Amount: price, Currency: "USD"}, ETASeconds: 2, Plan: "plan of " + intent}, nil
		}
	}
	if h.Work == nil {
		h.Work = func(_ context.Context, job client.Job) (envelope.Result, error) {
			return envelope.Result{Output: job.Request.Params}, nil
		}
	}
	c := connectAs(t, url, key)
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := c.Serve(ctx, client.ServeOptions{Intents: []string{intent}}, h); !errors.Is(err, context.Canceled) {
			t.Errorf("Serve ended with %v", err)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		serving.Wait()
	})
	t.Cleanup(stop)
	return key.DID(), stop
}

func free(context.Context, client.Job) (envelope.Offer, error) { return envelope.Offer{}, nil }

const quickly = "--settle=50ms"

// TestAskOutcomes runs agora ask to each of its ends.
func TestAskOutcomes(t *testing.T) {
	t.Parallel()
	s := startServe(t, "--data", filepath.Join(t.TempDir(), "data"))
	alice := newAsker(t, s.relay)
	serveAgent(t, s.relay, "free", 0, client.Handler{Quote: free})
	serveAgent(t, s.relay, "priced", 0.005, client.Handler{})
	bob, _ := serveAgent(t, s.relay, "fails", 0, client.Handler{Work: func(context.Context, client.Job) (envelope.Result, error) {
		return envelope.Result{}, &client.AgentError{Code: "UNAVAILABLE", Message: "back at nine"}
	}})
	serveAgent(t, s.relay, "partial", 0, client.Handler{Work: func(context.Context, client.Job) (envelope.Result, error) {
		return envelope.Result{Status: "partial", Output: json.RawMessage(`[1]`)}, nil
	}})
	serveAgent(t, s.relay, "nothing", 0, client.Handler{Work: func(context.Context, client.Job) (envelope.Result, error) {
		return envelope.Result{Artifacts: json.RawMessage(`["a"]`)}, nil
	}})
	slow, _ := serveAgent(t, s.relay, "slow", 0.25, client.Handler{Work: func(ctx context.Context, _ client.Job) (envelope.Result, error) {
		<-ctx.Done()
		return envelope.Result{}, ctx.Err()
	}})
	params := `{"b":"\u202e","a":"<x>"}`
	for _, c := range []struct {
		args   []string
		how    trade.Outcome
		stdout string
		stderr string
	}{
		{[]string{"free", "--params", params}, trade.OutcomeResult, `{"a":"<x>","b":"\u202e"}` + "\n", "accepted the offer of z6Mk"},
		{[]string{"free", "--params", `"a\u202e\n"`, "--raw"}, trade.OutcomeResult, "a\u202e\n\n", ""},
		{[]string{"free", "--params", `null`, "--raw"}, trade.OutcomeResult, "null\n", ""},
		{[]string{"free", "--params", `{"a":1}`, "--raw", "--best", "first"}, trade.OutcomeResult, "{\"a\":1}\n", ""},
		{[]string{"free", "--params", "@params.json"}, trade.OutcomeResult, "[1,2]\n", ""},
		{[]string{"free", "--params", "-"}, trade.OutcomeResult, "\"typed\"\n", ""},
		{[]string{"priced", "--params", `1`, "--max-cost", "0.01"}, trade.OutcomeResult, "1\n", "for 0.005 USD"},
		{[]string{"priced", "--thread", "priced-1"}, trade.OutcomeNoneGood, "", "no offer is free, and nothing is paid without --max-cost: the cheapest offer costs 0.005 USD"},
		{[]string{"priced", "--max-cost", "0.001", "--wait", "300ms"}, trade.OutcomeNoOffer, "", "there was no offer within 300ms"},
		{[]string{"priced", "--wait", "5s", "--deadline", envelope.FormatTime(time.Now().Add(time.Hour)), "--max-cost", "1"}, trade.OutcomeResult, "null\n", ""},
		{[]string{"nobody", "--wait", "100ms"}, trade.OutcomeNoOffer, "", "there was no offer within 100ms; agora agents shows"},
		{[]string{"free", "--to", string(bob)}, trade.OutcomeFailed, "", string(bob) + " has reported an error: INTENT_NOT_SUPPORTED"},
		{[]string{"slow", "--to", string(slow), "--max-cost", "0.1"}, trade.OutcomeNoneGood, "", "wants more than you would pay: INSUFFICIENT_BUDGET"},
		{[]string{"fails", "--max-cost", "1"}, trade.OutcomeFailed, "", "has reported an error: UNAVAILABLE: back at nine"},
		{[]string{"partial", "--max-cost", "1"}, trade.OutcomeFailed, "[1]\n", `the status of the result is "partial"`},
		{[]string{"nothing", "--max-cost", "1"}, trade.OutcomeResult, "null\n", "--json prints them"},
		{[]string{"slow", "--max-cost", "1", "--timeout", "2s"}, trade.OutcomeTimedOut, "", "there is no result after 2s (--timeout)\nagora: did:key:"},
		{[]string{"nobody", "--timeout", "2s"}, trade.OutcomeTimedOut, "", "offers so far: 0"},
		{[]string{"nobody", "--timeout", "3s"}, trade.OutcomeTimedOut, "", "; waiting 3s for an offer anyway"},
		{[]string{"--thread", "never"}, trade.OutcomeRefused, "", "it was never sent, or it ended long ago. To ask now, name the service: agora ask INTENT --thread never"},
		{[]string{"free", "--relay", "http://127.0.0.1:1"}, trade.OutcomeUnreachable, "", "no relay answers at 127.0.0.1:1"},
		{[]string{"--thread", "x", "--relay", "http://127.0.0.1:1"}, trade.OutcomeUnreachable, "", "no relay answers at 127.0.0.1:1"},
		{nil, trade.OutcomeUsage, "", "name the service that you want: agora ask INTENT"},
		{[]string{"free", "--seal"}, trade.OutcomeUsage, "", "--seal needs --to"},
		{[]string{"free", "--best", "dearest"}, trade.OutcomeUsage, "", "cheapest"},
		{[]string{"free", "--params", "{bad"}, trade.OutcomeUsage, "", "--params"},
		{[]string{"free", "--wait", "0s"}, trade.OutcomeUsage, "", "--wait"},
		{[]string{"free", "--choose"}, trade.OutcomeUsage, "", "--choose needs a terminal"},
		{[]string{"free", "--params", "@missing.json"}, trade.OutcomeError, "", "missing.json"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			a := *alice
			a.t, a.stdin = t, ` "typed" `
			if i := slices.Index(c.args, "--relay"); i >= 0 { // in place of the other one, not besides it
				a.url = c.args[i+1]
			}
			for i, arg := range c.args {
				if arg == "@params.json" {
					file := filepath.Join(t.TempDir(), "params.json")
					if err := os.WriteFile(file, []byte("[1, 2]\n"), 0o600); err != nil {
						t.Fatal(err)
					}
					c.args[i] = "@" + file
				}
			}
			a.ask(append(c.args, quickly)...).want(t, c.how, c.stdout, c.stderr)
		})
	}
}

// TestAskAgain checks that another run with --thread continues a request, prints a result again, and refuses to ask for
// something else.
func TestAskAgain(t *testing.T) {
	s := startServe(t, "--data", filepath.Join(t.TempDir(), "data"))
	alice := newAsker(t, s.relay)
	bob, _ := serveAgent(t, s.relay, "priced", 0.005, client.Handler{})
	request := []string{"priced", "--params", `{"n":1}`, "--description", "count", quickly, "--thread", "t1"}
	first := alice.ask(request...)
	first.want(t, trade.OutcomeNoneGood, "", "to accept the offer for 0.005 USD:\n  agora ask --thread t1 --max-cost 0.005 --key ")
	alice.ask("--thread", "t1", "--max-cost", "0.004", quickly, "--wait", "300ms").want(t, trade.OutcomeNoneGood, "", "- 1: it costs 0.005 USD, and --max-cost is 0.004\n")
	for _, other := range [][]string{{"cheap"}, {"--params", `{"n":2}`}, {"--description", "add"}, {"--to", string(bob)},
		{"--to", string(bob), "--seal"}, {"--deadline", "2099-01-01T00:00:00Z"}} {
		alice.ask(append(other, "--thread", "t1", "--max-cost", "1")...).want(t, trade.OutcomeUsage, "", "leave ")
	}
	if accepts := alice.sent("t1", envelope.TypeAccept); len(accepts) != 0 {
		t.Fatalf("accepted: %v", accepts)
	}
	command := lineOf(t, first.stderr, "  agora ask --thread t1 --max-cost")
	args := strings.Fields(command)[2:]
	alice.ask(append(args, quickly)...).want(t, trade.OutcomeResult, "{\"n\":1}\n", "for 0.005 USD")
	for _, again := range [][]string{{}, {"priced"}, {"priced", "--params", `{ "n":1.0}`, "--description", "count"}} {
		alice.ask(append(again, "--thread", "t1", "-q")...).want(t, trade.OutcomeResult, "{\"n\":1}\n", "")
	}
	alice.wantOnce("t1")
	got := alice.ask("--thread", "t1", "--json").story(t)
	var accept envelope.Accept
	if err := json.Unmarshal(got.Accept, &accept); err != nil || got.Outcome != "result" || got.Agent != bob || got.Thread != "t1" || got.Intent != "priced" ||
		!strings.Contains(string(got.Offer), `"plan":"plan of priced"`) || !strings.Contains(string(got.Result), `"output":{"n":1}`) || *accept.Terms.PriceUSD != 0.005 {
		t.Errorf("%+v, %v", got, err)
	}
	if r := alice.ask("--thread", "t1", "-q"); r.stderr != "" {
		t.Errorf("--quiet prints %q", r.stderr)
	}

	// --json tells the story also if there is no result.
	got = alice.ask("priced", quickly, "--json", "--thread", "t2").story(t)
	if got.Outcome != "no_acceptable_offer" || len(got.Offers) != 1 || got.Offers[0].Agent != bob || !strings.Contains(got.Offers[0].Problem, "--max-cost is not given") {
		t.Errorf("%+v", got)
	}
	call, err := connectAs(t, s.relay, alice.key).Resume(t.Context(), "t2")
	if err == nil {
		err = call.Cancel(t.Context(), "")
	}
	if err != nil {
		t.Fatal(err)
	}
	got = alice.ask("--thread", "t2", "--json").story(t)
	if got.Outcome != "cancelled" || got.Error.Message != "you have cancelled the request" {
		t.Errorf("%+v", got)
	}

	// A request of agora send request can be continued, too; its limit holds.
	sendRequest := []string{"send", "request", "--key", alice.file, "--relay", s.relay, "--intent", "priced", "--thread", "t3", "--max-cost", "0.01", "--params", `3`}
	if code := run(cli.Environment{Ctx: t.Context(), Stdout: io.Discard, Stderr: io.Discard}, sendRequest); code != cli.ExitOK {
		t.Fatal(code)
	}
	alice.ask("--thread", "t3", quickly).want(t, trade.OutcomeResult, "3\n", "")
}

// lineOf returns the line of a text that begins with these words.
func lineOf(t *testing.T, text, begin string) string {
	t.Helper()
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, begin) {
			return strings.TrimSuffix(line, "\n")
		}
	}
	t.Fatalf("no line of %q begins with %q", text, begin)
	return ""
}

// TestAskSealed checks that a sealed request and its answers stay secret, also when another run continues it.
func TestAskSealed(t *testing.T) {
	s := startServe(t, "--data", filepath.Join(t.TempDir(), "data"))
	alice := newAsker(t, s.relay)
	bob, _ := serveAgent(t, s.relay, "priced", 0.005, client.Handler{})
	args := []string{"priced", "--params", `"secret"`, "--to", string(bob), "--seal", "--thread", "t1"}
	first := alice.ask(args...)
	first.want(t, trade.OutcomeNoneGood, "", "agora ask --thread t1 --max-cost 0.005")
	alice.ask("--thread", "t1", "--max-cost", "0.005").want(t, trade.OutcomeResult, "\"secret\"\n", "")
	alice.ask(args...).want(t, trade.OutcomeResult, "\"secret\"\n", "it is not checked whether it has the same params")
	alice.wantOnce("t1")
	_, events := call(t, "GET", s.relay+"/events?cursor=0&timeout=0")
	if strings.Contains(events, `"secret"`) || strings.Count(events, `"sealed":"v1.`) != 4 {
		t.Errorf("the relay shows %s", events)
	}

	// An agent that answers in plaintext.
	eve := newKey(t)
	c := connectAs(t, s.relay, eve)
	answered := make(chan error, 1)
	go func() {
		answered <- c.Follow(t.Context(), client.FollowOptions{Filter: client.Filter{Recipient: eve.DID(), Type: envelope.TypeRequest}, FromOldest: true},
			func(ctx context.Context, e *envelope.Envelope) error {
				_, _, err := c.Post(ctx, envelope.Draft{Thread: e.Thread, Recipient: e.Sender.ID, Home: e.Home, Re: e.Hash(),
					Payload: envelope.Offer{RequestID: e.RequestID}})
				return errors.Join(err, cli.ErrCountReached)
			})
	}()
	refused := alice.ask("priced", "--to", string(eve.DID()), "--seal")
	refused.want(t, trade.OutcomeFailed, "", "answered a sealed request in plaintext")
	refused.want(t, trade.OutcomeFailed, "", "agora: to take it back:\n  agora send cancel --thread") // it is still open
	if err := <-answered; !errors.Is(err, cli.ErrCountReached) {
		t.Error(err)
	}
}

// TestAskTimeouts checks what agora ask says if the relay has ended the request at a deadline.
func TestAskTimeouts(t *testing.T) {
	t.Parallel()
	s := startServe(t, "--data", filepath.Join(t.TempDir(), "data"), "--pending-timeout", "1s", "--active-timeout", "1s")
	alice := newAsker(t, s.relay)
	serveAgent(t, s.relay, "priced", 0.005, client.Handler{})
	serveAgent(t, s.relay, "slow", 0, client.Handler{Work: func(ctx context.Context, _ client.Job) (envelope.Result, error) {
		<-ctx.Done()
		return envelope.Result{}, ctx.Err()
	}})
	for name, c := range map[string]struct {
		args   []string
		how    trade.Outcome
		stderr string
	}{
		"no offer":      {[]string{"nobody", "--thread", "t1"}, trade.OutcomeNoOffer, "there was no offer before the deadline of the relay"},
		"too expensive": {[]string{"--thread", "t2", "--max-cost", "0.001"}, trade.OutcomeNoneGood, "no offer was accepted before the deadline of the relay"},
		"no result":     {[]string{"slow", "--thread", "t3", "--max-cost", "1"}, trade.OutcomeTimedOut, "has delivered nothing before the deadline of the relay"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.how == trade.OutcomeNoneGood {
				alice.ask("priced", "--thread", "t2", quickly).want(t, c.how, "", "no offer is free")
			}
			alice.ask(append(c.args, quickly)...).want(t, c.how, "", c.stderr)
			alice.ask(append(c.args, quickly)...).want(t, c.how, "", c.stderr)
		})
	}
}

// rival is an agent whose messages the test writes.
type rival struct {
	*client.Client
	key didkey.Key
	t   *testing.T
}

func newRival(t *testing.T, url string) rival {
	key := newKey(t)
	return rival{connectAs(t, url, key), key, t}
}

func (r rival) post(thread string, to didkey.DID, p envelope.Payload) {
	r.t.Helper()
	record, err := r.Thread(r.t.Context(), thread, to)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, _, err := r.Post(r.t.Context(), record.Join(envelope.Draft{Thread: thread, Recipient: to,
		Payload: p})); err != nil {
		r.t.Fatal(err)
	}
}

func usd(amount float64) *envelope.Price { return &envelope.Price{Amount: amount, Currency: "USD"} }

// openThread sends a REQUEST with the intent i in this thread, and returns its request_id.
func openThread(t *testing.T, from *asker, id string, flags ...string) (requestID string) {
	t.Helper()
	args := []string{"send", "request", "--key", from.file, "--relay", from.url, "--intent", "i", "--thread", id}
	if code := run(cli.Environment{Ctx: t.Context(), Stdout: io.Discard, Stderr: io.Discard}, append(args, flags...)); code != cli.ExitOK {
		t.Fatal(code)
	}
	return from.sent(id, envelope.TypeRequest)[0].RequestID
}

// TestAskChoosesAmongRivals lets several agents offer, change their offers and take them back.
func TestAskChoosesAmongRivals(t *testing.T) {
	t.Parallel()
	s := startServe(t, "--data", filepath.Join(t.TempDir(), "data"))
	alice := newAsker(t, s.relay)
	a, b, c := newRival(t, s.relay), newRival(t, s.relay), newRival(t, s.relay)
	for name, test := range map[string]struct {
		args   []string
		offers func(post func(r rival, p envelope.Payload), id string)
		want   didkey.DID // the accepted agent; empty: none
		price  float64
	}{
		"cheapest": {nil, func(post func(rival, envelope.Payload), id string) {
			post(a, envelope.Offer{RequestID: id, Price: usd(0.3), ETASeconds: 1})
			post(b, envelope.Offer{RequestID: id, Price: usd(0.1), ETASeconds: 9})
		}, b.key.DID(), 0.1},
		"fastest": {[]string{"--best", "fastest"}, func(post func(rival, envelope.Payload), id string) {
			post(b, envelope.Offer{RequestID: id, Price: usd(0.1), ETASeconds: 9})
			post(a, envelope.Offer{RequestID: id, Price: usd(0.3), ETASeconds: 1})
		}, a.key.DID(), 0.3},
		"first": {[]string{"--best", "first"}, func(post func(rival, envelope.Payload), id string) {
			post(a, envelope.Offer{RequestID: id, Price: usd(0.3)})
			post(b, envelope.Offer{RequestID: id, Price: usd(0.1)})
		}, a.key.DID(), 0.3},
		"a price that was raised": {nil, func(post func(rival, envelope.Payload), id string) {
			post(a, envelope.Offer{RequestID: id, Price: usd(0.1)})
			post(b, envelope.Offer{RequestID: id, Price: usd(0.4)})
			post(a, envelope.Offer{RequestID: id, Price: usd(7)})
		}, b.key.DID(), 0.4},
		"only a price that was raised": {[]string{"--wait", "6s"}, func(post func(rival, envelope.Payload), id string) {
			post(a, envelope.Offer{RequestID: id, Price: usd(0.1)})
			post(a, envelope.Offer{RequestID: id, Price: usd(7)})
		}, "", 0},
		"an offer that was taken back": {nil, func(post func(rival, envelope.Payload), id string) {
			post(a, envelope.Offer{RequestID: id, Price: usd(0.1)})
			post(b, envelope.Offer{RequestID: id, Price: usd(0.4)})
			post(a, envelope.Failure{RequestID: id, Code: "UNAVAILABLE", Message: "no"})
		}, b.key.DID(), 0.4},
		"strange prices": {nil, func(post func(rival, envelope.Payload), id string) {
			post(a, envelope.Offer{RequestID: id, Price: &envelope.Price{Amount: 0.1, Currency: "XAU"}})
			post(b, envelope.Raw{Type: envelope.TypeOffer, JSON: []byte(`{"request_id":"` + id + `","price":{"currency":"USD"}}`)})
			post(c, envelope.Offer{RequestID: id, Price: usd(0.2)})
		}, c.key.DID(), 0.2},
		"an offer that is over": {nil, func(post func(rival, envelope.Payload), id string) {
			past := time.Now().Add(-time.Second)
			post(a, envelope.Offer{RequestID: id, Price: usd(0.1), ValidUntil: &past})
			post(b, envelope.Offer{RequestID: id, Price: usd(0.2)})
		}, b.key.DID(), 0.2},
	} {
		t.Run(name, func(t *testing.T) {
			id := "t" + strings.ReplaceAll(name, " ", "-")
			// All offers are there before the run looks, so that the test does not depend on the time.
			requestID := openThread(t, alice, id, "--max-cost", "0.5")
			test.offers(func(r rival, p envelope.Payload) { r.post(id, alice.key.DID(), p) }, requestID)
			ended := make(chan asked, 1)
			go func() { ended <- alice.ask(append(test.args, "--thread", id, quickly, "--json")...) }()
			want := trade.OutcomeNoneGood.Name
			if test.want != "" {
				want = trade.OutcomeResult.Name
				agent := alice.awaitSent(id, envelope.TypeAccept).Recipient
				for _, r := range []rival{a, b, c} {
					if r.key.DID() == agent {
						r.post(id, alice.key.DID(), envelope.Result{RequestID: requestID, Status: "success"})
					}
				}
			}
			r := <-ended
			got := r.story(t)
			if got.Agent != test.want || got.Outcome != want {
				t.Fatalf("%s with %s, want %s with %s:\n%s", got.Outcome, got.Agent, want, test.want, r.stderr)
			}
			if test.want == "" {
				return
			}
			var accept envelope.Accept
			if err := json.Unmarshal(got.Accept, &accept); err != nil || *accept.Terms.PriceUSD != test.price {
				t.Errorf("accepted %s, %v", got.Accept, err)
			}
		})
	}
}

// TestAskWaitsForBetterOffers checks that a too expensive offer does not end the waiting if there is a limit.
func TestAskWaitsForBetterOffers(t *testing.T) {
	t.Parallel()
	s := startServe(t, "--data", filepath.Join(t.TempDir(), "data"))
	alice, a, b := newAsker(t, s.relay), newRival(t, s.relay), newRival(t, s.relay)
	ended := make(chan asked, 1)
	go func() {
		ended <- alice.ask("i", "--thread", "t1", "--max-cost", "0.5", "--timeout", "20s", "--best", "first")
	}()
	alice.awaitSent("t1", envelope.TypeRequest)
	a.post("t1", alice.key.DID(), envelope.Offer{RequestID: "t1", Price: usd(9)})
	time.Sleep(300 * time.Millisecond) // alice must see the first offer before the second; nothing tells the test when she has
	b.post("t1", alice.key.DID(), envelope.Offer{RequestID: "t1", Price: usd(0.5)})
	alice.awaitSent("t1", envelope.TypeAccept)
	b.post("t1", alice.key.DID(), envelope.Result{RequestID: "t1", Status: "SUCCESS", Output: json.RawMessage(`1`)})
	(<-ended).want(t, trade.OutcomeResult, "1\n", "- 1  "+cli.ShortDID(a.key.DID()))
}

// TestAskChoose lets a person choose.
func TestAskChoose(t *testing.T) {
	t.Parallel()
	s := startServe(t, "--data", filepath.Join(t.TempDir(), "data"))
	alice := newAsker(t, s.relay)
	alice.terminal = true
	a, b := newRival(t, s.relay), newRival(t, s.relay)
	past := time.Now().Add(-time.Second)
	for name, test := range map[string]struct {
		typed string
		how   trade.Outcome
		want  didkey.DID
	}{
		"the second":              {"7\nx\n2\n", trade.OutcomeTimedOut, b.key.DID()},
		"one that is over":        {"1\n2\n", trade.OutcomeTimedOut, b.key.DID()},
		"none":                    {"1\nq\n", trade.OutcomeNoneGood, ""},
		"none, at the end":        {"", trade.OutcomeNoneGood, ""},
		"wait, and none is new":   {"\nq\n", trade.OutcomeNoneGood, ""},
		"wait, and then an offer": {"\n2\n", trade.OutcomeTimedOut, b.key.DID()},
	} {
		t.Run(name, func(t *testing.T) {
			id := strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), ",", "")
			r := asker{t, alice.url, alice.key, alice.file, true, test.typed}
			r.ask("i", "--thread", id, "--wait", "10ms").want(t, trade.OutcomeNoOffer, "", "")
			a.post(id, alice.key.DID(), envelope.Offer{RequestID: id, ValidUntil: &past})
			b.post(id, alice.key.DID(), envelope.Offer{RequestID: id, Price: &envelope.Price{Amount: 3, Currency: "EUR"}})
			timeout := "1m"
			if test.how == trade.OutcomeTimedOut { // nobody sends a result
				timeout = "4s"
			}
			got := r.ask("--thread", id, "--choose", quickly, "--timeout", timeout, "--wait", "200ms")
			got.want(t, test.how, "", "Accept which offer? [1 = free, 2 = 3 EUR; Enter to wait for more, q to quit]")
			accepts := r.sent(id, envelope.TypeAccept)
			if len(accepts) > 1 || (len(accepts) == 1) != (test.want != "") || len(accepts) == 1 && accepts[0].Recipient != test.want {
				t.Errorf("accepted %v:\n%s", accepts, got.stderr)
			}
		})
	}
}

// TestOffersTable checks that the table of offers fits to a terminal with 80 columns, whatever the agents write.
func TestOffersTable(t *testing.T) {
	key := newKey(t)
	long := strings.Repeat("翻译，保持语气 ", 30)
	var rows [][]string
	later := time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC)
	for i, o := range []envelope.Offer{{}, {Plan: long, Price: usd(0.30000000000000004), ETASeconds: 1e300, ValidUntil: &later},
		{Plan: hostile, Price: &envelope.Price{Amount: 1e308, Currency: hostile}, ETASeconds: 90}, {Price: usd(1e-9), ETASeconds: 0.1}} {
		shown := client.Offer{Offer: o, Agent: key.DID()}
		rows = append(rows, []string{fmt.Sprintf("* %d", i+1), cli.ShortDID(shown.Agent), trade.PriceOf(shown), trade.EtaOf(shown), trade.UntilOf(shown, later.AddDate(0, 0, 1)), o.Plan})
	}
	lines := trade.TableLines(rows)
	for _, line := range lines {
		if n := cli.Columns(line); n > 80 || len(foundIn(line)) > 0 || strings.Contains(line, "\n") {
			t.Errorf("%d columns: %q", n, line)
		}
	}
	if !strings.Contains(lines[1], "0.30000000000000004 USD") || !strings.Contains(lines[1], ">9999h") || !strings.HasSuffix(lines[1], "…") ||
		!strings.Contains(lines[0], "free") || !strings.Contains(lines[3], "1e-09 USD") || !strings.Contains(lines[2], "1m30s") {
		t.Errorf("%q", lines)
	}
	for text, want := range map[string]int{"": 0, "abc": 3, "你好": 4, "e\u0301": 1, "한": 2, "ｱ": 1} {
		if got := cli.Columns(text); got != want {
			t.Errorf("%q has %d columns", text, got)
		}
	}
	if got := cli.WithoutEnd("你好吗", 4); got != "你…" {
		t.Errorf("cut to %q", got)
	}
}

package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// world has relays in memory that can be killed. It is the transport of all clients.
type world struct {
	t      *testing.T
	relays map[string]*fakeRelay // by host

	mu   sync.Mutex
	dead map[string]chan struct{} // closed while the relay is down
}

// newWorld returns a world of relays with the feature home, at http://a.test and so on.
func newWorld(t *testing.T, names ...string) *world {
	w := &world{t: t, relays: map[string]*fakeRelay{}, dead: map[string]chan struct{}{}}
	for _, name := range names {
		f := newFakeRelay()
		f.URL, f.homes = "http://"+name+".test", true
		w.relays[name+".test"], w.dead[name+".test"] = f, make(chan struct{})
	}
	return w
}

func (w *world) relay(name string) *fakeRelay { return w.relays[name+".test"] }

func (w *world) urls() (all []string) {
	for _, name := range []string{"a", "b", "c"} {
		if f := w.relay(name); f != nil {
			all = append(all, f.URL)
		}
	}
	return all
}

var errDown = errors.New("the relay is down")

// RoundTrip implements http.RoundTripper. Requests to a dead relay fail, also those that wait.
func (w *world) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	dead := w.dead[r.URL.Host]
	w.mu.Unlock()
	ctx, cut := context.WithCancel(r.Context())
	defer cut()
	go func() {
		select {
		case <-dead:
		case <-ctx.Done():
		}
		cut()
	}()
	select {
	case <-dead:
		return nil, errDown
	default:
	}
	response, err := w.relays[r.URL.Host].RoundTrip(r.WithContext(ctx))
	select {
	case <-dead:
		return nil, errDown
	default:
		return response, err
	}
}

func (w *world) kill(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.dead[name+".test"])
}

func (w *world) revive(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead[name+".test"] = make(chan struct{})
}

// network returns a Network of a new identity over all relays.
func (w *world) network(opts client.NetworkOptions) *client.Network {
	key, err := didkey.Generate()
	if err != nil {
		w.t.Fatal(err)
	}
	opts.HTTPClient = &http.Client{Transport: w}
	n, err := client.NewNetwork(w.urls(), key, opts)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// serve runs an agent until the returned function is called.
func (w *world) serve(n *client.Network, work func(context.Context, client.Job) (envelope.Result,
	error)) (stop func()) {
	return w.serveWith(n, client.Handler{Work: work})
}

func (w *world) serveWith(n *client.Network, handler client.Handler) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- n.Serve(ctx, client.ServeOptions{Intents: []string{"echo"},
			Manifest: envelope.Manifest{ID: "cap", Intents: []envelope.Intent{{ID: "echo"}}}}, handler)
	}()
	time.Sleep(2 * time.Second)
	return func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			w.t.Errorf("the agent ended: %v", err)
		}
	}
}

// count returns how many messages of a type the relays have.
func (w *world) count(kind envelope.Type) (n int) {
	for _, f := range w.relays {
		for _, e := range f.all() {
			if e.Type == kind {
				n++
			}
		}
	}
	return n
}

// TestHomeDies kills the home of a thread at each step (RELAYS ). The job continues at another relay:
// one RESULT, the work is done once, and the RESULT comes within 35 seconds.
func TestHomeDies(t *testing.T) {
	steps := []string{"before the REQUEST", "before the OFFER", "after the OFFER", "after the ACCEPT",
		"while the agent works", "before the RESULT"}
	for _, step := range steps {
		for _, comesBack := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, comes back %v", step, comesBack), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testHomeDies(t, step, comesBack) })
			})
		}
	}
}

func testHomeDies(t *testing.T, step string, comesBack bool) {
	w := newWorld(t, "a", "b", "c")
	var died time.Time
	die := sync.OnceFunc(func() { // two requests may pass the same step
		w.kill("a")
		died = time.Now()
	})
	kill := func(at string) {
		if at == step {
			die()
		}
	}
	var works atomic.Int32
	stop := w.serve(w.network(client.NetworkOptions{}), func(ctx context.Context,
		job client.Job) (envelope.Result, error) {
		works.Add(1)
		kill("while the agent works")
		time.Sleep(time.Second)
		kill("before the RESULT")
		return envelope.Result{Output: job.Request.Params}, ctx.Err()
	})
	defer stop()
	var moves []client.Move
	n := w.network(client.NetworkOptions{Moved: func(m client.Move) { moves = append(moves, m) }})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	if step == "before the OFFER" { // the relay takes the REQUEST and dies
		w.relay("a").setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			response, err := next.RoundTrip(r)
			if r.Method == http.MethodPost {
				kill(step)
			}
			return response, err
		})
	}
	agent := w.agent(ctx, n)
	kill("before the REQUEST")
	call, err := n.Request(ctx, client.RequestOptions{Intent: "echo", Params: 7, Recipient: agent})
	if err != nil {
		t.Fatal(err)
	}
	for offer, err := range call.Offers(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		kill("after the OFFER")
		if err := call.Accept(ctx, offer); err != nil {
			t.Fatal(err)
		}
		break
	}
	kill("after the ACCEPT")
	if comesBack {
		wait := later(20*time.Second, func() { w.relay("a").setHook(nil); w.revive("a") })
		defer wait()
	}
	result, err := call.Result(ctx)
	if err != nil || string(result.Output) != "7" {
		t.Fatalf("result %v, %v", result, err)
	}
	if took := time.Since(died); took > 35*time.Second && !comesBack || took > time.Minute {
		t.Errorf("the RESULT came %v after the death of the home", took)
	}
	time.Sleep(2 * time.Minute)
	if works.Load() != 1 {
		t.Errorf("the work was done %d times", works.Load())
	}
	if !comesBack && step != "before the REQUEST" && (len(moves) != 1 || moves[0].From.URL != "http://a.test" ||
		moves[0].To.URL != "http://b.test" || moves[0].Reason != "is silent") {
		t.Errorf("moves: %v", moves)
	}
	if n := w.count(envelope.TypeResult); n > 2 || !comesBack && n != 1 {
		t.Errorf("%d RESULTs", n)
	}
}

// TestResumedJobMoves: another process resumes a job after the ACCEPT of an OFFER that has a price. The home dies, or
// has lost the ACCEPT. The job continues at another relay, for the same price (RELAYS ).
func TestResumedJobMoves(t *testing.T) {
	for _, dies := range []bool{true, false} {
		t.Run(fmt.Sprint("dies ", dies), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testResumedJobMoves(t, dies) })
		})
	}
}

func testResumedJobMoves(t *testing.T, dies bool) {
	w := newWorld(t, "a", "b", "c")
	defer w.serveWith(w.network(client.NetworkOptions{}), client.Handler{
		Quote: func(context.Context, client.Job) (envelope.Offer, error) {
			return envelope.Offer{Price: &envelope.Price{Currency: "USD", Amount: 5}}, nil
		},
		Work: func(context.Context, client.Job) (envelope.Result, error) {
			time.Sleep(20 * time.Second)
			return envelope.Result{Output: []byte("7")}, nil
		}})()
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	process := func() *client.Network {
		n, err := client.NewNetwork(w.urls(), key, client.NetworkOptions{
			Options: client.Options{HTTPClient: &http.Client{Transport: w}}})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	n := process()
	call, err := hire(ctx, n, w.agent(ctx, n))
	if err != nil {
		t.Fatal(err)
	}
	id, _ := call.Thread()
	if call, err = process().Resume(ctx, id); err != nil {
		t.Fatal(err)
	}
	if dies {
		w.kill("a")
	} else {
		w.relay("a").restore(envelope.TypeAccept)
	}
	result, err := call.Result(ctx)
	if _, home := call.Thread(); err != nil || string(result.Output) != "7" || home.URL == "http://a.test" {
		t.Fatalf("result %v at %s, %v", result, home.URL, err)
	}
}

// TestInterruptedMove: a context ends while the next home is asked who it is. The job does not move to a later relay
// that has answered faster, and the next call continues it at the right one (RELAYS R-15).
func TestInterruptedMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c")
		w.relay("b").hookDocument = true
		defer w.serve(w.network(client.NetworkOptions{}), func(ctx context.Context, _ client.Job) (envelope.Result, error) {
			time.Sleep(time.Second)
			return envelope.Result{Output: []byte("7")}, ctx.Err()
		})()
		var moves []client.Move
		n := w.network(client.NetworkOptions{Moved: func(m client.Move) { moves = append(moves, m) }})
		call, err := hire(t.Context(), n, w.agent(t.Context(), n))
		if err != nil {
			t.Fatal(err)
		}
		w.kill("a")
		ctx, interrupt := context.WithCancel(t.Context())
		defer interrupt()
		w.relay("b").setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			if strings.Contains(r.URL.Path, "/.well-known/") {
				time.Sleep(time.Second) // the third relay answers
				interrupt()
			}
			return next.RoundTrip(r)
		})
		if _, err := call.Result(ctx); !errors.Is(err, context.Canceled) || len(moves) > 0 {
			t.Fatalf("interrupted: %v, moves %v", err, moves)
		}
		w.relay("b").setHook(nil)
		result, err := call.Result(t.Context())
		if err != nil || string(result.Output) != "7" || len(moves) != 1 || moves[0].To.URL != "http://b.test" {
			t.Fatalf("result %v, %v, moves %v", result, err, moves)
		}
	})
}

// TestCutOffReads: a context ends after the first relay has answered, and before the second one has. No read of several
// relays shows the answer of the first as if it were everything.
func TestCutOffReads(t *testing.T) {
	reads := map[string]func(context.Context, *client.Network, didkey.DID) error{
		"agent": func(ctx context.Context, n *client.Network, agent didkey.DID) error {
			_, err := n.Agent(ctx, agent)
			return err
		},
		"directory": func(ctx context.Context, n *client.Network, _ didkey.DID) (last error) {
			for _, err := range n.Directory(ctx, client.AgentQuery{}) {
				last = err
			}
			return last
		},
		"page": func(ctx context.Context, n *client.Network, _ didkey.DID) error {
			_, err := n.Agents(ctx, client.AgentQuery{Intent: "none"})
			return err
		},
	}
	for name, read := range reads {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, "a", "b")
				defer w.serve(w.network(client.NetworkOptions{}), echo)()
				n := w.network(client.NetworkOptions{})
				agent := w.agent(t.Context(), n)
				ctx, end := context.WithTimeout(t.Context(), time.Second)
				defer end()
				w.relay("a").setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
					if r.URL.Query().Has("intent") {
						return response(http.StatusOK, `{"ok":true,"agents":[]}`), nil
					}
					return next.RoundTrip(r)
				})
				w.relay("b").setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
					if strings.HasPrefix(r.URL.Path, "/agents") {
						<-r.Context().Done()
						return nil, r.Context().Err()
					}
					return next.RoundTrip(r)
				})
				if err := read(ctx, n, agent); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// TestRestoredBeforeAccept: the home is restored from a copy without the thread before it gets the ACCEPT. The job
// continues at another relay, with the same agent (RELAYS ).
func TestRestoredBeforeAccept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		defer w.serve(w.network(client.NetworkOptions{}), func(context.Context, client.Job) (envelope.Result, error) {
			return envelope.Result{Output: []byte("7")}, nil
		})()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		n := w.network(client.NetworkOptions{})
		call, err := n.Request(ctx, client.RequestOptions{Intent: "echo", Recipient: w.agent(ctx, n)})
		if err != nil {
			t.Fatal(err)
		}
		for offer, err := range call.Offers(ctx) {
			if err == nil {
				w.relay("a").restore(envelope.TypeRequest)
				err = call.Accept(ctx, offer)
			}
			if err != nil {
				t.Fatal(err)
			}
			break
		}
		result, err := call.Result(ctx)
		if _, home := call.Thread(); err != nil || string(result.Output) != "7" || home.URL != "http://b.test" {
			t.Fatalf("result %v at %s, %v", result, home.URL, err)
		}
	})
}

// agent waits until a manifest is there, and returns its agent.
func (w *world) agent(ctx context.Context, n *client.Network) didkey.DID {
	for a, err := range n.Directory(ctx, client.AgentQuery{}) {
		if err != nil {
			w.t.Fatal(err)
		}
		return a.ID
	}
	w.t.Fatal("no agent is announced")
	return ""
}

// TestHomeWithholds: a home takes a REQUEST and shows it to nobody. The job continues after a minute (RELAYS R-15).
func TestHomeWithholds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		defer w.serve(w.network(client.NetworkOptions{}), echo)()
		w.relay("a").setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			if r.Method == http.MethodPost {
				return next.RoundTrip(r)
			}
			if strings.Contains(r.URL.RawQuery, "recipient=") {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			return next.RoundTrip(r)
		})
		var moves []client.Move
		n := w.network(client.NetworkOptions{Moved: func(m client.Move) { moves = append(moves, m) }})
		agent := w.agent(t.Context(), n)
		time.Sleep(time.Minute) // a poll that began before the hook ends
		began := time.Now()
		if _, err := askNetwork(t.Context(), n, agent); err != nil {
			t.Fatal(err)
		}
		if len(moves) != 1 || moves[0].Reason != "shows no offer" || time.Since(began) > 70*time.Second {
			t.Errorf("moves %v after %v", moves, time.Since(began))
		}
	})
}

func echo(_ context.Context, job client.Job) (envelope.Result, error) {
	return envelope.Result{Output: job.Request.Params}, nil
}

// hire asks for echo, and accepts the first offer.
func hire(ctx context.Context, n *client.Network, agent didkey.DID) (*client.NetworkCall, error) {
	call, err := n.Request(ctx, client.RequestOptions{Intent: "echo", Params: 7, Recipient: agent})
	if err != nil {
		return nil, err
	}
	for offer, err := range call.Offers(ctx) {
		if err == nil {
			err = call.Accept(ctx, offer)
		}
		if err != nil {
			return nil, err
		}
		break
	}
	return call, nil
}

// askNetwork asks for echo, accepts the first offer and waits for the result.
func askNetwork(ctx context.Context, n *client.Network, agent didkey.DID) (*client.Result, error) {
	call, err := hire(ctx, n, agent)
	if err != nil {
		return nil, err
	}
	return call.Result(ctx)
}

// TestAddressTakenOver: another relay answers at the address of a home. Nothing is posted there (RELAYS R-4).
func TestAddressTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		n := w.network(client.NetworkOptions{})
		for _, s := range n.Relays(t.Context()) {
			if s.Err != nil || !s.Home {
				t.Fatal(s)
			}
		}
		thief, home := newFakeRelay(), envelope.Home{DID: w.relay("a").key.DID(), URL: w.relay("a").URL}
		thief.URL, thief.homes = w.relay("a").URL, true
		w.relays["a.test"] = thief
		d := envelope.Draft{Payload: envelope.Request{Intent: "echo"}, Home: &home}
		if _, _, err := n.Post(t.Context(), d); err != nil || len(thief.all()) != 1 {
			t.Fatalf("within the hour the document is not read again: %v, %d", err, len(thief.all()))
		}
		time.Sleep(time.Hour)
		if _, _, err := n.Post(t.Context(), d); !errors.Is(err, client.ErrOtherRelay) || len(thief.all()) != 1 {
			t.Errorf("posted to a relay with another identity: %v, %d messages", err, len(thief.all()))
		}
	})
}

// TestFollowNetwork: one handler gets each message once, whatever relays show it, and both of two messages with one id
// (RELAYS R-12). A relay that is down delays nothing. After a restart with the file nothing comes again.
func TestFollowNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c")
		w.kill("c")
		path := filepath.Join(t.TempDir(), "state")
		key, err := didkey.Generate()
		if err != nil {
			t.Fatal(err)
		}
		sign := func(text, id string) *envelope.Envelope {
			e, err := (envelope.Draft{ID: id, Payload: envelope.Request{Intent: text}}).Sign(key, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			return e
		}
		one, two, other := sign("one", "m1"), sign("two", "m2"), sign("other", "m2")
		follow := func() (got []string) {
			state, err := client.OpenState(path, key.DID())
			if err != nil {
				t.Fatal(err)
			}
			n, err := client.NewNetwork(w.urls(), key, client.NetworkOptions{State: state,
				Options: client.Options{HTTPClient: &http.Client{Transport: w}}})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err = n.Follow(ctx, client.FollowOptions{FromOldest: true}, func(_ context.Context, e *envelope.Envelope) error {
				got = append(got, e.PayloadString("intent"))
				return nil
			})
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			if err := state.Close(); err != nil {
				t.Fatal(err)
			}
			return got
		}
		for _, e := range []*envelope.Envelope{one, two} {
			w.relay("a").append(e)
		}
		for _, e := range []*envelope.Envelope{one, other} {
			w.relay("b").append(e)
		}
		if got := follow(); len(got) != 3 {
			t.Errorf("got %v, want one, two and other once each", got)
		}
		w.revive("c")
		w.relay("c").append(one)
		w.relay("c").append(sign("three", "m3"))
		if got := follow(); len(got) != 1 || got[0] != "three" {
			t.Errorf("after the restart got %v, want three", got)
		}
	})
}

// TestManifestWithoutSilentRelay: a relay takes requests and does not answer. The agent announces itself at the
// others in time, and its MANIFEST names only them. When the relay answers, it gets a MANIFEST that names it, too
// (RELAYS ).
func TestManifestWithoutSilentRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c")
		w.relay("a").hookDocument = true
		w.relay("a").setHook(func(r *http.Request, _ http.RoundTripper) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		defer w.serve(w.network(client.NetworkOptions{}), echo)()
		time.Sleep(10 * time.Second)
		named := func(name string) int {
			t.Helper()
			all := w.relay(name).all()
			if len(all) != 1 || all[0].Type != envelope.TypeManifest {
				t.Fatalf("%s has %d messages, want the MANIFEST", name, len(all))
			}
			var payload struct {
				Relays []envelope.Home `json:"relays"`
			}
			if err := all[0].DecodePayload(&payload); err != nil {
				t.Fatal(err)
			}
			return len(payload.Relays)
		}
		if b, c := named("b"), named("c"); b != 2 || c != 2 {
			t.Errorf("the MANIFESTs name %d and %d relays, want b and c", b, c)
		}
		w.relay("a").setHook(nil)
		w.kill("b") // it has answered before, so it is still named
		time.Sleep(time.Minute)
		if a := named("a"); a != 3 {
			t.Errorf("the MANIFEST names %d relays, want all", a)
		}
	})
}

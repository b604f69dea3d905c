package conformance_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/conformance"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	gatewaya2a "github.com/agora-relay/agora/gateway/a2a"
	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// TestA2ANumbers tests that each check of A2A servers has a name of its own, a title, a theme and a rule.
func TestA2ANumbers(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range conformance.A2AChecks() {
		if seen[c.Number] || c.Title == "" || c.Theme == "" || c.Cites == "" || c.Level() != conformance.A2AServer {
			t.Errorf("%s (seen: %t) has the title %q, the theme %q and the level %s", c.Number, seen[c.Number], c.Title, c.Theme,
				c.Level())
		}
		seen[c.Number] = true
	}
}

// a2aServer is an agent of this project behind its A2A gateway.
type a2aServer struct {
	url    string
	bearer string // of a caller
	other  string // of another one
}

// streamsOf counts the streams that SubscribeToTask has opened, by task.
type streamsOf struct {
	mu      sync.Mutex
	opened  map[string]int
	changed chan struct{} // is closed at each change
}

// count notices that a stream of a task is open.
func (s *streamsOf) count(task string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened[task]++
	close(s.changed)
	s.changed = make(chan struct{})
}

// await waits until a task has two streams, but not for longer than some seconds: a faulty server may open none.
func (s *streamsOf) await(ctx context.Context, task string) {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	for {
		s.mu.Lock()
		n, changed := s.opened[task], s.changed
		s.mu.Unlock()
		if n >= 2 {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// watch returns a handler that counts the streams.
func (s *streamsOf) watch(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := r.URL.Path
		if strings.HasSuffix(asked, "/rpc") {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			asked, r.Body = string(body), io.NopCloser(bytes.NewReader(body))
		}
		if task := taskID.FindString(asked); task != "" && strings.Contains(strings.ToLower(asked), "subscribe") {
			w = &firstWrite{w, sync.OnceFunc(func() { s.count(task) })}
		}
		next.ServeHTTP(w, r)
	})
}

var taskID = regexp.MustCompile(`tsk_[a-z2-7]{26}`)

// firstWrite calls a function after the first write.
type firstWrite struct {
	http.ResponseWriter
	wrote func()
}

func (f *firstWrite) Unwrap() http.ResponseWriter { return f.ResponseWriter }

func (f *firstWrite) Write(p []byte) (int, error) {
	n, err := f.ResponseWriter.Write(p)
	f.wrote()
	return n, err
}

// startA2A runs a relay with an A2A gateway and an agent that sends its artifact in two pieces, until the test ends.
func startA2A(t *testing.T, access a2a.Access, middleware func(http.Handler) http.Handler) a2aServer {
	t.Helper()
	streams := &streamsOf{opened: map[string]int{}, changed: make(chan struct{})}
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	url := startGateway(t, func(next http.Handler) http.Handler { return middleware(streams.watch(next)) },
		gatewaya2a.Extension,
		func(core *gateway.Core) ([]httpapi.Mount, func(context.Context), error) {
			g, err := gatewaya2a.New(t.Context(), core, gatewaya2a.Options{Endpoints: 10, Retention: time.Hour,
				Wait: 10 * time.Second})
			if err != nil {
				return nil, nil, err
			}
			return g.Mounts("/a2a"), g.Run, nil
		})
	key, err := didkey.Generate()
	must(err)
	agent, err := client.New(url, key, client.Options{Logger: quiet})
	must(err)
	at := a2a.NewEndpoint(url+"/a2a", key.DID())
	card, err := at.Sign(at.FromManifest(envelope.Manifest{Name: "Prüfling",
		Intents: []envelope.Intent{{ID: a2a.MessageIntent}}}, access),
		access, key)
	must(err)
	path := "/" + key.DID().Multibase()
	must(agent.CallA2A(t.Context(), client.GatewayCall{Method: http.MethodPut, Path: path + "/endpoint", Repeatable: true,
		Body: jsontext.Compact(map[string]any{"card": json.RawMessage(card), "access": access, "mode": a2a.ModeMessage,
			"listed": false})}))
	keyOf := func(name string) string {
		var made struct{ Key string }
		must(agent.CallA2A(t.Context(), client.GatewayCall{Method: http.MethodPost, Path: path + "/keys",
			Status: http.StatusCreated, Body: jsontext.Compact(map[string]string{"name": name}), Out: &made}))
		return made.Key
	}
	s := a2aServer{url: at.Base(), bearer: keyOf("alice"), other: keyOf("bob")}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = agent.Serve(ctx, client.ServeOptions{Intents: []string{a2a.MessageIntent}, Concurrency: 20}, // ends with ctx
			client.Handler{Work: func(ctx context.Context, job client.Job) (envelope.Result, error) {
				return a2aWork(ctx, agent, url+"/a2a", streams, job)
			}})
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return s
}

// a2aWork is the work of the agent. If the kit asks for some time, the agent waits for the kit's streams between the
// pieces.
func a2aWork(ctx context.Context, agent *client.Client, gateway string, streams *streamsOf,
	job client.Job) (envelope.Result, error) {
	turn, err := a2a.ParseTurn(job.Request.Params)
	if err != nil {
		return envelope.Result{}, err
	}
	for i, text := range []string{"Hello, ", "kit."} {
		event := a2a.Progress{Artifact: &a2a.ArtifactUpdate{Append: i > 0,
			Artifact: a2a.Artifact{ArtifactID: "a", Parts: []a2a.Part{a2a.TextPart(text)}}}}
		err := agent.CallA2A(ctx, client.GatewayCall{Method: http.MethodPost,
			Path: strings.TrimPrefix(turn.Work, gateway) + "/events",
			Body: jsontext.Compact(map[string]any{"events": []a2a.Progress{event}})})
		if err != nil {
			return envelope.Result{}, err
		}
		if i == 0 && strings.Contains(*turn.Message.Parts[0].Text, "some time") {
			streams.await(ctx, turn.Task)
		}
	}
	return envelope.Result{Output: json.RawMessage(`{"a2a":{}}`)}, nil
}

// TestOwnA2APasses runs the checks against an agent behind this project's gateway: one that wants keys, and one that
// everybody may call, from another machine, so that the limits of the gateway apply.
func TestOwnA2APasses(t *testing.T) {
	skipWithRaceDetector(t)
	t.Parallel()
	for access, c := range map[a2a.Access]struct {
		middleware func(http.Handler) http.Handler
		notTested  string
	}{
		a2a.Keys: {middleware: func(next http.Handler) http.Handler { return next }},
		a2a.Public: {middleware: fromRemoteAddress,
			notTested: "1 not tested: the card demands no key, so everybody may call\n" +
				"2 not tested: this needs the keys of two callers (--bearer twice)\n"},
	} {
		t.Run(string(access), func(t *testing.T) {
			takeTurn(t)
			s := startA2A(t, access, c.middleware)
			var o conformance.A2AOptions
			if access == a2a.Keys {
				o.Bearer, o.Other = s.bearer, s.other
			}
			report := passChecks(t, func(conformance.Result) bool { return c.notTested != "" }, nil,
				func(only []string) (conformance.Report, error) {
					o.Only = only
					return conformance.RunA2A(t.Context(), s.url, o)
				})
			var text strings.Builder
			err := report.WriteText(&text)
			summary := "\n" + c.notTested + strings.TrimSuffix(s.url, "/")
			if err != nil || !report.Holds() || !strings.Contains(text.String(), summary) {
				t.Errorf("%v\n%s", err, text.String())
			}
		})
	}
}

// TestA2AConnect tests that a run ends with an error where there is no A2A server.
func TestA2AConnect(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"ftp://x": "must be a URL", "http://127.0.0.1:1": "no A2A server answers",
		startWith(t, relay.Config{Key: relayKey(t)}, nil, nil): "has no card of A2A 1.0",
	} {
		_, err := conformance.RunA2A(t.Context(), url, conformance.A2AOptions{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", url, err)
		}
	}
	err := conformance.A2AOptions{Only: []string{"C-1"}}.Check("http://127.0.0.1")
	if err == nil || !strings.Contains(err.Error(), `no check "C-1"; the numbers look like a2a.stream.resume`) {
		t.Error(err)
	}
}

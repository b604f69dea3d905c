package mcpserver_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
)

// unanswered is a log that tells when a tool has found that the relay does not answer.
func unanswered() (log *slog.Logger, found <-chan struct{}) {
	told := make(chan struct{}, 1)
	return slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		if strings.Contains(string(p), "will be tried again") {
			select {
			case told <- struct{}{}:
			default:
			}
		}
		return len(p), nil
	}), &slog.HandlerOptions{Level: slog.LevelDebug})), told
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// patient gives a server the patience of agora mcp, and a client that loses the first answer to a message while losing is
// set.
func (a *agent) patient(r *testRelay) (noticed <-chan struct{}, lose func()) {
	a.t.Helper()
	transport := &losing{}
	var err error
	a.options.Client, err = client.New(r.URL, a.key, client.Options{Attempts: 1, HTTPClient: &http.Client{Transport: transport}})
	if err != nil {
		a.t.Fatal(err)
	}
	a.options.Patience = 0
	a.options.Log, noticed = unanswered()
	a.reconnect()
	return noticed, transport.lose
}

// losing is a transport that loses answers.
type losing struct {
	mu  sync.Mutex
	one bool // the next answer to a POST is lost
}

func (l *losing) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.one = true
}

func (l *losing) RoundTrip(q *http.Request) (*http.Response, error) {
	answer, err := http.DefaultTransport.RoundTrip(q)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.one && q.Method == http.MethodPost {
		l.one = false
		_ = answer.Body.Close() // it is lost
		return nil, io.ErrUnexpectedEOF
	}
	return answer, err
}

// TestToolsRideThroughRestart calls each tool that acts while the relay is down. It must succeed when the relay is back,
// and do its work once. The same holds if the relay has done it, but its answer was lost.
func TestToolsRideThroughRestart(t *testing.T) {
	r := startRelay(t)
	alice, bob := newAgent(t, r, usd, 10*usd), newAgent(t, r, 0, 0)
	noticed := map[*agent]<-chan struct{}{}
	lose := map[*agent]func(){}
	for _, a := range []*agent{alice, bob} {
		noticed[a], lose[a] = a.patient(r)
	}
	down := func(a *agent, tool string, args map[string]any, out any) {
		t.Helper()
		r.stop()
		done := make(chan struct{})
		go func() {
			defer close(done)
			a.call(tool, args, out)
		}()
		select {
		case <-noticed[a]:
		case <-done: // it has failed
		}
		r.start(strings.TrimPrefix(r.URL, "http://"))
		<-done
	}
	lost := func(a *agent, tool string, args map[string]any, out any) {
		t.Helper()
		lose[a]()
		a.call(tool, args, out)
	}
	for name, through := range map[string]func(*agent, string, map[string]any, any){"down": down, "lost": lost} {
		through(bob, "offer_work", map[string]any{"name": "Bob", "services": []any{map[string]any{"intent": "echo", "price_usd": 0.25}}}, nil)
		for end, argument := range map[string]string{"deliver": "output", "fail_job": "reason"} {
			var asked requestView
			through(alice, "ask", map[string]any{"intent": "echo", "wait_seconds": 0}, &asked)
			job := bob.nextJob(60)
			shown := alice.offers(asked.Thread)
			var accepted requestView
			through(alice, "accept_offer", acceptArgs(shown), &accepted)
			if accepted.State != "working" {
				t.Errorf("%s: accepted: %+v", name, accepted)
			}
			taken := job()
			through(bob, end, map[string]any{"thread": taken.Thread, "client": taken.Client, argument: "done"}, nil)
			record, err := alice.client.Thread(t.Context(), asked.Thread, alice.did)
			if err != nil {
				t.Fatal(err)
			}
			var types []string
			for _, e := range record.Events {
				types = append(types, string(e.Type))
			}
			last := map[string]envelope.Type{"deliver": envelope.TypeResult, "fail_job": envelope.TypeError}[end]
			if got := strings.Join(types, " "); got != "REQUEST OFFER ACCEPT "+string(last) {
				t.Errorf("%s, %s: the thread has %s", name, end, got)
			}
		}
	}
	var open requestView
	alice.call("ask", map[string]any{"intent": "nothing", "wait_seconds": 0}, &open)
	down(alice, "cancel", map[string]any{"thread": open.Thread}, &open)
	if open.State != "cancelled" {
		t.Errorf("cancelled: %+v", open)
	}
	down(alice, "find_agents", map[string]any{"intent": "echo"}, nil)
	down(alice, "inbox", nil, nil)
}

// TestNoPatienceForRefusals checks that a tool is not tried again if the relay refuses what it asks for, or if the call is
// cancelled.
func TestNoPatienceForRefusals(t *testing.T) {
	r := startRelay(t)
	alice := newAgent(t, r, usd, usd)
	alice.patient(r)
	asked := 0
	r.setFilter(func(w http.ResponseWriter, q *http.Request) bool {
		if q.URL.Path != "/agents" {
			return false
		}
		asked++ // requests of one call come one after the other
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"ok":false,"error":"INVALID_REQUEST","message":"no","retryable":false}`)
		return true
	})
	alice.refused("find_agents", nil, "did not do this")
	if asked != 1 {
		t.Errorf("a refused read was sent %d times", asked)
	}
	for err, want := range map[error]bool{context.Canceled: false, errors.New("x"): false, client.ErrUnknownOutcome: true,
		client.ErrUnacceptable: false, envelope.Errorf(envelope.CodeForbidden, "x"): false} {
		if client.Unanswered(err) != want {
			t.Errorf("%v is unanswered: %v", err, !want)
		}
	}
}

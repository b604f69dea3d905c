package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay/httpapi"
)

// site is a relay at an address of the simulated network. It starts again when its machine has died.
type site struct {
	*machine
	host string

	mu      sync.Mutex
	handler http.Handler // nil: the relay is down
	ctx     context.Context
	acked   map[string]acknowledged // by the id of the message
}

// acknowledged is a message that the relay has answered with 200.
type acknowledged struct {
	hash    envelope.Hash
	expires time.Time
}

// The errors of the network.
var (
	errDown   = errors.New("the relay is down")
	errCut    = errors.New("the network is cut")
	errBroken = errors.New("the connection broke")
)

// open lets the network reach the relay until it stops. ctx is what start has returned.
func (s *site) open(ctx context.Context) {
	front := httpapi.New(s.life.relay, httpapi.Options{Log: s.log(), Hosts: []string{s.host}})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handler, s.ctx = front.Handler(true), ctx
}

// close breaks all open requests. The relay gets no new ones.
func (s *site) close() {
	s.mu.Lock()
	s.handler = nil
	s.mu.Unlock()
	s.life.end()
}

// serve lets the relay answer a request.
func (s *site) serve(ctx context.Context, r *http.Request, body []byte) (*http.Response, error) {
	s.mu.Lock()
	handler, relayCtx, life := s.handler, s.ctx, s.life
	if handler == nil || s.disk.dead() {
		s.mu.Unlock()
		return nil, errDown
	}
	life.uses.Add(1)
	s.mu.Unlock()
	defer life.uses.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(relayCtx, cancel)()
	request := httptest.NewRequestWithContext(ctx, r.Method, r.URL.RequestURI(), bytes.NewReader(body))
	request.Header, request.Host, request.RemoteAddr = r.Header.Clone(), s.host, "127.0.0.1:1"
	answer := httptest.NewRecorder()
	if !answers(handler, answer, request) {
		return nil, errBroken
	}
	if r.Method == http.MethodPost && answer.Code == http.StatusOK {
		s.acknowledge(body)
	}
	if relayCtx.Err() != nil || ctx.Err() != nil {
		return nil, errBroken
	}
	return answer.Result(), nil
}

// answers reports whether the handler has answered, and not broken the connection.
func answers(h http.Handler, w http.ResponseWriter, r *http.Request) (whole bool) {
	defer func() {
		if p := recover(); p != nil && p != http.ErrAbortHandler {
			panic(p)
		}
	}()
	h.ServeHTTP(w, r)
	return true
}

// acknowledge notes that the relay has said that it has stored a message. Nobody needs to have got the answer.
func (s *site) acknowledge(body []byte) {
	e, err := envelope.Parse(body, 0)
	if err != nil {
		s.Errorf("the relay took what is no message: %v", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acked[e.ID] = acknowledged{e.Hash(), e.ExpiresAt()}
}

// wire is the network as one party sees it. The faults of a request depend on the seed, the party, the relay, and how
// many requests there were before.
type wire struct {
	*system
	name  string
	pages map[string]*pages // by host; nil: the pages are not checked

	mu     sync.Mutex
	dead   bool // the party has crashed
	sent   map[string]uint64
	cuts   map[string]cut // by host
	onPost func()         // called before a message is sent
}

// cut is a time in which a party does not reach a relay.
type cut struct {
	until time.Time
	hangs bool // requests get no answer; else they fail at once
}

// pages are the pages of events that one reader has got from one relay, in order.
type pages struct {
	ids []string
	at  map[string]int // how many ids come before a cursor
}

// fault is what happens to a request.
type fault struct {
	there, back time.Duration // delays
	again       time.Duration // when the relay gets the request once more; 0: it does not
	lost        bool          // the answer
}

// draw returns the fault of the next request to a relay.
func (w *wire) draw(host string) (f fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent[host]++
	name := fnv.New64a()
	_, _ = name.Write([]byte(w.name + host)) // never fails
	random := rand.New(rand.NewPCG(w.seed^w.sent[host]<<32, name.Sum64()))
	delay := func() time.Duration {
		if w.isCalm() || random.IntN(20) > 0 {
			return time.Duration(random.IntN(50)) * time.Millisecond
		}
		return time.Duration(random.IntN(5000)) * time.Millisecond
	}
	f.there, f.back = delay(), delay()
	if w.isCalm() {
		return f
	}
	f.lost = random.IntN(15) == 0
	if random.IntN(8) == 0 {
		f.again = time.Duration(1+random.IntN(3000)) * time.Millisecond
	}
	return f
}

// passes waits for d, and longer if the network is cut and does not say so. It fails if the party does not reach the
// relay then.
func (w *wire) passes(ctx context.Context, host string, d time.Duration) error {
	for {
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return ctx.Err()
		}
		w.mu.Lock()
		dead, c := w.dead, w.cuts[host]
		w.mu.Unlock()
		left := time.Until(c.until)
		switch {
		case dead:
			return errBroken
		case left <= 0:
			return nil
		case !c.hangs:
			return errCut
		}
		d = left
	}
}

// RoundTrip implements http.RoundTripper.
func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		_ = r.Body.Close() // it is in memory
	}
	if r.Method == http.MethodPost && w.onPost != nil {
		w.onPost()
	}
	s, f := w.site(r.URL.Host), w.draw(r.URL.Host)
	if err := w.passes(r.Context(), s.host, f.there); err != nil {
		return nil, err
	}
	if f.again > 0 && r.Method == http.MethodPost {
		w.copies.Go(func() {
			time.Sleep(f.again)
			_, _ = s.serve(w.Context(), r, body) // nobody waits for this answer
		})
	}
	answer, err := s.serve(r.Context(), r, body)
	if err != nil {
		return nil, err
	}
	if err := w.passes(r.Context(), s.host, f.back); err != nil {
		return nil, err
	}
	if f.lost {
		return nil, errBroken
	}
	return answer, w.check(r, s.host, answer)
}

// check checks that a page of events has none that came before the cursor it was asked for.
func (w *wire) check(r *http.Request, host string, answer *http.Response) error {
	cursor := r.URL.Query().Get("cursor")
	if w.pages == nil || r.URL.Path != "/events" || cursor == "" || answer.StatusCode != http.StatusOK {
		return nil
	}
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	answer.Body = io.NopCloser(bytes.NewReader(text))
	var page struct {
		Events []struct{ ID string }
		Cursor string
	}
	if err := json.Unmarshal(text, &page); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pages[host]
	if p == nil {
		p = &pages{at: map[string]int{}}
		w.pages[host] = p
	}
	p.ids = p.ids[:p.at[cursor]]
	for _, e := range page.Events {
		if slices.Contains(p.ids, e.ID) {
			w.Errorf("%s shows %s again, past the cursor", host, e.ID)
		}
		p.ids = append(p.ids, e.ID)
	}
	p.at[page.Cursor] = len(p.ids)
	return nil
}

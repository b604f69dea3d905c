package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// The errors of the network.
var (
	errDown   = errors.New("the relay is down")
	errCut    = errors.New("the network is cut")
	errBroken = errors.New("the connection broke")
)

// wire is the network as one party sees it. The faults of a request depend on the seed, the party, the relay, and how
// many requests there were before.
type wire struct {
	*system
	name   string
	pages  map[string]*pages // by host; nil: the pages are not checked
	onPost func(moment)

	mu   sync.Mutex
	dead bool // the party has crashed
	sent map[string]uint64
	cuts map[string]cut // by host
}

// cut is a time in which a party does not reach a relay.
type cut struct {
	until time.Time
	hangs bool // requests get no answer; else they fail at once
	posts bool // only posts are affected
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

func (w *wire) isDead() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead
}

// draw returns the fault of the next request to a relay.
func (w *wire) draw(host string) (f fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent[host]++
	name := fnv.New64a()
	_, _ = name.Write([]byte(w.name + host)) // never fails
	random, clean := rand.New(rand.NewPCG(w.seed^w.sent[host]<<32, name.Sum64())), !w.lossy.Load()
	delay := func() time.Duration {
		if clean || random.IntN(20) > 0 {
			return time.Duration(random.IntN(5)) * tick
		}
		return time.Duration(random.IntN(500)) * tick
	}
	f.there, f.back = delay(), delay()
	if clean {
		return f
	}
	f.lost = random.IntN(15) == 0
	if random.IntN(8) == 0 {
		f.again = time.Duration(1+random.IntN(300)) * tick
	}
	return f
}

// passes waits for d, and longer if the network is cut and does not say so. It fails if the party does not reach the
// relay then.
func (w *wire) passes(r *http.Request, host string, d time.Duration) error {
	for {
		select {
		case <-time.After(d):
		case <-r.Context().Done():
			return r.Context().Err()
		}
		w.mu.Lock()
		dead, c := w.dead, w.cuts[host]
		w.mu.Unlock()
		left := time.Until(c.until)
		switch {
		case dead:
			return errBroken
		case left <= 0, c.posts && r.Method != http.MethodPost:
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
	s, f := w.site(r.URL.Host), w.draw(r.URL.Host)
	if r.Method == http.MethodPost {
		kind := w.posts(r, body)
		defer w.onPost(moment{kind, true})
	}
	if err := w.passes(r, s.host, f.there); err != nil {
		return nil, err
	}
	if f.again > 0 && r.Method == http.MethodPost {
		w.copies.Go(func() {
			time.Sleep(f.again)
			_, _ = s.serve(w.Context(), r, body) // nobody waits for this answer
		})
	}
	began := s.clock.now()
	answer, err := s.serve(r.Context(), r, body)
	if err != nil {
		return nil, err
	}
	if err := w.passes(r, s.host, f.back); err != nil {
		return nil, err
	}
	if f.lost {
		return nil, errBroken
	}
	return answer, w.check(r, s, answer, began)
}

// posts checks a message before it is sent, and returns its type.
func (w *wire) posts(r *http.Request, body []byte) envelope.Type {
	if w.isDead() || r.URL.Path != "/events" {
		return ""
	}
	e, err := envelope.Parse(body, 0)
	if err != nil {
		w.Errorf("%s sends what is no message: %v", w.name, err)
		return ""
	}
	w.sends(e, w)
	w.onPost(moment{e.Type, false})
	return e.Type
}

// check checks a page of events. None of them is before the cursor of the request. None had expired at the time began,
// when the request came.
func (w *wire) check(r *http.Request, s *site, answer *http.Response, began time.Time) error {
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
		Events []struct {
			ID   string
			TS   time.Time
			Meta struct{ TTL float64 }
		}
		Cursor string
	}
	if err := json.Unmarshal(text, &page); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pages[s.host]
	if p == nil {
		p = &pages{at: map[string]int{}}
		w.pages[s.host] = p
	}
	p.ids = p.ids[:p.at[cursor]]
	now := s.clock.now()
	for _, e := range page.Events {
		if slices.Contains(p.ids, e.ID) {
			w.Errorf("%s shows %s again, past the cursor", s.host, e.ID)
		}
		ends := e.TS.Add(time.Duration(e.Meta.TTL) * time.Second)
		if e.Meta.TTL > 0 && !ends.After(began) && !ends.After(now) {
			w.Errorf("%s shows %s, which had expired", s.host, e.ID)
		}
		p.ids = append(p.ids, e.ID)
	}
	p.at[page.Cursor] = len(p.ids)
	return nil
}

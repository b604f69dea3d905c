package sim

import (
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite/check"
	"github.com/agora-relay/agora/thread"
)

// checker checks a system:
//
//   - a message that a relay has answered with 200 stays stored until it expires, and reaches a follower, once;
//   - no page of events has one that came before its cursor;
//   - a thread has at most one ACCEPT;
//   - a job is worked on once, and once more for each end of the agent during the work;
//   - all RESULTs of a job are of the same work, and its client gets one;
//   - every job ends in time, with its RESULT if there are no faults.
type checker struct {
	*testing.T
	watched map[envelope.Hash]bool // what the watcher has got

	checking  sync.Mutex // guards what follows
	tally     tally
	jobs      int
	begun     map[int][]*work // by job
	faithless map[int]bool    // the jobs whose client accepts two offers
	results   map[int]uint64  // by job: the work of the RESULT that the client got, or that is stored
}

// count changes the tally.
func (c *checker) count(change func(*tally)) {
	c.checking.Lock()
	defer c.checking.Unlock()
	change(&c.tally)
}

// newJob returns the number of a new job.
func (c *checker) newJob() int {
	c.checking.Lock()
	defer c.checking.Unlock()
	c.tally.Jobs++
	c.jobs++
	return c.jobs
}

// distrust notes that a client accepts two offers for a job. Two agents may then work on it, if it is continued.
func (c *checker) distrust(job int) {
	c.checking.Lock()
	defer c.checking.Unlock()
	c.faithless[job] = true
}

// beginWork checks that the work of a job may begin.
func (c *checker) beginWork(job int, w *work) {
	c.checking.Lock()
	defer c.checking.Unlock()
	for _, earlier := range c.begun[job] {
		if !c.faithless[job] && (earlier.by != w.by || !earlier.crashed) {
			c.Errorf("%s begins job %d, on which %s has worked", w.by.name, job, earlier.by.name)
		}
	}
	c.begun[job] = append(c.begun[job], w)
}

// endWork notes that w was done.
func (c *checker) endWork(w *work) {
	c.checking.Lock()
	defer c.checking.Unlock()
	w.ended = time.Now()
}

// interrupt notes that an agent ends now. Its work that ends now may not be durable.
func (c *checker) interrupt(life *wire) {
	c.checking.Lock()
	defer c.checking.Unlock()
	for _, all := range c.begun {
		for _, w := range all {
			if w.life == life && (w.ended.IsZero() || w.ended.Equal(time.Now())) {
				w.crashed = true
				c.tally.Interrupted++
			}
		}
	}
}

// finished notes that a client has got the RESULT of a job.
func (c *checker) finished(job int, r *client.Result) {
	c.count(func(t *tally) { t.Results++ })
	if of := c.result(r.Output); of != job {
		c.Errorf("the RESULT of job %d is that of job %d", job, of)
	}
}

// result checks that the RESULT with this output is the only one of its job, which it returns.
func (c *checker) result(text json.RawMessage) (job int) {
	var o output
	if err := json.Unmarshal(text, &o); err != nil {
		c.Errorf("a RESULT with the output %s: %v", text, err)
		return 0
	}
	c.checking.Lock()
	defer c.checking.Unlock()
	if other, ok := c.results[o.Job]; ok && other != o.Work && !c.faithless[o.Job] {
		c.Errorf("job %d has two different RESULTs", o.Job)
	}
	c.results[o.Job] = o.Work
	return o.Job
}

// stored checks what a relay has stored.
func (c *checker) stored(s *site) {
	there := map[string]bool{}
	accepts := map[thread.Key]string{}
	for q := (relay.Query{Expired: true, Limit: 100}); ; {
		page, err := s.life.store.Read(s.Context(), q)
		if err != nil {
			c.Errorf("reading the store of %s: %v", s.host, err)
			return
		}
		for _, stored := range page.Events {
			e, err := envelope.Parse(stored.Body, 0)
			if err != nil {
				c.Errorf("%s has stored %s: %v", s.host, stored.ID, err)
				continue
			}
			there[e.ID] = true
			switch key := (thread.Key{ID: e.Thread, Client: e.Sender.ID}); e.Type {
			case envelope.TypeAccept:
				if other := accepts[key]; other != "" {
					c.Errorf("%s has two ACCEPTs in the thread %s: %s and %s", s.host, e.Thread, other, e.ID)
				}
				accepts[key] = e.ID
			case envelope.TypeResult:
				var r envelope.Result
				if err := e.DecodePayload(&r); err != nil {
					c.Errorf("%s: %v", e.ID, err)
				}
				c.result(r.Output)
			}
		}
		if q.After = page.Cursor; !page.More {
			break
		}
	}
	for id, m := range s.acked {
		if s.clock.latest.Load() >= m.expires.UnixNano() {
			continue
		}
		if !there[id] {
			c.Errorf("%s has lost %s", s.host, id)
		}
		if !c.watched[m.hash] {
			c.Errorf("%s was stored by %s, but not delivered", id, s.host)
		}
	}
	if _, err := check.Database(s.Context(), s.path(), check.Options{Now: s.clock.now(),
		Extensions: []relay.Extension{extension}, Found: func(f check.Finding) { c.Errorf("check: %s", f) }}); err != nil {
		c.Errorf("check: %v", err)
	}
}

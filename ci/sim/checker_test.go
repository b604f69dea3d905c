package sim

import (
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite/check"
)

// checker checks a system:
//
//   - a message that a relay has answered with 200 stays stored until it expires, and reaches a follower, once; but a
//     relay that is restored from a backup loses what came after the backup;
//   - a relay stores a message once, and takes only what a party of the thread may send then;
//   - no page of events has one that came before its cursor, or one that had expired;
//   - the proofs of a relay do not contradict each other, and no program says so of a relay;
//   - a program signs nothing that convicts it, and continues its jobs as RELAYS say;
//   - a job is worked on once, and once more for each end of the agent during the work; its price stays;
//   - all RESULTs of a job are of the same work, and its client gets one;
//   - a relay that mirrors another has all of its broadcasts that are to be copied;
//   - every job ends in time, with its RESULT if at most one thing fails.
type checker struct {
	*testing.T
	stranger didkey.DID

	checking  sync.Mutex // guards what follows
	tally     tally
	jobs      int
	begun     map[int][]*work // by job
	faithless map[int]bool    // the jobs whose client accepts two offers
	crashed   map[int]bool    // the jobs whose client has ended before they have
	results   map[int]uint64  // by job: the work of the RESULT that was sent or is stored
	signed    signed
	watched   map[envelope.Hash]time.Time // when the watcher has got a message
}

func newChecker(t *testing.T) *checker {
	return &checker{T: t, begun: map[int][]*work{}, faithless: map[int]bool{}, crashed: map[int]bool{},
		results: map[int]uint64{}, watched: map[envelope.Hash]time.Time{}, signed: newSigned()}
}

// count changes the tally.
func (c *checker) count(change func(*tally)) {
	c.checking.Lock()
	defer c.checking.Unlock()
	change(&c.tally)
}

// newJob returns the number of a new job. The client of a faithless one accepts two offers if it can. Two agents may
// then work on the job, if it is continued.
func (c *checker) newJob(faithless bool) int {
	c.checking.Lock()
	defer c.checking.Unlock()
	c.tally.Jobs++
	c.jobs++
	c.faithless[c.jobs] = faithless
	return c.jobs
}

func (c *checker) isFaithless(job int) bool {
	c.checking.Lock()
	defer c.checking.Unlock()
	return c.faithless[job]
}

// interrupted notes that the client of a job ends before the job has.
func (c *checker) interrupted(job int) {
	c.checking.Lock()
	defer c.checking.Unlock()
	c.crashed[job] = true
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

// interrupt notes that a program ends now. Its work that ends now may not be durable, unless its RESULT is being sent.
func (c *checker) interrupt(life *wire) {
	c.checking.Lock()
	defer c.checking.Unlock()
	for job, all := range c.begun {
		for _, w := range all {
			durable := !w.ended.IsZero() && (w.ended.Before(time.Now()) || c.results[job] == w.id)
			if w.life == life && !durable && !w.crashed {
				w.crashed = true
				c.tally.Interrupted++
			}
		}
	}
}

// worked returns how long the agents have worked on a job.
func (c *checker) worked(job int) (sum time.Duration) {
	c.checking.Lock()
	defer c.checking.Unlock()
	for _, w := range c.begun[job] {
		sum += w.took
	}
	return sum
}

// finished notes that a client has got the RESULT of a job.
func (c *checker) finished(job int, r *client.Result) {
	c.count(func(t *tally) { t.Results++ })
	if of := c.result(r.Envelope); of != job {
		c.Errorf("the RESULT of job %d is that of job %d", job, of)
	}
}

// result checks that a RESULT is the only one of its job, which it returns.
func (c *checker) result(e *envelope.Envelope) (job int) {
	var r envelope.Result
	var o output
	err := e.DecodePayload(&r)
	if err == nil {
		err = o.read(r.Output)
	}
	if err != nil {
		c.Errorf("the RESULT %s: %v", e.ID, err)
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

// events returns what a relay has stored, in order.
func (c *checker) events(s *site) (all []*envelope.Envelope) {
	for q := (relay.Query{Expired: true, Limit: 100}); ; {
		page, err := s.life.store.Read(s.Context(), q)
		if err != nil {
			c.Errorf("reading the store of %s: %v", s.host, err)
			return all
		}
		for _, stored := range page.Events {
			e, err := envelope.Parse(stored.Body, 0)
			if err != nil {
				c.Errorf("%s has stored %s: %v", s.host, stored.ID, err)
				continue
			}
			all = append(all, e)
		}
		if q.After = page.Cursor; !page.More {
			return all
		}
	}
}

// stored checks what a relay has stored.
func (c *checker) stored(s *site) {
	there, threads := map[string]bool{}, map[string]*talkAt{}
	for _, e := range c.events(s) {
		if there[e.ID] {
			c.Errorf("%s has stored %s twice", s.host, e.ID)
		}
		there[e.ID] = true
		c.replay(s, threads, e)
		if e.Type == envelope.TypeResult {
			c.result(e)
		}
	}
	for id, m := range s.acked {
		if s.clock.latest.Load() >= m.ExpiresAt().UnixNano() {
			continue
		}
		if !there[id] {
			c.Errorf("%s has lost %s", s.host, id)
		}
	}
	s.blameless()
	if _, err := check.Database(s.Context(), s.path(), check.Options{Now: s.clock.now(), Extensions: extensions,
		Found: func(f check.Finding) { c.Errorf("check: %s", f) }}); err != nil {
		c.Errorf("check: %v", err)
	}
}

package gateway_test

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
)

// letters is a gateway with one table: the jobs that have ended. Its primary key shows a job that ends twice.
var letters = relay.Extension{Name: "letters", Migrations: []string{
	"CREATE TABLE letters_ended (ref BIGINT NOT NULL PRIMARY KEY, outcome BIGINT NOT NULL, failure TEXT NOT NULL)"}}

// office is an outbox with a relay, over a store on disk. Its lanes call https://laneN.example/, and the id of a call
// is the job's ref. It is the courier and the other servers.
type office struct {
	t     *testing.T
	store *gatetest.BubbleStore
	relay *relay.Relay
	core  *gateway.Core
	out   *gateway.Outgoing
	box   *gateway.Outbox
	stop  func()        // ends Run and waits for it
	over  chan struct{} // is closed when Run has ended
	own   func(url string) gateway.Answerer
	share func(*gateway.Outbox)
	ahead atomic.Int64 // how far the relay's clock is ahead

	mu     sync.Mutex                                    // guards the fields below, and variables of the functions
	host   func(lane int64) string                       // nil: laneN.example
	target func() (gateway.Plan, error)                  // nil: Send
	call   func() (gateway.Plan, error)                  // nil: Send
	answer func(*http.Request, try) (int, string, error) // see answerWith
	tries  []try
	calls  int     // of Call
	done   []int64 // the refs that Settled was called for with another outcome than Retry
}

// set changes what the courier and the servers do.
func (o *office) set(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
}

// answerWith sets what the servers answer: a status and Retry-After. nil: 200.
func (o *office) answerWith(f func(*http.Request, try) (int, string, error)) {
	o.set(func() { o.answer = f })
}

// plan sets what Target and Call answer.
func (o *office) plan(target, call gateway.Plan) {
	o.set(func() {
		o.target = func() (gateway.Plan, error) { return target, nil }
		o.call = func() (gateway.Plan, error) { return call, nil }
	})
}

// seen returns the requests that were made so far, how often Call was called, and the refs that have ended.
func (o *office) seen() (tries []try, calls int, done []int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.tries), o.calls, slices.Clone(o.done)
}

// try is a request that was made.
type try struct {
	lane, ref int64
	host      string
	at        time.Time // by the relay's clock
}

func newOffice(t *testing.T) *office {
	t.Helper()
	db := gatetest.Open(t, filepath.Join(t.TempDir(), "agora.db"),
		sqlite.Options{Extensions: []relay.Extension{gateway.Extension, letters}})
	o := &office{t: t, store: &gatetest.BubbleStore{Extender: db, Broken: new(atomic.Bool)}, stop: func() {}}
	var err error
	o.relay, err = relay.New(t.Context(), relay.Config{Store: o.store, Key: newKey(t), Origin: origin, Log: quiet,
		Now: func() time.Time { return time.Now().Add(time.Duration(o.ahead.Load())) }})
	if err != nil {
		t.Fatal(err)
	}
	o.core = newCore(t, o.relay, newKey(t))
	o.out = gateway.NewOutgoing(o.core.Outgoing)
	o.out.SetTransport(o)
	t.Cleanup(func() {
		o.stop()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return o
}

// start starts a new outbox on the database.
func (o *office) start() {
	o.stop()
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	o.box = gateway.NewOutbox(o.core, "letters", o.out, o)
	o.box.Own = o.own
	if o.share != nil {
		o.share(o.box)
	}
	go func() {
		o.box.Run(ctx)
		close(over)
	}()
	o.over = over
	o.stop = func() {
		cancel()
		<-over
		o.stop = func() {}
	}
}

// add adds jobs to a lane.
func (o *office) add(lane int64, refs ...int64) {
	o.t.Helper()
	update(o.t, o.relay, func(tx relay.ExtTx) error {
		for _, ref := range refs {
			if err := o.box.Add(tx, lane, ref); err != nil {
				return err
			}
		}
		return nil
	})
	o.box.Wake(lane)
}

// Target implements gateway.Courier.
func (o *office) Target(_ context.Context, j gateway.Job) (url string, p gateway.Plan, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.target != nil {
		p, err = o.target()
	}
	return o.url(j), p, err
}

func (o *office) url(j gateway.Job) string {
	host := fmt.Sprintf("lane%d.example", j.Lane)
	if o.host != nil {
		host = o.host(j.Lane)
	}
	return "https://" + host + "/"
}

// Call implements gateway.Courier.
func (o *office) Call(_ context.Context, j gateway.Job) (c gateway.Call, p gateway.Plan, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls++
	if o.call != nil {
		p, err = o.call()
	}
	return gateway.Call{ID: strconv.FormatInt(j.Ref, 10), Body: []byte("{}"), Wait: time.Minute,
		Header: http.Header{"Lane": {strconv.FormatInt(j.Lane, 10)}}}, p, err
}

// RoundTrip implements http.RoundTripper.
func (o *office) RoundTrip(req *http.Request) (*http.Response, error) {
	t := try{host: req.URL.Hostname(), at: o.relay.Now()}
	t.lane, _ = strconv.ParseInt(req.Header.Get("Lane"), 10, 64)
	t.ref, _ = strconv.ParseInt(req.Header.Get("Idempotency-Key"), 10, 64)
	o.mu.Lock()
	o.tries = append(o.tries, t)
	answer := o.answer
	o.mu.Unlock()
	status, retryAfter, err := 200, "", error(nil)
	if answer != nil {
		status, retryAfter, err = answer(req, t)
	}
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Header: http.Header{"Retry-After": {retryAfter}}, Body: http.NoBody}, nil
}

// Judge implements gateway.Courier.
func (o *office) Judge(_ gateway.Job, r gateway.Response, err error) gateway.Verdict {
	v := gateway.Verdict{Outcome: gateway.Dead, Failure: fmt.Sprintf("HTTP %d", r.Status), RetryAfter: r.RetryAfter}
	switch {
	case err == nil && r.Status == 200:
		return gateway.Verdict{Outcome: gateway.Done}
	case err != nil:
		v.Failure = err.Error()
	}
	if gateway.Retryable(r, err) {
		v.Outcome = gateway.Retry
	}
	return v
}

// Settle implements gateway.Courier.
func (o *office) Settle(tx relay.ExtTx, j gateway.Job, v gateway.Verdict) error {
	if v.Outcome == gateway.Retry {
		return nil
	}
	_, err := tx.Exec("INSERT INTO letters_ended (ref, outcome, failure) VALUES (?, ?, ?)",
		j.Ref, int64(v.Outcome), v.Failure)
	return err
}

// Settled implements gateway.Courier.
func (o *office) Settled(j gateway.Job, v gateway.Verdict) {
	if v.Outcome != gateway.Retry {
		o.mu.Lock()
		o.done = append(o.done, j.Ref)
		o.mu.Unlock()
	}
}

// ended returns the jobs that have ended, according to the gateway's own table.
func (o *office) ended() (all []string) {
	o.t.Helper()
	return o.rows("SELECT ref, outcome, failure FROM letters_ended ORDER BY ref", 3)
}

// rows returns the rows of a query, each with its columns separated by spaces.
func (o *office) rows(text string, columns int) (all []string) {
	o.t.Helper()
	err := o.relay.View(o.t.Context(), local, func(q relay.Querier) error {
		return q.Query(func(scan func(...any) error) error {
			values, into := make([]any, columns), make([]any, columns)
			for i := range values {
				into[i] = &values[i]
			}
			err := scan(into...)
			row := fmt.Sprintln(values...)
			all = append(all, row[:len(row)-1])
			return err
		}, text)
	})
	if err != nil {
		o.t.Fatal(err)
	}
	return all
}

// jobs returns ref, attempt and failure of the jobs in the outbox, by number. Those that are dead are marked.
func (o *office) jobs() []string {
	return o.rows("SELECT ref, attempt, failure, CASE WHEN dead > 0 THEN 'dead' ELSE 'live' END "+
		"FROM gate_outbox ORDER BY n", 4)
}

// due returns when the next attempt of the first live job is made.
func (o *office) due() time.Time {
	ns, err := strconv.ParseInt(o.rows("SELECT due FROM gate_outbox WHERE dead = 0 ORDER BY n", 1)[0], 10, 64)
	if err != nil {
		o.t.Fatal(err)
	}
	return time.Unix(0, ns)
}

// refs returns the refs of the requests that were made so far.
func (o *office) refs() (all []int64) {
	tries, _, _ := o.seen()
	for _, t := range tries {
		all = append(all, t.ref)
	}
	return all
}

func (o *office) wantRefs(when string, want ...int64) {
	o.t.Helper()
	if got := o.refs(); !slices.Equal(got, want) {
		o.t.Errorf("%s: requests for %v, want %v", when, got, want)
	}
}

func wantRows(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// hang answers nothing until the request is cut off.
func hang(req *http.Request, _ try) (int, string, error) {
	<-req.Context().Done()
	return 0, "", req.Context().Err()
}

// inOffice runs a test with an outbox that has been started.
func inOffice(t *testing.T, test func(*testing.T, *office)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(t)
		o.start()
		test(t, o)
	})
}

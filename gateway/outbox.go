package gateway

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/agora-relay/agora/internal/turns"
	"github.com/agora-relay/agora/relay"
)

// Times of jobs.
const (
	JobLife  = 24 * time.Hour     // a job of this age is dead
	deadLife = 7 * 24 * time.Hour // how long a dead job is kept

	maxRetryDelay = time.Hour
	minRetryDelay = time.Second // for servers whose Retry-After is 0 or has passed
)

// Job is a request that an outbox sends until the other server has answered it, or until the job is dead.
type Job struct {
	N       int64 // grows with each job
	Lane    int64 // the queue that the job is in; the gateway chooses the numbers of its lanes
	Ref     int64 // the gateway's own number of what the job sends
	Created time.Time
	Attempt int    // how many attempts were made so far
	Failure string // why the last attempt failed
}

// Plan is what to do with a job that is due.
type Plan int

// The plans.
const (
	Send  Plan = iota
	Drop       // the job is no longer needed, so it is removed; Settle is not called
	Hold       // the lane waits for a call of Wake; a held job dies of age like any other
	Kill       // all jobs of the lane are dead, because their receiver is gone; Settle is not called
	Clear      // all jobs of the lane are removed, because their receiver was removed; Settle is not called
)

// Outcome is what becomes of a job after an attempt.
type Outcome int

// The outcomes.
const (
	Retry Outcome = iota // there will be another attempt
	Done                 // the job is removed
	Dead                 // the job failed for good; it is kept for 7 days, and the lane continues
)

// Verdict is what an attempt has led to.
type Verdict struct {
	Outcome    Outcome
	Failure    string // valid UTF-8 without U+0000; empty for Done
	RetryAfter string // the header of the response, for Retry
	Data       any    // from Judge, for Settle and Settled
}

// Courier is the part of a gateway that knows what its jobs send. Its methods are called in the order of this list. For
// one lane, they are called one after the other; for different lanes at the same time. After an error of Target or
// Call, the lane is tried again a little later. An error does not count as an attempt.
type Courier interface {
	// Target returns the URL for a job. If the job has to wait until the URL's host may be called, Target is called
	// again after that. So it should load no more than it needs.
	Target(ctx context.Context, j Job) (url string, p Plan, err error)
	// Call returns the request, which is sent as soon as Call returns. It goes to the URL of Target.
	Call(ctx context.Context, j Job) (c Call, p Plan, err error)
	// Judge decides what an answer means. err is a Failure of Outgoing. Judge must change nothing.
	Judge(j Job, r Response, err error) Verdict
	// Settle writes the gateway's rows, in the Update that stores what becomes of the job. It may be called twice. If
	// it returns an error, the same Update is tried again later, and the lane waits. The outcome is Dead for a job that
	// has died of age. Then Judge was not called, and the failure is the one of the last attempt.
	Settle(tx relay.ExtTx, j Job, v Verdict) error
	// Settled is called after that Update is on disk.
	Settled(j Job, v Verdict)
}

// Retryable reports whether an attempt failed in a way that may pass: no connection, a timeout, or the status 408, 425,
// 429 or 5xx. err is a Failure of Outgoing.
func Retryable(r Response, err error) bool {
	if err != nil {
		return errors.Is(err, Unreachable) || errors.Is(err, Timeout)
	}
	switch r.Status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return r.Status >= 500 && r.Status <= 599
}

// Judge returns what an answer means by the rules that gateways share: 2xx is success, and only what Retryable reports is
// retried. err is a Failure of Outgoing.
func Judge(r Response, err error) Verdict {
	v := Verdict{Outcome: Dead, Failure: fmt.Sprintf("HTTP %d", r.Status), RetryAfter: r.RetryAfter}
	switch {
	case err != nil:
		v.Failure = err.Error()
	case r.Status >= 200 && r.Status <= 299:
		return Verdict{Outcome: Done}
	}
	if Retryable(r, err) {
		v.Outcome = Retry
	}
	return v
}

// Answerer answers a call without HTTP. The error is a Failure, or that of ctx if ctx has ended.
type Answerer func(ctx context.Context, c Call) (Response, error)

// Outbox sends the jobs of one gateway. A lane is a queue of jobs: only its oldest live job is tried. The other lanes
// do not wait for it.
//
// The outbox writes nothing before an attempt. So an attempt that a crash cuts off is repeated.
type Outbox struct {
	// Own returns the Answerer for a URL of this relay, and nil for any other URL. Set it before Run. If Own is nil, all
	// calls use HTTP.
	Own func(url string) Answerer
	// Gone reports whether the receiver of a lane is gone. It is asked in the Update that follows the plan Kill, because the
	// receiver may have come back since. Set it before Run. If Gone is nil, the plan is followed.
	Gone func(q relay.Querier, lane int64) (bool, error)

	share *turns.Queue[string] // payers take turns; nil: only the limit of out applies
	payer func(Job) string

	core    *Core
	gateway string
	out     *Outgoing
	courier Courier
	woken   chan struct{} // has room for one

	mu    sync.Mutex      // guards the fields below
	lanes map[int64]*lane // those that may have a live job
	due   dueLanes        // the lanes that are not at work

	complained time.Time // when an error was logged last
}

// NewOutbox returns the outbox of a gateway, such as "hub". The jobs of different gateways are kept apart.
func NewOutbox(c *Core, gateway string, out *Outgoing, courier Courier) *Outbox {
	return &Outbox{core: c, gateway: gateway, out: out, courier: courier, woken: make(chan struct{}, 1),
		lanes: map[int64]*lane{}}
}

// Share limits the attempts that run at a time: total in all, and each for one payer. So a user whose servers never answer
// cannot take all calls of the gateway. payer returns who pays for a job; it is called after Target. Call Share before Run.
func (o *Outbox) Share(total, each int, payer func(Job) string) {
	o.share, o.payer = turns.New(total, func(string) int { return each }), payer
}

// outboxCounter numbers the jobs of all gateways.
const outboxCounter = "outbox"

// outboxTable is gate_outbox. The columns are in the order of jobRow.values.
var outboxTable = Table{Name: "gate_outbox", Key: 1,
	Columns: []string{"n", "gateway", "lane", "ref", "created", "attempt", "due", "dead", "failure"}}

// jobRow is a row of gate_outbox.
type jobRow struct {
	Job
	due  time.Time // zero: at once
	dead time.Time // zero: the job is alive
}

// values returns the columns, with the checksum at the end.
func (r jobRow) values(gateway string) []any {
	all := []any{r.N, gateway, r.Lane, r.Ref, r.Created.UnixNano(), int64(r.Attempt), nanos(r.due), nanos(r.dead),
		r.Failure}
	return append(all, Sum(outboxTable.Name, all...))
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// Add puts a job at the end of a lane, in the Update of the operation that needs it. Call Wake after that Update.
func (o *Outbox) Add(tx relay.ExtTx, lane, ref int64) error {
	return o.AddSince(tx, lane, ref, o.core.Relay.Now())
}

// AddSince is Add for what has waited since a time. The age of the job counts from then on.
func (o *Outbox) AddSince(tx relay.ExtTx, lane, ref int64, since time.Time) error {
	n, err := Next(tx, outboxCounter)
	if err != nil {
		return err
	}
	r := jobRow{Job: Job{N: n, Lane: lane, Ref: ref, Created: since}}
	_, err = tx.Exec("INSERT INTO gate_outbox (n, gateway, lane, ref, created, attempt, due, dead, failure, sum) "+
		"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", r.values(o.gateway)...)
	return err
}

// Remove removes the live jobs of ref, because they are no longer needed. Call Wake after the Update. If an attempt is
// being made, it continues, and its answer is still judged and settled.
func (o *Outbox) Remove(tx relay.ExtTx, ref int64) error {
	_, err := tx.Exec("DELETE FROM gate_outbox WHERE gateway = ? AND ref = ? AND dead = 0", o.gateway, ref)
	return err
}

// RemoveLane removes all live jobs of a lane, for example because their receiver was deleted. It is otherwise the same
// as Remove.
func (o *Outbox) RemoveLane(tx relay.ExtTx, lane int64) error {
	_, err := tx.Exec("DELETE FROM gate_outbox WHERE gateway = ? AND lane = ? AND dead = 0", o.gateway, lane)
	return err
}

// Restart makes a job alive again if it is dead, and lets it be tried at once. Its age stays the same. Call Wake after
// the Update.
func (o *Outbox) Restart(tx relay.ExtTx, n int64) error {
	rows, err := jobRows(tx, "SELECT "+jobColumns+" FROM gate_outbox WHERE n = ?", n)
	if err != nil || len(rows) == 0 {
		return err
	}
	r := rows[0]
	r.due, r.dead = time.Time{}, time.Time{}
	return o.write(tx, r)
}

// RestartLane lets the oldest live job of a lane be tried at once, for example because its receiver has a new URL. Call
// Wake after the Update.
func (o *Outbox) RestartLane(tx relay.ExtTx, lane int64) error {
	r, found, err := o.oldest(tx, lane)
	if err != nil || !found {
		return err
	}
	return o.Restart(tx, r.N)
}

// killBatch is how many jobs one Update kills, because posts wait for it.
const killBatch = 100

// killIfGone follows the plan Kill for some jobs of a lane.
func (o *Outbox) killIfGone(tx relay.ExtTx, lane int64) error {
	if o.Gone != nil {
		if gone, err := o.Gone(tx, lane); err != nil || !gone {
			return err
		}
	}
	_, err := o.KillLane(tx, lane, killBatch)
	return err
}

// clear follows the plan Clear for some jobs of a lane.
func (o *Outbox) clear(tx relay.ExtTx, lane int64) error {
	return Exec(tx, "DELETE FROM gate_outbox WHERE n IN (SELECT n FROM gate_outbox WHERE gateway = ? AND lane = ? "+
		"AND dead = 0 ORDER BY n LIMIT ?)", o.gateway, lane, killBatch)
}

// KillLane makes up to most of the oldest live jobs of a lane dead. left reports whether the lane has more live jobs.
func (o *Outbox) KillLane(tx relay.ExtTx, lane int64, most int) (left bool, err error) {
	rows, err := jobRows(tx, "SELECT "+jobColumns+" FROM gate_outbox WHERE gateway = ? AND lane = ? AND dead = 0 "+
		"ORDER BY n LIMIT ?", o.gateway, lane, most+1)
	if err != nil {
		return false, err
	}
	if left = len(rows) > most; left {
		rows = rows[:most]
	}
	for _, r := range rows {
		r.dead = o.core.Relay.Now()
		if err := o.write(tx, r); err != nil {
			return false, err
		}
	}
	return left, nil
}

// jobColumns are the columns that jobRows reads.
const jobColumns = "n, lane, ref, created, attempt, due, dead, failure"

// jobRows returns the jobs that a SELECT of jobColumns finds.
func jobRows(q relay.Querier, text string, args ...any) (all []jobRow, err error) {
	err = q.Query(func(scan Scanner) error {
		var r jobRow
		var created, attempt, due, dead int64
		if err := scan(&r.N, &r.Lane, &r.Ref, &created, &attempt, &due, &dead, &r.Failure); err != nil {
			return err
		}
		r.Created, r.Attempt, r.due = time.Unix(0, created).UTC(), int(attempt), time.Unix(0, due)
		if dead > 0 {
			r.dead = time.Unix(0, dead)
		}
		all = append(all, r)
		return nil
	}, text, args...)
	return all, err
}

// write replaces the row of a job.
func (o *Outbox) write(tx relay.ExtTx, r jobRow) error {
	v := r.values(o.gateway)
	return Exec(tx, "UPDATE gate_outbox SET attempt = ?, due = ?, dead = ?, failure = ?, sum = ? WHERE n = ?",
		append(v[5:], r.N)...)
}

// Count returns how many jobs of a lane are live, and how many are dead.
func (o *Outbox) Count(q relay.Querier, lane int64) (live, dead int64, err error) {
	live, err = Number(q, "SELECT COUNT(*) FROM gate_outbox WHERE gateway = ? AND lane = ? AND dead = 0", o.gateway, lane)
	if err != nil {
		return 0, 0, err
	}
	dead, err = Number(q, "SELECT COUNT(*) FROM gate_outbox WHERE gateway = ? AND lane = ? AND dead > 0", o.gateway, lane)
	return live, dead, err
}

// sweepDead removes up to limit jobs that have died at until or earlier. It looks at the jobs of all gateways.
func sweepDead(tx relay.ExtTx, until time.Time, limit int) (removed int64, err error) {
	return tx.Exec("DELETE FROM gate_outbox WHERE n IN "+
		"(SELECT n FROM gate_outbox WHERE dead > 0 AND dead <= ? ORDER BY dead LIMIT ?)", until.UnixNano(), limit)
}

// head returns the oldest live job of a lane. found is false if the lane has none.
func (o *Outbox) head(ctx context.Context, lane int64) (r jobRow, found bool, err error) {
	err = o.core.Relay.View(ctx, own, func(q relay.Querier) (err error) {
		r, found, err = o.oldest(q, lane)
		return err
	})
	return r, found, err
}

// oldest does the work of head.
func (o *Outbox) oldest(q relay.Querier, lane int64) (r jobRow, found bool, err error) {
	rows, err := jobRows(q, "SELECT "+jobColumns+" FROM gate_outbox WHERE gateway = ? AND lane = ? AND dead = 0 "+
		"ORDER BY n LIMIT 1", o.gateway, lane)
	if found = len(rows) > 0; found {
		r = rows[0]
	}
	return r, found, err
}

// heads returns all lanes that have a live job, and when each must be looked at.
func (o *Outbox) heads(ctx context.Context) (all map[int64]time.Time, err error) {
	err = o.core.Relay.View(ctx, own, func(q relay.Querier) error {
		all = map[int64]time.Time{}
		return q.Query(func(scan func(...any) error) error {
			var lane, created, due int64
			if err := scan(&lane, &created, &due); err != nil {
				return err
			}
			all[lane] = time.Unix(0, min(due, created+int64(JobLife)))
			return nil
		}, "SELECT lane, created, due FROM gate_outbox WHERE n IN "+
			"(SELECT MIN(n) FROM gate_outbox WHERE gateway = ? AND dead = 0 GROUP BY lane)", o.gateway)
	})
	return all, err
}

// record stores what becomes of a job. r is its new row. If Remove has removed the job, record does nothing.
func (o *Outbox) record(tx relay.ExtTx, r jobRow, outcome Outcome) (err error) {
	if outcome == Done {
		_, err = tx.Exec("DELETE FROM gate_outbox WHERE n = ? AND dead = 0", r.N)
		return err
	}
	v := r.values(o.gateway)
	_, err = tx.Exec("UPDATE gate_outbox SET attempt = ?, due = ?, dead = ?, failure = ?, sum = ? "+
		"WHERE n = ? AND dead = 0", append(v[5:], r.N)...)
	return err
}

// retryDelay returns how long to wait after a number of attempts. retryAfter is the header of the last response. It is
// ignored unless it is a number of seconds or an HTTP date.
func retryDelay(attempts int, retryAfter string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(retryAfter, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		return max(minRetryDelay, time.Duration(min(seconds, uint64(maxRetryDelay/time.Second)))*time.Second)
	}
	if date, err := http.ParseTime(retryAfter); err == nil {
		return min(max(minRetryDelay, date.Sub(now)), maxRetryDelay)
	}
	delay := min(time.Second<<min(attempts, 12), maxRetryDelay)
	return time.Duration(float64(delay) * (0.8 + 0.4*rand.Float64()))
}

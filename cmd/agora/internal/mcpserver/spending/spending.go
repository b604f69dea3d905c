// Package spending keeps an identity within its spending limits. The limits, and what the identity has promised to pay,
// are in a file beside its key. Each change locks the file, so that several programs with the same key share the limits.
//
// A price is reserved before the ACCEPT is signed. From then on it counts for 24 hours, whatever the relay says: the
// answer of a relay is not signed, and a relay that lies could refuse an ACCEPT and pass it on. Only the agent can end
// the reservation earlier, with a signed ERROR in the thread.
package spending

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/internal/fsync"
)

// Limits are what an identity may promise to pay. Amounts are in USD, exact to a millionth. The zero value allows only
// offers without a price, for every intent and from every agent.
type Limits struct {
	PerJob  credits.Amount `json:"per_job_usd"`
	PerDay  credits.Amount `json:"per_day_usd"`       // the sum of 24 hours
	Intents []string       `json:"intents,omitempty"` // empty: every intent. An item that ends in * stands for all that begin so
	Agents  []didkey.DID   `json:"agents,omitempty"`  // empty: every agent
}

// Day is how long a reservation counts.
const Day = 24 * time.Hour

// keep is how long a reservation stays in the file. It is longer than Day, so that a clock that is fast for a while
// makes the book forget nothing.
const keep = 7 * Day

// maxReservations is how many reservations a book has at most. Jobs without a price need none.
const maxReservations = 10_000

// maxFile is the size in bytes of the largest file that is read. It has room for maxReservations.
const maxFile = 16 << 20

// ErrLimit is in every error that means: the limits do not allow this. Other errors mean that the book cannot be used.
var ErrLimit = errors.New("the spending limits do not allow this")

// Job is one offer that may be accepted.
type Job struct {
	Relay  string          // the relay's URL
	Thread string          // the id of the thread
	Offer  string          // the content hash of the OFFER; another OFFER may have the same id
	Agent  didkey.DID      // who made the offer
	Intent string          // the intent of the REQUEST
	Price  *envelope.Price // the price in the OFFER; nil: none
}

// Reservation is a price that the identity may have promised to pay.
type Reservation struct {
	Time   time.Time      `json:"time"` // of the last call of Reserve for the offer
	Relay  string         `json:"relay"`
	Thread string         `json:"thread"`
	Offer  string         `json:"offer"`
	Agent  didkey.DID     `json:"agent"`
	Intent string         `json:"intent"`
	USD    credits.Amount `json:"usd"`
}

// contents is the JSON of the file.
type contents struct {
	DID      didkey.DID    `json:"did"` // whose limits these are
	Limits   Limits        `json:"limits"`
	Reserved []Reservation `json:"reserved,omitempty"` // oldest first
}

// Book is the file of one identity. It is safe for concurrent use, also by several processes.
type Book struct {
	path string
	did  didkey.DID
	now  func() time.Time
}

// Open returns the book of the identity did, whose key is in keyFile. The book is the file with the same name and the
// ending ".spending". A book without a file has zero Limits. now is the clock; nil: time.Now.
func Open(keyFile string, did didkey.DID, now func() time.Time) (*Book, error) {
	path, err := filepath.Abs(keyFile)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return nil, err
	}
	if now == nil {
		now = time.Now
	}
	return &Book{path: path + ".spending", did: did, now: now}, nil
}

// Status is the state of a book.
type Status struct {
	Limits   Limits
	Reserved credits.Amount // what counts against Limits.PerDay now
	Jobs     []Reservation  // of the last Day, oldest first
}

// Status returns the limits, and what is reserved.
func (b *Book) Status(ctx context.Context) (s Status, err error) {
	err = b.use(ctx, func(c *contents) (changed bool, err error) {
		jobs := b.counting(c)
		s = Status{Limits: c.Limits, Reserved: total(jobs), Jobs: jobs}
		return false, nil
	})
	return s, err
}

// SetLimits changes the limits. What is reserved stays reserved. Errors: an amount is negative, an intent or an agent is
// not one.
func (b *Book) SetLimits(ctx context.Context, change func(*Limits)) error {
	return b.use(ctx, func(c *contents) (bool, error) {
		change(&c.Limits)
		return true, c.Limits.check()
	})
}

func (l Limits) check() error {
	if l.PerJob < 0 || l.PerDay < 0 {
		return errors.New("a limit must not be negative")
	}
	for _, intent := range l.Intents {
		if strings.Contains(strings.TrimSuffix(intent, "*"), "*") || intent == "" {
			return fmt.Errorf("%q is not an intent, nor the beginning of one followed by *", intent)
		}
	}
	for _, agent := range l.Agents {
		if _, err := didkey.Parse(string(agent)); err != nil {
			return err
		}
	}
	return nil
}

// Allow returns an error with ErrLimit if the limits do not allow to hire an agent for this intent. agent is empty if it
// is not known yet.
func (l Limits) Allow(intent string, agent didkey.DID) error {
	matches := func(pattern string) bool {
		start, isPrefix := strings.CutSuffix(pattern, "*")
		return intent == pattern || isPrefix && strings.HasPrefix(intent, start)
	}
	if len(l.Intents) > 0 && !slices.ContainsFunc(l.Intents, matches) {
		return fmt.Errorf("%w: the intent of this request is not allowed, only %s", ErrLimit, strings.Join(l.Intents, ", "))
	}
	if agent != "" && len(l.Agents) > 0 && !slices.Contains(l.Agents, agent) {
		return fmt.Errorf("%w: the agent %s is not one of the %d that are allowed", ErrLimit, agent, len(l.Agents))
	}
	return nil
}

// allows returns an error if job cannot be accepted whatever else is reserved. The amount is the price of job. Errors
// with ErrLimit: see Limits; a price that is not a number from 0 or not in USD.
func (l Limits) allows(job Job) (amount credits.Amount, err error) {
	if err := l.Allow(job.Intent, job.Agent); err != nil {
		return 0, err
	}
	if amount, err = USD(job.Price); err != nil {
		return 0, err
	}
	if amount > l.PerJob {
		return 0, fmt.Errorf("%w: the price is %v USD, and the limit of a job is %v USD", ErrLimit, amount, l.PerJob)
	}
	return amount, nil
}

// USD returns a price. A price above 0 is at least one millionth. Errors: ErrLimit, if the price is not an amount
// of USD; they hold nothing of the currency's text.
func USD(p *envelope.Price) (credits.Amount, error) {
	if p == nil || p.Amount == 0 {
		return 0, nil
	}
	if !strings.EqualFold(p.Currency, "USD") {
		return 0, fmt.Errorf("%w: the currency of the price is not USD", ErrLimit)
	}
	amount, err := credits.Parse(strconv.FormatFloat(p.Amount, 'f', -1, 64))
	if err != nil {
		return 0, fmt.Errorf("%w: the price %v %w", ErrLimit, p.Amount, err)
	}
	return max(amount, 1), nil
}

// Reserve reserves the price of job and returns the reserved amount. It returns an error with ErrLimit, and reserves
// nothing, if the limits do not allow the job. The ACCEPT must not promise more than the amount.
//
// A second reservation of the same offer replaces the first. Offers of the same thread add up, and must stay within the
// limit of one job together.
func (b *Book) Reserve(ctx context.Context, job Job) (amount credits.Amount, err error) {
	err = b.use(ctx, func(c *contents) (changed bool, err error) {
		amount, err = b.reserve(c, job)
		return amount > 0, err
	})
	return amount, err
}

// Check returns the error that Reserve would return now. It reserves nothing.
func (b *Book) Check(ctx context.Context, job Job) error {
	return b.use(ctx, func(c *contents) (changed bool, err error) {
		_, err = b.reserve(c, job)
		return false, err
	})
}

// reserve changes c as Reserve changes the file. After an error c must not be used.
func (b *Book) reserve(c *contents, job Job) (credits.Amount, error) {
	amount, err := c.Limits.allows(job)
	if err != nil || amount == 0 {
		return 0, err
	}
	r := Reservation{Time: b.now().UTC(), Relay: job.Relay, Thread: job.Thread, Offer: job.Offer, Agent: job.Agent,
		Intent: job.Intent, USD: amount}
	sameOffer := func(o Reservation) bool {
		return o.Relay == r.Relay && o.Thread == r.Thread && o.Offer == r.Offer && o.Agent == r.Agent
	}
	if i := slices.IndexFunc(c.Reserved, sameOffer); i >= 0 {
		if before := c.Reserved[i]; before.Time.After(r.Time) { // the clock was set back
			r.Time = before.Time
		}
		c.Reserved = slices.Delete(c.Reserved, i, i+1)
	}
	others := total(b.counting(c))
	c.Reserved = append(c.Reserved, r)
	inThread := credits.Amount(0)
	for _, o := range c.Reserved {
		if o.Relay == r.Relay && o.Thread == r.Thread {
			inThread += o.USD
		}
	}
	switch {
	case len(c.Reserved) > maxReservations:
		return 0, fmt.Errorf("%w: there were %d paid jobs in 7 days", ErrLimit, maxReservations)
	case inThread > c.Limits.PerJob:
		return 0, fmt.Errorf("%w: another offer of this thread may already be accepted, and together they cost %v USD; "+
			"the limit of a job is %v USD", ErrLimit, inThread, c.Limits.PerJob)
	case others+amount > c.Limits.PerDay:
		return 0, fmt.Errorf("%w: the price is %v USD, %v USD are reserved or spent in the last 24 hours, and the limit of "+
			"a day is %v USD", ErrLimit, amount, others, c.Limits.PerDay)
	}
	return amount, nil
}

// Release ends the reservations for an agent in a thread. Call it only if the agent has signed that it does not do the
// job.
func (b *Book) Release(ctx context.Context, relay, thread string, agent didkey.DID) error {
	return b.use(ctx, func(c *contents) (changed bool, err error) {
		before := len(c.Reserved)
		c.Reserved = slices.DeleteFunc(c.Reserved, func(r Reservation) bool {
			return r.Relay == relay && r.Thread == thread && r.Agent == agent
		})
		return len(c.Reserved) < before, nil
	})
}

// counting returns the reservations that count now. One with a time in the future counts: the clock was set back.
func (b *Book) counting(c *contents) []Reservation {
	oldest := b.now().Add(-Day)
	return slices.DeleteFunc(slices.Clone(c.Reserved), func(r Reservation) bool { return !r.Time.After(oldest) })
}

func total(reserved []Reservation) (sum credits.Amount) {
	for _, r := range reserved {
		sum += r.USD
	}
	return sum
}

// use locks the book, reads it, calls f, and writes the book if f has changed it.
func (b *Book) use(ctx context.Context, f func(*contents) (changed bool, err error)) (err error) {
	lock := flock.New(b.path+".lock", flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, 5*time.Millisecond); err != nil {
		return fmt.Errorf("locking the spending limits: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	c, err := b.read()
	if err != nil {
		return err
	}
	changed, err := f(&c)
	if err != nil || !changed {
		return err
	}
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return fsync.Replace(b.path, append(text, '\n'))
}

// read reads the file, without the reservations that are too old to be kept.
func (b *Book) read() (contents, error) {
	c := contents{DID: b.did}
	f, err := os.Open(b.path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err = errors.Join(err, f.Close()); err != nil {
		return c, err
	}
	in := json.NewDecoder(bytes.NewReader(text))
	in.DisallowUnknownFields() // a mistyped limit must not be ignored
	if err := in.Decode(&c); err != nil {
		return c, fmt.Errorf("%s is damaged: %w; restore it, or remove it to start with limits of 0", b.path, err)
	}
	if err := c.Limits.check(); err != nil {
		return c, fmt.Errorf("%s: %w", b.path, err)
	}
	if c.DID != b.did {
		return c, fmt.Errorf("%s has the limits of another identity, %s; remove it to start with limits of 0", b.path, c.DID)
	}
	oldest := b.now().Add(-keep)
	c.Reserved = slices.DeleteFunc(c.Reserved, func(r Reservation) bool { return !r.Time.After(oldest) })
	return c, nil
}

// Package deal has the rules by which an agent works once for a job that moves from relay to relay (RELAYS §4). It does
// no I/O, and gets the time as an argument.
package deal

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Key names a job: REQUESTs of one client with one root and payloads that are equal but for request_id are one job.
type Key struct {
	Client  didkey.DID    `json:"client"`
	Root    envelope.Hash `json:"root"` // the hash of its first REQUEST
	Payload Digest        `json:"payload"`
}

// Digest is the SHA-256 of the RFC 8785 form of a payload without its request_id, after opening.
type Digest [sha256.Size]byte

// MarshalText returns the digest in base64url.
func (d Digest) MarshalText() ([]byte, error) {
	return base64.RawURLEncoding.AppendEncode(nil, d[:]), nil
}

// UnmarshalText reads base64url.
func (d *Digest) UnmarshalText(text []byte) error {
	raw, err := base64.RawURLEncoding.DecodeString(string(text))
	if err != nil || len(raw) != len(d) {
		return fmt.Errorf("%q is not the SHA-256 of a payload in base64url", text)
	}
	copy(d[:], raw)
	return nil
}

// KeyOf returns the job of a REQUEST whose payload is open.
func KeyOf(request *envelope.Envelope) (Key, error) {
	var payload map[string]json.RawMessage
	if err := request.DecodePayload(&payload); err != nil {
		return Key{}, err
	}
	delete(payload, "request_id")
	text, err := json.Marshal(payload)
	if err == nil {
		text, err = envelope.Canonicalize(text)
	}
	if err != nil {
		return Key{}, err
	}
	root := request.Continues
	if root == (envelope.Hash{}) {
		root = request.Hash()
	}
	return Key{Client: request.Sender.ID, Root: root, Payload: sha256.Sum256(text)}, nil
}

// Place is a thread of a job with an ACCEPT.
type Place struct {
	Relay  didkey.DID    `json:"home"` // the relay that decides the thread
	Thread string        `json:"id"`
	Accept envelope.Hash `json:"accept"`
	First  bool          `json:"first"` // it was opened by the job's first REQUEST
}

// same reports whether both are the same thread.
func (p Place) same(other Place) bool { return p.Relay == other.Relay && p.Thread == other.Thread }

// Outcome is the answer to a job: the payload of a RESULT or an ERROR, without request_id.
type Outcome struct {
	Type    envelope.Type   `json:"type"`
	Payload json.RawMessage `json:"payload"`
}

// Job is what an agent remembers of a job from its first OFFER on.
type Job struct {
	Key
	Until    time.Time       `json:"until"`           // when it may be forgotten; after an ACCEPT, only if it is over
	Terms    json.RawMessage `json:"offer,omitempty"` // the payload of the OFFER, without request_id; empty: not known
	Accepted bool            `json:"accepted"`
	Begun    int             `json:"begun"`             // how often the work was begun
	Over     bool            `json:"over"`              // the work has ended, or must not be begun
	Outcome  *Outcome        `json:"outcome,omitempty"` // nil: there is none yet, or the client has cancelled the job
	Newest   Place           `json:"thread"`            // the newest thread with an ACCEPT
	Earlier  []envelope.Hash `json:"earlier,omitempty"` // the ACCEPTs in older threads
	order    int64
}

// Bounds of a Book (RELAYS R-18).
const (
	MaxJobs      = 1024
	MaxOfClient  = 128
	maxEarlier   = 2 * MaxContinued
	keptAfterEnd = 24 * time.Hour
)

// Book has the jobs of an agent. It is not safe for concurrent use.
type Book struct {
	// Changed is called after each change of a job. forgotten is true if the book has dropped the job. Changed may be
	// nil.
	Changed func(j *Job, forgotten bool)

	jobs     map[Key]*Job
	ofClient map[didkey.DID]int
	count    int64
}

// Restore puts a job into the book as it was saved.
func (b *Book) Restore(j Job) {
	if old := b.jobs[j.Key]; old != nil {
		b.remove(old)
	}
	b.insert(&j)
}

// Drop takes a job out of the book without telling Changed.
func (b *Book) Drop(k Key) {
	if j := b.jobs[k]; j != nil {
		b.remove(j)
	}
}

// Jobs yields all jobs.
func (b *Book) Jobs(yield func(Job) bool) {
	for _, j := range b.jobs {
		if !yield(*j) {
			return
		}
	}
}

// Job returns a job; ok is false if the book does not have it.
func (b *Book) Job(k Key) (j Job, ok bool) {
	if found := b.jobs[k]; found != nil {
		return *found, true
	}
	return Job{}, false
}

// At returns the job whose newest thread with an ACCEPT this is.
func (b *Book) At(relay didkey.DID, thread string, client didkey.DID) (j Job, ok bool) {
	for _, j := range b.jobs {
		if j.Client == client && j.Newest.same(Place{Relay: relay, Thread: thread}) {
			return *j, true
		}
	}
	return Job{}, false
}

// HasRoom reports whether the agent may make an offer for a job. If the book is full, a job without an ACCEPT makes
// room, or else one that is over. RELAYS R-18 keeps those that are over for a day. But then no agent could do more
// than MaxJobs jobs in a day.
func (b *Book) HasRoom(k Key) bool {
	if b.jobs[k] != nil {
		return true
	}
	return (len(b.jobs) < MaxJobs || b.oldest("") != nil) &&
		(b.ofClient[k.Client] < MaxOfClient || b.oldest(k.Client) != nil)
}

// oldest returns the job to forget when room is needed: the job without an ACCEPT that was offered first, or else the
// first one that is over; nil: there is none. It looks at the jobs of client only, or at all jobs if client is empty.
func (b *Book) oldest(client didkey.DID) (found *Job) {
	for _, j := range b.jobs {
		if j.Accepted && !j.Over || client != "" && j.Client != client {
			continue
		}
		if found == nil || found.Accepted && !j.Accepted || found.Accepted == j.Accepted && j.order < found.order {
			found = j
		}
	}
	return found
}

// Offered records the first OFFER of a job, with its terms. expires is when the REQUEST expires. It forgets other jobs
// if the book is full. A later OFFER changes only the time.
func (b *Book) Offered(k Key, terms json.RawMessage, expires time.Time) {
	j := b.jobs[k]
	if j == nil {
		j = b.add(k, expires)
	}
	if j.Terms == nil {
		j.Terms = terms
	}
	j.Until = later(j.Until, expires)
	b.changed(j)
}

func (b *Book) add(k Key, until time.Time) *Job {
	if b.ofClient[k.Client] >= MaxOfClient {
		b.forget(b.oldest(k.Client))
	}
	if len(b.jobs) >= MaxJobs {
		b.forget(b.oldest(""))
	}
	j := &Job{Key: k, Until: until}
	b.insert(j)
	return j
}

// Action is what an agent does after an ACCEPT.
type Action int

const (
	Work   Action = iota // the work is to be begun, or its end to be waited for
	Answer               // the job has an outcome: it is posted in this thread
	Ignore               // a newer thread of the job has an ACCEPT, or too many have
	Refuse               // the client had cancelled the job after the work was begun
)

// Accept records the ACCEPT of an OFFER, at the time now. begun is how often the work was begun according to an older
// record; most often 0.
//
// The thread of the first REQUEST is older than all others. Of the others nobody knows which one is the newest:
// messages come late, and clocks are set back. So each of them gets the outcome, and the last one to come counts as
// the newest.
func (b *Book) Accept(k Key, at Place, begun int, now time.Time) Action {
	j := b.jobs[k]
	if j == nil { // its OFFER was made by an earlier process without a file
		j = b.add(k, now.Add(keptAfterEnd))
	}
	j.Begun = max(j.Begun, begun)
	switch {
	case j.Newest.same(at):
	case j.Accepted && (at.First || !slices.Contains(j.Earlier, at.Accept) && len(j.Earlier) == maxEarlier):
		return Ignore
	case slices.Contains(j.Earlier, at.Accept):
	default:
		if j.Accepted {
			j.Earlier = append(j.Earlier, j.Newest.Accept)
		}
		j.Accepted, j.Newest = true, at
		if j.Over && j.Outcome == nil && j.Begun == 0 { // cancelled before the work was begun
			j.Over = false
		}
		b.changed(j)
	}
	switch {
	case j.Outcome != nil:
		return Answer
	case j.Over:
		return Refuse
	}
	return Work
}

// Begin records that the work begins once more. It returns how often the work has begun. may is false if it has already
// begun attempts times. Then Begin records nothing, and the work must not begin.
func (b *Book) Begin(k Key, attempts int) (attempt int, may bool) {
	j := b.jobs[k]
	if j == nil || j.Begun >= attempts {
		return attempts, false
	}
	j.Begun++
	b.changed(j)
	return j.Begun, true
}

// Undo takes back a Begin whose work the agent itself has interrupted, at its end.
func (b *Book) Undo(k Key) {
	if j := b.jobs[k]; j != nil && j.Begun > 0 && !j.Over {
		j.Begun--
		b.changed(j)
	}
}

// Finish records the outcome of the work.
func (b *Book) Finish(k Key, o Outcome, now time.Time) {
	if j := b.jobs[k]; j != nil {
		j.Outcome = &o
		b.over(j, now)
	}
}

// Ended records that a thread has ended without the agent's answer. It reports whether the work is to be stopped: the
// thread is the newest one with an ACCEPT. A job that has an outcome keeps it.
func (b *Book) Ended(k Key, at Place, now time.Time) (stop bool) {
	j := b.jobs[k]
	if j == nil || !j.Newest.same(at) || j.Over {
		return false
	}
	b.over(j, now)
	return true
}

func (b *Book) over(j *Job, now time.Time) {
	j.Over = true
	j.Until = later(j.Until, now.Add(keptAfterEnd))
	b.changed(j)
}

// Expire forgets the jobs whose time has come.
func (b *Book) Expire(now time.Time) {
	for _, j := range b.jobs {
		if !now.Before(j.Until) && (!j.Accepted || j.Over) {
			b.forget(j)
		}
	}
}

func (b *Book) insert(j *Job) {
	if b.jobs == nil {
		b.jobs, b.ofClient = map[Key]*Job{}, map[didkey.DID]int{}
	}
	b.count++
	j.order = b.count
	b.jobs[j.Key] = j
	b.ofClient[j.Client]++
}

func (b *Book) remove(j *Job) {
	delete(b.jobs, j.Key)
	if b.ofClient[j.Client]--; b.ofClient[j.Client] == 0 {
		delete(b.ofClient, j.Client)
	}
}

// forget removes a job; nil: none.
func (b *Book) forget(j *Job) {
	if j == nil {
		return
	}
	b.remove(j)
	if b.Changed != nil {
		b.Changed(j, true)
	}
}

func (b *Book) changed(j *Job) {
	if b.Changed != nil {
		b.Changed(j, false)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Answering returns an outcome as the answer to the REQUEST with this request_id.
func Answering(outcome envelope.Payload, requestID string) envelope.Payload {
	switch p := outcome.(type) {
	case envelope.Result:
		p.RequestID = requestID
		return p
	case envelope.Failure:
		p.RequestID = requestID
		return p
	}
	return outcome
}

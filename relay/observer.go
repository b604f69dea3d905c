package relay

import (
	"time"

	"github.com/agora-relay/agora/envelope"
)

// Observer is told what a relay, its store and its front do, when they do it. Metrics are one. Any number of goroutines
// call it, some of them on the way of every post: it returns at once and allocates nothing. What it gets is passed by
// value, and no part of it is an identity or a text that strangers choose.
//
// Embed NoObserver to implement only some of the methods.
type Observer interface {
	// Posted reports a post that was stored or refused.
	Posted(PostReport)
	// Refused reports a request that was answered with an error. status is that of HTTP, and 0 for a connection that was
	// closed at once. code is empty where a gateway has errors of its own. limit names the limit that was reached; it is
	// empty if none was.
	Refused(status int, code envelope.Code, limit string)
	// Committed reports a group of posts and updates that became durable together.
	Committed(CommitReport)
	// Waiting reports that so many polls more wait; -1: one less.
	Waiting(change int)
	// Delivered reports an answer to a poll.
	Delivered(DeliveryReport)
	// Swept reports that the store has done, or could not do, what was due.
	Swept(took time.Duration, err error)
}

// PostReport is what became of a post.
type PostReport struct {
	Code      envelope.Code // of the refusal; empty: it is stored
	Duplicate bool          // it was stored before
	Bytes     int           // of the body
	Check     time.Duration // for parsing and verifying, waiting for a turn included
	Store     time.Duration // until it was durable; 0 if it did not come so far
}

// CommitReport is one transaction of a store.
type CommitReport struct {
	Events int           // that were stored
	Work   time.Duration // for reading and writing
	Commit time.Duration // for the commit, its fsync included
}

// DeliveryReport is an answer to a poll.
type DeliveryReport struct {
	Events int           // in the first part of the answer
	Bytes  int           // of their bodies
	Waited bool          // the poll was woken by an event
	Wake   time.Duration // if Waited: from the wake until the answer was ready
}

// NoObserver is the Observer that does nothing.
type NoObserver struct{}

// Posted implements Observer.
func (NoObserver) Posted(PostReport) {}

// Refused implements Observer.
func (NoObserver) Refused(int, envelope.Code, string) {}

// Committed implements Observer.
func (NoObserver) Committed(CommitReport) {}

// Waiting implements Observer.
func (NoObserver) Waiting(int) {}

// Delivered implements Observer.
func (NoObserver) Delivered(DeliveryReport) {}

// Swept implements Observer.
func (NoObserver) Swept(time.Duration, error) {}

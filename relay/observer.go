package relay

import (
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay/admission"
)

// Observer receives reports about what a relay, its store and its HTTP API do, at the time they do it. Metrics are one
// use. Any number of goroutines call it at the same time, some of them during every post. So its methods must return at
// once and must not allocate. All arguments are passed by value. No part of them is an identity or a text that a client
// chose.
//
// Embed NoObserver to implement only some of the methods.
type Observer interface {
	// Posted reports a post that was stored or refused.
	Posted(p PostReport)
	// Screened reports a decision of the Screen: how long it took, with the wait for its turn, and the code of its refusal.
	// code is empty if it has accepted the message.
	Screened(took time.Duration, code envelope.Code)
	// Served reports a request that was answered, with success or with an error. mount is the path prefix of the part of
	// the HTTP API that answered it, such as "/hub"; it is empty for the relay's own routes.
	Served(mount string, k admission.Kind)
	// Refused reports a request that was answered with an error. status is the HTTP status, or 0 for a connection that
	// was closed at once. code is empty if a gateway uses its own error codes. limit names the limit that was
	// reached; it is empty if none was.
	Refused(status int, code envelope.Code, limit string)
	// Mirrored reports a message of another relay that was copied or refused. code is empty unless it was refused.
	// duplicate says that the message was stored before.
	Mirrored(code envelope.Code, duplicate bool)
	// MirrorFailed reports that messages of another relay cannot be copied at the moment.
	MirrorFailed()
	// Queued reports how long a message, or a change at a gateway, has waited because as many of its address were being
	// stored as Limits.WritesPerAddress allows. A message or change that did not wait is not reported.
	Queued(waited time.Duration)
	// Committed reports a group of posts and updates that became durable together.
	Committed(CommitReport)
	// Waiting reports by how much the number of polls in progress and open streams has changed, including the polls that
	// wait.
	Waiting(change int)
	// Delivered reports an answer to a poll, or to a read of EventsBefore.
	Delivered(d DeliveryReport)
	// Swept reports a sweep of the store: how long it took, and why it failed, if it did.
	Swept(took time.Duration, err error)
}

// PostReport describes the outcome of a post.
type PostReport struct {
	Code      envelope.Code // of the refusal; empty: the post was stored
	Duplicate bool          // the message was stored before
	Bytes     int           // size of the body
	Check     time.Duration // time for parsing and verifying, including the wait for a turn
	Screen    time.Duration // time until the Screen had decided; 0: it was not asked
	Store     time.Duration // time for storing, until it was durable; 0: the post was refused before
}

// CommitReport describes one transaction of a store.
type CommitReport struct {
	Events int           // number of stored events
	Work   time.Duration // time for reading and writing
	Commit time.Duration // time for the commit, including its fsync
}

// DeliveryReport describes an answer with events.
type DeliveryReport struct {
	Events int           // number of events in the first part of the answer
	Bytes  int           // total size of their bodies
	Waited bool          // an event woke the poll
	Wake   time.Duration // if Waited: from waking until the answer was ready
}

// NoObserver is the Observer that does nothing.
type NoObserver struct{}

// Posted implements Observer.
func (NoObserver) Posted(PostReport) {}

// Screened implements Observer.
func (NoObserver) Screened(time.Duration, envelope.Code) {}

// Served implements Observer.
func (NoObserver) Served(string, admission.Kind) {}

// Refused implements Observer.
func (NoObserver) Refused(int, envelope.Code, string) {}

// Mirrored implements Observer.
func (NoObserver) Mirrored(envelope.Code, bool) {}

// MirrorFailed implements Observer.
func (NoObserver) MirrorFailed() {}

// Queued implements Observer.
func (NoObserver) Queued(time.Duration) {}

// Committed implements Observer.
func (NoObserver) Committed(CommitReport) {}

// Waiting implements Observer.
func (NoObserver) Waiting(int) {}

// Delivered implements Observer.
func (NoObserver) Delivered(DeliveryReport) {}

// Swept implements Observer.
func (NoObserver) Swept(time.Duration, error) {}

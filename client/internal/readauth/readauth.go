// Package readauth keeps what a client knows about its relay's rules for reads (PROTOCOL §8): whether the relay is
// private, the audience of tokens, and the correction of the clock for tokens. It sends nothing.
package readauth

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/agora-relay/agora/client/internal/wire"
	"github.com/agora-relay/agora/envelope"
)

// RecheckInterval is how long a relay counts as open before the client fetches its document again. With
// client.Options.RequireParties it is also how long a relay counts as private. Without that option a relay that was
// private once gets signed reads from then on, even if its document later says that it is open.
//
// The same interval limits how often the clock for tokens is corrected, and is how long PausePresence has effect.
const RecheckInterval = 5 * time.Minute

// Rules is what a client knows about its relay's rules for reads. The zero value knows nothing. Rules are safe for
// concurrent use.
type Rules struct {
	mu               sync.Mutex
	fetchedAt        time.Time // when the client asked for the document; zero: never, or the document is out of date
	audience         string    // the audience of tokens for a private relay; empty: the relay is open
	openAudience     string    // the audience of tokens for an open relay; empty: no read is signed there
	presencePausedAt time.Time // when a read with a token was last refused at an open relay; zero: never

	correction  time.Duration // added to this machine's time for the time of a token
	correctedAt time.Time     // when correction was last set; zero: never
}

// Signed reports whether the relay is known to be private, so that all reads are signed.
func (r *Rules) Signed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.audience != ""
}

// Known returns the stored audience, and whether it is still valid. An empty audience (an open relay) is valid for
// RecheckInterval. An audience of a private relay is valid for RecheckInterval with recheck, and without end otherwise.
func (r *Rules) Known(recheck bool) (audience string, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.audience, r.audience != "" && !recheck || !r.fetchedAt.IsZero() && time.Since(r.fetchedAt) < RecheckInterval
}

// Learn stores the audiences from a document that the client asked for at fetchedAt.
func (r *Rules) Learn(fetchedAt time.Time, audience, openAudience string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fetchedAt, r.audience, r.openAudience = fetchedAt, audience, openAudience
}

// PresenceAudience returns the audience of tokens for an open relay; empty: send unsigned reads.
func (r *Rules) PresenceAudience() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.presencePausedAt.IsZero() && time.Since(r.presencePausedAt) < RecheckInterval {
		return ""
	}
	return r.openAudience
}

// PausePresence stops signing reads of an open relay for RecheckInterval if failed may have been caused by the token.
// An open relay never refuses a token, but a proxy in front of it may. PausePresence reports whether to retry the read.
func (r *Rules) PausePresence(failed *wire.Failure) bool {
	switch failed.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestHeaderFieldsTooLarge:
	default:
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.presencePausedAt = time.Now()
	if failed.Challenged { // the relay has become private, so its document has changed
		r.fetchedAt = time.Time{}
	}
	return true
}

// MaxCorrection is the largest correction of the client's clock by a relay. It is large enough for a wrong time zone.
// It is too small for a relay to obtain signatures with a time in the distant future.
const MaxCorrection = 24 * time.Hour

// maxReadAhead is how far the time in a token may be ahead of this machine's clock. Without this bound an impostor could
// ask for a token with a future time, and use the token then. A token with a past time is worth nothing to an impostor,
// so it may be behind this machine's clock by as much as a message, MaxCorrection.
const maxReadAhead = 15 * time.Minute

// Now returns the time to write into tokens: raw, this machine's time, plus the correction.
func (r *Rules) Now(raw time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return raw.Add(r.correction)
}

// Correct sets the clock for tokens to the relay's time, which refusal contains. raw is this machine's time. The clock
// is set forward by at most maxReadAhead and back by at most MaxCorrection, and at most once per RecheckInterval.
// Correct returns nil if it set the clock, else the failure to report.
func (r *Rules) Correct(refusal *envelope.Error, failed *wire.Failure, raw time.Time) *wire.Failure {
	relayNow, ok := refusal.Now()
	if !ok {
		return failed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	difference := relayNow.Sub(raw)
	if difference > maxReadAhead || -difference > MaxCorrection {
		return wire.Permanent(envelope.Errorf(envelope.CodeUnauthorized,
			"the relay's clock says %s and differs from this machine's clock by %v; set this machine's clock: "+
				"the client sets the time of signed reads forward by %v at most, and back by %v at most",
			envelope.FormatTime(relayNow), difference.Abs().Round(time.Second), maxReadAhead, MaxCorrection))
	}
	if !r.correctedAt.IsZero() && time.Since(r.correctedAt) < RecheckInterval {
		return &wire.Failure{NotSent: true, Err: fmt.Errorf(
			"the relay refuses the time of a signed read again, although it was corrected less than %v ago: %v",
			RecheckInterval, failed)}
	}
	r.correction, r.correctedAt = difference, time.Now()
	return nil
}

// Invalidate makes the next read fetch the relay's document again. It has no effect for a relay that is known to be
// private, unless the client requires private reads.
func (r *Rules) Invalidate() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fetchedAt = time.Time{}
}

package journal

import (
	"encoding/json"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/deal"
	"github.com/agora-relay/agora/thread"
)

// Internal is the ERROR for a client after an internal failure of the agent. It does not contain the cause, because the
// cause may be private. The log has the cause.
var Internal = envelope.Failure{Code: envelope.AgentInternal,
	Message: "the agent failed; the agent's operator can find the reason in its log"}

// The jobs of an agent. The methods return the errors of writing the file where that matters.

// Accept records an ACCEPT. newest reports whether its thread is now the newest one of the job with an ACCEPT.
func (s *Journal) Accept(
	k deal.Key, at deal.Place, r thread.Key, now time.Time,
) (action deal.Action, newest bool, outcome envelope.Payload) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.book.Expire(now)
	action = s.book.Accept(k, at, s.begunBefore(r), now)
	j, _ := s.book.Job(k)
	newest = j.Newest.Accept == at.Accept
	if j.Outcome != nil {
		outcome = payloadOf(*j.Outcome)
	}
	return action, newest, outcome
}

// OutcomeAt returns the outcome of the job that has this ACCEPT in its newest thread, as the answer there; nil: it is
// not known. The agent needs it if the REQUEST has expired.
func (s *Journal) OutcomeAt(accept *envelope.Envelope) envelope.Payload {
	relay := didkey.DID("")
	if accept.Home != nil {
		relay = accept.Home.DID
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	j, _ := s.book.At(relay, accept.Thread, accept.Sender.ID)
	if j.Outcome == nil {
		return nil
	}
	return deal.Answering(payloadOf(*j.Outcome), accept.RequestID)
}

// payloadOf returns a saved outcome as the payload of a message.
func payloadOf(o deal.Outcome) envelope.Payload {
	var result envelope.Result
	var failure envelope.Failure
	switch {
	case o.Type == envelope.TypeResult && json.Unmarshal(o.Payload, &result) == nil:
		return result
	case o.Type == envelope.TypeError && json.Unmarshal(o.Payload, &failure) == nil:
		return failure
	}
	return Internal
}

// Begin counts one more beginning of the work of a job, unless that is too often.
func (s *Journal) Begin(k deal.Key, attempts int) (attempt int, may bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	attempt, may = s.book.Begin(k, attempts)
	return attempt, may, s.file.Sync()
}

// Undo takes back the last Begin of a job.
func (s *Journal) Undo(k deal.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.book.Undo(k)
}

// Finish records the outcome of a job.
func (s *Journal) Finish(k deal.Key, o deal.Outcome, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.book.Finish(k, o, now)
	return s.file.Sync()
}

// FinishElsewhere records the outcome of an accepted job that is done elsewhere. threadID is the thread of its newest
// REQUEST. It returns the first outcome that was recorded; nil: the job is not known.
func (s *Journal) FinishElsewhere(
	threadID string, client didkey.DID, outcome envelope.Payload,
) (envelope.Payload, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for j := range s.book.Jobs {
		if j.Client != client || j.Newest.Thread != threadID || !j.Accepted || j.Over && j.Outcome == nil {
			continue
		}
		if j.Outcome != nil {
			return payloadOf(*j.Outcome), nil
		}
		text, err := json.Marshal(outcome)
		if err != nil {
			return nil, err
		}
		s.book.Finish(j.Key, deal.Outcome{Type: envelope.TypeOf(outcome), Payload: text}, time.Now())
		return outcome, s.file.Sync()
	}
	return nil, nil
}

// Ended says that there is nothing more to do for a job in its newest thread.
func (s *Journal) Ended(k deal.Key, at deal.Place, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.book.Ended(k, at, now)
}

// Continues reports whether a REQUEST continues an accepted job.
func (s *Journal) Continues(request *envelope.Envelope) bool {
	if request.Continues == (envelope.Hash{}) {
		return false
	}
	k, err := deal.KeyOf(request)
	if err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	j, ok := s.book.Job(k)
	return ok && j.Accepted
}

// Offered records the terms of an OFFER that is to be posted.
func (s *Journal) Offered(k deal.Key, terms envelope.Offer, expires, now time.Time) error {
	terms.RequestID = ""
	text, err := json.Marshal(terms)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.book.Expire(now)
	s.book.Offered(k, text, expires)
	return s.file.Sync()
}

// Terms returns the terms of the first OFFER of a job; known is false if there was none. room is false if the agent can
// make no offer now, because all its jobs are accepted.
func (s *Journal) Terms(k deal.Key) (offer envelope.Offer, known, room bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j, ok := s.book.Job(k)
	if !ok || j.Terms == nil || json.Unmarshal(j.Terms, &offer) != nil {
		return envelope.Offer{}, false, s.book.HasRoom(k)
	}
	return offer, true, true
}

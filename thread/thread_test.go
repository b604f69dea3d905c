package thread_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// The roles of PROTOCOL §4. The state machine compares identifiers and never looks into them, so words do.
const (
	client   didkey.DID = "client"
	named    didkey.DID = "named"    // whom the REQUEST names
	accepted didkey.DID = "accepted" // whose offer was accepted
	offered  didkey.DID = "offered"  // offered, but was not accepted
	withdrew didkey.DID = "withdrew" // offered and took it back
	stranger didkey.DID = "stranger"
)

const (
	request = envelope.TypeRequest
	offer   = envelope.TypeOffer
	accept  = envelope.TypeAccept
	cancel  = envelope.TypeCancel
	result  = envelope.TypeResult
	failure = envelope.TypeError
)

var noon = time.Date(2026, 2, 2, 12, 0, 0, 0, time.UTC)

// message returns a message with everything any type needs in its payload; change it with to and with.
func message(by didkey.DID, typ envelope.Type) *envelope.Envelope {
	return &envelope.Envelope{
		ID: fmt.Sprintf("msg_%s_%s", by, typ), Type: typ, Sender: envelope.Party{ID: by}, Thread: "t", RequestID: "req",
		Payload: []byte(`{"code":"C","intent":"i","message":"m","request_id":"req","status":"s"}`),
	}
}

func to(recipient didkey.DID, m *envelope.Envelope) *envelope.Envelope {
	m.Recipient = recipient
	return m
}

func withRequestID(id string, m *envelope.Envelope) *envelope.Envelope {
	m.RequestID = id
	return m
}

func withPayload(payload string, m *envelope.Envelope) *envelope.Envelope {
	m.Payload = []byte(payload)
	return m
}

// play returns the thread after messages that were all sent at noon.
func play(t testing.TB, messages ...*envelope.Envelope) thread.Thread {
	t.Helper()
	th, _, err := (thread.Rules{}).Apply(nil, messages[0], noon)
	for _, m := range messages[1:] {
		if err == nil {
			th, err = (thread.Rules{}).Next(th, m, noon)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return th
}

// fataler is a *testing.T or a *rapid.T.
type fataler interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// status returns an error's code as the number PROTOCOL §5 gives it, 0 for none.
func status(t fataler, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	refusal, ok := errors.AsType[*envelope.Error](err)
	if !ok {
		t.Fatalf("not an *envelope.Error: %v", err)
	}
	numbers := map[envelope.Code]int{
		envelope.CodeInvalidRequest: 400, envelope.CodeForbidden: 403, envelope.CodeThreadNotFound: 404,
		envelope.CodeInvalidTransition: 409, envelope.CodeRateLimited: 429,
	}
	n, ok := numbers[refusal.Code]
	if !ok {
		t.Fatalf("a code this package does not give: %v", err)
	}
	return n
}

// text is a snapshot of a thread, to compare by.
func text(t fataler, th thread.Thread) string {
	t.Helper()
	data, err := json.Marshal(th)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

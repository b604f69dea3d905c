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

// The roles of PROTOCOL §4. The state machine only compares DIDs and never parses them, so these words can stand for
// DIDs.
const (
	client   didkey.DID = "client"
	named    didkey.DID = "named"    // the agent that the REQUEST names
	accepted didkey.DID = "accepted" // the agent whose offer was accepted
	offered  didkey.DID = "offered"  // an agent that offered and was not accepted
	withdrew didkey.DID = "withdrew" // an agent that offered and withdrew the offer
	stranger didkey.DID = "stranger" // an agent with no part in the thread
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

// message returns a message whose payload has the required members of all types. The functions to, withRequestID and
// withPayload change it.
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

// play returns the thread after messages that all arrive at noon.
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

// testingT has the methods that *testing.T and *rapid.T have in common.
type testingT interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// status returns the HTTP status that PROTOCOL §5 assigns to the code of err, or 0 if err is nil.
func status(t testingT, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	refusal, ok := errors.AsType[*envelope.Error](err)
	if !ok {
		t.Fatalf("the error is not an *envelope.Error: %v", err)
	}
	numbers := map[envelope.Code]int{
		envelope.CodeInvalidRequest: 400, envelope.CodeForbidden: 403, envelope.CodeThreadNotFound: 404,
		envelope.CodeInvalidTransition: 409, envelope.CodeRateLimited: 429,
	}
	n, ok := numbers[refusal.Code]
	if !ok {
		t.Fatalf("package thread should not return an error with this code: %v", err)
	}
	return n
}

// text returns th as JSON. Tests compare such texts.
func text(t testingT, th thread.Thread) string {
	t.Helper()
	data, err := json.Marshal(th)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

package envelope_test

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// The fixed seed and the fixed time make the output reproducible. Use didkey.Generate and time.Now instead.
func ExampleDraft_Sign() {
	key, err := didkey.FromSeed(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		panic(err)
	}
	e, err := envelope.Draft{
		ID:      "msg_1",
		Thread:  "thread_1",
		Payload: envelope.Request{RequestID: "req_1", Intent: "translation.en_zh", Title: "Hello"},
		TTL:     5 * time.Minute,
	}.Sign(key, time.Date(2026, 2, 2, 15, 30, 0, 0, time.UTC))
	if err != nil {
		panic(err)
	}
	fmt.Println(e.Type, e.ID, "by", e.Sender.ID)
	fmt.Println("until", e.ExpiresAt().Format(time.RFC3339))
	fmt.Printf("%s\n", e.Payload)
	fmt.Println(e.Verify())
	// Output:
	// REQUEST msg_1 by did:key:z6MkvDqGT54cXesYGvABpF1UapVNwjCqRcafi4Px6Thv5T3Z
	// until 2026-02-02T15:35:00Z
	// {"intent":"translation.en_zh","request_id":"req_1","title":"Hello"}
	// <nil>
}

// Do not trust anything in an envelope before Verify has returned nil.
func ExampleParse() {
	received := []byte(`{
		"version": "1.0", "id": "msg_2", "ts": "2026-02-02T15:30:00Z", "type": "CANCEL",
		"sender": {"id": "did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp"},
		"thread": {"id": "thread_1"}, "payload": {"reason": "too late"}, "sig": "c2lnbmF0dXJl"
	}`)
	e, err := envelope.Parse(received, 0)
	if err != nil {
		panic(err)
	}
	fmt.Println(e.Type, "of", e.Thread)

	if refusal, ok := errors.AsType[*envelope.Error](e.Verify()); ok {
		fmt.Println(refusal.Code)
	}
	// Output:
	// CANCEL of thread_1
	// INVALID_SIGNATURE
}

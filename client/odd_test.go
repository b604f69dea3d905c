package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
)

// odd are values that take the place of others. Some of them make other languages fail when they convert a value.
var odd = []string{`{"toString":1}`, `{"__proto__":1}`, `[[]]`, `[]`, `{}`, `null`, `true`, `-1.5`, `1e300`,
	`9007199254740993`, `""`, `"x"`, `"\u0000"`, `"\ud83d\ude00"`}

// oddVariants returns the copies of a JSON text in which one value is odd.
func oddVariants(t *testing.T, text []byte) (all []string) {
	t.Helper()
	var root any
	if err := json.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
	var visit func(value any, set func(any))
	visit = func(value any, set func(any)) {
		for _, other := range odd {
			set(json.RawMessage(other))
			changed, err := json.Marshal(root)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, string(changed))
		}
		set(value)
		switch holder := value.(type) {
		case map[string]any:
			for _, name := range slices.Sorted(maps.Keys(holder)) {
				visit(holder[name], func(v any) { holder[name] = v })
			}
		case []any:
			for i := range holder {
				visit(holder[i], func(v any) { holder[i] = v })
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(root.(map[string]any))) {
		members := root.(map[string]any)
		visit(members[name], func(v any) { members[name] = v })
	}
	return all
}

// TestOddEvents puts odd values into events. Such an event is left out, and the reader continues.
func TestOddEvents(t *testing.T) {
	relay, key := newFakeRelay(), newKey(t)
	e := relay.put(t, key, envelope.Draft{Thread: "t", Recipient: key.DID(), SenderName: "A",
		Payload: envelope.Offer{RequestID: "r", Plan: "p", Price: &envelope.Price{Amount: 1, Currency: "USD"}}})
	events := append(oddVariants(t, e.Canonical()), odd...)
	events = append(events, string(e.Canonical()))
	page := fmt.Sprintf(`{"ok":true,"hasMore":false,"cursor":"1","events":[%s]}`, strings.Join(events, ","))
	relay.setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if r.URL.Path == "/events" {
			return response(200, page), nil
		}
		return next.RoundTrip(r)
	})
	found := errors.New("found")
	err := newClient(t, relay, key, client.Options{}).Follow(t.Context(), client.FollowOptions{},
		func(_ context.Context, got *envelope.Envelope) error {
			if got.ID != e.ID {
				t.Errorf("an event with the id %q is valid", got.ID)
			}
			return found
		})
	if !errors.Is(err, found) {
		t.Error(err)
	}
}

// TestOddPayloads: whatever values a signed answer of an agent has, a call ends with an error or a result.
func TestOddPayloads(t *testing.T) {
	racing.Skip(t, "one thing after another")
	agent, me := newKey(t), newKey(t)
	payloads := map[envelope.Type]string{
		envelope.TypeResult: `{"request_id":"t","status":"success","output":1,"artifacts":[1],"metrics":{"a":1}}`,
		envelope.TypeError:  `{"request_id":"t","code":"UNAVAILABLE","message":"m","details":{"a":"b"}}`,
		envelope.TypeOffer: `{"request_id":"t","price":{"amount":1,"currency":"USD"},"plan":"p","eta_seconds":1,` +
			`"valid_until":"2099-01-01T00:00:00Z"}`,
	}
	for kind, payload := range payloads {
		for _, text := range oddVariants(t, []byte(payload)) {
			draft := envelope.Draft{Thread: "t", Recipient: me.DID(), Payload: envelope.Raw{Type: kind, JSON: []byte(text)}}
			e, err := draft.Sign(agent, time.Now())
			if err != nil {
				continue // the payload is none that a relay takes
			}
			accept, err := envelope.Draft{Thread: "t", Recipient: agent.DID(),
				Payload: envelope.Accept{RequestID: "t"}}.Sign(me, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			checkOddAnswer(t, me, accept, e)
		}
	}
}

// checkOddAnswer lets a call read its ACCEPT, and an answer of the agent that has ended the thread.
func checkOddAnswer(t *testing.T, me didkey.Key, accept, answer *envelope.Envelope) {
	state := map[envelope.Type]string{envelope.TypeResult: "COMPLETED", envelope.TypeError: "ERROR"}[answer.Type]
	if state == "" {
		state = "PENDING"
	}
	relay := newFakeRelay()
	record := fmt.Sprintf(`{"ok":true,"hasMore":false,"cursor":"1","expired":0,"events":[%s,%s],"thread":{"id":"t","client":%q,
		"state":%q,"requestId":"t","offers":[],"transitions":[{"from":"ACTIVE","to":%[4]q,"type":%[5]q,"by":%[6]q,"id":%[7]q,
		"at":"2026-02-02T12:00:00Z"}]}}`, accept.Canonical(), answer.Canonical(), me.DID(), state, answer.Type,
		answer.Sender.ID, answer.ID)
	relay.setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if r.URL.Path == "/events" || strings.HasPrefix(r.URL.Path, "/threads/") {
			return response(200, record), nil
		}
		return next.RoundTrip(r)
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	call, err := newClient(t, relay, me, client.Options{}).ResumeKnown(ctx,
		client.Known{Thread: "t", RequestID: "t", Recipient: accept.Recipient})
	if err != nil {
		t.Fatalf("%s: %v", answer.Canonical(), err)
	}
	if answer.Type == envelope.TypeOffer {
		for range call.Offers(ctx) {
			break
		}
		return
	}
	if _, err := call.Result(ctx); ctx.Err() != nil {
		t.Errorf("%s: %v", answer.Canonical(), err)
	}
}

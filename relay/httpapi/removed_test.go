package httpapi_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/thread"
)

// What the operator removes is no longer delivered. The thread shows that it was removed, and a copy is refused.
func TestRemovedMessages(t *testing.T) {
	r := unlimited(t)
	h := newFront(t, r, httpapi.Options{Log: quiet}).Handler(false)
	alice, bob := key(t), key(t)
	request := sign(t, alice, envelope.Draft{Thread: "t1", Recipient: bob.DID(),
		Payload: envelope.Request{RequestID: "t1", Intent: "echo"}})
	offer := sign(t, bob, envelope.Draft{Thread: "t1", Recipient: alice.DID(), Payload: envelope.Offer{RequestID: "t1"}})
	for _, e := range []*envelope.Envelope{request, offer} {
		post(t, h, "/events", e.Canonical()).want(t, 200, "")
	}
	seq, err := r.FindEvent(t.Context(), bob.DID(), offer.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Remove(t.Context(), seq); err != nil {
		t.Fatal(err)
	}
	events, removed, _ := threadIn(t, get(t, h, "/threads/t1"))
	if events != 1 || !slices.Equal(removed, []string{offer.ID}) {
		t.Errorf("after the removal of the OFFER there are %d events, and these are removed: %v", events, removed)
	}
	if a := get(t, h, "/events?cursor=0&timeout=0"); len(a.Events) != 1 {
		t.Errorf("the poll has %d events", len(a.Events))
	}
	again := post(t, h, "/events", offer.Canonical())
	if again.want(t, 403, envelope.CodeForbidden); again.Details["reason"] != envelope.ReasonRemoved {
		t.Errorf("a copy: %s", again.body)
	}
	if _, err := r.RemoveThread(t.Context(), thread.Key{ID: "t1", Client: alice.DID()}); err != nil {
		t.Fatal(err)
	}
	events, removed, last := threadIn(t, get(t, h, "/threads/t1"))
	if events != 0 || len(removed) != 2 || last != "REMOVED" {
		t.Errorf("after the removal of the thread there are %d events, these are removed: %v, and the last step is %s", events, removed, last)
	}
}

// threadIn returns what an answer says of a thread: how many events it has, which were removed, and its last step.
func threadIn(t *testing.T, a answer) (events int, removed []string, last string) {
	t.Helper()
	a.want(t, 200, "")
	var members struct {
		Removed []struct{ ID string }
		Thread  struct{ Transitions []struct{ Type string } }
	}
	if err := json.Unmarshal(a.body, &members); err != nil {
		t.Fatal(err)
	}
	for _, m := range members.Removed {
		removed = append(removed, m.ID)
	}
	steps := members.Thread.Transitions
	return len(a.Events), removed, steps[len(steps)-1].Type
}

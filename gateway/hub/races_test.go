package hub_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/relay"
)

// inParallel makes n calls at once.
func (f *fixture) inParallel(n int, c func(i int) call) (answers []answer) {
	f.t.Helper()
	answers = make([]answer, n)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			var err error
			if answers[i], err = f.try(f.t.Context(), c(i)); err != nil {
				f.t.Error(err)
			}
		})
	}
	all.Wait()
	return answers
}

// TestRegistrationRace: of many registrations of a free id, exactly one is 201 (H-3).
func TestRegistrationRace(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	for round := range 5 {
		created := 0
		register := func(int) call { return call{"POST", "/register", "", registrationOf(fmt.Sprintf("a%d@b", round)), nil} }
		for _, a := range f.inParallel(16, register) {
			switch {
			case a.Status == 201:
				created++
				f.wantWorks(map[string]bool{a.text("api_key"): true})
			case a.Status != 409 || a.code() != "ERR_AGENT_ID_TAKEN":
				t.Errorf("the answer is %v", a)
			}
		}
		if created != 1 {
			t.Errorf("%d registrations of one id were answered with 201", created)
		}
	}
}

// TestRotationRace: rotations in parallel leave exactly one key that works (H-4).
func TestRotationRace(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	key := f.register("a@b")
	for range 5 {
		working := ""
		rotate := func(int) call { return call{"POST", "/register", key, registrationOf("a@b"), nil} }
		for _, a := range f.inParallel(16, rotate) {
			f.want(a, 200, "")
			if newKey := a.text("api_key"); f.works(newKey) {
				if working != "" {
					t.Errorf("more than one of the new keys works")
				}
				working = newKey
			}
		}
		if working == "" || f.works(key) {
			t.Fatalf("the new key that works is %q; the old key works: %v", working, f.works(key))
		}
		key = working
	}
}

// TestConfirmAtOnce: a receiver can confirm a message as soon as it has the frame, even if the hub has not recorded yet
// that the frame was written (H-14).
func TestConfirmAtOnce(t *testing.T) {
	t.Parallel()
	for name, ack := range map[string]func(event) object{
		"up_to":     func(e event) object { return object{"up_to": e.ID} },
		"trace_ids": func(e event) object { return object{"trace_ids": []string{e.Trace}} },
	} {
		f := startLocal(t)
		key := f.register("a@b")
		f.send(key, "a@b", "a@b", "hello")
		// The writer of the store is busy, so the hub cannot record the frame.
		busy, release, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			done <- f.Relay.Update(t.Context(), relay.Peer{Local: true}, func(relay.ExtTx) error {
				busy <- struct{}{}
				<-release
				return nil
			})
		}()
		<-busy
		time.AfterFunc(50*time.Millisecond, func() { close(release) })
		e := f.open(key, nil).message()
		a := f.want(f.post("/agent/ack", key, ack(e)), 200, "")
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if states := f.states(key); a.data("acknowledged") != 1. || states["hello"] != "delivered" {
			t.Errorf("%s: %v, the states are %v", name, a, states)
		}
	}
}

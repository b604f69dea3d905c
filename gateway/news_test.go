package gateway_test

import (
	"testing"

	"github.com/agora-relay/agora/gateway"
)

// TestNews checks that a change reaches all who follow a thing, and nobody else, and that nothing is kept afterwards.
func TestNews(t *testing.T) {
	n := gateway.NewNews()
	n.Tell(1) // nobody follows it
	a, b, other := n.Follow(1), n.Follow(1), n.Follow(2)
	for range 2 { // each change, not only the first one
		waits := []<-chan struct{}{a.Next(), b.Next(), other.Next()}
		n.Tell(1)
		for i, changed := range []bool{true, true, false} {
			if ended(waits[i]) != changed {
				t.Errorf("follower %d is told: %v, want %v", i, !changed, changed)
			}
		}
	}
	a.Close()
	late := b.Next()
	if n.Tell(1); !ended(late) {
		t.Error("after another follower has left, a change is missed")
	}
	b.Close()
	other.Close()
	if kept := n.Followed(); kept != 0 {
		t.Errorf("%d things are kept, although nobody follows them", kept)
	}
}

func ended(wait <-chan struct{}) bool {
	select {
	case <-wait:
		return true
	default:
		return false
	}
}

package serve

import (
	"context"
	"testing"
	"testing/synctest"
)

// TestWhileLeading checks that a task of the leader runs only while the node has the lease, and that two never run at
// once (RELAYS R-20: in a cluster the leader mirrors).
func TestWhileLeading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held, changed := false, make(chan struct{})
		running, begun := 0, 0
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			whileLeading(ctx, func() (bool, <-chan struct{}) { return held, changed }, func(ctx context.Context) {
				running, begun = running+1, begun+1
				<-ctx.Done()
				running--
			})
		}()
		want := func(what string, wantRunning, wantBegun int) {
			t.Helper()
			synctest.Wait()
			if running != wantRunning || begun != wantBegun {
				t.Errorf("%s: %d run and %d have begun, want %d and %d", what, running, begun, wantRunning, wantBegun)
			}
		}
		turn := func(to bool) {
			before := changed
			held, changed = to, make(chan struct{})
			close(before)
		}
		want("without the lease", 0, 0)
		turn(true)
		want("with the lease", 1, 1)
		turn(false)
		want("after its loss", 0, 1)
		turn(true)
		want("with the lease again", 1, 2)
		cancel()
		<-ended
		want("at the end", 0, 2)
	})
}

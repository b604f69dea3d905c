package client_test

import (
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain fails if a goroutine outlives the tests.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// later calls f after this time. The test must call wait before it ends, because f may use it.
func later(after time.Duration, f func()) (wait func()) {
	var done sync.WaitGroup
	done.Go(func() {
		time.Sleep(after)
		f()
	})
	return done.Wait
}

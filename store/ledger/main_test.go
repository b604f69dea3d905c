package ledger_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if raceDetector {
		// A few runs of each model are enough to find data races. Runs without the race detector check everything else.
		if err := flag.Set("rapid.checks", "20"); err != nil {
			panic(err) // the flag has another name in this version of rapid
		}
	}
	goleak.VerifyTestMain(m) // fails if a goroutine is still running after the tests, and exits
}

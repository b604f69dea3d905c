package ledger_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if raceDetector {
		// Races show in few runs of a model; what the models look for is looked for without the detector.
		if err := flag.Set("rapid.checks", "20"); err != nil {
			panic(err) // rapid has renamed it
		}
	}
	goleak.VerifyTestMain(m) // exits; no goroutine may outlive the tests
}

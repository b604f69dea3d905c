package jobs_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// A check of the model sends hundreds of requests. make nightly makes more checks.
	checks := "15"
	if raceDetector {
		checks = "3"
	}
	if err := flag.Set("rapid.checks", checks); err != nil {
		panic(err) // rapid has renamed the flag
	}
	flag.Parse() // -rapid.checks on the command line wins
	goleak.VerifyTestMain(m)
}

package jobs_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// A check of the model sends hundreds of requests. With -short, rapid makes a fifth of them. make nightly makes more.
	if err := flag.Set("rapid.checks", "50"); err != nil {
		panic(err) // rapid has renamed the flag
	}
	// The model runs in synthetic time, in which the time for making a failure smaller would never be over.
	if err := flag.Set("rapid.shrinktime", "0s"); err != nil {
		panic(err)
	}
	flag.Parse() // -rapid.checks on the command line wins
	goleak.VerifyTestMain(m)
}

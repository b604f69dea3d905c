// Package racing lets a test say what it leaves out under race detection, which makes it five to ten times slower. Only
// tests import this package.
package racing

import (
	"os"
	"testing"
)

// Skip skips a test in make race, which must be fast. why says why it would find no race there: it does one thing after
// another, or takes long. ci/race rest, which runs at night, sets RACING=all. Then, without -short, and without race
// detection, the test runs.
func Skip(t testing.TB, why string) {
	t.Helper()
	if Detector && testing.Short() && os.Getenv("RACING") != "all" {
		t.Skip("not in make race:", why)
	}
}

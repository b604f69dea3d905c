//go:build !race

package envelope

import "testing"

// TestCanonicalCheckAllocatesNothing holds what makes the check cheap enough to be made of every body.
func TestCanonicalCheckAllocatesNothing(t *testing.T) {
	body := typical(t).Canonical()
	if n := testing.AllocsPerRun(100, func() {
		if !isCanonical(body) {
			t.Error("not canonical")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

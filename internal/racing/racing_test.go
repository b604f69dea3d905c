package racing

import "testing"

// TestSkip checks that Skip skips only in make race.
func TestSkip(t *testing.T) {
	for _, mode := range []string{"", "all"} {
		t.Setenv("RACING", mode)
		ran := false
		t.Run(mode, func(t *testing.T) {
			Skip(t, "this is tested")
			ran = true
		})
		if want := !Detector || !testing.Short() || mode == "all"; ran != want {
			t.Errorf("RACING=%s: the test ran: %v, want %v", mode, ran, want)
		}
	}
}

package admin

import "testing"

// TestMayGovern checks which users may use the socket. TestSocketOfOthers shows that the kernel's answer is used.
func TestMayGovern(t *testing.T) {
	for _, c := range []struct {
		user, self int
		want       bool
	}{{1000, 1000, true}, {0, 1000, true}, {0, 0, true}, {1001, 1000, false}, {1000, 0, false}, {65534, 0, false}} {
		if got := mayGovern(c.user, c.self); got != c.want {
			t.Errorf("user %d at a relay of %d: %v", c.user, c.self, got)
		}
	}
}

package recent

import "testing"

func TestRecentForgetsTheOldest(t *testing.T) {
	r := New[int, string](3)
	for i, test := range []struct {
		key   int
		isNew bool
	}{{1, true}, {2, true}, {1, false}, {3, true}, {4, true}, {3, false}, {2, false}, {1, true}, {2, true}, {4, false}} {
		if got := r.Add(test.key, "x"); got != test.isNew {
			t.Errorf("step %d: %d is new: %v", i, test.key, got)
		}
	}
	if len(r.values) != 3 || len(r.order) != 3 {
		t.Errorf("the map has %d values and %d keys, want 3", len(r.values), len(r.order))
	}
	r.Add(4, "y")
	if value, ok := r.Get(4); !ok || value != "y" {
		t.Errorf("got %q, %v; want the newer value of the key", value, ok)
	}
}

package admin

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestStatusOfANode asks a node for its status while its database answers, and while it does not: the operator wants to
// know then, too. Then the whole database is not read. A backup is recorded at the relay's time.
func TestStatusOfANode(t *testing.T) {
	var recorded time.Time
	var failed error
	_, c := run(t, folder(t), func(o *Options) {
		o.Stats = func(context.Context) (any, error) {
			if failed != nil {
				t.Error("the database is read, although it does not answer")
			}
			return "read", nil
		}
		o.Nodes = &NodeOptions{Figures: func(context.Context) (any, error) { return "leader", failed },
			RecordBackup: func(_ context.Context, at time.Time) error { recorded = at; return nil }}
	})
	for _, failure := range []error{nil, errors.New("no primary")} {
		failed = failure
		var s Status
		if err := c.Call(t.Context(), "GET", "/status", nil, &s); err != nil || s.Node != "leader" ||
			s.Ready != (failed == nil) || (s.Store == "read") != (failed == nil) || failed != nil && s.Reason != "no primary" {
			t.Errorf("while the database fails with %v: %+v, %v", failed, s, err)
		}
	}
	if err := c.Call(t.Context(), "POST", "/backup/recorded", nil, new(struct{})); err != nil || recorded.IsZero() {
		t.Errorf("the backup was recorded at %v: %v", recorded, err)
	}
	_, single := run(t, folder(t), nil)
	if err := single.Call(t.Context(), "POST", "/backup/recorded", nil, new(struct{})); err == nil {
		t.Error("a single node records a backup that it has not made")
	}
}

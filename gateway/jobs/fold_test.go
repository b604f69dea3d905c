package jobs_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/gateway/jobs"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
)

// startFolding returns a fixture in a bubble, and its store.
func startFolding(t *testing.T) (*fixture, relay.Extender) {
	t.Helper()
	var store relay.Extender
	f := start(t, func(f *fixture) {
		f.Bubble = true
		f.Wrap = func(s relay.Extender) relay.Extender { store = s; return s }
	})
	return f, store
}

// oldMarket makes records and jobs of all kinds that can be folded when it returns: two jobs were paid, one has failed,
// and one still runs. It cannot be folded.
func oldMarket(t *testing.T, f *fixture) (carol, dave user) {
	t.Helper()
	carol, dave = f.user("carol"), f.user("dave")
	a := carol.agent(uuid(51), "")
	for i := range 4 {
		f.want(dave.hire(a, uuid(200+i)), 202)
	}
	carol.pull(a)
	f.want(carol.deliver(uuid(200), a, "SUCCESS", "execution_cost", 0.04), 200)
	f.want(carol.deliver(uuid(201), a, "SUCCESS"), 200)
	f.want(carol.deliver(uuid(202), a, "FAILURE"), 200)
	f.want(dave.do("POST", "/transfer", send("dave", "carol", 1, "job_id", uuid(200), "transfer_id", uuid(57))), 200)
	f.want(dave.do("POST", "/transfer", send("dave", "carol", 2, "transfer_id", uuid(58))), 200)
	f.want(f.do("POST", "/operator/grants", f.Operator, object{"owner_id": "carol", "amount": 1}), 201)
	f.Ahead.Add(int64(jobs.MinFoldAge + 24*time.Hour))
	return carol, dave
}

// fold folds what is older than MinFoldAge, and checks that the books are the same before and after.
func (f *fixture) fold(store relay.Extender) jobs.Folded {
	f.t.Helper()
	before := f.Now().Add(-jobs.MinFoldAge)
	books := func() (b jobs.Books, due jobs.Folded) {
		f.t.Helper()
		_, err := store.View(f.t.Context(), func(q relay.Querier) error {
			var errs [2]error
			b, errs[0] = jobs.ReadBooks(q)
			due, errs[1] = jobs.Foldable(q, before)
			return errors.Join(errs[:]...)
		})
		f.must(err)
		return b, due
	}
	old, due := books()
	done, err := jobs.Fold(f.t.Context(), store, before)
	f.must(err)
	if done != due {
		f.t.Errorf("folded %+v, want %+v as announced", done, due)
	}
	now, left := books()
	if now != old || left != (jobs.Folded{}) {
		f.t.Errorf("the books are %+v, and were %+v; left is %+v", now, old, left)
	}
	return done
}

// Fold removes old records and jobs that have ended. Balances, totals, scores and statistics stay the same, and
// everything still works with them.
func TestFold(t *testing.T) {
	racing.Skip(t, "one call after another")
	synctest.Test(t, func(t *testing.T) {
		f, store := startFolding(t)
		carol, dave := oldMarket(t, f)
		shown := func() string {
			t.Helper()
			return fmt.Sprint(carol.do("GET", "/economy", nil), dave.do("GET", "/economy", nil),
				f.do("GET", "/reputation/"+uuid(51), "", nil))
		}
		before := shown()
		// 2 initial balances, 1 grant, 1 transfer (the other one was answered with a payment), and 2 to 3 records a job
		if done := f.fold(store); done != (jobs.Folded{Records: 4 + 3 + 3 + 2, Jobs: 3}) {
			t.Errorf("folded %+v", done)
		}
		if after := shown(); after != before {
			t.Errorf("after the fold: %s\nwant %s", after, before)
		}
		audit := f.want(dave.do("GET", "/audit", nil), 200)
		if got := kinds(audit); got != "hold dave>@escrow 0.15; " || member(audit, "total") != 1.0 {
			t.Errorf("after the fold the audit is %v", audit)
		}
		if all := f.want(f.do("GET", "/audit", f.Operator, nil), 200); member(all, "total") != 1.0 {
			t.Errorf("after the fold the operator sees %v", all)
		}
		f.pass(0) // the job whose time is over ends now, and is refunded
		f.want(dave.do("POST", "/transfer", send("dave", "carol", 1)), 200)
		f.Ahead.Add(int64(jobs.MinFoldAge + 24*time.Hour))
		f.fold(store)
		f.fold(store) // of nothing
	})
}

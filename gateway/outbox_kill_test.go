package gateway_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
)

// wantCount checks how many jobs of a lane are live, and how many are dead.
func (o *office) wantCount(what string, lane, live, dead int64) {
	o.t.Helper()
	err := o.relay.View(o.t.Context(), relay.Peer{Local: true}, func(q relay.Querier) error {
		l, d, err := o.box.Count(q, lane)
		if l != live || d != dead {
			o.t.Errorf("%s: %d live and %d dead jobs, want %d and %d", what, l, d, live, dead)
		}
		return err
	})
	if err != nil {
		o.t.Fatal(err)
	}
}

// A courier can make all jobs of a lane dead. The other lanes continue.
func TestKillLane(t *testing.T) {
	inOffice(t, func(t *testing.T, o *office) {
		o.answerWith(func(_ *http.Request, a try) (int, string, error) { return 503, "", nil })
		refs := make([]int64, 250)
		for i := range refs {
			refs[i] = int64(i)
		}
		o.add(0, refs...)
		o.add(1, 1000)
		time.Sleep(time.Second)
		o.wantCount("before", 0, 250, 0)
		sent := len(o.refs())
		o.set(func() { o.target = func() (gateway.Plan, error) { return gateway.Kill, nil } })
		time.Sleep(time.Minute)
		o.wantCount("after", 0, 0, 250)
		o.wantCount("the other lane", 1, 0, 1)
		if again := len(o.refs()); again != sent {
			t.Errorf("%d more requests were made", again-sent)
		}
	})
}

// A lane that is restarted is tried at once. A job that is restarted is no longer dead.
func TestRestart(t *testing.T) {
	inOffice(t, func(t *testing.T, o *office) {
		answer := func(status int) {
			o.answerWith(func(*http.Request, try) (int, string, error) { return status, "3600", nil })
		}
		answer(503)
		o.add(0, 1, 2)
		synctest.Wait() // so that this lane is first
		o.add(1, 3)
		time.Sleep(time.Minute)
		o.wantRefs("before", 1, 3)
		restart := func(f func(tx relay.ExtTx) error) {
			t.Helper()
			update(t, o.relay, f)
			o.box.Wake(0)
			synctest.Wait()
		}
		answer(400)
		restart(func(tx relay.ExtTx) error { return o.box.RestartLane(tx, 0) })
		o.wantRefs("after the lane", 1, 3, 1, 2)
		o.wantCount("after the lane", 0, 0, 2)
		answer(503)
		restart(func(tx relay.ExtTx) error { return o.box.Restart(tx, 1) })
		o.wantRefs("after the job", 1, 3, 1, 2, 1)
		o.wantCount("after the job", 0, 1, 1)
		restart(func(tx relay.ExtTx) error { return o.box.Restart(tx, 99) }) // there is no such job
	})
}

// A call of a URL of this relay is answered without HTTP.
func TestOwnURL(t *testing.T) {
	inOffice(t, func(t *testing.T, o *office) {
		o.stop()
		answered := 0
		o.own = func(url string) gateway.Answerer {
			if url != "https://lane1.example/" {
				return nil
			}
			return func(_ context.Context, c gateway.Call) (gateway.Response, error) {
				answered++
				return gateway.Response{Status: 200}, nil
			}
		}
		o.start()
		o.add(0, 1)
		o.add(1, 2, 3)
		synctest.Wait()
		o.wantRefs("by HTTP", 1)
		if answered != 2 {
			t.Errorf("%d calls were answered without HTTP, want 2", answered)
		}
		o.wantCount("at the end", 1, 0, 0)
	})
}

// A payer whose servers never answer takes its share of the attempts. The attempts of others do not wait.
func TestPayersShare(t *testing.T) {
	inOffice(t, func(t *testing.T, o *office) {
		o.stop()
		o.share = func(box *gateway.Outbox) {
			box.Share(4, 2, func(j gateway.Job) string { return map[bool]string{true: "slow", false: "quick"}[j.Lane < 10] })
		}
		o.answerWith(func(_ *http.Request, a try) (int, string, error) {
			if a.lane < 10 {
				time.Sleep(10 * time.Second)
			}
			return 200, "", nil
		})
		for lane := range int64(10) {
			o.add(lane, lane)
		}
		o.add(10, 100, 101, 102)
		o.start()
		time.Sleep(time.Second)
		refs := o.refs()
		slices.Sort(refs)
		if len(refs) != 5 || !slices.Equal(refs[2:], []int64{100, 101, 102}) {
			t.Errorf("in the first second: requests for %v", refs)
		}
		time.Sleep(time.Minute)
		if len(o.refs()) != 13 {
			t.Errorf("at the end: %d requests, want 13", len(o.refs()))
		}
	})
}

// Payers that wait for a busy host hold no share meanwhile. So payers with other hosts do not wait for that host.
func TestPayersThatWaitForAHost(t *testing.T) {
	inOffice(t, func(t *testing.T, o *office) {
		o.stop()
		o.share = func(box *gateway.Outbox) {
			box.Share(6, 2, func(j gateway.Job) string { return fmt.Sprint(j.Lane) })
		}
		o.set(func() {
			o.host = func(lane int64) string {
				return map[bool]string{true: "slow.example", false: "quick.example"}[lane < 20]
			}
		})
		o.answerWith(func(_ *http.Request, a try) (int, string, error) {
			if a.lane < 20 {
				time.Sleep(10 * time.Second)
			}
			return 200, "", nil
		})
		for lane := range int64(20) {
			o.add(lane, lane)
		}
		o.start()
		time.Sleep(time.Second)
		o.add(20, 100, 101)
		time.Sleep(time.Second)
		refs := o.refs()
		slices.Sort(refs)
		if len(refs) != 6 || !slices.Equal(refs[4:], []int64{100, 101}) {
			t.Errorf("in the first seconds: requests for %v", refs)
		}
		time.Sleep(2 * time.Minute)
		if len(o.refs()) != 22 {
			t.Errorf("at the end: %d requests, want 22", len(o.refs()))
		}
	})
}

// The jobs of a removed receiver are removed. If the receiver has come back, its jobs are not killed.
func TestClearLane(t *testing.T) {
	inOffice(t, func(t *testing.T, o *office) {
		o.stop()
		gone := true
		o.share = func(box *gateway.Outbox) {
			box.Gone = func(relay.Querier, int64) (is bool, err error) {
				o.set(func() { is = gone })
				return is, nil
			}
		}
		o.start()
		o.plan(gateway.Clear, gateway.Send)
		refs := make([]int64, 250)
		o.add(0, refs...)
		time.Sleep(time.Minute)
		o.wantCount("after Clear", 0, 0, 0)
		asked := 0
		o.set(func() {
			o.target = func() (gateway.Plan, error) {
				if asked++; asked == 1 { // it comes back between the plan and its Update
					gone = false
					return gateway.Kill, nil
				}
				return gateway.Send, nil
			}
			o.call = nil
		})
		o.add(1, 1, 2)
		time.Sleep(time.Minute)
		o.wantCount("after it came back", 1, 0, 0)
		o.wantRefs("after it came back", 1, 2)
	})
}

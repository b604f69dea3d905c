package gateway_test

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/relay"
)

// A lane on hold waits for Wake, and its job dies of age. A job that is dropped leaves no trace.
func TestPlans(t *testing.T) {
	inOffice(t, func(t *testing.T, o *office) {
		o.plan(gateway.Hold, gateway.Send)
		o.add(1, 7, 8)
		time.Sleep(5 * time.Minute)
		o.wantRefs("on hold")
		if _, calls, _ := o.seen(); calls > 0 {
			t.Error("a request was built while the lane was on hold")
		}
		o.plan(gateway.Send, gateway.Hold)
		o.box.Wake(1)
		time.Sleep(5 * time.Minute)
		o.wantRefs("on hold again")
		o.plan(gateway.Send, gateway.Send)
		o.box.Wake(1)
		synctest.Wait()
		o.wantRefs("after the hold", 7, 8)
		wantRows(t, "ended", o.ended(), "7 1 ", "8 1 ")
		o.plan(gateway.Drop, gateway.Send)
		o.add(1, 9)
		synctest.Wait()
		o.plan(gateway.Send, gateway.Drop)
		o.add(1, 10)
		synctest.Wait()
		o.wantRefs("dropped", 7, 8)
		wantRows(t, "in the outbox", o.jobs())
		wantRows(t, "ended", o.ended(), "7 1 ", "8 1 ")
		o.plan(gateway.Hold, gateway.Send)
		o.add(1, 11)
		synctest.Wait()
		o.ahead.Add(int64(24 * time.Hour))
		time.Sleep(time.Minute + time.Second)
		wantRows(t, "ended", o.ended(), "7 1 ", "8 1 ", "11 2 ")
	})
}

// A call of Wake while the outbox looks at the lane is not lost.
func TestWakeDuringALook(t *testing.T) {
	inOffice(t, func(t *testing.T, o *office) {
		held := false
		o.set(func() {
			o.target = func() (gateway.Plan, error) {
				if held {
					return gateway.Send, nil
				}
				held = true
				o.box.Wake(1) // the reason for the hold has just passed
				return gateway.Hold, nil
			}
		})
		o.add(1, 7)
		synctest.Wait()
		o.wantRefs("at once", 7)
	})
}

// WakeAt makes the outbox look at a lane at that time, whether the lane is on hold or at work. The earliest time counts. A
// lane with a later time can still be woken. The look ends with the outbox.
func TestWakeAt(t *testing.T) {
	inOffice(t, func(t *testing.T, o *office) {
		begin, wakes, held := time.Now(), []time.Duration{time.Minute, 20 * time.Second, time.Hour}, 0
		o.set(func() {
			o.target = func() (gateway.Plan, error) { return gateway.Send, nil }
			o.call = func() (gateway.Plan, error) {
				if held++; held > 1 {
					return gateway.Send, nil
				}
				for _, after := range wakes {
					o.box.WakeAt(1, begin.Add(after))
				}
				return gateway.Hold, nil
			}
		})
		o.add(1, 7)
		time.Sleep(19 * time.Second)
		o.wantRefs("before the time")
		time.Sleep(2 * time.Second)
		o.wantRefs("after the earliest time", 7)
		held, wakes = 0, []time.Duration{time.Hour}
		o.add(1, 8)
		synctest.Wait()
		o.box.WakeAt(1, time.Now().Add(10*time.Second)) // the lane is on hold
		time.Sleep(9 * time.Second)
		o.wantRefs("before the new time", 7)
		time.Sleep(2 * time.Second)
		o.wantRefs("after the new time", 7, 8)
		held = 0
		o.add(1, 9)
		synctest.Wait()
		o.box.Wake(1)
		synctest.Wait()
		o.wantRefs("woken before the time", 7, 8, 9)
	})
}

// Jobs that were removed are not sent. The answer to one that is being sent is settled all the same.
func TestRemovedJobs(t *testing.T) {
	inOffice(t, func(t *testing.T, o *office) {
		o.answerWith(func(_ *http.Request, a try) (int, string, error) {
			time.Sleep(time.Second)
			return 503 - int(a.lane)*303, "", nil // lane 0: 503, lane 1: 200
		})
		remove := func(f func(tx relay.ExtTx) error) {
			time.Sleep(500 * time.Millisecond)
			update(t, o.relay, f)
			o.box.Wake(0)
			o.box.Wake(1)
			time.Sleep(time.Minute)
		}
		for lane := range int64(2) {
			ref := 10 * lane
			o.add(lane, ref+1, ref+2, ref+3)
			remove(func(tx relay.ExtTx) error {
				return errors.Join(o.box.Remove(tx, ref+1), o.box.Remove(tx, ref+2))
			})
		}
		wantRows(t, "ended", o.ended(), "11 1 ", "13 1 ")
		if refs := o.refs(); refs[0] != 1 || refs[1] != 3 || slices.Contains(refs, 2) || slices.Contains(refs, 12) {
			t.Errorf("requests for %v", refs)
		}
		before := len(o.jobs())
		remove(func(tx relay.ExtTx) error { return o.box.RemoveLane(tx, 0) })
		if before != 1 || len(o.jobs()) != 0 {
			t.Errorf("%d jobs before and %q after the lane was removed", before, o.jobs())
		}
	})
}

// A job that gets 24 hours old while it waits for its host is dead.
func TestJobDiesWhileItWaitsForItsHost(t *testing.T) {
	inOffice(t, func(t *testing.T, o *office) {
		o.set(func() { o.host = func(int64) string { return "slow.example" } })
		o.answerWith(func(*http.Request, try) (int, string, error) {
			time.Sleep(time.Hour)
			return 200, "", nil
		})
		o.stop()
		for lane := range int64(5) {
			o.add(lane, lane)
		}
		o.ahead.Add(int64(24*time.Hour - 30*time.Minute))
		o.start()
		time.Sleep(30*time.Minute - time.Second)
		wantRows(t, "too early", o.ended())
		time.Sleep(time.Minute)
		sent := o.refs()
		if len(sent) != 4 || len(o.ended()) != 1 {
			t.Errorf("%v are sent, %q have ended", sent, o.ended())
		}
		time.Sleep(time.Hour)
		if ended := o.ended(); len(ended) != 5 || len(o.refs()) != 4 {
			t.Errorf("%v are sent, %q have ended", o.refs(), ended)
		}
	})
}

// G-16, G-18: a URL that the relay must not call is a final failure, and no request is built.
func TestBlockedURL(t *testing.T) {
	inOffice(t, func(t *testing.T, o *office) {
		o.set(func() { o.host = func(int64) string { return "127.0.0.1" } })
		o.add(1, 7)
		synctest.Wait()
		o.wantRefs("blocked")
		wantRows(t, "ended", o.ended(), "7 2 blocked")
		if _, calls, _ := o.seen(); calls > 0 {
			t.Error("a request was built")
		}
	})
}

// While a job waits for its host, its URL may change, or it may be removed. Then it is not sent to the old URL.
func TestChangesDuringTheWaitForAHost(t *testing.T) {
	inOffice(t, func(t *testing.T, o *office) {
		moved := map[int64]bool{}
		o.set(func() {
			o.host = func(lane int64) string {
				if moved[lane] {
					return "new.example"
				}
				return "old.example"
			}
		})
		o.answerWith(func(*http.Request, try) (int, string, error) {
			time.Sleep(10 * time.Second)
			return 200, "", nil
		})
		for lane := range int64(7) {
			o.add(lane, lane)
			synctest.Wait()
		}
		o.set(func() { moved[5] = true })
		update(t, o.relay, func(tx relay.ExtTx) error { return o.box.Remove(tx, 6) })
		time.Sleep(11 * time.Second)
		tries, calls, _ := o.seen()
		slices.SortFunc(tries, func(a, b try) int { return cmp.Compare(a.lane, b.lane) })
		if len(tries) != 6 || calls != 6 || tries[4].host != "old.example" || tries[5].host != "new.example" {
			t.Errorf("%d requests are built and sent: %+v", calls, tries)
		}
		time.Sleep(10 * time.Second)
		wantRows(t, "in the outbox", o.jobs())
	})
}

// When the relay drains, nothing can be stored. So the outbox ends, and an attempt that it cuts off does not count.
func TestRunEndsWhenTheRelayDrains(t *testing.T) {
	inOffice(t, func(t *testing.T, o *office) {
		o.answerWith(hang)
		o.add(1, 7)
		synctest.Wait()
		o.relay.Drain()
		select {
		case <-o.over:
		case <-time.After(time.Minute):
			t.Fatal("Run has not ended")
		}
		o.wantRefs("sent", 7)
		wantRows(t, "in the outbox", o.jobs(), "7 0  live")
	})
}

// Errors of the courier are no attempts. The lane is tried again, with growing waits.
func TestCourierFails(t *testing.T) {
	inOffice(t, func(t *testing.T, o *office) {
		looks := 0
		o.set(func() {
			o.target = func() (gateway.Plan, error) {
				looks++
				return gateway.Send, gatetest.ErrBroken
			}
		})
		o.add(1, 7)
		time.Sleep(time.Hour)
		o.set(func() {
			if looks < 60 || looks > 70 {
				t.Errorf("the courier was asked %d times in an hour", looks)
			}
			o.target = nil
		})
		wantRows(t, "in the outbox", o.jobs(), "7 0  live")
		time.Sleep(time.Minute)
		wantRows(t, "ended", o.ended(), "7 1 ")
	})
}

func TestRetryable(t *testing.T) {
	for status := 100; status < 600; status++ {
		want := status >= 500 || status == 408 || status == 425 || status == 429
		if got := gateway.Retryable(gateway.Response{Status: status}, nil); got != want {
			t.Errorf("%d: %t", status, got)
		}
	}
	for err, want := range map[error]bool{gateway.Unreachable: true, gateway.Timeout: true, gateway.Blocked: false} {
		if got := gateway.Retryable(gateway.Response{}, err); got != want {
			t.Errorf("%v: %t", err, got)
		}
	}
}

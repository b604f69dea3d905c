package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
)

// G-18: a dead row frees its lane. It is kept for 7 days, with its failure.
func TestDeadJobFreesItsLane(t *testing.T) {
	inOffice(t, func(t *testing.T, o *office) {
		o.answerWith(func(_ *http.Request, a try) (int, string, error) {
			if a.ref == 1 {
				return 404, "", nil
			}
			return 200, "", nil
		})
		o.add(5, 1, 2)
		synctest.Wait()
		o.wantRefs("at once", 1, 2)
		wantRows(t, "ended", o.ended(), "1 2 HTTP 404", "2 1 ")
		wantRows(t, "in the outbox", o.jobs(), "1 1 HTTP 404 dead")
		sweeping, end := context.WithCancel(t.Context())
		var sweeper sync.WaitGroup
		sweeper.Go(func() { o.core.Run(sweeping) })
		o.ahead.Add(int64(7*24*time.Hour - 90*time.Second))
		time.Sleep(time.Minute)
		wantRows(t, "before 7 days", o.jobs(), "1 1 HTTP 404 dead")
		time.Sleep(time.Minute + time.Second)
		wantRows(t, "after 7 days", o.jobs())
		end()
		sweeper.Wait()
	})
}

// G-17: a lane keeps its order through failures and restarts. Each job is sent at least once, and ends once.
func TestLanesKeepTheirOrder(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inOffice(t, func(t *testing.T, o *office) { sendAtRandom(t, o, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

// sendAtRandom adds jobs to four lanes, and restarts the outbox now and then. The servers, the courier and the store
// fail at random.
func sendAtRandom(t *testing.T, o *office, random *rand.Rand) {
	const lanes, jobs = 4, 40
	var chance sync.Mutex // of random
	draw := func(n int) int {
		chance.Lock()
		defer chance.Unlock()
		return random.IntN(n)
	}
	o.answerWith(func(req *http.Request, a try) (int, string, error) {
		time.Sleep(time.Duration(draw(3000)) * time.Millisecond)
		switch draw(10) {
		case 0:
			return 500, "", nil
		case 1:
			return 503, strconv.Itoa(draw(30)), nil
		case 2:
			return 400, "", nil
		case 3:
			return 0, "", errors.New("connection refused")
		case 4:
			return hang(req, a)
		default:
			return 200, "", nil
		}
	})
	o.set(func() {
		o.target = func() (gateway.Plan, error) {
			if draw(20) == 0 {
				return gateway.Send, gatetest.ErrBroken
			}
			return gateway.Send, nil
		}
	})
	added := map[int64][]int64{} // the jobs of each lane
	for ref := int64(1); ref <= jobs; ref++ {
		lane := int64(draw(lanes))
		o.add(lane, ref)
		added[lane] = append(added[lane], ref)
		time.Sleep(time.Duration(draw(2000)) * time.Millisecond)
		switch draw(10) {
		case 0:
			o.start()
		case 1:
			o.store.Broken.Store(true)
			time.Sleep(time.Duration(draw(5)) * time.Second)
			o.store.Broken.Store(false)
		}
	}
	for wait := 0; len(o.ended()) < jobs && wait < 1000; wait++ {
		time.Sleep(time.Minute)
	}
	if n := len(o.ended()); n != jobs {
		t.Errorf("%d jobs have ended, want %d", n, jobs)
	}
	tries, _, done := o.seen()
	for lane, refs := range added {
		var sent []int64
		for _, a := range tries {
			if a.lane == lane {
				sent = append(sent, a.ref)
			}
		}
		if got := slices.Compact(sent); !slices.Equal(got, refs) { // a job may be tried again, but only before the next one
			t.Errorf("lane %d: sent %v, want %v", lane, got, refs)
		}
		ended := slices.DeleteFunc(slices.Clone(done), func(ref int64) bool { return !slices.Contains(refs, ref) })
		if !slices.Equal(ended, refs) {
			t.Errorf("lane %d: ended %v, want %v", lane, ended, refs)
		}
	}
}

// An attempt that is cut off by the end of Run is made again with the same id, and does not count.
func TestAttemptCutOffIsRepeated(t *testing.T) {
	inOffice(t, func(t *testing.T, o *office) {
		o.answerWith(hang)
		o.add(1, 7, 8)
		time.Sleep(time.Second)
		o.stop()
		wantRows(t, "after the end", o.jobs(), "7 0  live", "8 0  live")
		o.answerWith(nil)
		o.start()
		synctest.Wait()
		o.wantRefs("after the restart", 7, 7, 8)
		wantRows(t, "ended", o.ended(), "7 1 ", "8 1 ")
	})
}

// An answer that cannot be stored is kept until it can be. The attempt is not repeated, and the lane waits.
func TestAnswerIsStoredLater(t *testing.T) {
	inOffice(t, func(t *testing.T, o *office) {
		o.answerWith(func(*http.Request, try) (int, string, error) {
			time.Sleep(time.Second)
			return 200, "", nil
		})
		o.add(1, 7, 8)
		o.store.Broken.Store(true)
		time.Sleep(10 * time.Minute)
		o.wantRefs("while nothing can be stored", 7)
		if _, _, done := o.seen(); len(done) > 0 {
			t.Errorf("%v is settled, but not on disk", done)
		}
		o.store.Broken.Store(false)
		time.Sleep(2 * time.Minute)
		o.wantRefs("after that", 7, 8)
		wantRows(t, "ended", o.ended(), "7 1 ", "8 1 ")
	})
}

// G-19: a slow lane delays no other. Not even lanes that wait for a slow host together use up the slots of all hosts. A
// lane that waits has not built its request.
func TestSlowLanesDelayNoOther(t *testing.T) {
	inOffice(t, func(t *testing.T, o *office) {
		const slow = 600 // more than there are slots
		o.set(func() {
			o.host = func(lane int64) string {
				if lane <= slow {
					return "slow.example"
				}
				return "quick.example"
			}
		})
		o.answerWith(func(req *http.Request, a try) (int, string, error) {
			if a.host == "slow.example" {
				return hang(req, a)
			}
			return 200, "", nil
		})
		update(t, o.relay, func(tx relay.ExtTx) error {
			for lane := range int64(slow) {
				if err := o.box.Add(tx, 1+lane, 1+lane); err != nil {
					return err
				}
			}
			return nil
		})
		for lane := range int64(slow) {
			o.box.Wake(1 + lane)
		}
		synctest.Wait()
		if tries, calls, _ := o.seen(); calls != 4 || len(tries) != 4 {
			t.Errorf("%d requests are built and %d are sent, want 4", calls, len(tries))
		}
		began := time.Now()
		for ref := int64(slow + 1); ref <= slow+10; ref++ {
			o.add(slow+1, ref)
		}
		synctest.Wait()
		if ended := o.ended(); len(ended) != 10 || time.Since(began) > 0 {
			t.Errorf("after %v, %d jobs of the quick host have ended, want 10 at once", time.Since(began), len(ended))
		}
	})
}

// G-20: the times between attempts double, up to an hour, with a random factor. A job that is 24 hours old is dead,
// with the failure of its last attempt.
func TestBackoffAndExpiry(t *testing.T) {
	racing.Skip(t, "one thing after another")
	inOffice(t, func(t *testing.T, o *office) {
		o.answerWith(func(*http.Request, try) (int, string, error) { return 503, "", nil })
		created := o.relay.Now()
		o.add(1, 7)
		factors := map[int]bool{} // in percent
		n := 1                    // attempts
		for ; n < 60; n++ {
			synctest.Wait()
			wantRows(t, "in the outbox", o.jobs(), fmt.Sprintf("7 %d HTTP 503 live", n))
			due := created.Add(24 * time.Hour)
			if next := o.due(); next.Before(due) {
				due = next
			}
			tries, _, _ := o.seen()
			last, want := tries[n-1].at, min(time.Second<<min(n, 12), time.Hour)
			delay := due.Sub(last)
			if skip := delay - 10*time.Minute; skip > 0 {
				o.ahead.Add(int64(skip)) // to save time; Run notices this within a minute
			}
			time.Sleep(due.Sub(o.relay.Now()) - time.Second)
			if len(o.refs()) != n {
				t.Fatalf("attempt %d is made too early", n+1)
			}
			time.Sleep(2 * time.Second)
			if tries, _, _ = o.seen(); len(tries) == n {
				break
			}
			factor := delay.Seconds() / want.Seconds()
			if took := tries[n].at.Sub(last); factor < 0.8 || factor > 1.2 || took != delay {
				t.Errorf("after attempt %d, the next one comes after %v instead of %v, want about %v", n, took, delay, want)
			}
			factors[int(100*factor)] = true
		}
		if n < 25 || len(factors) < 5 || o.relay.Now().After(created.Add(24*time.Hour+time.Minute)) ||
			o.relay.Now().Before(created.Add(24*time.Hour)) {
			t.Errorf("%d attempts until %v, with the factors %v", n, o.relay.Now().Sub(created), factors)
		}
		wantRows(t, "in the outbox", o.jobs(), fmt.Sprintf("7 %d HTTP 503 dead", n))
		wantRows(t, "ended", o.ended(), "7 2 HTTP 503")
	})
}

// G-20: a step of the relay's clock counts within a minute, for the next attempt and for the expiry.
func TestClockIsFollowed(t *testing.T) {
	inOffice(t, func(t *testing.T, o *office) {
		o.answerWith(func(*http.Request, try) (int, string, error) { return 503, "3600", nil })
		o.add(1, 7)
		synctest.Wait()
		o.ahead.Add(int64(58 * time.Minute))
		time.Sleep(time.Minute)
		o.wantRefs("after 59 minutes", 7)
		time.Sleep(time.Minute + time.Second)
		o.wantRefs("after an hour", 7, 7)
		o.ahead.Add(int64(23 * time.Hour))
		time.Sleep(time.Minute + time.Second)
		o.wantRefs("after a day", 7, 7)
		wantRows(t, "ended", o.ended(), "7 2 HTTP 503")
	})
}

// G-20: Retry-After decides when the next attempt is made, but never later than after an hour.
func TestRetryAfter(t *testing.T) {
	inOffice(t, func(t *testing.T, o *office) {
		now := o.relay.Now()
		lane := int64(0)
		for header, want := range map[string]time.Duration{
			"7": 7 * time.Second, "3600": time.Hour, "3601": time.Hour, "99999999999999999999": time.Hour, "0": time.Second,
			now.Add(90 * time.Second).UTC().Format(http.TimeFormat): now.Add(90 * time.Second).Truncate(time.Second).Sub(now),
			now.Add(9 * time.Hour).UTC().Format(http.TimeFormat):    time.Hour,
			now.Add(-time.Hour).UTC().Format(http.TimeFormat):       time.Second,
			"":   0, // the usual delay
			"-5": 0, "1.5": 0, "soon": 0,
		} {
			lane++
			o.answerWith(func(*http.Request, try) (int, string, error) { return 429, header, nil })
			o.add(lane, lane)
			synctest.Wait()
			due := o.due().Sub(now)
			if want == 0 && (due < 1600*time.Millisecond || due > 2400*time.Millisecond) || want != 0 && due != want {
				t.Errorf("Retry-After %q: %v, want %v", header, due, want)
			}
			update(t, o.relay, func(tx relay.ExtTx) error { return o.box.Remove(tx, lane) })
		}
	})
}

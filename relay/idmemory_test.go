package relay_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
)

// TestNoSecondDelivery posts the same message again at times, and after events, at which a relay could have forgotten
// its id (PROTOCOL §3). A reader that uses cursors must get the message once, whatever the answers to the posts are.
func TestNoSecondDelivery(t *testing.T) {
	racing.Skip(t, "one thing after another")
	const edge = 5*time.Minute - time.Millisecond // of the window
	for name, c := range map[string]struct {
		skew, ttl time.Duration // of the message
		at        []time.Duration
		back      time.Duration // before each replay the relay's clock is set back by this, and it is right again afterwards
		restart   bool
		flood     int
	}{
		"just before and after ten minutes": {skew: edge, ttl: time.Hour,
			at: []time.Duration{0, 9*time.Minute + 59*time.Second, 10*time.Minute + time.Second}},
		"expired and removed": {skew: edge, ttl: time.Second,
			at: []time.Duration{5*time.Minute + 2*time.Second, 29 * time.Minute, 31 * time.Minute}},
		"after a restart": {skew: edge, ttl: time.Second,
			at: []time.Duration{time.Minute, 6 * time.Minute, 9*time.Minute + 59*time.Second}, restart: true},
		"after a step back": {skew: edge, ttl: time.Hour,
			at: []time.Duration{15 * time.Minute, 20 * time.Minute, 29*time.Minute + 59*time.Second, 31 * time.Minute,
				2 * time.Hour}, back: 15 * time.Minute},
		"after a step back and a restart": {skew: edge, ttl: time.Minute,
			at: []time.Duration{16 * time.Minute, 24 * time.Minute, 31 * time.Minute}, back: 15 * time.Minute, restart: true},
		"with an early ts, after a step back": {skew: -edge, ttl: 2 * time.Hour,
			at: []time.Duration{time.Minute, 14 * time.Minute, 40 * time.Minute}, back: 15 * time.Minute},
		"after many ids of other senders": {skew: edge, ttl: time.Second,
			at: []time.Duration{time.Minute, 9 * time.Minute}, flood: 3000},
		"after a flood, a purge and a restart": {skew: edge, ttl: time.Second,
			at: []time.Duration{6 * time.Minute, 9 * time.Minute}, flood: 1000, restart: true},
	} {
		if racing.Detector && !c.restart {
			continue // this test is not about races; the cases with a restart run everything that is concurrent
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var back time.Duration // guarded by mu
				var mu sync.Mutex
				step := func(d time.Duration) {
					mu.Lock()
					defer mu.Unlock()
					back = d
				}
				config := relay.Config{Key: key(t), Now: func() time.Time {
					mu.Lock()
					defer mu.Unlock()
					return time.Now().Add(-back)
				}}
				path := filepath.Join(t.TempDir(), "agora.db")
				r, stop := runAt(t, path, config)
				defer func() { stop() }()
				client, began := key(t), time.Now()
				e := sign(t, client, envelope.Draft{ID: "once", Payload: request, Thread: "t1", TS: began.Add(c.skew), TTL: c.ttl})
				first := post(t, r, e)
				var cursor relay.Cursor
				delivered := 0
				read := func() {
					for more := true; more; {
						page := poll(t, r, relay.Poll{Filter: relay.Filter{Sender: client.DID()}, Cursor: cursor, Limit: 10})
						for _, event := range page.Events {
							if event.ID == "once" {
								delivered++
							}
						}
						cursor, more = page.Cursor, page.More
					}
				}
				read()
				flood(t, r, c.flood)
				for _, at := range c.at {
					time.Sleep(time.Until(began.Add(at)))
					if c.restart {
						stop()
						r, stop = runAt(t, path, config)
					}
					synctest.Wait()
					step(c.back)
					receipt, err := r.Post(t.Context(), local, e.Canonical())
					code := codeOf(err)
					if err == nil && (!receipt.Duplicate || receipt.Cursor != first.Cursor) ||
						err != nil && code != envelope.CodeStaleTimestamp && code != envelope.CodeExpired {
						t.Errorf("%v later: %+v, %v", at, receipt, err)
					}
					step(0)
					read()
				}
				if delivered != 1 {
					t.Errorf("delivered %d times", delivered)
				}
			})
		})
	}
}

// flood posts many messages from many senders.
func flood(t *testing.T, r *relay.Relay, count int) {
	t.Helper()
	const senders = 8
	if racing.Detector {
		count /= 10
	}
	var posts sync.WaitGroup
	for range senders {
		by := key(t)
		posts.Go(func() {
			for i := range count / senders {
				e, err := envelope.Draft{ID: fmt.Sprint("flood", i), Payload: envelope.Manifest{ID: "m"},
					TTL: time.Second}.Sign(by, time.Now())
				if err == nil {
					_, err = r.Post(t.Context(), local, e.Canonical())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	posts.Wait()
}

// TestDeliveryThroughClockSteps sets the relay's clock forward and back by 15 minutes. Clients with both loops of
// PROTOCOL §7 must get all accepted messages that have not expired.
func TestDeliveryThroughClockSteps(t *testing.T) {
	racing.Skip(t, "one thing after another")
	const quarter = 15 * time.Minute
	for name, steps := range map[string][]time.Duration{
		"forward": {0, quarter}, "back": {0, -quarter}, "forward and back": {0, quarter, 0},
		"back and forward": {0, -quarter, 0},
		"many steps":       {0, quarter, -quarter, quarter, 0, -quarter},
	} {
		if racing.Detector && len(steps) < 6 {
			continue // the longest case has all these steps, and race detection makes each step ten times slower
		}
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { deliverThrough(t, steps) }) })
	}
}

func deliverThrough(t *testing.T, steps []time.Duration) {
	const stay = 40 * time.Second        // between two steps of the clock
	const every = 500 * time.Millisecond // between two messages
	began := time.Now()
	now := func() time.Time {
		i := min(int(time.Since(began)/stay), len(steps)-1)
		return time.Now().Add(steps[i])
	}
	// This is long enough for the readers to get the last message and to be idle after it.
	sends := time.Duration(len(steps)) * stay
	end := began.Add(sends + 3*time.Minute)
	r := start(t, relay.Config{Now: now})
	me := key(t)
	sent := map[string]bool{}
	sending := make(chan struct{})
	go func() {
		defer close(sending)
		by := key(t)
		for n := 0; time.Since(began) < sends; n++ {
			time.Sleep(every)
			// The ts follows the relay's clock, as for clients that were told its time, or is up to four minutes off.
			skew := []time.Duration{0, 4 * time.Minute, -4 * time.Minute, time.Second}[n%4]
			id := fmt.Sprint("m", n)
			e, err := envelope.Draft{ID: id, Payload: envelope.Manifest{ID: "m"},
				Recipient: me.DID()}.Sign(by, now().Add(skew).Truncate(time.Second))
			if err == nil {
				_, err = r.Post(t.Context(), local, e.Canonical())
			}
			if err == nil {
				sent[id] = true
			} else if codeOf(err) != envelope.CodeStaleTimestamp {
				t.Errorf("%s: %v", id, err)
			}
		}
	}()
	bySince, byCursor := make(chan tally), make(chan tally)
	s := setting{pause: 100 * time.Millisecond, limit: 7}
	go func() { bySince <- followSince(t, r, me.DID(), s, end) }()
	go func() { byCursor <- followCursor(t, r, me.DID(), s, end) }()
	<-sending
	since, cursor := <-bySince, <-byCursor
	if want := int(sends / every); len(sent) < want*9/10 {
		t.Errorf("only %d of %d messages were accepted", len(sent), want)
	}
	var missing []string
	for id := range sent {
		if since.got[id] == 0 {
			missing = append(missing, id)
		}
		if cursor.got[id] != 1 {
			t.Errorf("%s reached the cursor client %d times", id, cursor.got[id])
		}
	}
	if slices.Sort(missing); len(missing) > 0 {
		t.Errorf("%d of %d never reached the since client: %v", len(missing), len(sent), missing)
	}
	if most := int(time.Since(began).Seconds()); since.empty > most {
		t.Errorf("the since client got %d answers without anything new, more than one a second", since.empty)
	}
}

package relay_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// TestBanEndsWaits checks that a ban ends the polls and streams of the banned client, and no others.
func TestBanEndsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		spammer, other := key(t).DID(), key(t).DID()
		bad, good := from("192.0.2.7"), from("198.51.100.7")
		var mu sync.Mutex
		codes := map[string]envelope.Code{}
		var polling sync.WaitGroup
		wait := func(name string, p relay.Poll) {
			polling.Go(func() {
				_, err := r.Events(t.Context(), &p)
				mu.Lock()
				defer mu.Unlock()
				codes[name] = codeOf(err)
			})
		}
		signed := good
		signed.Reader = spammer
		byOther := good
		byOther.Reader = other
		wait("banned address", relay.Poll{Peer: bad, Wait: time.Minute, Limit: 1})
		wait("banned address, since", relay.Poll{Peer: bad, Wait: time.Minute, Limit: 1, Since: time.Now()})
		wait("banned reader", relay.Poll{Peer: signed, Wait: time.Minute, Limit: 1, Filter: relay.Filter{Recipient: spammer}})
		wait("other reader", relay.Poll{Peer: byOther, Wait: time.Minute, Limit: 1})
		wait("local", relay.Poll{Peer: local, Wait: time.Minute, Limit: 1})
		open := func(p relay.Peer, did didkey.DID) *relay.Stream {
			t.Helper()
			s, err := r.OpenStream(p, did)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			return s
		}
		streams := map[*relay.Stream]bool{open(bad, ""): true, open(good, spammer): true, open(good, other): false, open(good, ""): false}
		synctest.Wait()
		if some, all := r.Waiters(3); len(some) != 3 || all != 9 {
			t.Errorf("%d of %d waiters, want 3 of 9", len(some), all)
		}
		r.Gate().SetBans(relay.Bans{Networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Agents: []didkey.DID{spammer}})
		synctest.Wait()
		mu.Lock()
		if fmt.Sprint(codes) != "map[banned address:FORBIDDEN banned address, since:FORBIDDEN banned reader:FORBIDDEN]" {
			t.Errorf("after the ban these polls have ended: %v", codes)
		}
		mu.Unlock()
		for s, banned := range streams {
			select {
			case <-s.Ended():
				if !banned {
					t.Error("the stream of another client has ended")
				}
			default:
				if banned {
					t.Error("the stream of a banned client goes on")
				}
			}
		}
		_, err := r.OpenStream(good, spammer)
		wantCode(t, err, envelope.CodeForbidden)
		polling.Wait()
	})
}

// TestBanRacesStreams opens streams and polls while their client is banned. None of them may stay.
func TestBanRacesStreams(t *testing.T) {
	r := start(t, relay.Config{Limits: relay.Limits{PollsPerAddress: relay.Unlimited, Polls: relay.Unlimited}})
	client := from("192.0.2.7")
	bans := relay.Bans{Networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32")}}
	for range 200 {
		r.Gate().SetBans(relay.Bans{})
		var racing sync.WaitGroup
		racing.Go(func() {
			s, err := r.OpenStream(client, "")
			if err != nil {
				return
			}
			defer s.Close()
			select {
			case <-s.Ended():
			case <-time.After(time.Minute):
				t.Error("a stream of a banned client goes on")
			}
		})
		racing.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if _, err := r.Events(ctx, &relay.Poll{Peer: client, Wait: time.Minute, Limit: 1}); codeOf(err) != envelope.CodeForbidden {
				t.Errorf("the poll of a banned client ends with %v", err)
			}
		})
		racing.Go(func() { r.Gate().SetBans(bans) })
		racing.Wait()
	}
}

// TestPause checks that a pause ends polls with an empty page, refuses everything, and can be undone.
func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		ended := make(chan relay.Page, 1)
		go func() { ended <- poll(t, r, relay.Poll{Peer: local, Wait: time.Minute, Limit: 1}) }()
		s, err := r.OpenStream(local, "")
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		synctest.Wait()
		began := time.Now()
		r.Pause()
		if page := <-ended; len(page.Events) != 0 || time.Since(began) > time.Second {
			t.Errorf("a poll ended after %v with %d events", time.Since(began), len(page.Events))
		}
		<-s.Ended()
		e := sign(t, key(t), envelope.Draft{Payload: request})
		_, err = r.Post(t.Context(), local, e.Canonical())
		if refused := wantCode(t, err, envelope.CodeUnavailable); refused.RetryAfter <= 0 {
			t.Error("no Retry-After")
		}
		_, err = r.Events(t.Context(), &relay.Poll{Peer: local, Limit: 1})
		wantCode(t, err, envelope.CodeUnavailable)
		if r.Health() == nil || !r.Paused() {
			t.Error("a paused relay is healthy")
		}
		r.Resume()
		if r.Health() != nil {
			t.Error(r.Health())
		}
		post(t, r, e)
	})
}

// TestRemovalRacesDelivery removes messages while polls wait for them and read them. A poll that begins after the
// removal must not get the message, and a poll that waits gets it only if it was handed over before.
func TestRemovalRacesDelivery(t *testing.T) {
	r := start(t, relay.Config{})
	sender := key(t)
	for i := range 100 {
		var gone atomic.Bool
		var racing sync.WaitGroup
		after := poll(t, r, relay.Poll{Peer: local, Limit: 1000}).Cursor
		for range 3 {
			racing.Go(func() {
				for range 5 {
					began := gone.Load()
					page := poll(t, r, relay.Poll{Peer: local, Cursor: after, Limit: 1, Wait: 10 * time.Millisecond})
					if began && len(page.Events) > 0 {
						t.Errorf("a poll that began after the removal got %s", page.Events[0].ID)
					}
				}
			})
		}
		receipt := post(t, r, sign(t, sender, envelope.Draft{Payload: request, Thread: fmt.Sprint("t", i)}))
		seq, err := r.FindEvent(t.Context(), sender.DID(), receipt.ID)
		if err != nil || seq != receipt.Cursor.Seq {
			t.Fatalf("%d, %v", seq, err)
		}
		if removed, err := r.Remove(t.Context(), seq); err != nil || len(removed) != 1 {
			t.Fatalf("%v, %v", removed, err)
		}
		gone.Store(true)
		racing.Wait()
	}
}

// TestRemoveThread checks what the parties see of a thread that the operator has removed.
func TestRemoveThread(t *testing.T) {
	r := start(t, relay.Config{})
	client := key(t)
	e := sign(t, client, envelope.Draft{Payload: request, Thread: "t"})
	post(t, r, e)
	k := thread.Key{Client: client.DID(), ID: "t"}
	if removed, err := r.RemoveThread(t.Context(), k); err != nil || len(removed) != 1 {
		t.Fatalf("%v, %v", removed, err)
	}
	view, err := r.Thread(t.Context(), local, k)
	if err != nil || view.State != thread.Failed || len(view.Removed) != 1 || view.Removed[0].ID != e.ID || view.Expired != 0 ||
		len(view.Events) != 0 {
		t.Errorf("%+v, %v", view, err)
	}
	_, err = r.Post(t.Context(), local, e.Canonical())
	if refused := wantCode(t, err, envelope.CodeForbidden); refused.Details[envelope.DetailReason] != envelope.ReasonRemoved {
		t.Errorf("%+v", refused)
	}
	if removed, err := r.RemoveThread(t.Context(), k); err != nil || len(removed) != 0 {
		t.Errorf("again: %v, %v", removed, err)
	}
	_, err = r.RemoveThread(t.Context(), thread.Key{Client: client.DID(), ID: "unknown"})
	wantCode(t, err, envelope.CodeThreadNotFound)
}

// screenFunc is a relay.Screen.
type screenFunc func(relay.Peer, *envelope.Envelope) error

func (f screenFunc) Screen(_ context.Context, p relay.Peer, e *envelope.Envelope) error {
	return f(p, e)
}

var errPolicy = &envelope.Error{Code: envelope.CodeForbidden, Message: "no"}

// TestScreenAndDuplicates checks that a stored message is answered without the Screen, and that a refused one is not
// stored. Envelopes of gateways are screened too.
func TestScreenAndDuplicates(t *testing.T) {
	var asked atomic.Int64
	var answer atomic.Pointer[error]
	say := func(err error) { answer.Store(&err) }
	r, seen := observed(t, relay.Config{Screen: screenFunc(func(p relay.Peer, e *envelope.Envelope) error {
		if asked.Add(1); p.Addr != netip.MustParseAddr("192.0.2.7") || e.Type != envelope.TypeRequest {
			t.Errorf("asked about %+v of %+v", e, p)
		}
		return *answer.Load()
	})})
	peer := from("192.0.2.7")
	e := sign(t, key(t), envelope.Draft{Payload: request})
	say(errPolicy)
	_, err := r.Post(t.Context(), peer, e.Canonical())
	wantCode(t, err, envelope.CodeForbidden)
	say(errors.New("it has crashed"))
	_, err = r.Post(t.Context(), peer, e.Canonical())
	wantCode(t, err, envelope.CodeUnavailable)
	say(nil)
	if receipt, err := r.Post(t.Context(), peer, e.Canonical()); err != nil || receipt.Duplicate {
		t.Fatalf("%+v, %v", receipt, err)
	}
	say(errPolicy)
	if receipt, err := r.Post(t.Context(), peer, e.Canonical()); err != nil || !receipt.Duplicate {
		t.Errorf("a retry: %+v, %v", receipt, err)
	}
	_, err = r.Check(peer, sign(t, key(t), envelope.Draft{Payload: request}).Canonical())
	wantCode(t, err, envelope.CodeForbidden)
	if asked.Load() != 4 || len(seen.screened) != 4 || strings.Join(codeTexts(seen.screened), ",") != "FORBIDDEN,UNAVAILABLE,,FORBIDDEN" {
		t.Errorf("the Screen was asked %d times; reported: %v", asked.Load(), seen.screened)
	}
}

func codeTexts(codes []envelope.Code) (texts []string) {
	for _, c := range codes {
		texts = append(texts, string(c))
	}
	return texts
}

// TestCopiesShareADecision posts copies of one message at the same time, while the Screen accepts the first question and
// refuses all others. All senders must get a receipt.
func TestCopiesShareADecision(t *testing.T) {
	var asked sync.Map
	r := start(t, relay.Config{Screen: screenFunc(func(_ relay.Peer, e *envelope.Envelope) error {
		if _, again := asked.LoadOrStore(e.ID, true); again {
			return errPolicy
		}
		time.Sleep(time.Millisecond)
		return nil
	})})
	for range 50 {
		body := sign(t, key(t), envelope.Draft{Payload: request}).Canonical()
		var posting sync.WaitGroup
		for i := range 8 {
			posting.Go(func() {
				time.Sleep(time.Duration(i) * 300 * time.Microsecond)
				if _, err := r.Post(t.Context(), local, body); err != nil {
					t.Errorf("a copy: %v", err)
				}
			})
		}
		posting.Wait()
	}
}

// TestBanWhileScreened checks that a ban holds for a message that waits for the Screen.
func TestBanWhileScreened(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	r := start(t, relay.Config{Screen: screenFunc(func(relay.Peer, *envelope.Envelope) error {
		close(entered)
		<-leave
		return nil
	})})
	sender := key(t)
	posted := make(chan error, 1)
	go func() {
		_, err := r.Post(context.Background(), from("192.0.2.7"), sign(t, sender, envelope.Draft{Payload: request}).Canonical())
		posted <- err
	}()
	<-entered
	r.Gate().SetBans(relay.Bans{Agents: []didkey.DID{sender.DID()}})
	close(leave)
	wantCode(t, <-posted, envelope.CodeForbidden)
}

// TestBansHoldForGateways checks that a client of a gateway who was banned after its request was admitted can neither
// change nor read anything.
func TestBansHoldForGateways(t *testing.T) {
	r := startTasks(t, relay.Config{})
	spam, client := key(t), from("192.0.2.7")
	spammer := spam.DID()
	signed := from("198.51.100.7")
	signed.Reader = spammer
	try := func(p relay.Peer) (update, view error) {
		return r.Update(t.Context(), p, func(relay.ExtTx) error { return nil }),
			r.View(t.Context(), p, func(relay.Querier) error { return nil })
	}
	r.Gate().SetBans(relay.Bans{Networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Agents: []didkey.DID{spammer}})
	for _, p := range []relay.Peer{client, signed} {
		update, view := try(p)
		wantCode(t, update, envelope.CodeForbidden)
		wantCode(t, view, envelope.CodeForbidden)
	}
	for _, p := range []relay.Peer{local, from("198.51.100.7")} {
		if update, view := try(p); update != nil || view != nil {
			t.Errorf("another client: %v, %v", update, view)
		}
	}
	body := sign(t, spam, envelope.Draft{Payload: request}).Canonical()
	_, err := r.Check(local, body) // what a gateway posts for others
	wantCode(t, err, envelope.CodeForbidden)
	wantCode(t, r.Gate().CheckAgent(spammer), envelope.CodeForbidden)
	if err := r.Gate().CheckAgent(key(t).DID()); err != nil {
		t.Error(err)
	}
}

// TestScreenOfGateways checks that the Screen is asked about what gateways post, too.
func TestScreenOfGateways(t *testing.T) {
	refusal := envelope.Errorf(envelope.CodeForbidden, "no gambling")
	r := start(t, relay.Config{Screen: screenFunc(func(_ relay.Peer, e *envelope.Envelope) error {
		if e.Thread == "casino" {
			return refusal
		}
		return nil
	})})
	for thread, want := range map[string]envelope.Code{"casino": envelope.CodeForbidden, "library": ""} {
		_, err := r.Check(local, sign(t, key(t), envelope.Draft{Payload: request, Thread: thread}).Canonical())
		if codeOf(err) != want {
			t.Errorf("%s: %v, want the code %q", thread, err, want)
		}
	}
}

// TestRemoveSender checks that all messages of a sender are removed, in batches, or those since a time, and no others.
func TestRemoveSender(t *testing.T) {
	r := start(t, relay.Config{})
	spammer, other, posted := key(t), key(t), 0
	post := func(by didkey.Key, n int) {
		t.Helper()
		for range n {
			posted++
			e := sign(t, by, envelope.Draft{Thread: fmt.Sprint("t", posted), Payload: request})
			if _, err := r.Post(t.Context(), local, e.Canonical()); err != nil {
				t.Fatal(err)
			}
		}
	}
	stored := func(by didkey.Key, want int) []relay.Event {
		t.Helper()
		d, err := r.Events(t.Context(), &relay.Poll{Peer: local, Filter: relay.Filter{Sender: by.DID()}, Limit: 99})
		if err != nil || len(d.Page.Events) != want {
			t.Errorf("%d messages are stored, want %d, %v", len(d.Page.Events), want, err)
		}
		return d.Page.Events
	}
	remove := func(since time.Time, limit, want int) {
		t.Helper()
		if n, err := r.RemoveSender(t.Context(), spammer.DID(), since, limit); err != nil || n != want {
			t.Errorf("%d messages are removed, want %d, %v", n, want, err)
		}
	}
	remove(time.Time{}, 9, 0)
	post(spammer, 3)
	post(other, 2)
	post(spammer, 4)
	middle := stored(spammer, 7)[3].Received
	remove(middle.Add(time.Hour), 9, 0)
	remove(middle, 9, 4)
	stored(spammer, 3)
	remove(time.Time{}, 2, 2)
	remove(time.Time{}, 2, 1)
	remove(time.Time{}, 2, 0)
	stored(spammer, 0)
	stored(other, 2)
}

package hub_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/relay"
)

// party is a hub with two agents.
type party struct {
	*fixture
	alice, bob string // their keys
}

// inParty runs a test in a bubble with a hub that has the agents alice and bob.
func inParty(t *testing.T, test func(*testing.T, party), configure ...func(*fixture)) {
	t.Helper()
	inBubble(t, func(t *testing.T, f *fixture) {
		test(t, party{f, f.register(alice), f.register(bob)})
	}, configure...)
}

// tell sends messages from alice to bob, each with one of the texts.
func (p party) tell(texts ...string) (ids []int64) {
	p.t.Helper()
	for _, text := range texts {
		p.send(p.alice, alice, bob, text)
	}
	for _, row := range p.history(p.alice, "") {
		ids = append(ids, int64(row["id"].(float64)))
	}
	return ids[len(ids)-len(texts):]
}

// tenMinutes lets ten minutes pass by the relay's clock. For timers they are two, because a test works for each second
// that it sleeps.
func (p party) tenMinutes() {
	p.wait(8 * time.Minute)
	time.Sleep(2 * time.Minute)
}

func since(id int64) map[string]string {
	return map[string]string{"Last-Event-ID": strconv.FormatInt(id, 10)}
}

// H-11: a message to an absent agent arrives on its next stream, once.
func TestMessageToAbsentAgent(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		a := p.send(p.alice, alice, "bob", "a")
		if a.Status != 202 || a.text("delivery") != "queued" || a.text("state") != "queued" {
			t.Errorf("the sender has %v", a)
		}
		p.tell("b", "c")
		time.Sleep(5 * time.Minute)
		s := p.follow(p.bob, nil)
		s.wantTexts("the first stream", "a b c")
		time.Sleep(2 * time.Minute)
		s.wantTexts("the first stream later", "a b c")
		s.close()
		p.follow(p.bob, nil).wantTexts("the second stream", "")
		p.wantStates("in the end", p.alice, "a sent, b sent, c sent")
	})
}

// A message comes as soon as it is stored, and its sender has the answer then.
func TestMessageComesAtOnce(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		s := p.follow(p.bob, nil)
		began := time.Now()
		for i, text := range []string{"a", "b", "c"} {
			a := p.send(p.alice, alice, "bob", text)
			e := s.events()
			if a.Status != 200 || a.text("delivery") != "delivered_sse" || a.text("state") != "sent" || len(e) != i+1 ||
				e[i].text() != text || e[i].Trace != a.text("trace_id") || !time.Now().Equal(began) {
				t.Fatalf("after %v the sender has %v, and the receiver %v", time.Since(began), a, e)
			}
		}
	})
}

// H-16: a newer stream ends the older one, whether it reads or not.
func TestNewerStreamEndsOlder(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		first := p.follow(p.bob, nil)
		second := p.follow(p.bob, since(0))
		first.wantClosed("replaced")
		p.tell("a")
		first.wantTexts("the first stream", "")
		second.wantTexts("the second stream", "a")
		p.open(p.bob, nil) // it is not read
		second.wantClosed("replaced")
		began := time.Now()
		p.send(p.alice, alice, "bob", strings.Repeat("b", 10_000))
		last := p.follow(p.bob, nil)
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("the stream opens after %v", took)
		}
		time.Sleep(time.Second)
		if texts := last.texts(); !strings.HasSuffix(texts, "bbb") {
			t.Errorf("the last stream has %.20q", texts)
		}
	})
}

// H-16: of many streams that are opened at the same time exactly one survives, and no message is lost.
func TestManyStreamsOpenAtOnce(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		const streams, senders, messages = 30, 5, 60
		var all sync.WaitGroup
		feeds := make([]*feed, streams)
		for i := range streams {
			all.Go(func() { feeds[i] = p.follow(p.bob, nil) })
		}
		for i := range senders {
			all.Go(func() {
				for j := i; j < messages; j += senders {
					p.send(p.alice, alice, "bob", fmt.Sprint("m", j))
				}
			})
		}
		all.Wait()
		if t.Failed() {
			return
		}
		time.Sleep(time.Second)
		synctest.Wait()
		received, survivors := map[string]bool{}, 0
		for _, s := range feeds {
			last := int64(0)
			for _, e := range s.events() {
				received[e.text()] = true
				if e.ID <= last {
					t.Errorf("a stream has %d after %d", e.ID, last)
				}
				last = e.ID
			}
			if s.end().IsZero() {
				survivors++
			} else {
				s.wantClosed("replaced")
			}
		}
		if survivors != 1 || len(received) != messages {
			t.Errorf("%d streams have survived and %d messages have come, want 1 and %d", survivors, len(received), messages)
		}
		if n := p.do(call{"GET", "/health", "", nil, nil}).data("inbox_connections"); n != 1.0 {
			t.Errorf("inbox_connections is %v", n)
		}
		p.tell("last")
		for _, s := range feeds {
			if s.end().IsZero() && !strings.HasSuffix(s.texts(), "last") {
				t.Error("the survivor does not get the next message")
			}
		}
	})
}

// The reasons why the hub closes a stream.
func TestClosedStreams(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		s := p.follow(p.bob, nil)
		other := p.follow(p.alice, nil)
		a := p.want(p.do(call{"POST", "/register", p.bob, registrationOf(bob), nil}), 200, "")
		s.wantClosed("rotated")
		p.want(p.do(call{"GET", "/agent/inbox", p.bob, nil, nil}), 401, "ERR_UNAUTHORIZED")
		p.bob = a.text("api_key")
		s = p.follow(p.bob, nil)
		p.want(p.do(call{"DELETE", "/agents/bob", p.bob, nil, nil}), 200, "")
		s.wantClosed("deleted")
		p.want(p.do(call{"GET", "/agent/inbox", p.bob, nil, nil}), 401, "ERR_UNAUTHORIZED")
		if !other.end().IsZero() {
			t.Error("the stream of another agent has ended")
		}
		p.Stop()
		other.wantClosed("shutdown")
	})
}

// H-4: a stream that opens with the old key during a rotation is not left open.
func TestStreamOpensDuringRotation(t *testing.T) {
	t.Parallel()
	var after atomic.Pointer[func()]
	inParty(t, func(t *testing.T, p party) {
		rotate := func() { p.want(p.do(call{"POST", "/register", p.bob, registrationOf(bob), nil}), 200, "") }
		after.Store(&rotate) // the first View of the request checks the key
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		a, err := p.try(ctx, call{"GET", "/agent/inbox", p.bob, nil, nil})
		if err != nil {
			t.Fatalf("the stream stays open: %v", err)
		}
		p.want(a, 401, "ERR_UNAUTHORIZED")
	}, func(f *fixture) {
		f.Wrap = func(s relay.Extender) relay.Extender { return afterView{s, &after} }
	})
}

// afterView calls a function once after a View that a request makes. The hub makes others in the background.
type afterView struct {
	relay.Extender
	call *atomic.Pointer[func()]
}

func (s afterView) View(ctx context.Context, f func(relay.Querier) error) (time.Duration, error) {
	took, err := s.Extender.View(ctx, f)
	if ctx.Value(http.ServerContextKey) != nil {
		if call := s.call.Swap(nil); call != nil {
			(*call)()
		}
	}
	return took, err
}

// A stream counts as a waiting poll.
func TestStreamsCountAsPolls(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		s := p.follow(p.bob, nil)
		p.follow(p.alice, nil)
		a := p.want(p.do(call{"GET", "/agent/inbox", p.alice, nil, nil}), 429, "ERR_RATE_LIMITED")
		if !strings.Contains(string(a.Body), `"limit":"requests"`) || a.Header.Get("Retry-After") == "" {
			t.Errorf("the refusal is %v with %v", a, a.Header)
		}
		if n := p.Relay.Waiting(); n != 2 {
			t.Errorf("%d polls wait, want 2", n)
		}
		s.close()
		synctest.Wait()
		p.follow(p.bob, nil)
	}, func(f *fixture) {
		f.From = "192.0.2.1:9"
		f.Limits = relay.Limits{PollsPerAddress: 2}
	})
}

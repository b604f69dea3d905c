package hub_test

import (
	"context"
	"fmt"
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

func since(id int64) map[string]string {
	return map[string]string{"Last-Event-ID": strconv.FormatInt(id, 10)}
}

// H-11: a message to an absent agent arrives on its next stream, once.
func TestMessageToAbsentAgent(t *testing.T) {
	inParty(t, func(t *testing.T, p party) {
		if a := p.send(p.alice, alice, "bob", "a"); a.status != 202 || a.text("delivery") != "queued" || a.text("state") != "queued" {
			t.Errorf("the sender has %v", a)
		}
		p.tell("b", "c")
		time.Sleep(time.Hour)
		s := p.follow(p.bob, nil)
		s.wantTexts("the first stream", "a b c")
		time.Sleep(2 * time.Minute)
		s.wantTexts("the first stream later", "a b c")
		s.close()
		p.follow(p.bob, nil).wantTexts("the second stream", "")
		p.wantStates("in the end", p.alice, "a sent, b sent, c sent")
	})
}

// HUB §4: a message comes as soon as it is stored, and its sender has the answer then.
func TestMessageComesAtOnce(t *testing.T) {
	inParty(t, func(t *testing.T, p party) {
		s := p.follow(p.bob, nil)
		began := time.Now()
		for i, text := range []string{"a", "b", "c"} {
			a := p.send(p.alice, alice, "bob", text)
			e := s.events()
			if a.status != 200 || a.text("delivery") != "delivered_sse" || a.text("state") != "sent" || len(e) != i+1 ||
				e[i].text() != text || e[i].Trace != a.text("trace_id") || !time.Now().Equal(began) {
				t.Fatalf("after %v the sender has %v, and the receiver %v", time.Since(began), a, e)
			}
		}
	})
}

// H-12: with Last-Event-ID the stream begins with everything received with a larger id, in whatever way, but not with
// what has failed. What was queued follows.
func TestLastEventID(t *testing.T) {
	inParty(t, func(t *testing.T, p party) {
		s := p.follow(p.bob, nil)
		ids := p.tell("a", "b", "c", "d", "e")
		s.close()
		for text, body := range map[string]string{"c": `{"up_to":0}`, "d": `{"trace_ids":["%s"],"response":{"status":"error"}}`,
			"e": `{"trace_ids":["%s"]}`} {
			if strings.Contains(body, "%s") {
				body = fmt.Sprintf(body, s.events()[text[0]-'a'].Trace)
			}
			p.want(p.do(call{"POST", "/agent/ack", p.bob, body, nil}), 200, "")
		}
		ids = append(ids, p.tell("f")...)
		p.history(p.bob, "") // hands out f
		ids = append(ids, p.tell("g")...)
		time.Sleep(time.Hour)
		s = p.follow(p.bob, since(ids[1]))
		s.wantTexts("after b", "c e f g")
		p.wantStates("after b", p.alice, "a delivered, b delivered, c sent, d failed, e delivered, f sent, g sent")
		ids = append(ids, p.tell("h")...)
		s.wantTexts("with a new message", "c e f g h")
		p.follow(p.bob, since(0)).wantTexts("after 0", "a b c e f g h")
		p.follow(p.bob, since(ids[6])).wantTexts("after g", "h")
		s = p.follow(p.bob, since(ids[7]))
		s.wantTexts("after h", "")
		p.tell("i")
		s.wantTexts("with a new message", "i")
		// A browser sends the id after each loss of the connection.
		p.follow(p.bob, since(ids[7])).wantTexts("after h again", "i")
	})
}

// A message that is queued comes on the next stream, whatever its Last-Event-ID is. Otherwise it would never come.
func TestLastEventIDAfterQueuedMessage(t *testing.T) {
	inParty(t, func(t *testing.T, p party) {
		p.tell("a")
		time.Sleep(time.Minute)
		ids := p.tell("b", "c")
		p.history(p.bob, "?limit=1&since="+time.Now().UTC().Format(time.RFC3339)) // hands out b
		p.wantStates("after the poll", p.alice, "a queued, b sent, c queued")
		s := p.follow(p.bob, since(ids[0]))
		s.wantTexts("the stream", "a c")
		p.tell("d")
		s.wantTexts("the stream", "a c d")
		p.wantStates("in the end", p.alice, "a sent, b delivered, c sent, d sent")
	})
}

// HUB §4: Last-Event-ID consists of digits, else 400. The former stream goes on then.
func TestMalformedLastEventID(t *testing.T) {
	inParty(t, func(t *testing.T, p party) {
		s := p.follow(p.bob, nil)
		for _, id := range []string{"a", "-1", "+1", "1.0", "1e3", "0x1", "1 2", "١", "1,2"} {
			p.want(p.do(call{"GET", "/agent/inbox", p.bob, nil, map[string]string{"Last-Event-ID": id}}), 400, "ERR_VALIDATION")
		}
		p.tell("a")
		s.wantTexts("the former stream", "a")
		s = p.follow(p.bob, map[string]string{"Last-Event-ID": "99999999999999999999"})
		s.wantTexts("with a huge number", "")
		p.tell("b")
		s.wantTexts("with a huge number", "b")
	})
}

// H-13: without Last-Event-ID, the messages of the last 60 s of the last stream come again, and nothing that was sent
// before.
func TestLastMinuteComesAgain(t *testing.T) {
	inParty(t, func(t *testing.T, p party) {
		s := p.follow(p.bob, nil)
		p.tell("a")
		time.Sleep(38 * time.Second)
		p.tell("b")
		time.Sleep(2 * time.Second)
		p.tell("c")
		time.Sleep(50 * time.Second)
		p.tell("d")
		time.Sleep(9 * time.Second) // b was sent 61 s ago, and c 59 s ago
		s.close()
		synctest.Wait()
		traces := s.events()
		time.Sleep(10 * time.Minute)
		p.tell("e")
		time.Sleep(10 * time.Minute)
		s = p.follow(p.bob, nil)
		s.wantTexts("after the cut", "c d e")
		if again := s.events(); again[0].Trace != traces[2].Trace || again[0].ID != traces[2].ID ||
			again[0].Timestamp != traces[2].Timestamp {
			t.Errorf("%+v has come again as %+v", traces[2], again[0])
		}
		s.close()
		p.ack(p.bob, object{"trace_ids": []string{traces[3].Trace}}, 1)
		s = p.follow(p.bob, nil)
		s.wantTexts("after another cut", "c e")
		time.Sleep(time.Minute)
		s.close()
		p.follow(p.bob, nil).wantTexts("after a minute without messages", "")
		p.wantStates("in the end", p.alice, "a sent, b sent, c sent, d delivered, e sent")
	})
}

// H-13: what a poll has handed out does not come again, unless Last-Event-ID asks for it.
func TestPolledMessagesDoNotComeAgain(t *testing.T) {
	inParty(t, func(t *testing.T, p party) {
		ids := p.tell("a", "b")
		p.history(p.bob, "")
		s := p.follow(p.bob, nil)
		s.wantTexts("after a poll", "")
		p.tell("c")
		p.history(p.bob, "")
		p.follow(p.bob, nil).wantTexts("after a stream and a poll", "c")
		p.follow(p.bob, since(ids[0])).wantTexts("with Last-Event-ID", "b c")
	})
}

// H-13: a stream that was replaced has ended too.
func TestLastMinuteOfReplacedStream(t *testing.T) {
	inParty(t, func(t *testing.T, p party) {
		for i := range 3 {
			s := p.follow(p.bob, nil)
			p.tell(fmt.Sprint("a", i))
			time.Sleep(10 * time.Minute)
			p.tell(fmt.Sprint("b", i))
			time.Sleep(10 * time.Second)
			again := p.follow(p.bob, nil)
			again.wantTexts("after the replacement", fmt.Sprint("b", i))
			s.wantClosed("replaced")
			time.Sleep(2 * time.Minute)
			again.close()
			synctest.Wait()
		}
	})
}

// brokenStore refuses Updates while it is broken.
type brokenStore struct {
	relay.Extender
	broken *atomic.Bool
}

func (s brokenStore) Update(ctx context.Context, f func(relay.StoreTx) error) (time.Duration, error) {
	if s.broken.Load() {
		return 0, errUndo
	}
	return s.Extender.Update(ctx, f)
}

// H-13: after a crash, the messages of the 60 s before the last frame come again. Here, the end of the stream cannot be
// recorded.
func TestLastMinuteAfterCrash(t *testing.T) {
	var broken atomic.Bool
	inParty(t, func(t *testing.T, p party) {
		s := p.follow(p.bob, nil)
		p.tell("a")
		time.Sleep(50 * time.Second)
		p.tell("b")
		time.Sleep(50 * time.Second)
		p.tell("c")
		time.Sleep(10 * time.Minute)
		broken.Store(true)
		s.close()
		synctest.Wait()
		p.stop()
		broken.Store(false)
		p.run()
		p.follow(p.bob, nil).wantTexts("after the crash", "b c")
	}, func(f *fixture) {
		f.wrap = func(s relay.Extender) relay.Extender { return brokenStore{s, &broken} }
	})
}

// H-13: a stream that fails before it has brought the last minute again does not count as the last stream.
func TestLastMinuteAfterFailedStream(t *testing.T) {
	var broken atomic.Bool
	inParty(t, func(t *testing.T, p party) {
		s := p.follow(p.bob, nil)
		p.tell("a")
		s.close()
		synctest.Wait()
		time.Sleep(10 * time.Minute)
		inbox := call{"GET", "/agent/inbox", p.bob, nil, nil}
		broken.Store(true) // Views fail from the second one on
		p.want(p.do(inbox), 500, "ERR_INTERNAL")
		broken.Store(false)
		time.Sleep(10 * time.Minute)
		p.follow(p.bob, nil).wantTexts("after a stream that could not begin", "a")
	}, func(f *fixture) {
		f.wrap = func(s relay.Extender) relay.Extender { return secondViewFails{s, &broken, new(atomic.Int64)} }
	})
}

// secondViewFails lets one View pass while broken is set, and fails the others.
type secondViewFails struct {
	relay.Extender
	broken *atomic.Bool
	views  *atomic.Int64
}

func (s secondViewFails) View(ctx context.Context, f func(relay.Querier) error) (time.Duration, error) {
	if !s.broken.Load() {
		s.views.Store(0)
	} else if s.views.Add(1) > 1 {
		return 0, errUndo
	}
	return s.Extender.View(ctx, f)
}

// H-16: a newer stream ends the older one, whether it reads or not.
func TestNewerStreamEndsOlder(t *testing.T) {
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

// HUB §4: the reasons why the hub closes a stream.
func TestClosedStreams(t *testing.T) {
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
		p.stop()
		other.wantClosed("shutdown")
	})
}

// H-4: a stream that opens with the old key during a rotation is not left open.
func TestStreamOpensDuringRotation(t *testing.T) {
	var after atomic.Pointer[func()]
	inParty(t, func(t *testing.T, p party) {
		rotate := func() { p.want(p.do(call{"POST", "/register", p.bob, registrationOf(bob), nil}), 200, "") }
		after.Store(&rotate) // the first View checks the key
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		a, err := request(ctx, p.client, p.url+"/hub", call{"GET", "/agent/inbox", p.bob, nil, nil})
		if err != nil {
			t.Fatalf("the stream stays open: %v", err)
		}
		p.want(a, 401, "ERR_UNAUTHORIZED")
	}, func(f *fixture) {
		f.wrap = func(s relay.Extender) relay.Extender { return afterView{s, &after} }
	})
}

// afterView calls a function once after a View.
type afterView struct {
	relay.Extender
	call *atomic.Pointer[func()]
}

func (s afterView) View(ctx context.Context, f func(relay.Querier) error) (time.Duration, error) {
	took, err := s.Extender.View(ctx, f)
	if call := s.call.Swap(nil); call != nil {
		(*call)()
	}
	return took, err
}

// GATEWAYS §4: a stream counts as a waiting poll.
func TestStreamsCountAsPolls(t *testing.T) {
	inParty(t, func(t *testing.T, p party) {
		s := p.follow(p.bob, nil)
		p.follow(p.alice, nil)
		a := p.want(p.do(call{"GET", "/agent/inbox", p.alice, nil, nil}), 429, "ERR_RATE_LIMITED")
		if !strings.Contains(string(a.body), `"limit":"requests"`) || a.header.Get("Retry-After") == "" {
			t.Errorf("the refusal is %v with %v", a, a.header)
		}
		if n := p.relay.Waiting(); n != 2 {
			t.Errorf("%d polls wait, want 2", n)
		}
		s.close()
		synctest.Wait()
		p.follow(p.bob, nil)
	}, func(f *fixture) {
		f.from = "192.0.2.1:9"
		f.limits = relay.Limits{PollsPerAddress: 2}
	})
}

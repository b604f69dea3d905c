package hub_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/relay"
)

// H-12: with Last-Event-ID the stream begins with everything received with a larger id, in whatever way, but not with
// what has failed. What was queued follows.
func TestLastEventID(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		s := p.follow(p.bob, nil)
		ids := p.tell("a", "b", "c", "d", "e")
		s.close()
		for text, body := range map[string]string{"c": `{"up_to":0}`,
			"d": `{"trace_ids":["%s"],"response":{"status":"error"}}`,
			"e": `{"trace_ids":["%s"]}`} {
			if strings.Contains(body, "%s") {
				body = fmt.Sprintf(body, s.events()[text[0]-'a'].Trace)
			}
			p.want(p.do(call{"POST", "/agent/ack", p.bob, body, nil}), 200, "")
		}
		ids = append(ids, p.tell("f")...)
		p.history(p.bob, "") // hands out f
		ids = append(ids, p.tell("g")...)
		time.Sleep(5 * time.Minute)
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
	t.Parallel()
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

// Last-Event-ID consists of digits, else 400. After a 400 the older stream continues.
func TestMalformedLastEventID(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
		p.tenMinutes()
		p.tell("e")
		p.tenMinutes()
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
	t.Parallel()
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
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		for i := range 3 {
			s := p.follow(p.bob, nil)
			p.tell(fmt.Sprint("a", i))
			p.tenMinutes()
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

// H-13: after a crash, the messages of the 60 s before the last frame come again. Here, the end of the stream cannot be
// recorded.
func TestLastMinuteAfterCrash(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		s := p.follow(p.bob, nil)
		p.tell("a")
		time.Sleep(50 * time.Second)
		p.tell("b")
		time.Sleep(50 * time.Second)
		p.tell("c")
		p.tenMinutes()
		p.Broken.Store(true)
		s.close()
		synctest.Wait()
		p.crash()
		p.follow(p.bob, nil).wantTexts("after the crash", "b c")
	})
}

// H-13: a stream that fails before it has brought the last minute again does not count as the last stream.
func TestLastMinuteAfterFailedStream(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	inParty(t, func(t *testing.T, p party) {
		s := p.follow(p.bob, nil)
		p.tell("a")
		s.close()
		synctest.Wait()
		p.tenMinutes()
		inbox := call{"GET", "/agent/inbox", p.bob, nil, nil}
		broken.Store(true) // Views fail from the second one on
		p.want(p.do(inbox), 500, "ERR_INTERNAL")
		broken.Store(false)
		p.tenMinutes()
		p.follow(p.bob, nil).wantTexts("after a stream that could not begin", "a")
	}, func(f *fixture) {
		f.Wrap = func(s relay.Extender) relay.Extender { return secondViewFails{s, &broken, new(atomic.Int64)} }
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
		return 0, gatetest.ErrBroken
	}
	return s.Extender.View(ctx, f)
}

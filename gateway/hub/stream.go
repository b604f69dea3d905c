package hub

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// Times and sizes of a stream.
const (
	pingInterval = 20 * time.Second
	paceBytes    = 32 << 10 // how much is written per paceTime, unless a single frame is larger
	paceTime     = 100 * time.Millisecond
	replayTime   = 60 * time.Second // messages of the last replayTime of a stream come again on the next one
	replaceTime  = time.Second      // how long an old stream may still write after a newer one was opened
)

// getInbox is the handler of GET /agent/inbox.
func (h *Hub) getInbox(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	p, err := gateway.Parameters(r, "session")
	if err != nil {
		return err
	}
	token, bySession := p["session"]
	var owner caller
	if !bySession {
		owner, err = h.caller(r.Context(), from, r, true)
		if err == nil {
			err = owner.agentOnly()
		}
	} else if !h.sessions.has(token, h.now()) {
		err = noSession()
	}
	if err != nil {
		return err
	}
	after, resumes, err := lastEventID(r)
	if err != nil {
		return err
	}
	slot, err := h.Relay.OpenStream(from, "")
	if err != nil {
		return err
	}
	defer slot.Close()
	if bySession { // a request that is refused does not use up its token
		var ok bool
		if owner, ok = h.sessions.use(token, h.now()); !ok {
			return noSession()
		}
	}
	return h.serveStream(w, r, from, slot, owner, after, resumes)
}

func noSession() error {
	return refuse(http.StatusUnauthorized, codeUnauthorized, "this session token is unknown, was used, or has expired; "+
		"get a new one with POST /agent/session")
}

// lastEventID returns the header Last-Event-ID. given is false if there is none.
func lastEventID(r *http.Request) (id int64, given bool, err error) {
	values := r.Header.Values("Last-Event-ID")
	if len(values) == 0 {
		return 0, false, nil
	}
	if id, ok := parseID(values[0]); ok && len(values) == 1 {
		return id, true, nil
	}
	return 0, false, gateway.Invalid("the header Last-Event-ID must be the id of a message, in digits")
}

// parseID parses a number that has only digits. A number above the range of int64 counts as the largest int64.
func parseID(text string) (int64, bool) {
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	id, err := strconv.ParseInt(text, 10, 64)
	return id, err == nil || errors.Is(err, strconv.ErrRange)
}

// serveStream writes the stream of an agent until it ends. If resumes is true, after is the Last-Event-ID.
func (h *Hub) serveStream(
	w http.ResponseWriter, r *http.Request, from relay.Peer, slot *relay.Stream, owner caller, after int64, resumes bool,
) error {
	out := httpapi.NewEventStream(w)
	s := &stream{agent: owner.agent, news: make(chan struct{}, 1), ended: make(chan string, 1), done: make(chan struct{}),
		turn: make(chan struct{}, 1), abort: out.Abort}
	writer := &streamWriter{h: h, out: out, s: s, from: from, slot: slot}
	h.streams.add(s)
	defer func() { h.closeStream(s, writer.phase == live) }()
	if owner.did != "" {
		// What becomes a REQUEST just now is stored when this Update is. From now on, nothing does.
		if err := h.update(r.Context(), self, func(*op) error { return nil }); err != nil {
			return err
		}
	}
	if resumes {
		if _, err := h.confirm(r.Context(), from, owner.agent, confirmation{upTo: after}); err != nil {
			return err
		}
	}
	var err error
	if writer.position, err = h.beginStream(r.Context(), from, owner); err != nil {
		return err
	}
	if resumes {
		writer.phase, writer.last = missed, min(after, writer.last)
	}
	out.Begin()
	if writer.send(r.Context(), "retry: 3000\nevent: connected\ndata: "+string(jsontext.Compact(struct {
		AgentID string `json:"agent_id"`
		Message string `json:"message"`
	}{writer.address, "Inbox open."}))+"\n\n") == nil {
		writer.run(r.Context())
	}
	return nil
}

// phase says which messages a stream writes. Without Last-Event-ID, a stream has the phases replayed and live. With it,
// a stream has the phases missed, resumed and live.
type phase int

const (
	replayed phase = iota // queued messages, and those that the last stream wrote in its last minute
	missed                // queued messages up to Last-Event-ID; after a crash, the client may have them already
	resumed               // all received messages with ids above Last-Event-ID
	live                  // queued messages
)

// position is how far a stream is.
type position struct {
	phase
	address string // of the agent
	after   int64  // the id of the last message that was written
	last    int64  // Last-Event-ID or the newest id, whichever is smaller; without Last-Event-ID: the newest id
	since   int64  // messages that were handed out at this time or later come again in the phase replayed
}

// beginStream returns the position at which a stream without Last-Event-ID begins. It checks the key again, because the
// key may have been replaced just before the stream was added. Then the replacement has not closed the stream.
func (h *Hub) beginStream(ctx context.Context, from relay.Peer, owner caller) (p position, err error) {
	err = h.Relay.View(ctx, from, func(q relay.Querier) error {
		if _, err := owner.again(q, h.now()); err != nil {
			return err
		}
		a, err := agentByNumber(q, owner.agent)
		if err != nil {
			return err
		}
		u, err := usageOf(q, owner.agent)
		// After a crash it is not known when the last stream ended. Then the time of its last frame counts.
		p = position{address: a.address, since: max(u.streamEnded, u.framed) - int64(replayTime)}
		if err != nil {
			return err
		}
		return q.Query(func(scan gateway.Scanner) error { return scan(&p.last) }, "SELECT n FROM hub_message ORDER BY n DESC LIMIT 1")
	})
	return p, err
}

// closeStream records when a stream ended, and removes it. After that, the next stream of the agent can begin.
//
// The time is not recorded if the relay is shutting down. Then the time of the last frame counts, as after a crash. It
// is not recorded either if the stream had not caught up, because its messages must then come again on the next stream.
func (h *Hub) closeStream(s *stream, caughtUp bool) {
	if h.Relay.Health() == nil {
		err := h.update(context.Background(), self, func(o *op) error {
			return changeUsage(o.ExtTx, s.agent, func(u *usage) {
				u.used = o.Now
				if caughtUp {
					u.streamEnded = o.Now
				}
			})
		})
		if err != nil {
			h.Log.Error("the end of a stream cannot be recorded", "err", err)
		}
	}
	h.streams.remove(s)
	close(s.done)
	h.waits.streamEnded(s.agent)
	h.outbox.Wake(s.agent) // the webhook gets the messages that the stream has not handed out
	h.requests.Wake()      // or they become REQUESTs
}

// handOut records that messages were handed out to their receiver. Many messages need several operations. If one of
// them fails, the earlier ones stay.
func (h *Hub) handOut(receiver int64, via string, messages []int64) error {
	for some := range slices.Chunk(messages, changeBatch) {
		if err := h.update(context.Background(), self, func(o *op) error {
			return o.handOut(receiver, via, some)
		}); err != nil {
			return err
		}
	}
	return nil
}

// errRequested means that a message has become a REQUEST, so that it must not be handed out.
var errRequested = errors.New("the message has become a REQUEST")

// handOut is Hub.handOut for some messages. Errors: errRequested.
func (o *op) handOut(receiver int64, via string, messages []int64) error {
	for _, n := range messages {
		d, err := deliveryOf(o, n)
		if err != nil {
			return err
		}
		if d.message == 0 || d.receiver != receiver || d.state.final() {
			continue
		}
		if taken, err := isRequest(o, n); err != nil {
			return err
		} else if taken {
			return errRequested
		}
		before := d.state
		d.state, d.via, d.handed = sent, via, o.Now
		if err := o.change(before, d); err != nil {
			return err
		}
	}
	return nil
}

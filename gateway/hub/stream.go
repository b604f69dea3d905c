package hub

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// Times and sizes of a stream (HUB §4).
const (
	pingInterval = 20 * time.Second
	paceBytes    = 32 << 10 // per paceTime, or one larger frame
	paceTime     = 100 * time.Millisecond
	replayTime   = 60 * time.Second // the end of the last stream, which comes again
	replaceTime  = time.Second      // for which an old stream may still write when a newer one has come
	confirmBatch = 200              // messages that are confirmed in one Update
)

// streams are the open inbox streams. An agent has at most one.
type streams struct {
	mu   sync.Mutex
	open map[int64]*stream
}

// stream is an open inbox stream. Its handler's goroutine writes it.
type stream struct {
	agent int64
	news  chan struct{} // there may be a new message
	ended chan string   // the reason why the hub closes the stream
	done  chan struct{} // is closed when nothing more is written
	turn  chan struct{} // has room for one: who writes messages and has not recorded them yet, see recorded
	abort func()        // ends a write that does not make progress
	used  atomic.Int64  // when the sweep has last recorded the use of the stream; 0: not yet
}

// add makes s the stream of its agent. It ends the stream that the agent had before, and waits until nothing more is
// written to it.
func (all *streams) add(s *stream) {
	all.mu.Lock()
	old := all.open[s.agent]
	all.open[s.agent] = s
	all.mu.Unlock()
	if old == nil {
		return
	}
	old.end("replaced")
	late := time.AfterFunc(replaceTime, old.abort)
	defer late.Stop()
	<-old.done
}

func (all *streams) remove(s *stream) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.open[s.agent] == s {
		delete(all.open, s.agent)
	}
}

func (all *streams) get(agent int64) *stream {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.open[agent]
}

func (all *streams) has(agent int64) bool { return all.get(agent) != nil }

func (all *streams) count() int {
	all.mu.Lock()
	defer all.mu.Unlock()
	return len(all.open)
}

// unrecorded returns at most limit streams whose use was recorded before a time.
func (all *streams) unrecorded(before int64, limit int) (some []*stream) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, s := range all.open {
		if s.used.Load() < before && len(some) < limit {
			some = append(some, s)
		}
	}
	return some
}

// wake tells the stream of an agent that there may be a new message.
func (all *streams) wake(agent int64) {
	if s := all.get(agent); s != nil {
		select {
		case s.news <- struct{}{}:
		default: // the stream has not looked since it was woken last
		}
	}
}

// recorded waits until the messages that the stream of an agent has written are recorded. The client may confirm them
// before that.
func (all *streams) recorded(ctx context.Context, agent int64) error {
	s := all.get(agent)
	if s == nil {
		return nil
	}
	select {
	case s.turn <- struct{}{}:
		<-s.turn
		return nil
	case <-s.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end closes the stream of an agent.
func (all *streams) end(agent int64, reason string) {
	if s := all.get(agent); s != nil {
		s.end(reason)
	}
}

func (s *stream) end(reason string) {
	select {
	case s.ended <- reason:
	default: // it is being closed for another reason
	}
}

// getInbox is the handler of GET /agent/inbox.
func (h *Hub) getInbox(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	owner, err := h.streamOwner(r, from)
	if err != nil {
		return err
	}
	after, resumes, err := lastEventID(r)
	if err != nil {
		return err
	}
	leave, err := h.Relay.OpenStream(from)
	if err != nil {
		return err
	}
	defer leave()
	return h.serveStream(w, r, from, owner, after, resumes)
}

// streamOwner returns whose inbox a request opens: that of its session token, or of its key.
func (h *Hub) streamOwner(r *http.Request, from relay.Peer) (c caller, err error) {
	p, err := parameters(r, "session")
	if err != nil {
		return c, err
	}
	if token, given := p["session"]; given {
		c, ok := h.sessions.use(token, h.now())
		if !ok {
			return c, refuse(http.StatusUnauthorized, codeUnauthorized, "this session token is unknown, was used, or has "+
				"expired; get a new one with POST /agent/session")
		}
		return c, nil
	}
	if c, err = h.caller(r.Context(), from, r, true); err != nil {
		return c, err
	}
	return c, c.agentOnly()
}

// lastEventID returns the header Last-Event-ID. given is false if there is none, or an empty one, as browsers send it.
func lastEventID(r *http.Request) (id int64, given bool, err error) {
	values := r.Header.Values("Last-Event-ID")
	if len(values) == 0 || len(values) == 1 && values[0] == "" {
		return 0, false, nil
	}
	if id, ok := parseID(values[0]); ok && len(values) == 1 {
		return id, true, nil
	}
	return 0, false, invalid("the header Last-Event-ID must be the id of a message, in digits")
}

// parseID parses a number that has only digits. One that is larger than every id counts as the largest number.
func parseID(text string) (int64, bool) {
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	id, err := strconv.ParseInt(text, 10, 64)
	return id, err == nil || errors.Is(err, strconv.ErrRange)
}

// serveStream writes the stream of an agent until it ends.
func (h *Hub) serveStream(w http.ResponseWriter, r *http.Request, from relay.Peer, owner caller, after int64, resumes bool) error {
	out := http.NewResponseController(w)
	s := &stream{agent: owner.agent, news: make(chan struct{}, 1), ended: make(chan string, 1), done: make(chan struct{}),
		turn:  make(chan struct{}, 1),
		abort: func() { _ = out.SetWriteDeadline(time.Now()) }} // without deadlines there is no connection to wait for
	writer := &streamWriter{h: h, w: w, out: out, s: s, from: from}
	h.streams.add(s)
	defer func() { h.closeStream(s, writer.phase == live) }()
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
	// net/http reads from the connection to learn whether the client is still there. A deadline would end that.
	_ = out.SetReadDeadline(time.Time{})
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Accel-Buffering", "no")
	header.Set("X-Content-Type-Options", "nosniff")
	if writer.send(r.Context(), "retry: 3000\nevent: connected\ndata: "+compact(struct {
		AgentID string `json:"agent_id"`
		Message string `json:"message"`
	}{writer.address, "Inbox open."})+"\n\n") == nil {
		writer.run(r.Context())
	}
	return nil
}

// phase is what a stream brings. It begins with replayed or missed.
type phase int

const (
	replayed phase = iota // without Last-Event-ID: what is queued, and the last minute of the last stream
	missed                // with it: what is queued and has an id up to it; after a crash, it may have come before
	resumed               // then what has a larger id
	live                  // in the end what is queued
)

// position is how far a stream is.
type position struct {
	phase
	address string
	after   int64 // the last message on the stream
	last    int64 // Last-Event-ID, but not more than the newest id; without it the newest id
	since   int64 // sent messages that were handed out since then come again, if the phase is replayed
}

// beginStream returns where a stream without Last-Event-ID begins. It checks the key again. If the key was replaced
// before the stream was added to the open ones, the replacement has not ended the stream.
func (h *Hub) beginStream(ctx context.Context, from relay.Peer, owner caller) (p position, err error) {
	err = h.Relay.View(ctx, from, func(q relay.Querier) error {
		if again, _, err := findCaller(q, owner.key, h.now()); err != nil || again != owner {
			return cmp.Or(err, unauthorized())
		}
		a, err := agentByNumber(q, owner.agent)
		if err != nil {
			return err
		}
		u, err := usageOf(q, owner.agent)
		// After a crash it is not known when the last stream ended; then its last frame counts.
		p = position{address: a.address, since: max(u.streamEnded, u.framed) - int64(replayTime)}
		if err != nil {
			return err
		}
		return q.Query(func(scan scanner) error { return scan(&p.last) }, "SELECT n FROM hub_message ORDER BY n DESC LIMIT 1")
	})
	return p, err
}

// closeStream records that a stream has ended. If the relay is shutting down, this is not recorded; then the last frame
// counts, as after a crash. The end of a stream that has not caught up is not recorded either, because what had to come
// again must come again on the next one. The next stream begins after that.
func (h *Hub) closeStream(s *stream, caughtUp bool) {
	if h.Relay.Health() == nil {
		err := h.update(context.Background(), self, func(o *op) error {
			return changeUsage(o.ExtTx, s.agent, func(u *usage) {
				u.used = o.now
				if caughtUp {
					u.streamEnded = o.now
				}
			})
		})
		if err != nil {
			h.logFault("the end of a stream cannot be recorded", err)
		}
	}
	h.streams.remove(s)
	close(s.done)
	h.waits.streamEnded(s.agent)
	h.outbox.Wake(s.agent) // the webhook gets what the stream has not handed out
}

// streamWriter writes one stream. Only its handler's goroutine uses it.
type streamWriter struct {
	h    *Hub
	w    http.ResponseWriter
	out  *http.ResponseController
	s    *stream
	from relay.Peer
	position
	pace pace
}

// run writes messages and pings until the stream ends.
func (t *streamWriter) run(ctx context.Context) {
	ping := time.NewTicker(pingInterval)
	defer ping.Stop()
	for {
		more, err := false, error(nil)
		if len(t.s.ended) == 0 {
			more, err = t.writeNext(ctx)
		}
		if err != nil {
			return
		}
		var now <-chan struct{}
		if more {
			now = closedChannel
		}
		select {
		case reason := <-t.s.ended:
			_ = t.send(ctx, "event: closed\ndata: {\"reason\":\""+reason+"\"}\n\n") // the stream ends in any case
			return
		case <-t.h.Relay.Drained():
			_ = t.send(ctx, "event: closed\ndata: {\"reason\":\"shutdown\"}\n\n")
			return
		case <-ctx.Done():
			return
		case <-ping.C:
			if t.send(ctx, ":ping\n\n") != nil {
				return
			}
		case <-t.s.news:
		case <-now:
		}
	}
}

var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// batch is some messages that are written together.
type batch struct {
	text string
	rows []delivery
}

// writeNext writes the next messages, at most paceBytes of them or one that is larger. more means that there may be
// others. An error ends the stream.
func (t *streamWriter) writeNext(ctx context.Context) (more bool, err error) {
	b, more, err := t.next(ctx)
	if err != nil || len(b.rows) == 0 {
		return more, t.handleReadError(ctx, err)
	}
	if err := t.waitForPace(ctx, len(b.text)); err != nil {
		return false, err
	}
	t.s.turn <- struct{}{}
	defer func() { <-t.s.turn }()
	if err := t.write(b.text); err != nil {
		return false, err
	}
	t.after = b.rows[len(b.rows)-1].message
	handed := make([]int64, len(b.rows))
	for i, d := range b.rows {
		handed[i] = d.message
	}
	if err := t.h.handOut(t.s.agent, viaStream, handed); err != nil && t.h.Relay.Health() == nil {
		t.h.logFault("messages were handed out, but this cannot be recorded; they will be handed out again", err)
	}
	return more, nil
}

// handleReadError waits a little if the messages cannot be read at the moment.
func (t *streamWriter) handleReadError(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	if !isTemporary(err) {
		t.h.logFault("the messages of a stream cannot be read", err)
		return err
	}
	wait := time.NewTimer(time.Second)
	defer wait.Stop()
	select {
	case <-wait.C:
		t.h.streams.wake(t.s.agent)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-t.h.Relay.Drained():
		return nil
	}
}

const maxBatch = 64 // messages

var errBatchFull = errors.New("the batch is full")

// next reads the messages after the position.
func (t *streamWriter) next(ctx context.Context) (b batch, more bool, err error) {
	const read = "SELECT " + joinedColumns + " FROM hub_delivery d JOIN hub_message m ON m.n = d.message "
	const order = " ORDER BY d.message LIMIT ?"
	text, args := read+"WHERE d.receiver = ? AND d.state = 0 AND d.message > ?"+order, []any{t.s.agent, t.after}
	switch t.phase {
	case missed:
		text = read + "WHERE d.receiver = ? AND d.state = 0 AND d.message > ? AND d.message <= ?" + order
		args = append(args, t.last)
	case resumed:
		// The entries of the history find the messages of the agent.
		text = "SELECT " + joinedColumns + " FROM hub_entry e JOIN hub_delivery d ON d.message = e.message " +
			"JOIN hub_message m ON m.n = e.message WHERE e.agent = ? AND e.message > ? AND d.receiver = ? AND d.state < 3 " +
			"ORDER BY e.message LIMIT ?"
		args = append(args, t.s.agent)
	case replayed:
		text = read + "WHERE d.receiver = ? AND d.message > ? AND " +
			"(d.state = 0 OR d.state = 1 AND d.via = 'sse' AND d.handed >= ?)" + order
		args = append(args, t.since)
	}
	args = append(args, maxBatch)
	size := 0
	var frames strings.Builder
	err = t.h.Relay.View(ctx, t.from, func(q relay.Querier) error {
		b, size, more = batch{}, 0, false
		frames.Reset()
		err := q.Query(func(scan scanner) error {
			var m message
			var d delivery
			if err := scan(append(m.fields(), d.fields()...)...); err != nil {
				return err
			}
			frame := messageFrame(m)
			if size > 0 && size+len(frame) > paceBytes {
				more = true
				return errBatchFull
			}
			size += len(frame)
			frames.WriteString(frame)
			b.rows = append(b.rows, d)
			return nil
		}, text, args...)
		if errors.Is(err, errBatchFull) {
			return nil
		}
		return err
	})
	b.text = frames.String()
	switch n := len(b.rows); {
	case err != nil:
	case n == 0:
		more = t.endPhase()
	case n == maxBatch || t.phase != live: // other phases end with an empty batch
		more = true
	}
	return b, more, err
}

// endPhase begins the next phase. It returns false if there is none.
func (t *streamWriter) endPhase() (more bool) {
	switch t.phase {
	case live:
		return false
	case missed:
		t.phase, t.after = resumed, t.last
	default:
		t.phase = live
	}
	return true
}

// messageFrame returns the event of a message.
func messageFrame(m message) string {
	id := decimal(m.n)
	return "event: message\nid: " + id + "\ndata: {\"id\":" + id + ",\"trace_id\":\"" + m.trace + "\",\"sender_id\":\"" +
		m.senderID + "\",\"envelope\":" + m.envelope + ",\"timestamp\":\"" + stamp(m.ts) + "\"}\n\n"
}

// send writes a part of the stream as soon as the pace allows it.
func (t *streamWriter) send(ctx context.Context, text string) error {
	if err := t.waitForPace(ctx, len(text)); err != nil {
		return err
	}
	return t.write(text)
}

// waitForPace waits until this many bytes may be written.
func (t *streamWriter) waitForPace(ctx context.Context, bytes int) error {
	wait := t.pace.wait(time.Now(), bytes)
	if wait == 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// write writes and flushes a part of the stream.
func (t *streamWriter) write(text string) error {
	httpapi.ExtendWrite(t.w)
	if _, err := t.w.Write([]byte(text)); err != nil {
		return err
	}
	if err := t.out.Flush(); err != nil {
		return err
	}
	t.pace.writes = append(t.pace.writes, paced{time.Now(), len(text)})
	return nil
}

// pace remembers what was written in the last paceTime.
type pace struct{ writes []paced }

// paced is a write. at is when it ended, because a slow client may take all of it only then.
type paced struct {
	at    time.Time
	bytes int
}

// wait returns how long a write of this size has to wait.
func (p *pace) wait(now time.Time, bytes int) time.Duration {
	sum := bytes
	for i := len(p.writes) - 1; i >= 0; i-- {
		end := p.writes[i].at.Add(paceTime)
		if !now.Before(end) {
			p.writes = append(p.writes[:0], p.writes[i+1:]...)
			return 0
		}
		if sum += p.writes[i].bytes; sum > paceBytes {
			return end.Sub(now)
		}
	}
	return 0
}

// handOut records that messages were handed out to their receiver.
func (h *Hub) handOut(agentNumber int64, via string, messages []int64) error {
	return h.update(context.Background(), self, func(o *op) error {
		for _, n := range messages {
			d, err := deliveryOf(o, n)
			if err != nil {
				return err
			}
			if d.message == 0 || d.receiver != agentNumber || d.state.final() {
				continue
			}
			before := d.state
			d.state, d.via, d.handed = sent, via, o.now
			if err := o.change(before, d); err != nil {
				return err
			}
		}
		return nil
	})
}

// isTemporary reports whether the relay refused a read only for the moment.
func isTemporary(err error) bool {
	e, ok := errors.AsType[*envelope.Error](err)
	return ok && e.RetryAfter > 0
}

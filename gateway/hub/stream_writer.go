package hub

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// streamWriter writes one stream. Only its handler's goroutine uses it.
type streamWriter struct {
	h    *Hub
	out  *httpapi.EventStream
	s    *stream
	from relay.Peer
	slot *relay.Stream
	position
	pace pace
}

// run writes messages and pings until the stream ends.
func (t *streamWriter) run(ctx context.Context) {
	ping := time.NewTicker(pingInterval)
	defer ping.Stop()
	for {
		var again <-chan time.Time // when to read again; nil: when there is a new message
		if !t.mustEnd() {
			more, err := t.writeNext(ctx)
			switch {
			case gateway.IsTemporary(err):
				again = time.After(time.Second)
			case t.slot.Banned() != nil: // then the slot has ended, or is about to
			case err != nil:
				return
			case more:
				again = time.After(0)
			}
		}
		select {
		case reason := <-t.s.ended:
			_ = t.send(ctx, "event: closed\ndata: {\"reason\":\""+reason+"\"}\n\n") // the stream ends in any case
			return
		case <-t.slot.Ended():
			reason := "shutdown"
			if t.slot.Banned() != nil {
				reason = "banned"
			}
			_ = t.send(ctx, "event: closed\ndata: {\"reason\":\""+reason+"\"}\n\n")
			return
		case <-ctx.Done():
			return
		case <-ping.C:
			if t.send(ctx, ":ping\n\n") != nil {
				return
			}
		case <-t.s.news:
		case <-again:
		}
	}
}

// mustEnd reports whether the hub closes the stream or the relay shuts down. Then no further message is written.
func (t *streamWriter) mustEnd() bool {
	select {
	case <-t.slot.Ended():
		return true
	default:
		return len(t.s.ended) > 0
	}
}

// batch is some messages that are written together.
type batch struct {
	text string
	rows []delivery
}

// writeNext writes the next messages: at most paceBytes, or one message that is larger. more means that other messages
// may follow. An error that is not temporary ends the stream.
func (t *streamWriter) writeNext(ctx context.Context) (more bool, err error) {
	b, more, err := t.next(ctx)
	if err != nil {
		if ctx.Err() == nil && !gateway.IsTemporary(err) && t.slot.Banned() == nil {
			t.h.Log.Error("the messages of a stream cannot be read", "err", err)
		}
		return false, err
	}
	if len(b.rows) == 0 {
		return more, nil
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
		t.h.Log.Error("messages were handed out, but this cannot be recorded; they will be handed out again", "err", err)
	}
	return more, nil
}

// errBatchFull ends a query when the batch has enough rows.
var errBatchFull = errors.New("the batch is full")

// next reads the messages after the position.
func (t *streamWriter) next(ctx context.Context) (b batch, more bool, err error) {
	const read = "SELECT " + joinedColumns + " FROM hub_delivery d JOIN hub_message m ON m.n = d.message "
	const order = " ORDER BY d.message LIMIT ?"
	text, args := read+"WHERE d.receiver = ? AND d.state = 0 AND d.message > ? AND "+notRequest+order, []any{t.s.agent, t.after}
	switch t.phase {
	case missed:
		text = read + "WHERE d.receiver = ? AND d.state = 0 AND d.message > ? AND d.message <= ? AND " + notRequest + order
		args = append(args, t.last)
	case resumed:
		// The entries of the history find the messages of the agent.
		text = "SELECT " + joinedColumns + " FROM hub_entry e JOIN hub_delivery d ON d.message = e.message " +
			"JOIN hub_message m ON m.n = e.message WHERE e.agent = ? AND e.message > ? AND d.receiver = ? AND d.state < 3 AND " +
			notRequest + " ORDER BY e.message LIMIT ?"
		args = append(args, t.s.agent)
	case replayed:
		text = read + "WHERE d.receiver = ? AND d.message > ? AND " +
			"(d.state = 0 OR d.state = 1 AND d.via = 'sse' AND d.handed >= ?) AND " + notRequest + order
		args = append(args, t.since)
	}
	args = append(args, changeBatch)
	size := 0
	var frames strings.Builder
	err = t.h.Relay.View(ctx, t.from, func(q relay.Querier) error {
		b, size, more = batch{}, 0, false
		frames.Reset()
		err := q.Query(func(scan gateway.Scanner) error {
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
	case n == changeBatch || t.phase != live: // the phases before live end with an empty batch
		more = true
	}
	return b, more, err
}

// endPhase begins the next phase. It returns false if this is the last one.
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
		m.senderID + "\",\"envelope\":" + m.envelope + ",\"timestamp\":\"" + gateway.Stamp(m.ts) + "\"}\n\n"
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

// write writes a part of the stream.
func (t *streamWriter) write(text string) error {
	if _, err := t.out.Write([]byte(text)); err != nil {
		return err
	}
	t.pace.writes = append(t.pace.writes, paced{time.Now(), len(text)})
	return nil
}

// pace remembers the writes of the last paceTime.
type pace struct{ writes []paced }

// paced is a write. at is the time at its end, because a slow client may receive all of it only then.
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

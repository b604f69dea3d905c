package hubclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agora-relay/agora/internal/exchange"
)

// FollowOptions are the options of Follow.
type FollowOptions struct {
	Count int                     // end after this number of received messages; 0: do not end
	Show  func(line []byte) error // is called with each received message, as a line of the history
}

// Errors that end Follow.
var (
	ErrReplaced = errors.New("another program has opened this agent's inbox; an agent has only one inbox stream")
	ErrDeleted  = errors.New("the agent was deleted at its hub")

	errCount   = errors.New("the count is reached")
	errRotated = &exchange.Lost{Text: "the agent's key was replaced"}
	errClosed  = &exchange.Lost{Text: "the hub has closed the inbox stream"}
)

// waitingEvents is how many events of the stream may wait while an earlier one is handled.
const waitingEvents = 32

// steady is how long a connection must last so that the pauses between attempts begin again with the shortest one.
const steady = 20 * time.Second

// settleLimit is how long Follow may take, after ctx has ended, to save and confirm what it has shown.
const settleLimit = 10 * time.Second

// Follow receives the messages of an agent. First it reads what the agent has sent or received since the last time.
// Then it follows the inbox stream, and connects again whenever the connection breaks. It returns nil if Count is
// reached, and otherwise the error that ended it.
//
// For each message, Follow does four things in this order: it writes the message to the history on the disk, shows it,
// saves that it has shown it, and confirms it to the hub. If the process dies before the third step, the next Follow
// shows the message again.
func Follow(ctx context.Context, f *Folder, c *Client, o FollowOptions) error {
	who, err := f.Credentials()
	if err != nil {
		return err
	}
	saved, err := f.loadState()
	if err != nil {
		return err
	}
	w := &follower{folder: f, hub: c, me: who, options: o, last: saved.LastID, shown: map[int64]bool{}}
	var pause exchange.Backoff
	for {
		started := time.Now()
		err := w.session(ctx)
		switch {
		case errors.Is(err, errCount):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		}
		after, again := exchange.Repeatable(err, true)
		if changed, keyErr := w.newKey(err); keyErr != nil {
			return keyErr
		} else if !again && !changed {
			return err
		}
		if time.Since(started) > steady {
			pause = exchange.Backoff{}
		}
		c.Log.Warn("the inbox is not connected; trying again", "err", err)
		if err := exchange.Sleep(ctx, pause.Next(after)); err != nil {
			return err
		}
	}
}

// follower is a running Follow.
type follower struct {
	folder  *Folder
	hub     *Client
	me      Credentials
	options FollowOptions

	last     int64          // all messages up to this id are recorded and shown; it is what .state.json says
	newest   int64          // the newest message that the stream has brought
	shown    map[int64]bool // the messages after last that were shown
	received int            // how many messages were shown
}

// newKey reads the credentials again if err says that the hub has refused or replaced the key. changed means that the
// file has a new key.
func (w *follower) newKey(err error) (changed bool, _ error) {
	refused, ok := errors.AsType[*Error](err)
	if !errors.Is(err, errRotated) && !(ok && refused.Status == http.StatusUnauthorized) {
		return false, nil
	}
	who, err := w.folder.Credentials()
	if err != nil {
		return false, err
	}
	if who.AgentID != w.me.AgentID || who.HubURL != w.me.HubURL {
		return false, fmt.Errorf("the credentials now belong to %s at %s", who.AgentID, who.HubURL)
	}
	changed = who.Key != w.me.Key
	w.me, w.hub.Key = who, who.Key
	return changed, nil
}

// session reads the history of the hub, and then follows one stream until the stream ends.
func (w *follower) session(ctx context.Context) error {
	if _, err := w.catchUp(ctx); err != nil {
		return err
	}
	if w.countReached() {
		return errCount
	}
	streaming, cancel := context.WithCancel(ctx)
	events, ended := make(chan event, waitingEvents), make(chan error, 1)
	go func() {
		ended <- w.hub.stream(streaming, w.last, events)
		close(events)
	}()
	err := w.follow(ctx, events)
	cancel()
	for range events { // until the goroutine has ended
	}
	if streamErr := <-ended; err == nil {
		err = streamErr
	}
	if err == nil {
		err = errClosed
	}
	return err
}

// follow handles the events of a stream. Whenever no event is waiting, it calls settle.
func (w *follower) follow(ctx context.Context, events <-chan event) error {
	var retry <-chan time.Time // while it is not nil, settle is not called
	for {
		var e event
		open := true
		select {
		case e, open = <-events:
		default:
			if retry == nil && w.newest > w.last {
				after, again := time.Duration(0), false
				if err := w.settle(ctx); err != nil {
					if after, again = exchange.Repeatable(err, true); !again {
						return err
					}
					retry = time.After(max(after, exchange.MinPause))
				}
			}
			select {
			case e, open = <-events:
			case <-retry:
				retry = nil
				continue
			}
		}
		if !open {
			if ctx.Err() != nil && w.newest > w.last {
				return w.settle(ctx)
			}
			return nil
		}
		if err := w.handle(ctx, e); err != nil {
			return err
		}
	}
}

// handle handles one event of the stream.
func (w *follower) handle(ctx context.Context, e event) error {
	switch e.name {
	case "message":
		var m message
		if json.Unmarshal([]byte(e.data), &m) != nil {
			w.hub.Log.Warn("an event of the inbox was ignored because it is not a message")
			return nil
		}
		m.ReceiverID = w.me.AgentID
		if _, err := w.take(ctx, []message{m}); err != nil {
			return err
		}
		w.newest = max(w.newest, m.ID)
		if !w.countReached() {
			return nil
		}
		if err := w.settle(ctx); err != nil {
			w.hub.Log.Warn("the message is recorded, but not acknowledged; the next run does that", "err", err)
		}
		return errCount
	case "closed":
		var closed struct {
			Reason string `json:"reason"`
		}
		_ = json.Unmarshal([]byte(e.data), &closed) // a malformed event counts as one without a reason
		switch closed.Reason {
		case "replaced":
			return ErrReplaced
		case "deleted":
			return ErrDeleted
		case "rotated":
			return errRotated
		}
		return errClosed
	}
	return nil
}

// settle saves and acknowledges what the stream has brought. First it reads the history of the hub after w.last, so
// that the files miss no message. It may continue for settleLimit after ctx has ended, because the messages were shown.
func (w *follower) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleLimit)
	defer cancel()
	upTo := w.newest
	complete, err := w.catchUp(ctx)
	if err != nil || !complete || w.last >= upTo {
		return err
	}
	// The history of the hub does not have the newest message of the stream.
	if err := w.advance(ctx, upTo); err != nil {
		return err
	}
	return w.acknowledge(ctx, upTo)
}

// acknowledge confirms what was received up to this id. It may continue for settleLimit after ctx has ended, because
// the messages were shown.
func (w *follower) acknowledge(ctx context.Context, upTo int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleLimit)
	defer cancel()
	return w.hub.acknowledge(ctx, upTo)
}

// catchUp reads and records what the agent has sent or received after w.last. It must handle everything that it reads,
// because the stream does not send messages that the hub has handed out here. complete is false if the count was
// reached before the end.
func (w *follower) catchUp(ctx context.Context) (complete bool, err error) {
	for {
		rows, more, err := w.hub.messages(ctx, w.last)
		if err != nil {
			return false, err
		}
		taken, err := w.take(ctx, rows)
		if err != nil {
			return false, err
		}
		if taken > 0 {
			last := rows[taken-1].ID
			if err := w.advance(ctx, last); err != nil {
				return false, err
			}
			if err := w.acknowledge(ctx, last); err != nil { // the next request for the history does it too
				w.hub.Log.Warn("messages are recorded, but not acknowledged yet", "err", err)
			}
		}
		if taken < len(rows) || len(rows) == 0 || !more {
			return taken == len(rows), nil
		}
	}
}

// advance saves that all messages up to this id are recorded and shown.
func (w *follower) advance(ctx context.Context, last int64) error {
	w.last = last
	for id := range w.shown {
		if id <= last {
			delete(w.shown, id)
		}
	}
	return w.folder.saveState(context.WithoutCancel(ctx), state{last})
}

// countReached reports whether the count is reached.
func (w *follower) countReached() bool { return w.options.Count > 0 && w.received >= w.options.Count }

// take records messages, and shows those that the agent has received. taken is how many messages it has handled. If the
// count would be exceeded, it stops before that message.
func (w *follower) take(ctx context.Context, rows []message) (taken int, err error) {
	var all, show []Record
	for _, m := range rows {
		records, err := m.records(w.me.AgentID)
		if err != nil {
			w.hub.Log.Warn("a message from the hub was ignored", "id", m.ID, "err", err)
			records = nil
		}
		isNew := m.ID > w.last && !w.shown[m.ID] && len(records) > 0 && records[len(records)-1].Dir == Received
		if isNew && w.options.Count > 0 && w.received+len(show) >= w.options.Count {
			break
		}
		taken++
		all = append(all, records...)
		if isNew {
			show = append(show, records[len(records)-1])
		}
	}
	if err := w.folder.Append(context.WithoutCancel(ctx), all...); err != nil {
		return 0, err
	}
	for _, r := range show {
		if err := w.options.Show(r.Line()); err != nil {
			return 0, err
		}
		w.shown[r.ID] = true
		w.received++
	}
	return taken, nil
}

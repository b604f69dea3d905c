package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/agora-relay/agora/client/internal/pacing"
	"github.com/agora-relay/agora/client/internal/recent"
	"github.com/agora-relay/agora/client/internal/wire"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Filter selects events. An event must match all fields that are set. The zero value selects all events.
type Filter struct {
	Recipient didkey.DID
	Broadcast bool // with Recipient: also select events without a recipient
	Sender    didkey.DID
	Type      envelope.Type
	Thread    string
}

// match reports whether the filter selects e.
func (f Filter) match(e *envelope.Envelope) bool {
	return (f.Recipient == "" || e.Recipient == f.Recipient || f.Broadcast && e.Recipient == "") &&
		(f.Sender == "" || e.Sender.ID == f.Sender) &&
		(f.Type == "" || e.Type == f.Type) &&
		(f.Thread == "" || e.Thread == f.Thread)
}

// values returns the filter as query parameters of GET /events.
func (f Filter) values() url.Values {
	v := url.Values{}
	for name, value := range map[string]string{
		"recipient": string(f.Recipient), "sender": string(f.Sender), "type": string(f.Type), "thread": f.Thread,
	} {
		if value != "" {
			v.Set(name, value)
		}
	}
	if f.Broadcast && f.Recipient != "" {
		v.Set("broadcast", "true")
	}
	return v
}

// FollowOptions say which events Follow reads, and where it begins. The zero value reads all events from now on.
type FollowOptions struct {
	Filter
	// Cursor stores the position of the reader; nil: the position is kept in memory until Follow returns.
	Cursor CursorStore
	// FromOldest and Since say where to begin if Cursor has no saved cursor. With FromOldest, Follow begins with the
	// oldest event that the relay has. Else it begins with the events after Since, or after the present time if Since
	// is zero. An event is after Since if its timestamp is, or if the relay received it after Since.
	FromOldest bool
	Since      time.Time
	// Page is the largest number of events in one response of the relay; 0: 100. So it is also the largest number of
	// events that are delivered again after a crash.
	Page int
}

// Follow passes each event that matches the filter to handler, in the relay's order. It then waits for more events,
// until ctx ends or handler returns an error.
//
// handler gets only verified envelopes. Follow skips and logs an event that does not verify, that does not match the
// filter, or that is larger than 1 MiB. If a payload is sealed to the client's own key, Follow decrypts it
// (envelope.Envelope.Opened is true then). If that fails, Follow skips the event. Payloads that are sealed to other
// keys stay sealed. That includes payloads that the client itself has sealed for others.
//
// A client with a signer signs its polls (PROTOCOL §8). At an open relay the signature only shows that the identity is
// online.
//
// Follow delivers each event at least once. It saves the cursor when handler has returned nil for all events of a page
// (see FollowOptions.Page). After a restart, the events after the saved cursor are delivered again. Within one call,
// Follow skips an event that is among the last 4096 events that it has seen.
//
// Follow logs failures of the network or the relay and retries, after the delay that the relay asks for (an hour at
// most). If the relay does not know the cursor, for example because it has lost its database, Follow starts again with
// the relay's oldest event.
//
// Errors: ctx's error; the error of handler, unchanged; errors of the CursorStore; an *envelope.Error if the relay
// refuses the request and a retry would not help.
func (c *Client) Follow(
	ctx context.Context, opts FollowOptions, handler func(context.Context, *envelope.Envelope) error,
) error {
	f := follower{client: c, opts: opts}
	f.page = func(ctx context.Context, events []*envelope.Envelope, cursor string) error {
		for _, e := range events {
			if err := c.readable(handler)(ctx, e); err != nil {
				return err
			}
		}
		return saveCursor(ctx, opts.Cursor, cursor)
	}
	return f.run(ctx)
}

// saveCursor saves a cursor in store, unless store is nil.
func saveCursor(ctx context.Context, store CursorStore, cursor string) error {
	if store == nil {
		return nil
	}
	if err := store.Save(ctx, cursor); err != nil {
		return fmt.Errorf("saving the cursor: %w", err)
	}
	return nil
}

const (
	pollTimeout = 30 * time.Second // how long a relay waits for new events before it answers a poll
	quickPoll   = 2 * time.Second  // a poll that ends before this time without new events is followed by a pause
	pageLimit   = 100              // events in a page, unless FollowOptions.Page is set
)

// oldest is the cursor before the relay's oldest event.
const oldest = "0"

// follower is the poll loop of Follow, Serve and Call.watch. Only one goroutine uses it.
type follower struct {
	client *Client
	opts   FollowOptions
	// page handles the new events of one response. cursor is the position after them. There may be no events.
	page func(ctx context.Context, events []*envelope.Envelope, cursor string) error
	// idle is called after each response without new events; nil: not used.
	idle func(ctx context.Context) error
	// polled is called after each poll, with its error and the time at which an answer was due; nil: not called.
	polled func(due time.Time, err error)
	wait   time.Duration // how long the relay waits for new events; 0: pollTimeout

	cursor string // "": no response yet
	seen   *recent.Map[recent.Message, struct{}]
	pause  pacing.Backoff
	failed bool // the last poll has failed
}

// run polls until ctx ends, or until an error that a retry cannot fix.
func (f *follower) run(ctx context.Context) error {
	if f.opts.Cursor != nil {
		var err error
		if f.cursor, err = f.opts.Cursor.Load(ctx); err != nil {
			return fmt.Errorf("loading the cursor: %w", err)
		}
	}
	if f.cursor == "" && f.opts.FromOldest {
		f.cursor = oldest
	}
	if f.cursor == "" && f.opts.Since.IsZero() {
		f.opts.Since = f.client.conn.Now()
	}
	f.seen = recent.New[recent.Message, struct{}](recent.Messages)
	for {
		if err := f.step(ctx); err != nil {
			return err
		}
	}
}

// step polls once and handles the response. If a poll brings nothing new and ends quickly, step waits for a pause,
// whatever the reason was. So no relay can make a reader poll in a hot loop.
func (f *follower) step(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	began := time.Now()
	first := f.cursor == ""
	answer, err := f.poll(ctx)
	if f.polled != nil && ctx.Err() == nil {
		f.polled(began.Add(cmp.Or(f.wait, pollTimeout)), err)
	}
	quick := time.Since(began) < quickPoll
	if !quick {
		f.pause.Reset()
	}
	if err != nil {
		return f.recover(ctx, err)
	}
	again := f.failed
	if f.failed = false; again {
		f.client.conn.Log.Warn("connected again") // a log that shows a failure must also show its end
	}
	events := f.accept(answer)
	moved := answer.Cursor != f.cursor
	if moved || len(events) > 0 {
		if err := f.page(ctx, events, answer.Cursor); err != nil {
			return err
		}
		f.cursor = answer.Cursor
	}
	if len(events) > 0 {
		f.pause.Reset()
		return nil
	}
	if f.idle != nil {
		if err := f.idle(ctx); err != nil {
			return err
		}
	}
	switch {
	case first, again, !quick: // the first poll does not wait, nor does the one after a failure
		return nil
	case moved && answer.Received > 0: // the reader gets known events again: continue after a short pause
		return f.pause.Wait(ctx, 0, time.Second)
	}
	return f.pause.Wait(ctx, 0, pacing.MaxPause)
}

// recover handles a failed poll. It waits before a retry, or makes the follower start again from the oldest event, or
// returns an error that ends the follower.
func (f *follower) recover(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	failed, _ := errors.AsType[*wire.Failure](err)
	refusal, refused := errors.AsType[*envelope.Error](err)
	switch {
	case refused && refusal.Reason() == envelope.ReasonUnknownCursor:
		f.client.conn.Log.Warn("the relay does not know the saved cursor, so it has probably lost its data; " +
			"reading again from the relay's oldest event")
		f.cursor = oldest
		f.client.conn.ForgetReads() // the cursor is unknown as well if the relay has changed between open and private
	case refused && !failed.Temporary():
		return err
	default:
		f.failed = true
		f.client.conn.Log.Warn("polling failed, will be retried", "error", err)
	}
	return f.pause.Wait(ctx, min(failed.RetryAfter, readPatience), pacing.MaxPause)
}

// poll reads the next page of events. Without a cursor it reads the events after opts.Since and does not wait.
func (f *follower) poll(ctx context.Context) (*wire.Page, error) {
	v := f.opts.values()
	limit := cmp.Or(f.opts.Page, pageLimit)
	v.Set("limit", strconv.Itoa(limit))
	answer := &wire.Page{Events: wire.Events{Limit: limit}}
	if f.cursor == "" {
		v.Set("since", envelope.FormatTime(f.opts.Since))
		v.Set("timeout", "0")
		answer.Limit = wire.MaxSinceBatch
	} else {
		v.Set("cursor", f.cursor)
		v.Set("timeout", strconv.Itoa(int(cmp.Or(f.wait, pollTimeout)/time.Second)))
		if f.failed { // find out at once whether the relay answers again
			v.Set("timeout", "0")
		}
	}
	patience := wire.Timeout
	if f.wait > 0 {
		patience = f.wait
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(f.wait, pollTimeout)+patience)
	defer cancel()
	if err := f.client.conn.Get(ctx, "/events", v, true, answer.Spec()); err != nil {
		return nil, err
	}
	if answer.Cursor == "" || len(answer.Cursor) > maxCursor {
		return nil, &wire.Failure{Err: errors.New("the cursor in the relay's response is missing or too long")}
	}
	return answer, nil
}

// accept returns the events that are valid, match the filter and are new. It opens their payloads if it can.
func (f *follower) accept(answer *wire.Page) []*envelope.Envelope {
	answer.Log(f.client.conn.Log)
	var accepted []*envelope.Envelope
	for _, e := range answer.Valid {
		switch {
		case !f.opts.match(e):
			f.client.conn.Log.Warn("an event was skipped because it does not match the filter",
				"id", e.ID, "sender", e.Sender.ID)
		case !f.isNew(e):
			f.client.conn.Log.Debug("an event was skipped because it was delivered before",
				"id", e.ID, "sender", e.Sender.ID)
		default:
			accepted = append(accepted, f.client.conn.Open(e))
		}
	}
	return accepted
}

// isNew reports whether the follower has not seen e before, and remembers e.
func (f *follower) isNew(e *envelope.Envelope) bool {
	return f.seen.Add(recent.Message{Sender: e.Sender.ID, ID: e.ID}, struct{}{})
}

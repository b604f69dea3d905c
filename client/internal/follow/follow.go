// Package follow reads the events of a relay: the pages that it has (Read), and the events that come (Follower). It
// passes on only events that verify and that match the filter, and opens their payloads if it can.
package follow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/agora-relay/agora/client/internal/conn"
	"github.com/agora-relay/agora/client/internal/pacing"
	"github.com/agora-relay/agora/client/internal/recent"
	"github.com/agora-relay/agora/client/internal/wire"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Filter selects events. Its fields are those of client.Filter.
type Filter struct {
	Recipient didkey.DID
	Broadcast bool // with Recipient: also select events without a recipient
	Sender    didkey.DID
	Type      envelope.Type
	Thread    string
}

// Match reports whether the filter selects e.
func (f Filter) Match(e *envelope.Envelope) bool {
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

// Cursor stores the position of a reader. See client.CursorStore.
type Cursor interface {
	Load(ctx context.Context) (cursor string, err error)
	Save(ctx context.Context, cursor string) error
}

// MaxCursor is the size in bytes of the longest cursor that the client accepts from a relay or from a file.
const MaxCursor = 1 << 10

// SaveCursor saves a cursor in store, unless store is nil.
func SaveCursor(ctx context.Context, store Cursor, cursor string) error {
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
	pageLimit   = 100              // events in a page, unless Follower.Page is set
)

// Oldest is the cursor before the relay's oldest event.
const Oldest = "0"

// Follower is a poll loop. Only one goroutine uses it.
type Follower struct {
	Conn *conn.Conn
	Filter
	Cursor     Cursor // this and the next fields are those of client.FollowOptions
	FromOldest bool
	Since      time.Time
	Page       int

	// Handle handles the new events of one response. cursor is the position after them. There may be no events.
	Handle func(ctx context.Context, events []*envelope.Envelope, cursor string) error
	// Idle is called after each response without new events; nil: not used.
	Idle func(ctx context.Context) error
	// Polled is called after each poll, with its error and the time at which an answer was due; nil: not called.
	Polled func(due time.Time, err error)
	Wait   time.Duration // how long the relay waits for new events; 0: pollTimeout

	cursor string // "": no response yet
	seen   *recent.Map[recent.Message, struct{}]
	pause  pacing.Backoff
	failed bool // the last poll has failed
}

// Run polls until ctx ends, or until an error that a retry cannot fix.
func (f *Follower) Run(ctx context.Context) error {
	if f.Cursor != nil {
		var err error
		if f.cursor, err = f.Cursor.Load(ctx); err != nil {
			return fmt.Errorf("loading the cursor: %w", err)
		}
	}
	if f.cursor == "" && f.FromOldest {
		f.cursor = Oldest
	}
	if f.cursor == "" && f.Since.IsZero() {
		f.Since = f.Conn.Now()
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
func (f *Follower) step(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	began := time.Now()
	first := f.cursor == ""
	answer, err := f.poll(ctx)
	if f.Polled != nil && ctx.Err() == nil {
		f.Polled(began.Add(cmp.Or(f.Wait, pollTimeout)), err)
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
		f.Conn.Log.Warn("connected again") // a log that shows a failure must also show its end
	}
	events := f.accept(answer)
	moved := answer.Cursor != f.cursor
	if moved || len(events) > 0 {
		if err := f.Handle(ctx, events, answer.Cursor); err != nil {
			return err
		}
		f.cursor = answer.Cursor
	}
	if len(events) > 0 {
		f.pause.Reset()
		return nil
	}
	if f.Idle != nil {
		if err := f.Idle(ctx); err != nil {
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
func (f *Follower) recover(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	failed, _ := errors.AsType[*wire.Failure](err)
	refusal, refused := errors.AsType[*envelope.Error](err)
	switch {
	case refused && refusal.Reason() == envelope.ReasonUnknownCursor:
		f.Conn.Log.Warn("the relay does not know the saved cursor, so it has probably lost its data; " +
			"reading again from the relay's oldest event")
		f.cursor = Oldest
		f.Conn.ForgetReads() // the cursor is unknown as well if the relay has changed between open and private
	case refused && !failed.Temporary():
		return err
	default:
		f.failed = true
		f.Conn.Log.Warn("polling failed, will be retried", "error", err)
	}
	return f.pause.Wait(ctx, min(failed.RetryAfter, conn.ReadPatience), pacing.MaxPause)
}

// poll reads the next page of events. Without a cursor it reads the events after Since and does not wait.
func (f *Follower) poll(ctx context.Context) (*wire.Page, error) {
	v := f.values()
	limit := cmp.Or(f.Page, pageLimit)
	v.Set("limit", strconv.Itoa(limit))
	answer := &wire.Page{Events: wire.Events{Limit: limit}}
	if f.cursor == "" {
		v.Set("since", envelope.FormatTime(f.Since))
		v.Set("timeout", "0")
		answer.Limit = wire.MaxSinceBatch
	} else {
		v.Set("cursor", f.cursor)
		v.Set("timeout", strconv.Itoa(int(cmp.Or(f.Wait, pollTimeout)/time.Second)))
		if f.failed { // find out at once whether the relay answers again
			v.Set("timeout", "0")
		}
	}
	patience := wire.Timeout
	if f.Wait > 0 {
		patience = f.Wait
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(f.Wait, pollTimeout)+patience)
	defer cancel()
	if err := f.Conn.Get(ctx, "/events", v, true, answer.Spec()); err != nil {
		return nil, err
	}
	if answer.Cursor == "" || len(answer.Cursor) > MaxCursor {
		return nil, &wire.Failure{Err: errors.New("the cursor in the relay's response is missing or too long")}
	}
	return answer, nil
}

// accept returns the events that are valid, match the filter and are new. It opens their payloads if it can.
func (f *Follower) accept(answer *wire.Page) []*envelope.Envelope {
	answer.Log(f.Conn.Log)
	var accepted []*envelope.Envelope
	for _, e := range answer.Valid {
		switch {
		case !f.Match(e):
			f.Conn.Log.Warn("an event was skipped because it does not match the filter",
				"id", e.ID, "sender", e.Sender.ID)
		case !f.IsNew(e):
			f.Conn.Log.Debug("an event was skipped because it was delivered before",
				"id", e.ID, "sender", e.Sender.ID)
		default:
			accepted = append(accepted, f.Conn.Open(e))
		}
	}
	return accepted
}

// IsNew reports whether the follower has not seen e before, and remembers e.
func (f *Follower) IsNew(e *envelope.Envelope) bool {
	return f.seen.Add(recent.Message{Sender: e.Sender.ID, ID: e.ID}, struct{}{})
}

// MaxRead is the largest number of events that Read accepts.
const MaxRead = 1000

// Page is one page of the events that a relay has. See client.EventPage.
type Page struct {
	Events   []*envelope.Envelope
	Received int
	Cursor   string
	HasMore  bool
}

// Read reads a page of GET /events. position is the value of the parameter start, cursor or before.
func Read(
	ctx context.Context, c *conn.Conn, filter Filter, start, position string, limit int,
) (Page, error) {
	query := filter.values()
	query.Set(start, position)
	query.Set("limit", strconv.Itoa(limit))
	if start == "cursor" {
		query.Set("timeout", "0")
	}
	page := wire.Page{Events: wire.Events{Limit: MaxRead}}
	if err := c.Read(ctx, "/events", query, page.Spec()); err != nil {
		return Page{}, err
	}
	if page.Cursor == "" || len(page.Cursor) > MaxCursor || page.HasMore && page.Cursor == position {
		return Page{}, errors.New("client: the relay sends no usable cursor to read further events")
	}
	return Page{Events: c.Wanted(&page.Events, filter.Match), Received: page.Received,
		Cursor: page.Cursor, HasMore: page.HasMore}, nil
}

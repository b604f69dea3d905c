package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Filter says which events are wanted; empty fields do not matter, the others all must match.
type Filter struct {
	Recipient didkey.DID
	Broadcast bool // with Recipient: also events for nobody in particular
	Sender    didkey.DID
	Type      envelope.Type
	Thread    string
}

func (f Filter) match(e *envelope.Envelope) bool {
	return (f.Recipient == "" || e.Recipient == f.Recipient || f.Broadcast && e.Recipient == "") &&
		(f.Sender == "" || e.Sender.ID == f.Sender) &&
		(f.Type == "" || e.Type == f.Type) &&
		(f.Thread == "" || e.Thread == f.Thread)
}

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

// FollowOptions say what Follow reads, and from where. The zero value reads everything from now on.
type FollowOptions struct {
	Filter
	// Cursor remembers the place; nil: it is kept in memory until Follow returns.
	Cursor CursorStore
	// Where to begin while Cursor holds nothing: with the oldest event the relay has, or with those after Since
	// (by the relay's clock or their own); else with those after now.
	FromOldest bool
	Since      time.Time
	// Page is how many events may come at a time, and so how many may come again after a crash; 0: 100.
	Page int
}

// Follow hands each event that matches the filter to handler, in the relay's order, and waits for more, until ctx ends
// or handler fails. Only verified envelopes are handed over; what does not verify, or was not asked for, is logged and
// left out. So is an event of more than 1 MiB. A payload that is sealed to the client's own key arrives opened
// (envelope.Envelope.Opened); if it does not open, the event is left out. What is sealed to others stays sealed, also
// what the client itself sealed.
//
// A client with a signer signs its polls (PROTOCOL §8). To an open relay that only shows that the identity is online.
//
// An event is delivered at least once. The cursor is saved when handler has returned nil for a whole page (see
// FollowOptions.Page); events after the saved cursor come again in the next process. Within one call repeats among the
// last 4096 events are dropped. Failures of the network or the relay are logged and retried, after the time that the
// relay asks for (an hour at most). A relay that has lost its database does not know the cursor; then Follow starts
// again from the relay's oldest event.
//
// Errors: ctx's; handler's, as it is; the CursorStore's; an *envelope.Error if the relay refuses the request for good.
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
	pollTimeout = 30 * time.Second // how long a relay holds a poll without news
	quickAnswer = 5 * time.Second  // a poll that brings nothing sooner than this is followed by a pause
	pageLimit   = 100              // events
	memory      = 4096             // events known again
)

// oldest is the cursor in front of everything.
const oldest = "0"

// key is what an event is known by: another sender's equal id is another message (PROTOCOL §3).
type key struct {
	sender didkey.DID
	id     string
}

// follower is one call of Follow, or of what is built like it. It belongs to one goroutine.
type follower struct {
	client *Client
	opts   FollowOptions
	// page takes the new events of one answer, perhaps none, and the cursor behind them.
	page func(ctx context.Context, events []*envelope.Envelope, cursor string) error
	// idle, if set, is called after each answer without new events.
	idle func(ctx context.Context) error

	cursor string // "": before the first answer
	seen   *recent[key, struct{}]
	pause  backoff
}

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
		f.opts.Since = f.client.now()
	}
	f.seen = newRecent[key, struct{}](memory)
	for {
		if err := f.step(ctx); err != nil {
			return err
		}
	}
}

// step polls once and deals with the answer. A poll that brought nothing new and came back quickly costs a pause, for
// whatever reason it did, so that no relay can drive a reader into a hot loop.
func (f *follower) step(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	began := time.Now()
	first := f.cursor == ""
	answer, err := f.poll(ctx)
	quick := time.Since(began) < quickAnswer
	if !quick {
		f.pause.reset()
	}
	if err != nil {
		return f.recover(ctx, err)
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
		f.pause.reset()
		return nil
	}
	if f.idle != nil {
		if err := f.idle(ctx); err != nil {
			return err
		}
	}
	switch {
	case first, !quick: // the first poll does not wait
		return nil
	case moved && answer.count > 0: // known events, read again from the oldest one: go on, with pauses
		return f.pause.wait(ctx, 0, time.Second)
	}
	return f.pause.wait(ctx, 0, maxPause)
}

// recover decides what a failed poll means: try again later, start over, or give up.
func (f *follower) recover(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	failed, _ := errors.AsType[*failure](err)
	refusal, refused := errors.AsType[*envelope.Error](err)
	switch {
	case refused && refusal.Reason() == envelope.ReasonUnknownCursor:
		f.client.log.Warn("the relay does not know our cursor, it must have lost its data; starting from its oldest event")
		f.cursor = oldest
		f.client.lookAgain() // or it has become a relay of the other kind
	case refused && !failed.temporary():
		return err
	default:
		f.client.log.Warn("polling failed, will be retried", "error", err)
	}
	return f.pause.wait(ctx, min(failed.retryAfter, readPatience), maxPause)
}

// events is the answer to a poll (PROTOCOL §5).
type events struct {
	Cursor    string `json:"cursor"`
	HasMore   bool   `json:"hasMore"`
	envelopes `json:"-"`
}

func (e *events) reply() reply { return reply{out: e, limit: maxPage, list: "events", take: e.take} }

func (f *follower) poll(ctx context.Context) (*events, error) {
	v := f.opts.values()
	limit := cmp.Or(f.opts.Page, pageLimit)
	v.Set("limit", strconv.Itoa(limit))
	answer := &events{envelopes: envelopes{most: limit}}
	if f.cursor == "" {
		v.Set("since", envelope.FormatTime(f.opts.Since))
		v.Set("timeout", "0")
		answer.most = maxSinceBatch
	} else {
		v.Set("cursor", f.cursor)
		v.Set("timeout", strconv.Itoa(int(pollTimeout/time.Second)))
	}
	ctx, cancel := context.WithTimeout(ctx, pollTimeout+exchangeTimeout)
	defer cancel()
	good := answer.reply()
	good.present = true
	if err := f.client.get(ctx, "/events", v, good); err != nil {
		return nil, err
	}
	if answer.Cursor == "" || len(answer.Cursor) > maxCursor {
		return nil, &failure{err: errors.New("the relay's answer has no usable cursor")}
	}
	return answer, nil
}

// accept returns the events that are genuine, asked for and new.
func (f *follower) accept(answer *events) []*envelope.Envelope {
	answer.log(f.client)
	var accepted []*envelope.Envelope
	for _, e := range answer.good {
		switch {
		case !f.opts.match(e):
			f.client.log.Warn("an event was left out: it was not asked for", "id", e.ID, "sender", e.Sender.ID)
		case !f.isNew(e):
			f.client.log.Debug("an event was left out: it came before", "id", e.ID, "sender", e.Sender.ID)
		default:
			accepted = append(accepted, f.client.open(e))
		}
	}
	return accepted
}

// isNew reports whether e comes for the first time, and remembers it.
func (f *follower) isNew(e *envelope.Envelope) bool {
	return f.seen.add(key{e.Sender.ID, e.ID}, struct{}{})
}

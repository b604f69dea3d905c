// Package pages finds out up to which page of events all events are handled, so that the cursor of that page can be
// saved. After a restart, a reader then gets each event again that was not handled.
package pages

import (
	"context"
	"fmt"
	"sync"

	"github.com/agora-relay/agora/envelope"
)

// Tracker saves the cursor of the last page up to which all events are handled. Pages can finish in any order. A
// cursor is saved when its page and all earlier pages are finished. A Tracker is safe for concurrent use.
type Tracker struct {
	// Save stores a cursor durably. It is not called concurrently.
	Save func(ctx context.Context, cursor string) error
	// Handled is called for each event of a page that is finished, before its cursor is saved; nil: not called.
	Handled func(*envelope.Envelope)

	mu    sync.Mutex
	pages []*Page // the pages whose cursor is not saved yet, oldest first; adjacent finished pages are merged
}

// Page is a page of events. It is finished when holds is 0.
type Page struct {
	of     *Tracker
	events []*envelope.Envelope
	cursor string
	holds  int // the number of its events that are not handled yet, plus one while the page is being read
}

// Begin adds a page with one hold. The caller releases this hold.
func (t *Tracker) Begin(events []*envelope.Envelope, cursor string) *Page {
	t.mu.Lock()
	defer t.mu.Unlock()
	page := &Page{of: t, events: events, cursor: cursor, holds: 1}
	t.pages = append(t.pages, page)
	return page
}

// Hold adds a hold to a page. Each hold needs one call of Release.
func (p *Page) Hold() {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.holds++
}

// Release removes a hold. If the page and all earlier pages are finished now, Release saves the cursor of the last
// finished page. Errors: those of Save.
func (p *Page) Release(ctx context.Context) error {
	t := p.of
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.holds--; p.holds > 0 {
		return nil
	}
	if t.Handled != nil {
		for _, e := range p.events {
			t.Handled(e)
		}
	}
	p.events = nil
	kept := t.pages[:0]
	for _, next := range t.pages {
		if n := len(kept); n > 0 && kept[n-1].holds == 0 && next.holds == 0 {
			kept[n-1] = next
		} else {
			kept = append(kept, next)
		}
	}
	clear(t.pages[len(kept):])
	t.pages = kept
	if first := t.pages[0]; first.holds == 0 {
		t.pages = t.pages[1:]
		if err := t.Save(ctx, first.cursor); err != nil {
			return fmt.Errorf("client: %w", err)
		}
	}
	return nil
}

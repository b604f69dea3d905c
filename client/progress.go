package client

import (
	"context"
	"fmt"
	"sync"

	"github.com/agora-relay/agora/envelope"
)

// progress saves the cursor of the last page up to which all events are handled. Pages can finish in any order. A
// cursor is saved when its page and all earlier pages are finished.
type progress struct {
	store CursorStore
	// handled is called for each event of a page that is finished, before its cursor is saved; nil: not called.
	handled func(*envelope.Envelope)

	mu    sync.Mutex
	pages []*heldPage // the pages whose cursor is not saved yet, oldest first; adjacent finished pages are merged
}

// heldPage is a page of events. It is finished when holds is 0.
type heldPage struct {
	of     *progress
	events []*envelope.Envelope
	cursor string
	holds  int // the number of its events that are not handled yet, plus one while the page is being read
}

// begin adds a page with one hold. The caller releases this hold.
func (p *progress) begin(events []*envelope.Envelope, cursor string) *heldPage {
	p.mu.Lock()
	defer p.mu.Unlock()
	page := &heldPage{of: p, events: events, cursor: cursor, holds: 1}
	p.pages = append(p.pages, page)
	return page
}

// hold adds a hold to a page. Each hold needs one call of release.
func (p *progress) hold(page *heldPage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	page.holds++
}

// release removes a hold. If the page and all earlier pages are finished now, release saves the cursor of the last
// finished page.
func (p *progress) release(ctx context.Context, page *heldPage) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if page.holds--; page.holds > 0 {
		return nil
	}
	if p.handled != nil {
		for _, e := range page.events {
			p.handled(e)
		}
	}
	page.events = nil
	kept := p.pages[:0]
	for _, next := range p.pages {
		if n := len(kept); n > 0 && kept[n-1].holds == 0 && next.holds == 0 {
			kept[n-1] = next
		} else {
			kept = append(kept, next)
		}
	}
	clear(p.pages[len(kept):])
	p.pages = kept
	if first := p.pages[0]; first.holds == 0 {
		p.pages = p.pages[1:]
		if err := saveCursor(ctx, p.store, first.cursor); err != nil {
			return fmt.Errorf("client: %w", err)
		}
	}
	return nil
}

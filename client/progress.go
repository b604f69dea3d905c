package client

import (
	"context"
	"fmt"
	"sync"
)

// progress saves the cursor up to which all events are handled. Pages finish in any order. A cursor is saved when its
// page and all earlier pages are finished.
type progress struct {
	store CursorStore

	mu    sync.Mutex
	pages []*heldPage // in the relay's order; neighbours that are both finished are merged
}

// heldPage is a page of events. It is finished when holds is 0.
type heldPage struct {
	cursor string
	holds  int // events that are not handled yet
}

// begin adds a page with one hold, which the caller releases.
func (p *progress) begin(cursor string) *heldPage {
	p.mu.Lock()
	defer p.mu.Unlock()
	page := &heldPage{cursor: cursor, holds: 1}
	p.pages = append(p.pages, page)
	return page
}

// hold keeps a page unfinished until release is called once more.
func (p *progress) hold(page *heldPage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	page.holds++
}

// release takes back a hold, and saves the cursor if it can move on.
func (p *progress) release(ctx context.Context, page *heldPage) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if page.holds--; page.holds > 0 {
		return nil
	}
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

package client

import (
	"context"
	"fmt"
	"sync"
)

// progress knows up to where all events have been dealt with. Pages finish in any order; a cursor is saved when its
// page and all before it have.
type progress struct {
	store CursorStore

	mu    sync.Mutex
	pages []*heldPage // in the relay's order; a finished one is merged into a finished one before it
}

// heldPage is a page some of whose events may not be dealt with yet.
type heldPage struct {
	cursor string
	holds  int
}

// begin adds a page, held once by the caller.
func (p *progress) begin(cursor string) *heldPage {
	p.mu.Lock()
	defer p.mu.Unlock()
	page := &heldPage{cursor: cursor, holds: 1}
	p.pages = append(p.pages, page)
	return page
}

func (p *progress) hold(page *heldPage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	page.holds++
}

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

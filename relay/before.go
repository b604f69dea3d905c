package relay

import "context"

// End returns the position after the newest stored event.
func (r *Relay) End(ctx context.Context) (Cursor, error) {
	page, err := storeRead(ctx, r.store, new(Query))
	return page.Cursor, err
}

// EventsBefore returns the stored events before p.Cursor, the newest first. Delivery.Cursor is the position before the
// oldest event of the page, with which the next page begins. So EventsBefore returns the events that a reader at
// p.Cursor has passed, and Events returns all others. EventsBefore never waits, and ignores Since and Wait.
// Delivery.More may be true although the page has no events, see Page.Partial. The caller must not use p until
// EventsBefore has returned.
func (r *Relay) EventsBefore(ctx context.Context, p *Poll) (Delivery, error) {
	if err := r.admitReader(p); err != nil {
		return Delivery{}, err
	}
	search := r.newSearch(p)
	search.Backward = true
	first, err := search.scan(ctx, &search.Query)
	if err != nil {
		return Delivery{}, err
	}
	d, err := search.complete(ctx, &search.Query, first, PageBytes)
	if err == nil {
		r.observer.Delivered(DeliveryReport{Events: len(d.Events), Bytes: totalSize(d.Events)})
	}
	return d, err
}

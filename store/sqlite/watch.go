package sqlite

import (
	"context"

	"github.com/agora-relay/agora/relay"
)

// publish passes committed events to the watchers, in order.
func (s *Store) publish(events []relay.Posted) {
	if len(events) == 0 {
		return
	}
	s.head.Store(int64(events[len(events)-1].Seq))
	s.watchers.Publish(events)
}

// Watch implements relay.Store. It leaves out no events, because all of them are in memory.
func (s *Store) Watch(ctx context.Context, after relay.Cursor, _ func() relay.Wanted, f func([]relay.Posted)) error {
	read := func(q relay.Query) (relay.Page, error) { return s.Read(ctx, q) }
	return s.watchers.Watch(ctx, after, nil, nil, read, f)
}

package postgres

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// awaitPrimary calls openWithin. With Options.Await it does so again as long as there is no primary, until ctx ends.
func (s *Store) awaitPrimary(ctx context.Context) (*writer, *pgx.Conn, error) {
	for attempt := 0; ; attempt++ {
		w, listener, err := s.openWithin(ctx, openTime)
		if err == nil || !s.options.Await || !isAway(err) || ctx.Err() != nil {
			return w, listener, err
		}
		s.lease.release()
		if closed := s.mark.close(); closed != nil {
			return nil, nil, errors.Join(err, closed)
		}
		if attempt%awaitLogEvery == 0 {
			s.options.Log.Warn("there is no PostgreSQL primary that accepts writes; this node starts as soon as there is one",
				"attempts", attempt+1, "err", cleaned(err))
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(backoff(attempt)):
		}
	}
}

// awaitLogEvery is after how many attempts awaitPrimary logs again: about every half minute.
const awaitLogEvery = 20

// isAway reports whether err, of an attempt to open the database, means that there is no primary at the moment. Other
// errors stay until somebody changes the settings.
func isAway(err error) bool {
	if errors.Is(err, errOpenTime) || errors.Is(err, io.ErrUnexpectedEOF) {
		return true
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch pg.Code[:2] {
		case "28", "3D", "42": // the role or its password, the database, the rights
			return false
		}
		return isLost(pg)
	}
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	_, network := errors.AsType[net.Error](err)
	return connecting || network
}

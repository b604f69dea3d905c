package postgres

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
)

// What the nodes share besides messages. All of it may be lost in a crash of the server, so it costs no disk write.

// Nonces returns the memory of used signed reads and calls that all nodes share.
func (s *Store) Nonces() relay.Nonces { return nonces{s} }

type nonces struct{ *Store }

// nonceUse is one call of Use. The goroutine useNonces answers several together.
type nonceUse struct {
	id   [16]byte
	ts   time.Time
	now  time.Time
	done chan error // has room for one
}

// nonceLifetime is how long an id is kept: as long as a read is fresh, and in addition how far the clocks of two nodes
// may differ.
const nonceLifetime = 2*relay.ReadSkew + 5*time.Minute

// Use implements relay.Nonces.
func (n nonces) Use(ctx context.Context, id [16]byte, ts, now time.Time) error {
	u := nonceUse{id, ts, now, make(chan error, 1)}
	select {
	case n.uses <- u:
	case <-n.ctx.Done():
		return relay.ErrShuttingDown
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-u.done:
		return err
	case <-n.ctx.Done():
		return relay.ErrShuttingDown
	case <-ctx.Done():
		return ctx.Err()
	}
}

// useNonces answers the calls of Use until the store is closed.
func (s *Store) useNonces() {
	for {
		var group []nonceUse
		select {
		case <-s.ctx.Done():
			return
		case u := <-s.uses:
			group = append(group, u)
		}
		for more := true; more && len(group) < ledger.MaxGroup; {
			select {
			case u := <-s.uses:
				group = append(group, u)
			default:
				more = false
			}
		}
		added, since, err := s.addNonces(group)
		for _, u := range group {
			switch {
			case err != nil:
				u.done <- err
			case u.ts.Before(since):
				u.done <- relay.ErrReadTime
			case !added[u.id]:
				u.done <- relay.ErrReadUsed
			default:
				delete(added, u.id) // the same id again in this group was used
				u.done <- nil
			}
		}
	}
}

// addNonces stores the ids of a group. added has those that are new. Of reads with a ts before since it is not known
// whether they were used: the table is emptied when the server crashes, or another server takes over. The row with the
// empty id shows when the table was last empty.
func (s *Store) addNonces(group []nonceUse) (added map[[16]byte]bool, since time.Time, err error) {
	var ids [][]byte
	latest := group[0].now
	for _, u := range group {
		ids = append(ids, u.id[:])
		if u.now.After(latest) {
			latest = u.now
		}
	}
	slices.SortFunc(ids, slices.Compare[[]byte]) // nodes that add the same ids must do so in the same order
	added = map[[16]byte]bool{}
	err = s.reading(s.ctx, func(ctx context.Context, conn *pgx.Conn) error {
		batch := &pgx.Batch{}
		batch.Queue("BEGIN")
		batch.Queue("SET LOCAL synchronous_commit = off")
		batch.Queue("INSERT INTO nonce (id, forget) VALUES ('', $1) ON CONFLICT DO NOTHING", nanos(latest))
		batch.Queue("SELECT forget FROM nonce WHERE id = ''").QueryRow(func(row pgx.Row) error {
			var n int64
			err := row.Scan(&n)
			since = instant(n)
			return err
		})
		batch.Queue("INSERT INTO nonce (id, forget) SELECT id, $2 FROM unnest($1::bytea[]) k (id) "+
			"ON CONFLICT DO NOTHING RETURNING id", ids, nanos(latest.Add(nonceLifetime))).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var id []byte
				if err := rows.Scan(&id); err != nil {
					return err
				}
				added[[16]byte(id)] = true
			}
			return nil
		})
		batch.Queue("COMMIT")
		return conn.SendBatch(ctx, batch).Close()
	})
	return added, since, err
}

// Siblings returns what connects this node to the others. Only one relay may use it.
func (s *Store) Siblings() relay.Siblings {
	node := make([]byte, 16)
	rand.Read(node) // never fails (crypto/rand)
	return &siblings{Store: s, node: node, seen: map[string]int64{}}
}

// siblings exchanges reports over the table report. Each node numbers its own rows and commits them one by one. So a
// node sees the rows of another node in the order of their numbers.
type siblings struct {
	*Store
	node    []byte
	n       int64            // number of this node's last report
	seen    map[string]int64 // number of the last report read from each other node
	started bool
}

// reportLifetime is how long a report is kept. A node that has not read it by then has missed it.
const reportLifetime = 10 * time.Second

// Exchange implements relay.Siblings.
func (s *siblings) Exchange(ctx context.Context, mine relay.Report) (others relay.Report, err error) {
	body, err := json.Marshal(mine)
	if err != nil {
		return relay.Report{}, err
	}
	var nodes [][]byte
	var numbers []int64
	for node, n := range s.seen {
		nodes, numbers = append(nodes, []byte(node)), append(numbers, n)
	}
	now := s.options.Now()
	var bodies [][]byte
	err = s.reading(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		batch := &pgx.Batch{}
		batch.Queue("BEGIN")
		batch.Queue("SET LOCAL synchronous_commit = off")
		if !isEmpty(mine) {
			s.n++
			batch.Queue("INSERT INTO report (node, n, forget, body) VALUES ($1, $2, $3, $4)", s.node, s.n,
				nanos(now.Add(reportLifetime)), body)
		}
		batch.Queue("DELETE FROM report WHERE node = $1 AND forget <= $2", s.node, nanos(now))
		batch.Queue("SELECT r.node, r.n, r.body FROM report r WHERE r.node <> $1 AND NOT EXISTS (SELECT 1 FROM "+
			"unnest($2::bytea[], $3::bigint[]) k (node, n) WHERE k.node = r.node AND k.n >= r.n) ORDER BY r.node, r.n",
			s.node, nodes, numbers).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var node, body []byte
				var n int64
				if err := rows.Scan(&node, &n, &body); err != nil {
					return err
				}
				s.seen[string(node)] = n
				bodies = append(bodies, body)
			}
			return nil
		})
		batch.Queue("COMMIT")
		return conn.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return relay.Report{}, err
	}
	if !s.started {
		s.started = true // these reports were made before this node
		return relay.Report{}, nil
	}
	for _, body := range bodies {
		var r relay.Report
		if failed := json.Unmarshal(body, &r); failed != nil {
			err = errors.Join(err, failed) // of another version; the others count
			continue
		}
		others.Add(r)
	}
	return others, err
}

func isEmpty(r relay.Report) bool {
	return len(r.Seen)+len(r.Posts)+len(r.Broadcasts)+len(r.Agents) == 0
}

// sweepShared removes what no node needs any more. It needs no durable commit.
func (s *Store) sweepShared(ctx context.Context, now time.Time) error {
	return s.reading(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		batch := &pgx.Batch{}
		batch.Queue("BEGIN")
		batch.Queue("SET LOCAL synchronous_commit = off")
		batch.Queue("DELETE FROM nonce WHERE id = ANY (ARRAY (SELECT id FROM nonce WHERE forget <= $1 AND id <> '' LIMIT $2))",
			nanos(now), 10*expireRows)
		batch.Queue("DELETE FROM report WHERE forget <= $1", nanos(now.Add(-time.Minute))) // of nodes that have ended
		batch.Queue("COMMIT")
		return conn.SendBatch(ctx, batch).Close()
	})
}

// Setting returns a value that all nodes share, nil if there is none.
func (s *Store) Setting(ctx context.Context, name string) (value []byte, err error) {
	err = s.reading(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT value FROM setting WHERE name = $1", name).Scan(&value)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return value, err
}

// Share stores a value for all nodes, unless there is one. It returns the one that is stored.
func (s *Store) Share(ctx context.Context, name string, value []byte) (stored []byte, err error) {
	err = s.reading(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "INSERT INTO setting (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING", name, value)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s.Setting(ctx, name)
}

// Forget removes a value that all nodes share.
func (s *Store) Forget(ctx context.Context, name string) error {
	return s.reading(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "DELETE FROM setting WHERE name = $1", name)
		return err
	})
}

// ReadSettings returns the shared values whose names begin with prefix, from a database that no store has open.
func ReadSettings(ctx context.Context, dsn, prefix string) (values map[string][]byte, err error) {
	config, err := configOf(dsn)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return nil, cleaned(err)
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	rows, err := conn.Query(ctx, "SELECT name, value FROM setting WHERE starts_with(name, $1)", prefix)
	if err != nil {
		return nil, err
	}
	values = map[string][]byte{}
	var name string
	var value []byte
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error {
		values[name] = append([]byte{}, value...)
		return nil
	})
	return values, err
}

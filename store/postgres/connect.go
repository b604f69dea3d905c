package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agora-relay/agora/envelope"
)

// Limits of time.
const (
	connectTime  = 5 * time.Second  // for one attempt to connect, unless the DSN has a connect_timeout
	readTime     = 10 * time.Second // for one read
	reconnectMin = 100 * time.Millisecond
	reconnectMax = 2 * time.Second
)

// session are the settings of each connection. The planner has no good statistics about new tables, so it is told to
// use the indexes, whose order the statements need. If a node cannot be reached any more, the server ends its
// transaction after a few seconds. Otherwise the lock of that node would stop all others.
const session = `SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; ` +
	`SET enable_mergejoin = off; SET enable_sort = off; SET jit = off; SET max_parallel_workers_per_gather = 0; ` +
	`SET idle_in_transaction_session_timeout = '6s'; SET tcp_keepalives_idle = 3; SET tcp_keepalives_interval = 1; ` +
	`SET tcp_keepalives_count = 3; SET tcp_user_timeout = '6s'; SET client_min_messages = 'warning'; ` +
	`SET client_connection_check_interval = '2s'; SET statement_timeout = 0; SET lock_timeout = 0; SET synchronous_commit = on`

// configOf parses a DSN. Without a target_session_attrs in it, only a primary is accepted.
func configOf(dsn string) (*pgxpool.Config, error) {
	c, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("the address of PostgreSQL: %w", cleaned(err))
	}
	if c.ConnConfig.ConnectTimeout == 0 {
		c.ConnConfig.ConnectTimeout = connectTime
	}
	if c.ConnConfig.RuntimeParams["application_name"] == "" {
		c.ConnConfig.RuntimeParams["application_name"] = "agora"
	}
	// A store that is only read from would not notice new events in time, and could store none.
	c.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	c.ConnConfig.DialFunc = (&net.Dialer{Timeout: c.ConnConfig.ConnectTimeout, Control: limitUnanswered,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 3 * time.Second, Interval: time.Second, Count: 3},
	}).DialContext
	c.ConnConfig.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		_, err := conn.Exec(ctx, session).ReadAll()
		return err
	}
	c.MaxConnIdleTime = time.Hour
	return c, nil
}

var password = regexp.MustCompile(`(?i)(password=)('[^']*'|[^\s&]+)|(://[^:@/\s]*:)[^@/\s]+@`)

// Masked returns a DSN without its password.
func Masked(dsn string) string {
	return password.ReplaceAllStringFunc(dsn, func(found string) string {
		if i := strings.Index(found, "://"); i >= 0 {
			return found[:strings.Index(found[i+3:], ":")+i+4] + "***@"
		}
		return found[:len("password=")] + "***"
	})
}

// cleaned returns err with a text that has no password, and is in one line.
func cleaned(err error) error {
	if text := strings.NewReplacer("\n\t", " ", "\n", " ").Replace(Masked(err.Error())); text != err.Error() {
		return errors.New(text)
	}
	return err
}

// closeConn closes a connection that is of no use any more, without waiting for the server for long.
func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // if it fails, the server notices the end itself
}

// backoff returns how long to wait before the next attempt to connect. failures is how many attempts have failed. The
// time is random, so that the nodes do not all come at once after a failover.
func backoff(failures int) time.Duration {
	most := min(reconnectMin<<min(failures, 10), reconnectMax)
	return most/2 + rand.N(most/2)
}

// wait waits for d. It returns false if the store is closed before.
func (s *Store) wait(d time.Duration) bool {
	select {
	case <-s.ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Errors of writes and reads.
var (
	errUnreachable = envelope.NotStored("the relay's database cannot be reached at the moment; nothing was stored, "+
		"try again in a moment", 2*time.Second)
	errNoAnswer = &envelope.Error{Code: envelope.CodeUnavailable, RetryAfter: 2 * time.Second,
		Message: "the relay's database cannot be reached at the moment; try again in a moment"}
	errUnconfirmed = &envelope.Error{Code: envelope.CodeUnavailable, RetryAfter: 5 * time.Second,
		Message: "the relay's database waits for its standbys, so it is not known which messages are durable; try again in " +
			"a moment"}
	errRefused = envelope.NotStored("the relay's database refuses to store; nothing was stored, try again in a moment",
		5*time.Second)
	errStuck = envelope.NotStored("the relay's database waits for its standbys; nothing was stored, try again in a moment",
		5*time.Second)
	errUnknown = &envelope.Error{Code: envelope.CodeUnavailable, RetryAfter: 2 * time.Second,
		Message: "the connection to the relay's database was lost during the commit, so it is not known whether this was " +
			"stored; post the same message again, it is stored only once"}
	errLate = &envelope.Error{Code: envelope.CodeUnavailable, RetryAfter: 5 * time.Second,
		Message: "the relay's database waits for its standbys, so it is not known yet whether this is stored; post the " +
			"same message again, it is stored only once"}
)

// outage is the answer for callers while nothing can be stored.
type outage struct{ refusal *envelope.Error }

// isLost reports whether err means that the connection, or the server behind it, is gone.
func isLost(err error) bool {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		// FATAL and PANIC end the session. 25006 is a server that has become a standby.
		return e.Severity == "FATAL" || e.Severity == "PANIC" || e.Code == "25006"
	}
	return err != nil
}

// isDataError reports whether err was caused by the data of a statement. Such an error says nothing about the server.
func isDataError(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || isLost(err) {
		return false
	}
	switch e.Code[:2] {
	case "21", "22", "23", "42", "54": // cardinality, data, constraints, syntax, limits
		return true
	}
	return false
}

// connectWriter opens a connection whose warnings and notices go to warn.
func (s *Store) connectWriter(ctx context.Context, warn func(*pgconn.Notice)) (*pgx.Conn, error) {
	config := s.config.Copy()
	config.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		_, err := conn.Exec(ctx, session+"; SET plan_cache_mode = force_generic_plan").ReadAll() // planning costs as much
		return err
	}
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { warn(n) }
	return pgx.ConnectConfig(ctx, config)
}

// repeated logs a failure that repeats, at most once in logEvery.
type repeated struct{ loggedAt atomic.Int64 } // Unix nanoseconds

const logEvery = 10 * time.Second

func (r *repeated) report(log *slog.Logger, message string, err error) {
	now, loggedAt := time.Now().UnixNano(), r.loggedAt.Load()
	if now-loggedAt >= int64(logEvery) && r.loggedAt.CompareAndSwap(loggedAt, now) {
		log.Error(message, "err", cleaned(err))
	}
}

// isBusy reports whether err means that a lock was not available in time.
func isBusy(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == "55P03"
}

// Reasons why the database cannot be used any more.
var (
	errEpoch = errors.New("the database has got a new epoch, because events were lost or it was replaced; " +
		"restart this node")
	errMissing = errors.New("acknowledged messages are missing from the database: a server was promoted that did not " +
		"have them all, or the database was restored from a copy; promote the server that has them, or start the nodes with " +
		"--accept-loss, after which readers must start again because their cursors are unknown")
)

// CheckAddress returns an error if dsn cannot be parsed. The error does not contain it.
func CheckAddress(dsn string) error {
	if _, err := configOf(dsn); err != nil {
		return errors.New("want a URL such as postgres://agora@db1,db2/agora, or a connection string of libpq such as " +
			"\"host=db1,db2 dbname=agora user=agora\"")
	}
	return nil
}

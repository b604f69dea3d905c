package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// errPooled is the error of Open if the server is behind a pooler that shares its sessions.
var errPooled = errors.New("the connection goes through a pooler, such as PgBouncer with pool_mode = transaction, which " +
	"gives each transaction another session of PostgreSQL; locks, notifications and settings of a session are lost so; " +
	"set pool_mode = session for this database, or connect to the PostgreSQL servers without the pooler")

// checkSession returns errPooled if a connection does not keep its session of the server.
//
// The server tells a client the process of its session. A pooler tells something else, and then checkSession finds out
// whether it shares sessions: it keeps as many transactions open as the node has connections. If the pooler shares
// sessions, one of them gets the session of conn, or conn gets another one.
func (s *Store) checkSession(ctx context.Context, conn *pgx.Conn) error {
	own, err := backendOf(ctx, conn)
	if err != nil || own == conn.PgConn().PID() {
		return err
	}
	for range s.options.Conns + 2 { // the node has Conns connections and three more; conn is one of these
		other, err := pgx.ConnectConfig(ctx, s.config.Copy())
		if err != nil {
			return err
		}
		defer closeConn(other)
		if _, err := other.Exec(ctx, "BEGIN"); err != nil {
			return err
		}
		theirs, err := backendOf(ctx, other)
		if err != nil {
			return err
		}
		again, err := backendOf(ctx, conn)
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			return fmt.Errorf("%w (a statement waits for a session)", errPooled)
		case err != nil:
			return err
		case theirs == own || again != own:
			return errPooled
		}
	}
	return nil
}

// backendOf returns the process of the server that has run a statement of a connection.
func backendOf(ctx context.Context, conn *pgx.Conn) (pid uint32, err error) {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	err = conn.QueryRow(ctx, "SELECT pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&pid)
	return pid, err
}

package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"sync"

	"github.com/agora-relay/agora/store/sqlite/schema"
)

// preparedConn is a connection that prepares each SQL text once. Extensions use constant texts, so there are few.
// Parsing a text costs more than running most statements.
type preparedConn struct {
	*sql.Conn
	mu    sync.Mutex // guards stmts; an update that took too long may still read while the next one runs
	stmts map[string]*preparedStmt
}

type preparedStmt struct {
	*sql.Stmt
	busy bool // it is in use, for example because its rows are being read
}

// maxPrepared is how many statements a connection keeps. A text beyond that is parsed each time it is used.
const maxPrepared = 512

// The statements around a view. They are not for extensions.
const (
	beginView = "BEGIN"
	endView   = "ROLLBACK"
)

// allowed returns an error if an extension must not run a text. A text that was prepared for an extension was checked
// before.
func (c *preparedConn) allowed(text string) error {
	c.mu.Lock()
	checked := c.stmts[text] != nil && text != beginView && text != endView
	c.mu.Unlock()
	if checked {
		return nil
	}
	return schema.Allowed(text)
}

func newPreparedConn(conn *sql.Conn) *preparedConn {
	return &preparedConn{Conn: conn, stmts: map[string]*preparedStmt{}}
}

// prepare returns a statement that nothing else uses until done is called.
func (c *preparedConn) prepare(ctx context.Context, text string) (stmt *sql.Stmt, done func() error, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := c.stmts[text]
	if kept == nil || kept.busy {
		made, err := c.PrepareContext(ctx, text)
		if err != nil {
			return nil, nil, err
		}
		if kept != nil || len(c.stmts) >= maxPrepared {
			return made, made.Close, nil
		}
		kept = &preparedStmt{Stmt: made}
		c.stmts[text] = kept
	}
	kept.busy = true
	return kept.Stmt, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		kept.busy = false
		return nil
	}, nil
}

func (c *preparedConn) exec(ctx context.Context, text string, args ...any) (result sql.Result, err error) {
	stmt, done, err := c.prepare(ctx, text)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	return stmt.ExecContext(ctx, args...)
}

// query returns the rows of a SELECT. Call done after the rows are closed.
func (c *preparedConn) query(
	ctx context.Context, text string, args ...any,
) (rows *sql.Rows, done func() error, err error) {
	stmt, done, err := c.prepare(ctx, text)
	if err != nil {
		return nil, nil, err
	}
	if rows, err = stmt.QueryContext(ctx, args...); err != nil {
		return nil, nil, errors.Join(err, done())
	}
	return rows, done, nil
}

// closeStatements closes the statements: SQLite keeps a connection open while one of its statements is.
func (c *preparedConn) closeStatements() (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, stmt := range c.stmts {
		err = errors.Join(err, stmt.Close())
	}
	clear(c.stmts)
	return err
}

package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/postgres"
	"github.com/agora-relay/agora/store/postgres/schema"
)

// place is a schema of PostgreSQL. A test uses it for one path. Then it is emptied for the next test, because to create
// the tables takes longer than most tests.
type place struct {
	dsn   string
	kind  string // of its tables, see kindOf
	clean string // statements that give the tables the rows that they had when they were new
}

// places are the schemas of this process.
var places struct {
	sync.Mutex
	used map[string]*place   // by the path
	idle map[string][]*place // by the kind
	made int
}

// kindOf returns a text that is the same for extensions with the same tables.
func kindOf(extensions []relay.Extension) string {
	var b strings.Builder
	for _, x := range extensions {
		fmt.Fprintf(&b, "%s %q\n", x.Name, x.Migrations)
	}
	return b.String()
}

// placeOf returns the schema for a path, until the test ends that asks first.
func placeOf(t testing.TB, path string, extensions []relay.Extension) (*place, error) {
	t.Helper()
	kind := kindOf(extensions)
	places.Lock()
	defer places.Unlock()
	if p := places.used[path]; p != nil {
		return p, nil
	}
	if places.used == nil {
		places.used, places.idle = map[string]*place{}, map[string][]*place{}
	}
	var p *place
	if all := places.idle[kind]; len(all) > 0 {
		p, places.idle[kind] = all[len(all)-1], all[:len(all)-1]
	} else {
		var err error
		places.made++
		name := fmt.Sprintf("process %d, schema %d", os.Getpid(), places.made)
		if p, err = newPlace(t.Context(), name, extensions); err != nil {
			return nil, err
		}
		p.kind = kind
	}
	places.used[path] = p
	t.Cleanup(func() { p.leave(t, path) })
	return p, nil
}

// leave empties the schema for the next test. After a failure, something may still use it, so no other test does.
func (p *place) leave(t testing.TB, path string) {
	var err error
	if !t.Failed() {
		err = withConn(context.Background(), p.dsn, func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, p.clean)
			return err
		})
	}
	places.Lock()
	defer places.Unlock()
	delete(places.used, path)
	switch {
	case err != nil:
		t.Errorf("emptying the schema; is the store still open? %v", err)
	case !t.Failed():
		places.idle[p.kind] = append(places.idle[p.kind], p)
	}
}

// newPlace creates a schema with the tables of the store and of these extensions.
func newPlace(ctx context.Context, name string, extensions []relay.Extension) (*place, error) {
	dsn, err := Schema(ctx, name)
	if err != nil {
		return nil, err
	}
	p := &place{dsn: dsn}
	return p, withConn(ctx, dsn, func(ctx context.Context, conn *pgx.Conn) error {
		if err := schema.Current.Migrate(ctx, conn, extensions, postgres.DefaultPartition); err != nil {
			return err
		}
		p.clean, err = cleaning(ctx, conn)
		return err
	})
}

// cleaning returns statements that give all tables the rows that they have now.
func cleaning(ctx context.Context, conn *pgx.Conn) (string, error) {
	rows, err := conn.Query(ctx, "SELECT relname::text FROM pg_class WHERE relnamespace = current_schema()::regnamespace "+
		"AND relkind IN ('r', 'p') AND NOT relispartition")
	if err != nil {
		return "", err
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("SET lock_timeout = '10s'; SET session_replication_role = replica;") // foreign keys are not checked
	for _, table := range tables {
		fmt.Fprintf(&b, "DELETE FROM %s;", table)
		var all *string
		if err := conn.QueryRow(ctx, "SELECT quote_literal(json_agg(x)) FROM "+table+" x").Scan(&all); err != nil {
			return "", err
		}
		if all != nil {
			fmt.Fprintf(&b, "INSERT INTO %s SELECT * FROM json_populate_recordset(NULL::%[1]s, %s);", table, *all)
		}
	}
	return b.String(), nil
}

// Schema returns the address of a separate schema for each place in the server of ci/postgres. It creates the schema if it
// does not exist.
func Schema(ctx context.Context, place string) (dsn string, err error) {
	folder := os.Getenv("AGORA_POSTGRES")
	if folder == "" {
		return "", errors.New("AGORA_POSTGRES is not set; run the tests with ci/postgres")
	}
	server := "host=" + folder + " user=agora dbname=postgres"
	hash := sha256.Sum256([]byte(place))
	name := "t" + hex.EncodeToString(hash[:8])
	err = withConn(ctx, server, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+name)
		return err
	})
	return server + " search_path=" + name, err
}

// withConn calls f with a connection. A connection of a bubble cannot be used in another one, so none is kept.
func withConn(ctx context.Context, dsn string, f func(context.Context, *pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	return errors.Join(f(ctx, conn), conn.Close(ctx))
}

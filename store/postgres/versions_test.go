//go:build postgres

package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/postgres/schema"
)

// version returns a program that knows more schemas than this one, with these rules for which versions may run together
// with them.
func version(t *testing.T, rules ...int) schema.Program {
	t.Helper()
	files := fstest.MapFS{}
	names, err := fs.Glob(schema.Files, "*.sql")
	must(t, err)
	for _, name := range names {
		text, err := schema.Files.ReadFile(name)
		must(t, err)
		files[name] = &fstest.MapFile{Data: text}
	}
	for i := range rules {
		n := len(names) + i + 1
		files[fmt.Sprintf("%04d_next.sql", n)] = &fstest.MapFile{Data: fmt.Appendf(nil, "ALTER TABLE agent ADD COLUMN x%d BIGINT", n)}
	}
	return schema.Program{Files: files, Together: append(append([]int{}, schema.Current.Together...), rules...)}
}

// connection opens a connection to the schema of a place, for a node of another version.
func connection(t *testing.T, place string) *pgx.Conn {
	t.Helper()
	dsn, err := dsnOf(t.Context(), place)
	must(t, err)
	conn, err := pgx.Connect(t.Context(), dsn)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // the test may have closed it
	return conn
}

// TestVersionsTogether starts programs of several versions while a node of this version runs. A newer one may change the
// tables if this version can work with them, and otherwise not before the node has ended.
func TestVersionsTogether(t *testing.T) {
	place, now := t.TempDir(), len(schema.Current.Together)
	one := relay.Extension{Name: "one", Migrations: []string{"CREATE TABLE one_a (a BIGINT)"}}
	two := relay.Extension{Name: "one", Migrations: append(one.Migrations, "CREATE TABLE one_b (b BIGINT)")}
	other := relay.Extension{Name: "other", Migrations: []string{"CREATE TABLE other_a (a BIGINT)"}}
	s := open(t, place, Options{Extensions: []relay.Extension{one}})
	space, conn := schema.Space(s.schema), connection(t, place)
	migrate := func(what string, p schema.Program, want error, extensions ...relay.Extension) {
		t.Helper()
		if err := p.Migrate(t.Context(), conn, extensions, 1); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	migrate("tables that this version cannot work with", version(t, now+1), schema.ErrOlderNodes)
	migrate("new tables of an extension", schema.Current, schema.ErrOlderNodes, two)
	migrate("a new extension", schema.Current, nil, other)
	migrate("tables that this version can work with", version(t, now), nil)
	migrate("this version starts again", schema.Current, nil, one)
	_, err := s.Append(t.Context(), request(t, key(1), "t"))
	must(t, err)
	must(t, s.Close())
	s = open(t, place, Options{Extensions: []relay.Extension{one}}) // registers, although the tables are newer
	migrate("a later change while it runs", version(t, now, now+1), schema.ErrOlderNodes)
	must(t, s.Close())

	unknown := connection(t, place)
	_, err = unknown.Exec(t.Context(), "SELECT pg_advisory_lock_shared($1, $2)", int32(schema.LockNodes), space)
	must(t, err)
	migrate("a node of unknown version runs", version(t, now, now), schema.ErrOlderNodes)
	must(t, unknown.Close(t.Context()))
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) { // the server releases the lock
		err := version(t, now, now+2).Migrate(t.Context(), conn, []relay.Extension{two}, 1)
		if err == nil {
			break
		}
		if !errors.Is(err, schema.ErrOlderNodes) || time.Now().After(deadline) {
			t.Fatalf("after the old nodes have ended: %v", err)
		}
	}
	migrate("an old program", schema.Current, schema.ErrNewerSchema)
	migrate("a program that knows fewer tables of an extension", version(t, now, now+2), schema.ErrNewerSchema, one)
	if err := schema.Current.Join(t.Context(), conn, nil, space); !errors.Is(err, schema.ErrNewerSchema) {
		t.Errorf("an old node joins: %v", err)
	}
}

// TestNewerSchemaIsNoticed lets a newer version change the tables while a node is cut off. When the node comes back, it
// must not use them.
func TestNewerSchemaIsNoticed(t *testing.T) {
	place, now := t.TempDir(), len(schema.Current.Together)
	s := open(t, place, Options{})
	ended := make(chan error, 1)
	go func() { ended <- s.Watch(t.Context(), relay.Cursor{}, nil, func([]relay.Posted) {}) }()
	s.lease.mu.Lock() // the node's goroutine waits for this lock, so the node cannot come back yet
	conn := connection(t, place)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		terminate(t, place, "%")
		if err := version(t, now+1).Migrate(t.Context(), conn, nil, 1); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the locks of the node are held")
		}
	}
	s.lease.mu.Unlock()
	if err := <-ended; !errors.Is(err, schema.ErrNewerSchema) {
		t.Errorf("watch: %v", err)
	}
}

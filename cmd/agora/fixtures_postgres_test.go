//go:build postgres

package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/datafolder"
	"github.com/agora-relay/agora/cmd/agora/internal/serve"
	"github.com/agora-relay/agora/store/postgres"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/transfer"
)

// restored returns the address of a new database with the content of a dump.
func (x fixture) restored(t *testing.T) string {
	t.Helper()
	folder := os.Getenv("AGORA_POSTGRES")
	if folder == "" {
		t.Fatal("AGORA_POSTGRES is not set; use make postgres")
	}
	name := "fixture_" + strings.NewReplacer(".", "_").Replace(filepath.Base(x.folder))
	server := "host=" + folder + " user=agora dbname="
	run := func(database, statements string) {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), server+database)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		if _, err := conn.PgConn().Exec(t.Context(), statements).ReadAll(); err != nil {
			t.Fatal(err)
		}
	}
	run("postgres", "DROP DATABASE IF EXISTS "+name)
	run("postgres", "CREATE DATABASE "+name)
	run(name, string(x.read(t, "postgres.sql")))
	return server + name
}

// postgres opens the database at this address, with a clock that shows when the fixture was made.
func (x fixture) postgres(t *testing.T, address string) *postgres.Store {
	t.Helper()
	store, err := postgres.Open(t.Context(), address, postgres.Options{Policy: x.options().Policy, Extensions: serve.Extensions(),
		AcceptAsync: true, KeepPolicy: true, Now: func() time.Time { return x.At }, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// TestFixturePostgres starts a relay of this version with the database of a node of another version. It answers as the
// other version did, and unfinished work continues.
func TestFixturePostgres(t *testing.T) {
	eachFixture(t, func(t *testing.T, x fixture) {
		store := x.postgres(t, x.restored(t))
		data, client := x.unpack(t, "backup"), x.unpack(t, "client")
		secret, err := serve.ReadKeySecret(filepath.Join(client, "key-secret"))
		if err == nil {
			err = (serve.SharedKeys{Store: store, Folder: data, Secret: secret}).Sync(t.Context(), true)
		}
		if err != nil {
			t.Errorf("the shared keys: %v", err)
		}
		url, stop := x.serve(t, data, store)
		x.answers(t, client, url)
		x.finish(t, client, url)
		stop()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestFixtureMigrate moves a backup of another version to PostgreSQL, and a database of that version's nodes to SQLite.
func TestFixtureMigrate(t *testing.T) {
	eachFixture(t, func(t *testing.T, x fixture) {
		server, backup, moved := storeURL(t), x.unpack(t, "backup"), filepath.Join(t.TempDir(), "moved")
		for _, places := range [][2]string{{backup, server}, {x.restored(t), moved}} {
			code, output := runAgora(t.Context(), "migrate", "--accept-async", "--from", places[0], "--to", places[1])
			if code != cli.ExitOK || !strings.Contains(output, "the copy has the same rows") {
				t.Errorf("%d: %s", code, output)
			}
		}
		clean(t, moved, x.At)
		there := x.postgres(t, server)
		back, err := sqlite.Open(t.Context(), filepath.Join(moved, datafolder.Database), x.options())
		if err != nil {
			t.Fatal(err)
		}
		var all []transfer.Tallies
		for _, store := range []transfer.Engine{there, back} {
			found := transfer.Tallies{}
			if _, err := store.Export(t.Context(), found.Count(nil)); err != nil {
				t.Error(err)
			}
			all = append(all, found)
		}
		for _, table := range []string{transfer.Events, transfer.Threads, transfer.Manifests, "hub_message", "jobs_record"} {
			if all[0][table].Rows == 0 || !reflect.DeepEqual(all[0][table], all[1][table]) {
				t.Errorf("the table %s differs: %d and %d rows", table, all[0][table].Rows, all[1][table].Rows)
			}
		}
		if err := there.Close(); err != nil {
			t.Error(err)
		}
		if err := back.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestTextsOnPostgres checks the texts and the URLs of all gateways on PostgreSQL (G-35, G-38).
func TestTextsOnPostgres(t *testing.T) {
	eachFixture(t, func(t *testing.T, x fixture) {
		store := x.postgres(t, x.restored(t))
		x.checkTexts(t, x.unpack(t, "backup"), store)
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestMigrateNamesRow checks that agora migrate names a row that PostgreSQL cannot store, and moves it after a repair.
func TestMigrateNamesRow(t *testing.T) {
	eachFixture(t, func(t *testing.T, x fixture) {
		data, server := x.unpack(t, "backup"), storeURL(t)
		spoilLabel(t, x, data)
		migrate := func() (int, string) {
			return runAgora(t.Context(), "migrate", "--accept-async", "--from", data, "--to", server)
		}
		if code, output := migrate(); code != cli.ExitFailed || !strings.Contains(output, "channel_inbox n=1: the text in the column label") ||
			!strings.Contains(output, "agora check --repair") {
			t.Errorf("%d: %s", code, output)
		}
		if code, output := runAgora(t.Context(), "check", "--data", data, "--repair"); code != cli.ExitOK {
			t.Errorf("%d: %s", code, output)
		}
		if code, output := migrate(); code != cli.ExitOK {
			t.Errorf("%d: %s", code, output)
		}
	})
}

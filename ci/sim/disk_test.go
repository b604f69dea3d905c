package sim

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	_ "modernc.org/sqlite" // registers the driver
)

// table is a table in a database on a disk.
type table struct {
	*testing.T
	db   *sql.DB
	disk *Disk
}

func newTable(t *testing.T, synchronous string, seed uint64) table {
	folder := t.TempDir()
	d, err := NewDisk(folder, rand.New(rand.NewPCG(seed, 0)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	tb := table{t, openTable(t, folder, synchronous), d}
	if _, err := tb.db.Exec("CREATE TABLE x (n)"); err != nil {
		t.Fatal(err)
	}
	return tb
}

func openTable(t *testing.T, folder, synchronous string) *sql.DB {
	db, err := sql.Open("sqlite", filepath.Join(folder, database)+"?_pragma=journal_mode(WAL)&_pragma=synchronous("+
		synchronous+")&_pragma=wal_autocheckpoint(3)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // fails if the disk has died
	db.SetMaxOpenConns(1)
	return db
}

// fill adds rows until one fails, at most max. It returns how many were added.
func (t table) fill(max int) (n int, err error) {
	for n < max {
		if _, err := t.db.Exec("INSERT INTO x VALUES (?)", n); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// left returns how many rows a restarted machine finds. It fails if the database is damaged.
func (t table) left() (n int, err error) {
	t.Helper()
	if err := t.db.Close(); err != nil && !t.disk.dead() {
		t.Fatal(err)
	}
	folder := t.disk.folder
	if t.disk.dead() {
		folder = filepath.Join(t.TempDir(), "restored")
		if err := t.disk.Restore(folder); err != nil {
			t.Fatal(err)
		}
	}
	err = openTable(t.T, folder, "FULL").QueryRow("SELECT count(*) FROM x").Scan(&n)
	return n, err
}

// TestFaults lets each fault happen to a database whose commits are synced. No committed row may be lost.
func TestFaults(t *testing.T) {
	for fault := range faults {
		for seed := range uint64(20) {
			t.Run(fmt.Sprint(fault, seed), func(t *testing.T) {
				tb := newTable(t, "FULL", seed)
				tb.disk.Plan(int(seed)*2, fault)
				added, err := tb.fill(200)
				if tb.disk.Occurred() != 1 {
					t.Fatalf("%d faults happened", tb.disk.Occurred())
				}
				// A fault of a checkpoint is hidden by SQLite: the rows stay in the log.
				if died := fault == Kill || fault == PowerLoss; tb.disk.dead() != died || died && err == nil {
					t.Errorf("dead: %v, error: %v", tb.disk.dead(), err)
				}
				if n, err := tb.left(); err != nil || n < added || n > added+1 {
					t.Errorf("%d rows were added, %d are left, %v", added, n, err)
				}
			})
		}
	}
}

// TestLosses checks that a power loss loses what was not synced.
func TestLosses(t *testing.T) {
	lost := 0
	for seed := range uint64(20) {
		tb := newTable(t, "FULL", seed)
		if _, err := tb.db.Exec("PRAGMA synchronous = OFF"); err != nil {
			t.Fatal(err)
		}
		tb.disk.Plan(40, PowerLoss)
		added, _ := tb.fill(200)
		if n, err := tb.left(); err != nil || n < added {
			lost++
		}
	}
	if lost == 0 {
		t.Error("nothing was lost")
	}
}

// TestRoom checks that writes fail while the disk is full.
func TestRoom(t *testing.T) {
	tb := newTable(t, "FULL", 1)
	if err := tb.disk.SetRoom(40_000); err != nil {
		t.Fatal(err)
	}
	added, err := tb.fill(100_000)
	if err == nil || added == 0 {
		t.Fatalf("%d rows were added: %v", added, err)
	}
	if err := tb.disk.SetRoom(-1); err != nil {
		t.Fatal(err)
	}
	if _, err := tb.fill(10); err != nil {
		t.Fatal(err)
	}
	if n, err := tb.left(); err != nil || n != added+10 {
		t.Errorf("%d rows, want %d, %v", n, added+10, err)
	}
}

// TestOtherFolders checks that files in other folders do not go through a disk.
func TestOtherFolders(t *testing.T) {
	tb := newTable(t, "FULL", 1)
	tb.disk.Plan(0, Kill)
	other := table{t, openTable(t, t.TempDir(), "FULL"), tb.disk}
	if _, err := other.db.Exec("CREATE TABLE x (n)"); err != nil {
		t.Fatal(err)
	}
	if n, err := other.fill(10); n != 10 {
		t.Error(err)
	}
}

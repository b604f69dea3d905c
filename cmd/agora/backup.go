package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/store/sqlite"
)

// dataFolder is the flag of the verbs that read a data folder themselves, whether a relay serves it or not.
type dataFolder struct {
	Data string `default:"./agora-data" placeholder:"FOLDER" help:"The data folder, of a relay that runs or of none (default: ${default})."`
}

func (d dataFolder) Validate() error {
	if info, err := os.Stat(d.database()); err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("--data: there is no database %s; name the data folder of a relay, or a backup of one", d.database())
	}
	return nil
}

func (d dataFolder) database() string { return filepath.Join(d.Data, databaseName) }

// The files of a data folder.
const (
	databaseName = "agora.db"
	keyName      = "relay.key"
)

type backupCmd struct {
	dataFolder
	Dest string `arg:"" name:"dest" help:"The folder to make; it must be new, or empty."`
}

func (backupCmd) Help() string {
	return "Makes a data folder of its own, with the database as it stands at one moment and the relay's key. The relay goes on meanwhile. " +
		"A backup is there whole or not at all. To restore one, serve it, or move it to where the old data folder was.\n\n" +
		"The key is in it and it is not encrypted: who has a backup can speak for the relay. Who reads with a cursor of the relay " +
		"it was made of is told so (unknown_cursor) and reads everything that is still stored once more.\n\n" +
		"Examples:\n  agora backup backups/monday\n  agora backup --data /var/lib/agora /mnt/backups/$(date +%F)\n" +
		"  agora check --data backups/monday\n  agora serve --data backups/monday"
}

func (c backupCmd) Run(env environment) (err error) {
	began := time.Now()
	dest, err := filepath.Abs(c.Dest)
	if err != nil {
		return err
	}
	if err := newOrEmpty(dest); err != nil {
		return err
	}
	key, err := didkey.Load(filepath.Join(c.Data, keyName))
	if err != nil {
		return err
	}
	parent := filepath.Dir(dest)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return err
	}
	unfinished, err := os.MkdirTemp(parent, "."+filepath.Base(dest)+".unfinished-") // mode 0700
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(unfinished))
		}
	}()
	copied, err := sqlite.Backup(env.ctx, c.database(), filepath.Join(unfinished, databaseName), func(done, total int64) {
		fmt.Fprintf(env.stderr, "agora: copied %s of about %s\n", megabytes(done), megabytes(max(done, total)))
	})
	if err != nil {
		return err
	}
	if err := didkey.Save(filepath.Join(unfinished, keyName), key); err != nil {
		return err
	}
	if err := errors.Join(syncFolder(unfinished), env.ctx.Err()); err != nil {
		return err
	}
	if err := moveInto(unfinished, dest); err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.stdout, "%s: %s up to number %d, %s, in %s\n", printable(c.Dest), count(copied.Events, "event"), copied.Seq,
		megabytes(copied.Bytes), time.Since(began).Round(10*time.Millisecond))
	return err
}

// newOrEmpty refuses a folder that holds something: two backups in one would be none.
func newOrEmpty(dest string) error {
	entries, err := os.ReadDir(dest)
	if err == nil && len(entries) == 0 || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("%s is not empty; a backup goes into a folder of its own, so name one that is not there yet", dest)
	}
	return err
}

// moveInto gives a finished folder its name, durably.
func moveInto(finished, dest string) error {
	// An empty folder of that name makes room; one that has been filled meanwhile stays and is said to be in the way.
	if err := os.Remove(dest); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Rename(finished, dest); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(dest))
}

// syncFolder makes the names in a folder durable. Windows does so by itself and opens no folders.
func syncFolder(path string) (err error) {
	if runtime.GOOS == "windows" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.Sync()
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// count is "1 event" or "2 events".
func count(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

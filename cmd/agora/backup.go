package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/internal/fsync"
	"github.com/agora-relay/agora/store/sqlite"
)

// dataFolder is the flag of the verbs that read a data folder themselves, whether a relay serves it or not.
type dataFolder struct {
	Data string `default:"./agora-data" placeholder:"FOLDER" help:"The data folder. The relay may be running (default: ${default})."`
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
	Dest string `arg:"" name:"dest" help:"The folder to create; it must not exist, or be empty."`
}

func (backupCmd) Help() string {
	return "Creates a data folder with a consistent copy of the database and the relay's key. The relay may go on running. " +
		"A backup is complete or does not exist. To restore it, serve it, or move it to the place of the old data folder.\n\n" +
		"A backup contains the relay's key and is not encrypted: who has it can speak for the relay. After a restore the " +
		"cursors of readers are not valid any more (unknown_cursor); readers start again with the oldest stored event.\n\n" +
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
	if err := errors.Join(fsync.Folder(unfinished), env.ctx.Err()); err != nil {
		return err
	}
	if err := moveInto(unfinished, dest); err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.stdout, "%s: %s up to number %d, %s, in %s\n", printable(c.Dest),
		count(copied.Events, "event"), copied.Seq, megabytes(copied.Bytes), time.Since(began).Round(10*time.Millisecond))
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
	return fsync.Folder(filepath.Dir(dest))
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

// count is "1 event" or "2 events".
func count(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

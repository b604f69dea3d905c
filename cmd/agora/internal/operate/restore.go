package operate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/datafolder"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/internal/fsync"
	"github.com/agora-relay/agora/relay/admin"
)

type RestoreCmd struct {
	Backup  string `arg:"" help:"The folder of the backup. It is not changed."`
	Data    string `default:"./agora-data" placeholder:"FOLDER" help:"The data folder to create (default: ${default})."`
	Replace bool   `help:"If the data folder exists, keep it under another name, and put the backup in its place."`
}

func (RestoreCmd) Help() string {
	return "Checks a backup as agora check does, copies it, checks the copy, and only then puts it in place as a data folder. The " +
		"backup can be used again. A relay that uses the data folder must be stopped first. After a restore the cursors of " +
		"readers are no longer valid (unknown_cursor); readers start again with the oldest stored event.\n\n" +
		"With --replace, the old data folder stays beside the new one under a name that ends in the time. Certificates of " +
		"--domain are not in a backup; the relay gets them again. If root restores, the files belong to the owner of the old " +
		"data folder. If the command is killed when it has just moved the old folder away, repeat it before you start the " +
		"relay.\n\n" +
		"Examples:\n  agora restore backups/monday\n  agora restore backups/monday --data /var/lib/agora --replace"
}

func (c RestoreCmd) Validate() error { return dataFolder{c.Backup}.Validate() }

func (c RestoreCmd) Run(env cli.Environment) (err error) {
	data, err := cli.RealPath(c.Data)
	if err != nil {
		return err
	}
	backup, err := cli.RealPath(c.Backup)
	if err != nil {
		return err
	}
	if within, err := filepath.Rel(backup, data); err == nil && filepath.IsLocal(within) {
		return errors.New("the data folder is the backup itself or in it; name another one")
	}
	exists, err := c.checkTarget(data)
	if err != nil {
		return err
	}
	release, err := lockFolder(data, exists)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	if _, err := didkey.Load(filepath.Join(backup, datafolder.Key)); err != nil {
		return fmt.Errorf("the backup has no usable key of the relay: %w", err)
	}
	if err := c.check(env, c.Backup); err != nil {
		return err
	}
	parent := filepath.Dir(data)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return err
	}
	unfinished, err := os.MkdirTemp(parent, "."+filepath.Base(data)+".restore-")
	if err != nil {
		return err
	}
	if _, err := datafolder.Copy(env.Ctx, backup, unfinished, nil); err != nil {
		return errors.Join(err, os.RemoveAll(unfinished))
	}
	if err := c.check(env, unfinished); err != nil {
		return errors.Join(fmt.Errorf("the copy is not like the backup: %w", err), os.RemoveAll(unfinished))
	}
	if err := cli.GiveToOwner(unfinished, data); err != nil {
		return errors.Join(err, os.RemoveAll(unfinished))
	}
	old, err := c.putInPlace(unfinished, data, exists)
	if err != nil {
		return errors.Join(err, os.RemoveAll(unfinished))
	}
	text := fmt.Sprintf("%s: restored from %s", cli.Printable(c.Data), cli.Printable(c.Backup))
	if old != "" {
		text += "; the folder before is now " + cli.Printable(old)
	}
	_, err = fmt.Fprintln(env.Stdout, text)
	return err
}

// checkTarget returns whether the data folder exists and has files. It returns an error if the folder must not be
// replaced, for example because it has other things than the data of a relay.
func (c RestoreCmd) checkTarget(data string) (exists bool, err error) {
	entries, err := os.ReadDir(data)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	switch {
	case err != nil:
		return false, err
	case len(entries) > 0 && !c.Replace:
		return true, fmt.Errorf("%s is not empty; name a folder that does not exist, or give --replace, which keeps the old "+
			"folder under another name", c.Data)
	case cli.IsMountPoint(data):
		return true, fmt.Errorf("a disk is mounted at %s, so this folder cannot be replaced; name a folder on that disk, and let "+
			"the relay use it", c.Data)
	case len(entries) == 0:
		return false, nil
	}
	has := func(name string) bool {
		return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == name })
	}
	switch {
	case has(datafolder.Mark):
		err = fmt.Errorf("the messages of %s are in PostgreSQL (--store), and a backup has those of a single node; restore "+
			"PostgreSQL with its own tools, or name another folder", c.Data)
	case !has(datafolder.Database) && !has(datafolder.Key):
		err = fmt.Errorf("%s is not empty, and is not the data folder of a relay; name another one", c.Data)
	}
	return true, err
}

// lockFolder makes sure that no relay uses the data folder.
func lockFolder(data string, exists bool) (release func() error, err error) {
	if !exists {
		return func() error { return nil }, nil
	}
	lock := flock.New(filepath.Join(data, datafolder.Database+".lock"))
	locked, err := lock.TryLock()
	if err == nil && !locked {
		err = fmt.Errorf("a relay uses %s; stop it first", data)
	}
	return lock.Unlock, err
}

// check checks a folder as agora check does. It prints what it finds.
func (c RestoreCmd) check(env cli.Environment, folder string) error {
	quiet := env
	quiet.Stdout = env.Stderr
	err := CheckCmd{dataFolder: dataFolder{folder}}.Run(quiet)
	if errors.Is(err, cli.ErrReported) {
		return fmt.Errorf("%s has the findings above, so it is not put in place; use an older backup", folder)
	}
	return err
}

// putInPlace renames the finished folder to data. old is the new name of the folder that was there before.
func (c RestoreCmd) putInPlace(finished, data string, exists bool) (old string, err error) {
	if exists {
		if old, err = admin.NewPath(data+".before-", time.Now()); err != nil {
			return "", err
		}
		if err := os.Rename(data, old); err != nil {
			return "", fmt.Errorf("the old data folder stays in place: %w", err)
		}
	}
	err = datafolder.MoveInto(finished, data)
	if err != nil && exists {
		return "", errors.Join(err, os.Rename(old, data))
	}
	return old, errors.Join(err, fsync.Folder(filepath.Dir(data)))
}

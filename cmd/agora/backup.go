package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/internal/fsync"
	"github.com/agora-relay/agora/relay/admin"
	"github.com/agora-relay/agora/store/sqlite"
)

// dataFolder is the flag of the commands that read a data folder directly, whether a relay uses it at the moment or
// not.
type dataFolder struct {
	Data string `default:"./agora-data" placeholder:"FOLDER" help:"The data folder. The relay may be running (default: ${default})."`
}

func (d dataFolder) Validate() error {
	if info, err := os.Stat(d.database()); err != nil || !info.Mode().IsRegular() {
		if _, err := os.Stat(filepath.Join(d.Data, markName)); err == nil {
			return fmt.Errorf("--data: the messages of %s are in PostgreSQL (--store), and this command is for the database of a "+
				"single node; copy PostgreSQL with pg_dump or pgBackRest, and the keys with agora key fetch or cp", d.Data)
		}
		return fmt.Errorf("--data: there is no database %s; name the data folder of a relay, or a backup", d.database())
	}
	return nil
}

func (d dataFolder) database() string { return filepath.Join(d.Data, databaseName) }

// The files of a data folder.
const (
	databaseName = "agora.db"
	keyName      = "relay.key"

	markName = "postgres.mark" // exists only if the database is PostgreSQL

	// Files that exist only after a gateway was on.
	gatewayKeyName  = "gateway.key"
	operatorKeyName = "operator.key"

	// certificatesName is a folder of certificates that the relay has got with ACME. A backup does not have it, because
	// the relay gets them again.
	certificatesName = "certificates"
)

type backupCmd struct {
	dataFolder
	Keep int    `placeholder:"N" help:"Make the backup in a new folder within DEST, which is named after the time, and remove all but the newest N there."`
	Dest string `arg:"" name:"dest" help:"The folder to create. If it exists, it must be empty, except with --keep."`
}

func (backupCmd) Help() string {
	return "Creates a data folder with a consistent copy of the database and with the relay's keys. The relay may keep " +
		"running. The new folder appears only when the backup is complete. agora restore puts a backup in place.\n\n" +
		"A backup contains the relay's keys and is not encrypted: anyone who has the backup can act as the relay. After a " +
		"restore the cursors of readers are no longer valid (unknown_cursor). Readers start again with the oldest stored " +
		"event.\n\n" +
		"Examples:\n  agora backup backups/monday\n  agora backup --data /var/lib/agora /mnt/backups/$(date +%F)\n" +
		"  agora backup --keep 7 /mnt/backups\n" +
		"  agora check --data backups/monday\n  agora restore backups/monday"
}

func (c backupCmd) Validate() error {
	if c.Keep < 0 {
		return errors.New("--keep must be at least 1")
	}
	return c.dataFolder.Validate()
}

func (c backupCmd) Run(env cli.Environment) (err error) {
	began := time.Now()
	shown := c.Dest
	if c.Keep > 0 {
		if shown, err = admin.NewBackup(c.Dest, began); err != nil {
			return err
		}
	}
	copied, err := makeBackup(env.Ctx, c.Data, shown, func(done, total int64) {
		fmt.Fprintf(env.Stderr, "agora: copied %s of about %s\n", megabytes(done), megabytes(max(done, total)))
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.Stdout, "%s: %s up to number %d, %s, in %s\n", cli.Printable(shown),
		cli.Count(copied.Events, "event"), copied.Seq, megabytes(copied.Bytes), time.Since(began).Round(10*time.Millisecond))
	if err != nil || c.Keep == 0 {
		return err
	}
	removed, err := admin.PruneBackups(c.Dest, filepath.Base(shown), c.Keep)
	for _, name := range removed {
		env.Say("removed the older backup %s", filepath.Join(c.Dest, name))
	}
	return err
}

// makeBackup copies a data folder, which a relay may use meanwhile, into the new folder to. progress may be nil. On an
// error it leaves nothing behind.
func makeBackup(ctx context.Context, data, to string, progress func(done, total int64)) (copied sqlite.Copied, err error) {
	dest, err := filepath.Abs(to)
	if err != nil {
		return copied, err
	}
	if err := checkNewOrEmpty(dest); err != nil {
		return copied, err
	}
	key, err := didkey.Load(filepath.Join(data, keyName))
	if err != nil {
		return copied, err
	}
	parent := filepath.Dir(dest)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return copied, err
	}
	unfinished, err := os.MkdirTemp(parent, "."+filepath.Base(dest)+".unfinished-") // mode 0700
	if err != nil {
		return copied, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(unfinished))
		}
	}()
	copied, err = sqlite.Backup(ctx, filepath.Join(data, databaseName), filepath.Join(unfinished, databaseName), progress)
	if err != nil {
		return copied, err
	}
	if err := didkey.Save(filepath.Join(unfinished, keyName), key); err != nil {
		return copied, err
	}
	// These keys are copied after the database. So if the database was used with a gateway key, that key is here.
	if err := copyGatewayKeys(data, unfinished); err != nil {
		return copied, err
	}
	if err := errors.Join(fsync.Folder(unfinished), ctx.Err()); err != nil {
		return copied, err
	}
	return copied, moveInto(unfinished, dest)
}

// copyGatewayKeys copies the keys of the gateways. Both are missing if no gateway was ever on. If only the operator's key
// is missing, the next start creates it.
func copyGatewayKeys(from, to string) error {
	operator, noOperator := cli.ReadOperatorKey(filepath.Join(from, operatorKeyName))
	if noOperator == nil {
		if err := fsync.Create(filepath.Join(to, operatorKeyName), []byte(operator+"\n")); err != nil {
			return err
		}
	} else if !errors.Is(noOperator, fs.ErrNotExist) {
		return noOperator
	}
	key, err := didkey.Load(filepath.Join(from, gatewayKeyName))
	if noOperator != nil && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return didkey.Save(filepath.Join(to, gatewayKeyName), key)
}

// checkNewOrEmpty returns an error unless dest does not exist or is an empty folder. So two backups are never mixed.
func checkNewOrEmpty(dest string) error {
	entries, err := os.ReadDir(dest)
	if err == nil && len(entries) == 0 || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("%s is not empty; a backup needs its own folder, so name a folder that does not exist yet", dest)
	}
	return err
}

// moveInto renames a finished folder to dest, and syncs the change to disk.
func moveInto(finished, dest string) error {
	// Remove an empty folder dest. If files have been put into it meanwhile, Remove fails, and its error names the folder.
	if err := os.Remove(dest); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Rename(finished, dest); err != nil {
		return err
	}
	return fsync.Folder(filepath.Dir(dest))
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

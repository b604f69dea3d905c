package operate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/datafolder"
	"github.com/agora-relay/agora/relay/admin"
)

// dataFolder is the flag of the commands that read a data folder directly, whether a relay uses it at the moment or
// not.
type dataFolder struct {
	Data string `default:"./agora-data" placeholder:"FOLDER" help:"The data folder. The relay may be running (default: ${default})."`
}

func (d dataFolder) Validate() error {
	if info, err := os.Stat(d.database()); err != nil || !info.Mode().IsRegular() {
		if _, err := os.Stat(filepath.Join(d.Data, datafolder.Mark)); err == nil {
			return fmt.Errorf("--data: the messages of %s are in PostgreSQL (--store), and this command is for the database of a "+
				"single node; copy PostgreSQL with pg_dump or pgBackRest, and the keys with agora key fetch or cp", d.Data)
		}
		return fmt.Errorf("--data: there is no database %s; name the data folder of a relay, or a backup", d.database())
	}
	return nil
}

func (d dataFolder) database() string { return filepath.Join(d.Data, datafolder.Database) }

type BackupCmd struct {
	dataFolder
	Keep int    `placeholder:"N" help:"Make the backup in a new folder within DEST, which is named after the time, and remove all but the newest N there."`
	Dest string `arg:"" name:"dest" help:"The folder to create. If it exists, it must be empty, except with --keep."`
}

func (BackupCmd) Help() string {
	return "Creates a data folder with a consistent copy of the database and with the relay's keys. The relay may keep " +
		"running. The new folder appears only when the backup is complete. agora restore puts a backup in place.\n\n" +
		"A backup contains the relay's keys and is not encrypted: anyone who has the backup can act as the relay. After a " +
		"restore the cursors of readers are no longer valid (unknown_cursor). Readers start again with the oldest stored " +
		"event.\n\n" +
		"Examples:\n  agora backup backups/monday\n  agora backup --data /var/lib/agora /mnt/backups/$(date +%F)\n" +
		"  agora backup --keep 7 /mnt/backups\n" +
		"  agora check --data backups/monday\n  agora restore backups/monday"
}

func (c BackupCmd) Validate() error {
	if c.Keep < 0 {
		return errors.New("--keep must be at least 1")
	}
	return c.dataFolder.Validate()
}

func (c BackupCmd) Run(env cli.Environment) (err error) {
	began := time.Now()
	shown := c.Dest
	if c.Keep > 0 {
		if shown, err = admin.NewBackup(c.Dest, began); err != nil {
			return err
		}
	}
	copied, err := datafolder.Copy(env.Ctx, c.Data, shown, func(done, total int64) {
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

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

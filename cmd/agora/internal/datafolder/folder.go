// Package datafolder knows the files of a relay's data folder. It makes the folder and copies it. It does not read the
// database.
package datafolder

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/internal/fsync"
	"github.com/agora-relay/agora/store/sqlite"
)

// The files of a data folder.
const (
	Database = "agora.db"
	Key      = "relay.key"

	Mark = "postgres.mark" // exists only if the database is PostgreSQL

	// Files that exist only after a gateway was on.
	GatewayKey  = "gateway.key"
	OperatorKey = "operator.key"

	// Certificates is a folder of certificates that the relay has got with ACME. A backup does not have it, because
	// the relay gets them again.
	Certificates = "certificates"
)

// Keys are the keys that all nodes of a relay share.
var Keys = []string{Key, GatewayKey, OperatorKey}

// Copy copies a data folder, which a relay may use meanwhile, into the new folder to. progress may be nil. On an
// error it leaves nothing behind.
func Copy(ctx context.Context, data, to string, progress func(done, total int64)) (copied sqlite.Copied, err error) {
	dest, err := filepath.Abs(to)
	if err != nil {
		return copied, err
	}
	if err := checkNewOrEmpty(dest); err != nil {
		return copied, err
	}
	key, err := didkey.Load(filepath.Join(data, Key))
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
	copied, err = sqlite.Backup(ctx, filepath.Join(data, Database), filepath.Join(unfinished, Database), progress)
	if err != nil {
		return copied, err
	}
	if err := didkey.Save(filepath.Join(unfinished, Key), key); err != nil {
		return copied, err
	}
	// These keys are copied after the database. So if the database was used with a gateway key, that key is here.
	if err := copyGatewayKeys(data, unfinished); err != nil {
		return copied, err
	}
	if err := errors.Join(fsync.Folder(unfinished), ctx.Err()); err != nil {
		return copied, err
	}
	return copied, MoveInto(unfinished, dest)
}

// copyGatewayKeys copies the keys of the gateways. Both are missing if no gateway was ever on. If only the operator's key
// is missing, the next start creates it.
func copyGatewayKeys(from, to string) error {
	operator, noOperator := cli.ReadOperatorKey(filepath.Join(from, OperatorKey))
	if noOperator == nil {
		if err := fsync.Create(filepath.Join(to, OperatorKey), []byte(operator+"\n")); err != nil {
			return err
		}
	} else if !errors.Is(noOperator, fs.ErrNotExist) {
		return noOperator
	}
	key, err := didkey.Load(filepath.Join(from, GatewayKey))
	if noOperator != nil && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return didkey.Save(filepath.Join(to, GatewayKey), key)
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

// MoveInto renames a finished folder to dest, and syncs the change to disk.
func MoveInto(finished, dest string) error {
	// Remove an empty folder dest. If files have been put into it meanwhile, Remove fails, and its error names the folder.
	if err := os.Remove(dest); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Rename(finished, dest); err != nil {
		return err
	}
	return fsync.Folder(filepath.Dir(dest))
}

// Make creates the data folder if it does not exist. It refuses a folder that other users can enter: each file in
// it is private, but users who can write to the folder could replace the files. It does not change the mode of an
// existing folder, because the folder may contain other things.
func Make(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if cli.OpenToOthers(info) {
		return fmt.Errorf("other users can enter the data folder %s (mode %#o); run: chmod 700 %s",
			path, info.Mode().Perm(), cli.ShellQuoted(path))
	}
	return nil
}

package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
)

// besides are what the names of a database's files add to its own: its write-ahead log, the log's index, and ours.
var besides = []string{"", "-wal", "-shm", ".mark", ".reserve", ".lock"}

// makePrivate takes away from the group and others what they may do with the files of the database at path. Windows has
// no such modes; there the folder's access list decides.
func makePrivate(path string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	for _, ending := range besides {
		info, err := os.Stat(path + ending)
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().Perm()&0o077 == 0 {
			continue
		}
		if err == nil {
			err = os.Chmod(path+ending, info.Mode().Perm()&^0o077)
		}
		if err != nil {
			return fmt.Errorf("other users can read %s, and its mode cannot be changed (%w); run as its owner: chmod 600 %q",
				path+ending, err, path+ending)
		}
	}
	return nil
}

// createPrivate makes an empty database at path that only its owner can open, unless there is one. SQLite makes its own
// by the umask, and gives the mode of the database to the files beside it.
func createPrivate(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return file.Close()
}

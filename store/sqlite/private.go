package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
)

// fileSuffixes are the suffixes of a database's files: the database itself, the write-ahead log, its index, and our
// files.
var fileSuffixes = []string{"", "-wal", "-shm", ".mark", ".reserve", ".lock"}

// makePrivate removes all permissions of the group and of other users from the files of the database at path. It does
// nothing on Windows, where the folder's access list decides.
func makePrivate(path string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	for _, ending := range fileSuffixes {
		info, err := os.Stat(path + ending)
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.Mode().Perm()&0o077 == 0 {
			continue
		}
		if err == nil {
			err = os.Chmod(path+ending, info.Mode().Perm()&^0o077)
		}
		if err != nil {
			return fmt.Errorf("other users can read %s, and its mode cannot be changed (%w); "+
				"run as its owner: chmod 600 %q", path+ending, err, path+ending)
		}
	}
	return nil
}

// createPrivate creates an empty database file at path with mode 0600, unless the file exists. SQLite would create it
// by the umask. SQLite gives the files beside it the mode of the database.
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

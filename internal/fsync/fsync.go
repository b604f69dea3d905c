// Package fsync makes changes to a folder durable.
package fsync

import (
	"errors"
	"os"
	"runtime"
)

// Folder writes the names in a folder to disk. After it returns, files that were created, renamed or removed in the
// folder stay so after a crash. On Windows it does nothing, because folders cannot be synced there and NTFS does not
// need it. It returns an error if the folder cannot be opened, synced or closed.
func Folder(path string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

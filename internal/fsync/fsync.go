// Package fsync makes changes of a folder durable.
package fsync

import (
	"errors"
	"os"
	"runtime"
)

// Folder makes the new and changed names in a folder survive a crash. On Windows it does nothing: folders cannot be
// synced there, and NTFS does not need it.
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

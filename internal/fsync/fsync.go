// Package fsync makes new files, and changes to a folder, durable.
package fsync

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// Synced, if it is set, is called with the path of a file after the file was synced. Only simulations of crashes set it,
// before anything else runs.
var Synced func(path string)

// File writes to disk what was written to f.
func File(f *os.File) error {
	err := f.Sync()
	if err == nil {
		synced(f.Name())
	}
	return err
}

func synced(path string) {
	if Synced != nil {
		Synced(path)
	}
}

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

// Create writes text to a new file at path that only its owner can read. If the process or the machine stops at any
// time, the file is either complete or absent. It never overwrites a file; the error is then fs.ErrExist.
func Create(path string, text []byte) (err error) {
	temp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp") // mode 0600
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(temp.Name())) }()
	_, err = temp.Write(text)
	if err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err != nil {
		return err
	}
	err = os.Link(temp.Name(), path) // unlike a rename, a link never replaces a file
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists and is not overwritten; choose another name, or move the file away first (%w)",
			path, fs.ErrExist)
	}
	if err != nil {
		return err
	}
	return Folder(filepath.Dir(path))
}

// Replace writes text to the file at path, which only its owner can read, and replaces a file that exists. If the
// process or the machine stops at any time, the file has the old text or the new one.
func Replace(path string, text []byte) error {
	folder := filepath.Dir(path)
	temp, err := os.CreateTemp(folder, filepath.Base(path)+".*.tmp") // mode 0600
	if err != nil {
		return err
	}
	if _, err = temp.Write(text); err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp.Name()))
	}
	synced(path)
	return Folder(folder)
}

package hubclient

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/agora-relay/agora/internal/fsync"
)

// newFile is a new version of a file. It is in its place after commit. Until then the old version stays. After a crash
// the file is either the old or the new one. While it is written, its name is that of the file with .tmp. So crashes
// leave at most one. Only one process may use it at a time.
type newFile struct {
	path string
	temp *os.File
}

// tempName is the name of a new version that is not in its place yet.
func tempName(path string) string { return path + ".tmp" }

// prepare creates the new version of a file. It consists of size spaces, which reserve room on the disk. So a full disk
// or a missing permission is noticed now and not in commit.
func prepare(path string, mode fs.FileMode, size int) (*newFile, error) {
	if err := remove(tempName(path)); err != nil {
		return nil, err
	}
	temp, err := os.OpenFile(tempName(path), os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return nil, err
	}
	n := &newFile{path, temp}
	if _, err = temp.Write(bytes.Repeat([]byte(" "), size)); err == nil {
		err = temp.Sync()
	}
	if err != nil {
		return nil, errors.Join(err, n.discard())
	}
	return n, nil
}

// commit writes the text, and puts the file in its place. When it returns nil, the file survives a crash. In case of an
// error the old version stays.
func (n *newFile) commit(text []byte) error {
	_, err := n.temp.WriteAt(text, 0)
	if err == nil {
		err = n.temp.Truncate(int64(len(text)))
	}
	if err == nil {
		err = n.temp.Sync()
	}
	if err != nil {
		return errors.Join(err, n.discard())
	}
	if err = n.temp.Close(); err == nil {
		err = os.Rename(n.temp.Name(), n.path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(n.temp.Name()))
	}
	return fsync.Folder(filepath.Dir(n.path))
}

// discard removes the new version.
func (n *newFile) discard() error {
	return errors.Join(n.temp.Close(), os.Remove(n.temp.Name()))
}

// replaceFile replaces a file in one step, or creates it.
func replaceFile(path string, mode fs.FileMode, text []byte) error {
	n, err := prepare(path, mode, 0)
	if err != nil {
		return err
	}
	return n.commit(text)
}

// remove removes a file if it exists.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

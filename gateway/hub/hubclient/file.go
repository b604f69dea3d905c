package hubclient

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/agora-relay/agora/internal/fsync"
)

// newFile is a new version of a file. Until commit, it has the name of the file with .tmp at the end, and the old
// version stays. After a crash, the file is either the old version or the complete new one. Crashes leave at most one
// .tmp file. Only one process at a time may replace a file.
type newFile struct {
	path string
	temp *os.File
}

// tempName is the name of the new version of a file before commit.
func tempName(path string) string { return path + ".tmp" }

// prepare creates the new version of a file. At first it has size spaces, which reserve room on the disk. So prepare
// fails, and not commit, if the disk is full or a permission is missing.
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

// commit writes the text and replaces the old version. When it returns nil, the new version survives a crash.
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

package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/agora-relay/agora/internal/fsync"
)

// CursorStore keeps the place a reader has come to. A cursor is the relay's own text and means nothing anywhere else;
// one store belongs to one reader of one relay with one filter.
type CursorStore interface {
	// Load returns what was saved last, "" if nothing was.
	Load(ctx context.Context) (cursor string, err error)
	// Save returns when cursor will survive a crash. It is not called concurrently.
	Save(ctx context.Context, cursor string) error
}

// FileCursor is a CursorStore in the file of that name. The file is replaced in one step, so that a crash leaves the
// old cursor or the new one.
type FileCursor string

// maxCursor is the longest cursor that is stored or sent back.
const maxCursor = 1 << 10

// Load reads the file; that it does not exist yet is no error.
func (f FileCursor) Load(context.Context) (string, error) {
	text, err := os.ReadFile(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if len(text) > maxCursor {
		return "", fmt.Errorf("%s is too long to be a cursor; move it away to start afresh", f)
	}
	return strings.TrimSpace(string(text)), nil
}

// Save replaces the file; its folder must exist.
func (f FileCursor) Save(_ context.Context, cursor string) (err error) {
	folder := filepath.Dir(string(f))
	temp, err := os.CreateTemp(folder, filepath.Base(string(f))+".*.tmp")
	if err != nil {
		return err
	}
	if _, err = temp.WriteString(cursor + "\n"); err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err == nil {
		err = os.Rename(temp.Name(), string(f))
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp.Name()))
	}
	return fsync.Folder(folder)
}

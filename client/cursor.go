package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/agora-relay/agora/client/internal/follow"
	"github.com/agora-relay/agora/internal/fsync"
)

// CursorStore stores the position of a reader in the relay's events. A cursor is an opaque text from one relay. Use one
// CursorStore for one reader of one relay with one filter.
type CursorStore interface {
	// Load returns the cursor that was saved last, or "" if none was saved.
	Load(ctx context.Context) (cursor string, err error)
	// Save stores cursor durably: when Save returns nil, the cursor survives a crash. It is not called concurrently.
	Save(ctx context.Context, cursor string) error
}

// FileCursor is the name of a file that is used as a CursorStore. Save replaces the file in one step. So after a crash
// the file has the old cursor or the new one.
type FileCursor string

// Load returns the cursor in the file, or "" if the file does not exist.
func (f FileCursor) Load(context.Context) (string, error) {
	text, err := os.ReadFile(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if len(text) > follow.MaxCursor {
		return "", fmt.Errorf("the file %s is too long to be a cursor; move it away to start without a cursor", f)
	}
	return strings.TrimSpace(string(text)), nil
}

// Save replaces the file. The folder of the file must exist.
func (f FileCursor) Save(_ context.Context, cursor string) error {
	return fsync.Replace(string(f), []byte(cursor+"\n"))
}

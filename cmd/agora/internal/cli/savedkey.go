package cli

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/agora-relay/agora/internal/fsync"
)

// SavedKey is the flag of the commands that create a key.
type SavedKey struct {
	Save string `placeholder:"FILE" help:"Write the key to this new file, which only you can read, instead of printing it."`
}

// Check returns an error if the file exists, or its folder does not. It is called before the key is created, because
// a gateway shows a key only once.
func (s SavedKey) Check() error {
	if s.Save == "" {
		return nil
	}
	if _, err := os.Lstat(s.Save); err == nil {
		return fmt.Errorf("--save: %s exists and is not overwritten; choose another name", s.Save)
	}
	if _, err := os.Stat(filepath.Dir(s.Save)); err != nil {
		return fmt.Errorf("--save: %w", err)
	}
	return nil
}

// KeyLine is where a new key is: in the line itself or in a file.
type KeyLine struct {
	Key  string `json:"key,omitempty"`
	File string `json:"keyFile,omitempty"`
}

// Keep stores a key as the flag says, and returns what to print. If the key cannot be stored, it is printed.
func (s SavedKey) Keep(key string) (KeyLine, error) {
	if s.Save == "" {
		return KeyLine{Key: key}, nil
	}
	if err := fsync.Create(s.Save, []byte(key+"\n")); err != nil {
		return KeyLine{Key: key}, fmt.Errorf("the key could not be written to the file, so it is printed: %w", err)
	}
	return KeyLine{File: s.Save}, nil
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
)

// LockedState is the file of a command that says what one key has read, done and found out at its relays. It is locked
// while it is open, because two agents with one key would answer each other's requests.
type LockedState struct {
	*client.State
	lock *flock.Flock // nil: the state is in memory
}

// NewState returns a state in memory.
func NewState() *LockedState { return &LockedState{State: client.NewState()} }

// OpenState opens the state file of this identity, or creates it, and locks it. Errors: another command has it open;
// those of client.OpenState.
func OpenState(path string, me didkey.DID) (*LockedState, error) { return openState(path, me, 0) }

// openState is OpenState, and waits for so long until another command has closed the file.
func openState(path string, me didkey.DID, patience time.Duration) (*LockedState, error) {
	s := &LockedState{lock: flock.New(path+".lock", flock.SetPermissions(0o600))}
	locked, err := s.lock.TryLock()
	if err == nil && !locked && patience > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if locked, err = s.lock.TryLockContext(ctx, 10*time.Millisecond); ctx.Err() != nil {
			err = nil // it is still locked
		}
	}
	if err != nil {
		return nil, fmt.Errorf("locking the state file: %w", err)
	}
	if !locked {
		return nil, fmt.Errorf("another command, such as agora work, uses the state file %s. One key can work only "+
			"once at a relay: give the agent more intents with --intent, or use another key or another file", path)
	}
	if s.State, err = client.OpenState(path, me); err != nil {
		return nil, errors.Join(err, s.lock.Unlock())
	}
	return s, nil
}

// Close closes the file and unlocks it.
func (s *LockedState) Close() error {
	if s.lock == nil {
		return nil
	}
	return errors.Join(s.State.Close(), s.lock.Unlock())
}

// notePatience is how long a command that has caught a relay waits for the state file, while another command uses it.
const notePatience = 2 * time.Second

// noteCaught notes a caught relay in a state file, which other commands read.
func noteCaught(path string, me, relay didkey.DID, reason string) error {
	s, err := openState(path, me, notePatience)
	if err != nil {
		return err
	}
	return errors.Join(s.Catch(relay, reason), s.Close())
}

// stateFolder returns the folder for state files beside the key file, and creates it.
func stateFolder(keyFile string) (string, error) {
	key, err := RealPath(keyFile)
	if err != nil {
		return "", err
	}
	folder := key + ".work"
	return folder, os.MkdirAll(folder, 0o700)
}

// StateFile returns the name of the state file of a key that talks to several relays, and creates its folder, which is
// beside the key file.
func StateFile(keyFile string) (string, error) {
	folder, err := stateFolder(keyFile)
	return filepath.Join(folder, "relays.state"), err
}

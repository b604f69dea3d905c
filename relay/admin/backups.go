package admin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// Backups makes backups in one folder, by schedule and when the operator asks. At most one is made at a time.
type Backups struct {
	folder string
	make   func(ctx context.Context, to string) error
	every  time.Duration // 0: only when the operator asks
	keep   int           // how many backups stay; 0: all
	now    func() time.Time
	log    *slog.Logger

	ctx  context.Context // ends when the relay stops
	stop context.CancelFunc
	turn chan struct{} // has a value while a backup is made

	mu    sync.Mutex
	info  BackupInfo
	retry time.Time // no scheduled backup is made before this; zero: the last attempt did not fail
}

// BackupInfo says how the backups are going.
type BackupInfo struct {
	Folder  string     `json:"folder"`
	Last    *time.Time `json:"last,omitempty"` // when the newest backup was begun; nil: there is none
	Next    *time.Time `json:"next,omitempty"`
	Running bool       `json:"running,omitempty"`
	Failed  string     `json:"failed,omitempty"` // why the last attempt failed
}

// BackupOptions configure Backups.
type BackupOptions struct {
	Folder string
	Make   func(ctx context.Context, to string) error // makes a backup in a folder that does not exist yet
	Every  time.Duration                              // 0: only when the operator asks
	Keep   int                                        // how many backups stay; 0: all
	Now    func() time.Time                           // nil: time.Now
	Log    *slog.Logger
}

// NewBackups returns Backups. It reads the folder, which need not exist, to find the time of the last backup.
func NewBackups(o BackupOptions) (*Backups, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	b := &Backups{folder: o.Folder, make: o.Make, every: o.Every, keep: o.Keep, now: o.Now, log: o.Log, turn: make(chan struct{}, 1)}
	b.ctx, b.stop = context.WithCancel(context.Background())
	b.info.Folder = o.Folder
	names, err := listBackups(o.Folder)
	if err != nil {
		return nil, err
	}
	if len(names) > 0 {
		at, err := time.Parse(backupLayout, names[len(names)-1])
		if err != nil {
			return nil, err
		}
		b.info.Last = &at
	}
	return b, nil
}

// Names of folders that were made at some time end in that time, UTC. They sort by it.
const (
	timeLayout   = "20060102T150405Z"
	backupPrefix = "agora-"
	backupLayout = backupPrefix + timeLayout
)

var backupForm = regexp.MustCompile(`^agora-\d{8}T\d{6}Z$`)

// NewBackup returns the path of a new backup in the folder, which is begun at now.
func NewBackup(folder string, now time.Time) (path string, err error) {
	return NewPath(filepath.Join(folder, backupPrefix), now)
}

// NewPath returns a path that does not exist yet: the prefix, and now to the second. If that path exists, NewPath takes
// the next second, and so forth.
func NewPath(prefix string, now time.Time) (path string, err error) {
	for ; ; now = now.Add(time.Second) {
		path = prefix + now.UTC().Format(timeLayout)
		switch _, err := os.Lstat(path); {
		case errors.Is(err, fs.ErrNotExist):
			return path, nil
		case err != nil:
			return "", err
		}
	}
}

// listBackups returns the names of the backups in a folder, the oldest first. Other files are ignored.
func listBackups(folder string) (names []string, err error) {
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if _, wrong := time.Parse(backupLayout, e.Name()); e.IsDir() && wrong == nil && backupForm.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// PruneBackups removes all but the newest keep backups of a folder, after the one with the name made was added. It keeps
// that one also if the clock was set back, so that others have later names. It removes only folders with the name of a
// backup.
func PruneBackups(folder, made string, keep int) (removed []string, err error) {
	names, err := listBackups(folder)
	if err != nil {
		return nil, err
	}
	if i := slices.Index(names, made); i >= 0 {
		names = append(slices.Delete(names, i, i+1), made)
	}
	for len(names) > keep {
		if err := os.RemoveAll(filepath.Join(folder, names[0])); err != nil {
			return removed, err
		}
		removed, names = append(removed, names[0]), names[1:]
	}
	return removed, nil
}

// Info returns how the backups are going.
func (b *Backups) Info() BackupInfo {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.info
}

// Made is a backup that was made.
type Made struct {
	Folder  string   `json:"folder"`
	Removed []string `json:"removed,omitempty"` // older backups that were removed
}

// Now makes a backup. Errors: CodeUnavailable if one is being made.
func (b *Backups) Now() (m Made, err error) {
	select {
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	default:
		return m, envelope.NotStored("a backup is being made; wait until it is complete", time.Second)
	}
	if b.ctx.Err() != nil {
		return m, envelope.NotStored("the relay stops", time.Second)
	}
	began := b.now()
	b.mu.Lock()
	b.info.Running = true
	b.mu.Unlock()
	m.Folder, err = NewBackup(b.folder, began)
	if err == nil {
		err = b.make(b.ctx, m.Folder)
	}
	if err == nil && b.keep > 0 {
		m.Removed, err = PruneBackups(b.folder, filepath.Base(m.Folder), b.keep)
		if err != nil {
			err = fmt.Errorf("the backup is complete, but older ones cannot be removed: %w", err)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.info.Running, b.info.Failed, b.retry = false, "", time.Time{}
	if err != nil {
		b.retry = b.now().Add(retryBackup)
		b.info.Failed = err.Error()
		b.log.Error("a backup failed", "folder", m.Folder, "err", err)
		return m, err
	}
	b.info.Last = &began
	b.log.Info("a backup is complete", "folder", m.Folder, "took", b.now().Sub(began), "removed", m.Removed)
	return m, nil
}

// retryBackup is when a scheduled backup that has failed is tried again.
const retryBackup = 10 * time.Minute

// Run makes the scheduled backups until ctx ends. A backup that is due at the start, because the relay did not run, is
// made at once. When Run returns, no backup is being made.
func (b *Backups) Run(ctx context.Context) {
	defer func() { b.turn <- struct{}{} }() // waits for a backup of the operator, and allows no other
	defer b.stop()
	if b.every == 0 {
		<-ctx.Done()
		return
	}
	stop := context.AfterFunc(ctx, b.stop)
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(b.untilNext()):
		}
		if b.untilNext() == 0 { // else the clock was set, or the operator has made a backup meanwhile
			_, _ = b.Now() // Now logs the error, and untilNext waits before the next attempt
		}
	}
}

// maxBackupSleep is how long Run sleeps at most, in case the clock is set.
const maxBackupSleep = time.Minute

// untilNext returns how long to wait for the next backup, at most maxBackupSleep.
func (b *Backups) untilNext() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	next := now
	if b.info.Last != nil && b.info.Last.Add(b.every).After(now) {
		next = b.info.Last.Add(b.every)
	}
	if b.retry.After(next) {
		next = b.retry
	}
	b.info.Next = &next
	return min(next.Sub(now), maxBackupSleep)
}

package mcpserver

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/fsync"
)

// The id of a thread is chosen by the agent that opens it: 128 characters that can read like words of this server. So the LLM
// never sees such an id outside of the marks, but a name that is computed from it. An id that this server has made at
// random is its own name. The server remembers in a file which ids belong to the names that it has shown.

// maxThreads is how many ids of each kind are remembered. What strangers send pushes out no id of the other kind.
const maxThreads = 1000

// threadFile is the JSON of the file. The newest ids are last.
type threadFile struct {
	Made  []string `json:"made"`  // by this server
	Shown []string `json:"shown"` // by their name
}

// threads knows the names of threads. It is safe for concurrent use.
type threads struct {
	mu      sync.Mutex
	path    string
	ids     threadFile
	byName  map[string]string // the ids in ids.Shown
	made    map[string]bool   // the ids in ids.Made
	changed bool              // there are ids that the file does not have
	asRead  fs.FileInfo       // the file when it was read
}

func newThreads(folder string) *threads {
	t := &threads{path: filepath.Join(folder, "threads.json")}
	if t.read() != nil { // save reports the error
		t.index()
	}
	return t
}

func (t *threads) index() {
	t.byName, t.made = map[string]string{}, map[string]bool{}
	for _, id := range t.ids.Shown {
		t.byName[hashName(id)] = id
	}
	for _, id := range t.ids.Made {
		t.made[id] = true
	}
}

// hashName returns the name of a thread that others may have opened.
func hashName(id string) string {
	hash := sha256.Sum256([]byte(id))
	return fmt.Sprintf("t_%x", hash[:10])
}

var hashNames = regexp.MustCompile(`^t_[0-9a-f]{20}$`)

// madeHere notes the id of a thread that this server opens.
func (t *threads) madeHere(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.made[id] {
		t.made[id], t.changed = true, true
		t.ids.Made = append(t.ids.Made, id)
	}
}

// name returns the name of a thread for the LLM; "" for "".
func (t *threads) name(id string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	name := hashName(id)
	if id != "" && !t.made[id] && t.byName[name] != id { // another server with the same key may have made it
		_ = t.refresh() // save reports the error
	}
	if id == "" || t.made[id] {
		return id
	}
	if t.byName[name] != id {
		t.byName[name], t.changed = id, true
		t.ids.Shown = append(t.ids.Shown, id)
	}
	return name
}

// id returns the id of a thread from an argument: its name, or the id itself, which the person may have given.
func (t *threads) id(argument string) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if hashNames.MatchString(argument) {
		if t.byName[argument] == "" { // another server with the same key may have shown it
			if err := t.refresh(); err != nil {
				return "", local(err)
			}
		}
		if id := t.byName[argument]; id != "" {
			return id, nil
		}
		return "", mistake("This server no longer remembers the thread %s. Call the tool again that has shown it.", argument)
	}
	if !envelope.ValidID(argument) {
		return "", mistake("thread must be the name of a thread, as another tool has shown it")
	}
	return argument, nil
}

// save writes to the file what is new. Several servers can share the file.
func (t *threads) save(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.changed {
		return nil
	}
	lock := flock.New(t.path+".lock", flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, 5*time.Millisecond); err != nil {
		return localError{fmt.Errorf("locking %s: %w", t.path, err)}
	}
	defer func() { _ = lock.Unlock() }() // the process may also just end
	err := t.read()
	var text []byte
	if err == nil {
		text, err = json.Marshal(t.ids)
	}
	if err == nil {
		err = fsync.Replace(t.path, append(text, '\n'))
	}
	t.changed = t.changed && err != nil
	return local(err)
}

// refresh reads the file if it has changed since the last time. The caller holds t.mu.
func (t *threads) refresh() error {
	now, err := os.Stat(t.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && t.asRead != nil && os.SameFile(now, t.asRead) &&
		now.ModTime().Equal(t.asRead.ModTime()) && now.Size() == t.asRead.Size() {
		return nil
	}
	if err == nil {
		err = t.read()
	}
	if err == nil {
		t.asRead = now
	}
	return err
}

// read adds what is in the file. The caller holds t.mu.
func (t *threads) read() error {
	var file threadFile
	text, err := os.ReadFile(t.path)
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is damaged: %w; remove it", t.path, err)
	}
	t.ids = threadFile{Made: merged(file.Made, t.ids.Made), Shown: merged(file.Shown, t.ids.Shown)}
	t.index()
	return nil
}

// merged returns the newest ids of both lists, each once.
func merged(file, memory []string) []string {
	known := map[string]bool{}
	for _, id := range memory {
		known[id] = true
	}
	all := slices.DeleteFunc(file, func(id string) bool { return known[id] })
	all = append(all, memory...)
	return all[max(0, len(all)-maxThreads):]
}

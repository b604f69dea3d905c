package trade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/internal/fsync"
	"github.com/agora-relay/agora/thread"
)

// workState is the file of agora work: how far the agent has come in the relay's events, and which jobs it has begun. It
// is a client.CursorStore. It is locked while it is open, because two agents with one key would answer each other's
// requests.
type workState struct {
	path string
	lock *flock.Flock

	mu    sync.Mutex
	file  workStateFile
	open  map[string]bool // the jobs that were begun since the start, and have not ended
	dirty bool            // the file has something else
}

// workStateFile is the content of the file.
type workStateFile struct {
	Relay  string              `json:"relay"`  // the cursor is one of this relay
	Agent  didkey.DID          `json:"agent"`  // the jobs are those of this agent
	Cursor string              `json:"cursor"` // empty: none
	Jobs   map[string]begunJob `json:"jobs"`   // by client and thread
}

// begunJob is a job that was begun and has not ended.
type begunJob struct {
	Attempts int       `json:"attempts"` // how often it was begun
	At       time.Time `json:"at"`       // when it was begun last
}

// maxBegun is how many jobs a state file has. The oldest are forgotten: those that the relay has ended meanwhile.
const maxBegun = 4096

// OpenWorkState opens the state file, and locks it.
func OpenWorkState(path, relay string, agent didkey.DID) (*workState, error) {
	s := &workState{path: path, lock: flock.New(path+".lock", flock.SetPermissions(0o600)), open: map[string]bool{},
		file: workStateFile{Relay: relay, Agent: agent}}
	locked, err := s.lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("locking the state file: %w", err)
	}
	if !locked {
		return nil, fmt.Errorf("another agora work uses the state file %s; one key can work only once at a relay. Give it more intents "+
			"with --intent, or use another key", path)
	}
	if err = s.read(); err != nil {
		return nil, errors.Join(err, s.lock.Unlock())
	}
	return s, nil
}

func (s *workState) read() error {
	text, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		s.file.Jobs = map[string]begunJob{}
		return nil
	}
	var file workStateFile
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	if err != nil {
		return fmt.Errorf("the state file %s cannot be read: %w; move it away to start without it", s.path, err)
	}
	if file.Relay != s.file.Relay || file.Agent != s.file.Agent {
		return fmt.Errorf("the state file %s belongs to %s at %s; choose another one with --state", s.path, file.Agent, file.Relay)
	}
	if file.Jobs == nil {
		file.Jobs = map[string]begunJob{}
	}
	s.file = file
	return nil
}

// Save writes the file. The caller holds s.mu.
func (s *workState) save() error {
	text, err := json.MarshalIndent(s.file, "", "  ")
	if err != nil {
		return err
	}
	err = fsync.Replace(s.path, append(text, '\n'))
	s.dirty = err != nil
	return err
}

// Load implements client.CursorStore.
func (s *workState) Load(context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.file.Cursor, nil
}

// Save implements client.CursorStore.
func (s *workState) Save(_ context.Context, cursor string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.file.Cursor = cursor
	return s.save()
}

func jobName(key thread.Key) string { return string(key.Client) + " " + key.ID }

// begin records durably that a job is begun, and returns how often it was begun.
func (s *workState) Begin(key thread.Key) (attempt int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := jobName(key)
	job := begunJob{Attempts: s.file.Jobs[name].Attempts + 1, At: time.Now().UTC().Truncate(time.Second)}
	s.file.Jobs[name] = job
	s.open[name] = true
	for len(s.file.Jobs) > maxBegun {
		s.forgetOldest()
	}
	return job.Attempts, s.save()
}

// forgetOldest forgets the job that was begun first. The caller holds s.mu.
func (s *workState) forgetOldest() {
	oldest := ""
	for name, job := range s.file.Jobs {
		if oldest == "" || job.At.Before(s.file.Jobs[oldest].At) {
			oldest = name
		}
	}
	delete(s.file.Jobs, oldest)
}

// end forgets a job that has ended. The file is written later, by Save or close: if it is not, the job was still
// answered, and is not begun again.
func (s *workState) end(key thread.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.file.Jobs, jobName(key))
	delete(s.open, jobName(key))
	s.dirty = true
}

// close closes the file. The attempts that were interrupted now do not count.
func (s *workState) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.open {
		job := s.file.Jobs[name]
		if job.Attempts--; job.Attempts > 0 {
			s.file.Jobs[name] = job
		} else {
			delete(s.file.Jobs, name)
		}
		s.dirty = true
	}
	var err error
	if s.dirty {
		err = s.save()
	}
	return errors.Join(err, s.lock.Unlock())
}

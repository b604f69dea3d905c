package a2acmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/agora-relay/agora/internal/fsync"
)

// turnState is the file that says which turns were begun, and which task of the A2A server belongs to which task at the
// relay. With it, a crash neither loses nor doubles a turn. The lock of the agent's other state file protects it.
type turnState struct {
	path string

	mu   sync.Mutex
	file turnFile
}

// turnFile is the content of the file.
type turnFile struct {
	Server string              `json:"server"` // the URL of the A2A server; ids mean nothing at another one
	Turns  map[string]*turnRow `json:"turns"`  // by thread
	Tasks  map[string]*taskRow `json:"tasks"`  // by the relay's task
}

// turnRow is a turn that was begun and has not ended.
type turnRow struct {
	Local string    `json:"local,omitempty"` // the server's task; empty: the server has not named it yet
	At    time.Time `json:"at"`
}

// taskRow is a task that may get another turn.
type taskRow struct {
	Local string    `json:"local"`
	At    time.Time `json:"at"`
}

// maxRows is how many turns and how many tasks the file has. The oldest are forgotten.
const maxRows = 4096

// openTurns opens the file. It forgets what it has about another server.
func openTurns(path, server string) (*turnState, error) {
	s := &turnState{path: path, file: turnFile{Server: server}}
	text, err := os.ReadFile(path)
	var file turnFile
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		if err := json.Unmarshal(text, &file); err != nil {
			return nil, fmt.Errorf("the state file %s cannot be read: %w; move it away to start without it", path, err)
		}
	}
	if file.Server == server {
		s.file = file
	}
	if s.file.Turns == nil {
		s.file.Turns = map[string]*turnRow{}
	}
	if s.file.Tasks == nil {
		s.file.Tasks = map[string]*taskRow{}
	}
	return s, nil
}

// begin records durably that a turn begins. It returns the server's task, if an earlier run of the turn has one; again
// says that the turn was begun before.
func (s *turnState) begin(turn string, now time.Time) (local string, again bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if row := s.file.Turns[turn]; row != nil {
		return row.Local, true, nil
	}
	s.file.Turns[turn] = &turnRow{At: now}
	for len(s.file.Turns) > maxRows {
		drop(s.file.Turns, func(r *turnRow) time.Time { return r.At })
	}
	return "", false, s.save()
}

// name records durably that the server works on a turn in this task. task is the relay's; empty: it gets no other turn.
func (s *turnState) name(turn, task, local string, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.file.Turns[turn] = &turnRow{local, now}
	if task != "" {
		s.file.Tasks[task] = &taskRow{local, now}
	}
	for len(s.file.Tasks) > maxRows {
		drop(s.file.Tasks, func(r *taskRow) time.Time { return r.At })
	}
	return s.save()
}

// local returns the server's task of a task at the relay; empty: it is not known.
func (s *turnState) local(task string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if row := s.file.Tasks[task]; row != nil {
		return row.Local
	}
	return ""
}

// end forgets a turn that has ended, and its task if the task gets no other turn. task may be empty.
func (s *turnState) end(turn, task string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.file.Turns, turn)
	delete(s.file.Tasks, task)
	return s.save()
}

// save writes the file. The caller holds s.mu.
func (s *turnState) save() error {
	text, err := json.MarshalIndent(s.file, "", "  ")
	if err != nil {
		return err
	}
	return fsync.Replace(s.path, append(text, '\n'))
}

// drop forgets the oldest row.
func drop[R any](rows map[string]R, at func(R) time.Time) {
	oldest := ""
	for name, row := range rows {
		if oldest == "" || at(row).Before(at(rows[oldest])) {
			oldest = name
		}
	}
	delete(rows, oldest)
}

package trade

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/thread"
)

// TestWorkState checks what a state file keeps across restarts: the cursor, and how often jobs were begun. Jobs that
// were interrupted in order do not count.
func TestWorkState(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	const agent = didkey.DID("did:key:a")
	open := func() *workState {
		t.Helper()
		s, err := OpenWorkState(path, "http://relay", agent)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	begin := func(s *workState, id string) int {
		t.Helper()
		n, err := s.Begin(thread.Key{Client: "did:key:c", ID: id})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	crash := func(s *workState) { _ = s.lock.Unlock() }
	s := open()
	if _, err := OpenWorkState(path, "http://relay", agent); err == nil || !strings.Contains(err.Error(), "another agora work") {
		t.Errorf("a second agent: %v", err)
	}
	if n := begin(s, "t1"); n != 1 {
		t.Errorf("begun %d times", n)
	}
	if err := s.Save(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	crash(s)
	s = open()
	if cursor, _ := s.Load(t.Context()); cursor != "c1" || begin(s, "t1") != 2 || begin(s, "t2") != 1 {
		t.Errorf("after a crash: %q, %v", cursor, s.file.Jobs)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open()
	if begin(s, "t1") != 2 || begin(s, "t2") != 1 {
		t.Errorf("after an interruption: %v", s.file.Jobs)
	}
	s.end(thread.Key{Client: "did:key:c", ID: "t1"})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s = open(); len(s.file.Jobs) != 0 {
		t.Errorf("after the end: %v", s.file.Jobs)
	}
	crash(s)
	if _, err := OpenWorkState(path, "http://other", agent); err == nil || !strings.Contains(err.Error(), "--state") {
		t.Errorf("for another relay: %v", err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenWorkState(path, "http://relay", agent); err == nil || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("a damaged file: %v", err)
	}
}

// TestWorkStateIsBounded checks that a state file has no more than maxBegun jobs, and loses the oldest.
func TestWorkStateIsBounded(t *testing.T) {
	s, err := OpenWorkState(filepath.Join(t.TempDir(), "state"), "http://relay", "did:key:a")
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxBegun {
		s.file.Jobs[fmt.Sprint("x ", i)] = begunJob{Attempts: 1}
	}
	if _, err := s.Begin(thread.Key{Client: "x", ID: "new"}); err != nil {
		t.Fatal(err)
	}
	if _, kept := s.file.Jobs["x new"]; len(s.file.Jobs) != maxBegun || !kept {
		t.Errorf("%d jobs, the new one is kept: %v", len(s.file.Jobs), kept)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

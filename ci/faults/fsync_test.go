//go:build faults && linux

package faults

import (
	"strings"
	"testing"
)

// TestFsync tests that the relay answers 200 after the fsync of the message (PROTOCOL §5; SECURITY.md T3). Killing the
// relay cannot show this, because the kernel keeps what was written. The order of the system calls shows it.
func TestFsync(t *testing.T) {
	for name, posters := range map[string]int{"one poster": 1, "sixteen posters": 16} {
		t.Run(name, func(t *testing.T) {
			relay := newServer(t, longTimeouts...)
			relay.start()
			// strace must print whole frames of the write-ahead log, so that a message can be found by its id. A frame
			// contains a page of the database.
			tr := trace(t, relay, "-s", "5000", "-e", "trace=write,pwrite64,fsync,fdatasync")
			taken, refused := tracedLoad(t, relay, posters, 96/posters)
			all := tr.detach()
			if len(refused) > 0 {
				t.Fatalf("%d posts were refused: %s", len(refused), refused[0])
			}
			syncs := 0
			for _, a := range taken {
				all.checkAcknowledged(t, a.ID)
			}
			for _, c := range all {
				if c.isOn("agora.db-wal", "fsync", "fdatasync") {
					syncs++
				}
			}
			if posters == 1 && syncs < len(taken) {
				t.Errorf("%d messages that were posted one after the other were acknowledged with only %d fsyncs",
					len(taken), syncs)
			}
			t.Logf("%d acknowledged, %d fsyncs of the write-ahead log", len(taken), syncs)
		})
	}
}

// checkAcknowledged checks that an fsync of the write-ahead log began after the message was written there, and ended
// before the message was answered with 200.
func (all calls) checkAcknowledged(t *testing.T, id string) {
	t.Helper()
	var written, synced, answered *call
	for _, c := range all {
		switch {
		case written == nil && c.isOn("agora.db-wal", "pwrite64") && strings.Contains(c.text, id):
			written = c
		case answered == nil && c.name == "write" && strings.Contains(c.text, "HTTP/1.1 200 ") &&
			strings.Contains(c.text, `\"id\":\"`+id):
			answered = c
		}
	}
	if written == nil || answered == nil {
		t.Errorf("message %s: written to the write-ahead log: %t, answered with 200: %t", id, written != nil,
			answered != nil)
		return
	}
	// A commit may write several frames. The fsync that counts is the first one after all frames that directly follow
	// each other.
	last := written
	for _, c := range all {
		if c.enter < written.leave || c.enter > answered.enter {
			continue
		}
		if c.isOn("agora.db-wal", "pwrite64") && synced == nil {
			last = c
		}
		if c.isOn("agora.db-wal", "fsync", "fdatasync") && synced == nil && c.enter > last.leave && c.leave > 0 &&
			c.leave < answered.enter &&
			!c.failed {
			synced = c
		}
	}
	if synced == nil {
		t.Errorf("message %s was written at line %d of the trace and acknowledged at line %d, without an fsync between",
			id, written.enter, answered.enter)
	}
}

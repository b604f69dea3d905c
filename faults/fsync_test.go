//go:build faults && linux

package faults

import (
	"strings"
	"testing"
)

// A 200 comes after the fsync of what it acknowledges (PROTOCOL §5; THREATS T3). Killing cannot show this, as the kernel
// keeps what was written; the order of the system calls does.
func TestFsync(t *testing.T) {
	for name, posters := range map[string]int{"one poster": 1, "sixteen posters": 16} {
		t.Run(name, func(t *testing.T) {
			relay := newServer(t, patient...)
			relay.start()
			// Strings as long as a frame of the log, which holds a page, so that a message can be found in it by its id.
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
				if c.on("agora.db-wal", "fsync", "fdatasync") {
					syncs++
				}
			}
			if posters == 1 && syncs < len(taken) {
				t.Errorf("%d messages, one after the other, were acknowledged after %d fsyncs", len(taken), syncs)
			}
			t.Logf("%d acknowledged, %d fsyncs of the write-ahead log", len(taken), syncs)
		})
	}
}

// checkAcknowledged checks that the log was fsynced, wholly between the message being written there and its 200.
func (all calls) checkAcknowledged(t *testing.T, id string) {
	t.Helper()
	var written, synced, answered *call
	for _, c := range all {
		switch {
		case written == nil && c.on("agora.db-wal", "pwrite64") && strings.Contains(c.text, id):
			written = c
		case answered == nil && c.name == "write" && strings.Contains(c.text, "HTTP/1.1 200 ") && strings.Contains(c.text, `\"id\":\"`+id):
			answered = c
		}
	}
	if written == nil || answered == nil {
		t.Errorf("%s: written to the log: %t, answered: %t", id, written != nil, answered != nil)
		return
	}
	// A commit ends with its last frame; the fsync that counts begins after all frames that came without a pause.
	last := written
	for _, c := range all {
		if c.enter < written.leave || c.enter > answered.enter {
			continue
		}
		if c.on("agora.db-wal", "pwrite64") && synced == nil {
			last = c
		}
		if c.on("agora.db-wal", "fsync", "fdatasync") && synced == nil && c.enter > last.leave && c.leave > 0 && c.leave < answered.enter && !c.failed {
			synced = c
		}
	}
	if synced == nil {
		t.Errorf("%s was written at line %d of the trace and acknowledged at line %d, without an fsync between", id, written.enter, answered.enter)
	}
}

package faults

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestTwoProcesses tests that a second relay with the same database prints an error and ends, and that the first relay
// is not affected (SECURITY.md T21).
func TestTwoProcesses(t *testing.T) {
	first := newServer(t, longTimeouts...)
	first.start()
	keys := newKeys(t, 2)
	before := first.mustAccept(request(t, keys[0], keys[1].DID(), time.Hour, 0))

	second := serverOn(t, first.data, longTimeouts...)
	if output := second.mustFailToStart(); !strings.Contains(output, "in use by another process") {
		t.Errorf("the second relay does not print the reason: %q", output)
	}

	after := first.mustAccept(request(t, keys[0], keys[1].DID(), time.Hour, 0))
	if events, _ := first.stored("0"); len(events) != 2 || events[0].ID != before.ID || events[1].ID != after.ID {
		t.Errorf("the first relay has %d events instead of 2", len(events))
	}
	first.kill()
	second.start() // the lock of the killed process is released
	if a := second.ask(http.MethodGet, "/events?timeout=0&cursor="+before.Cursor, nil); len(a.Events) != 1 {
		t.Errorf("there are %d events after the first one instead of 1: %s", len(a.Events), a)
	}
}

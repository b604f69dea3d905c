package faults

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// A database serves one relay at a time: a second one says so and ends, and the first does not notice (THREATS T21).
func TestTwoProcesses(t *testing.T) {
	first := newServer(t, patient...)
	first.start()
	keys := newKeys(t, 2)
	before := first.mustTake(request(t, keys[0], keys[1].DID(), time.Hour, 0))

	second := serverOn(t, first.data, patient...)
	patience := time.Second
	if raceDetector {
		patience *= 5
	}
	if said := second.fails(patience); !strings.Contains(said, "in use by another process") {
		t.Errorf("the second relay does not say why it ends: %q", said)
	}

	after := first.mustTake(request(t, keys[0], keys[1].DID(), time.Hour, 0))
	if events, _ := first.stored("0"); len(events) != 2 || events[0].ID != before.ID || events[1].ID != after.ID {
		t.Errorf("the first relay has %d events, not the 2 it was sent", len(events))
	}
	first.kill()
	second.start() // the lock of a killed process is free
	if a := second.ask(http.MethodGet, "/events?timeout=0&cursor="+before.Cursor, nil); len(a.Events) != 1 {
		t.Errorf("behind the first event there are %d, not 1: %s", len(a.Events), a)
	}
}

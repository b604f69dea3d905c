//go:build faults && linux

package faults

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// smallDisk mounts a file system of so many megabytes in memory, until the test ends.
func smallDisk(t *testing.T, megabytes int) (folder string) {
	t.Helper()
	folder = t.TempDir()
	if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, fmt.Sprintf("mode=0700,size=%dm", megabytes)); err != nil {
		t.Fatalf("these tests need the right to mount: %v", err)
	}
	t.Cleanup(func() { must(t, syscall.Unmount(folder, syscall.MNT_DETACH)) })
	return folder
}

const (
	fillSize    = 8 << 10          // bytes of a message that fills
	mostFill    = 4000             // messages, more than any of the disks here holds
	recoverTime = 30 * time.Second // from the moment there is room
	shortTTL    = 8 * time.Second  // of what fills, where time is to make the room
)

// A full disk is a refusal that may pass, never a loss: reads go on, what was acknowledged stays, and the relay takes in
// again by itself once there is room (THREATS T12).
func TestFullDisk(t *testing.T) {
	for _, megabytes := range []int{4, 8} {
		t.Run(fmt.Sprintf("%d MB, messages expire", megabytes), func(t *testing.T) { fillAndRecover(t, megabytes, expiry) })
		t.Run(fmt.Sprintf("%d MB, others fill it and messages expire", megabytes), func(t *testing.T) { fillAndRecover(t, megabytes, crowdedOut) })
		t.Run(fmt.Sprintf("%d MB, the operator makes room", megabytes), func(t *testing.T) { fillAndRecover(t, megabytes, operator) })
	}
}

// room says how the disk gets filled and how it gets room.
type room struct {
	ttl     time.Duration // of the messages
	before  int           // messages that are there before another's file takes all the rest of the disk; 0: it does not
	removed bool          // another's file takes a quarter of the disk, and is removed
}

var (
	expiry     = room{ttl: shortTTL}
	crowdedOut = room{ttl: shortTTL, before: 60}
	operator   = room{ttl: time.Hour, removed: true}
)

func fillAndRecover(t *testing.T, megabytes int, by room) {
	disk := smallDisk(t, megabytes)
	relay := serverOn(t, filepath.Join(disk, "data"), patient...)
	relay.start()
	// Long-lived messages from before the disk is full; they are still there at the end.
	keys := newKeys(t, 2)
	kept := map[string]bool{}
	for range 10 {
		kept[relay.mustTake(request(t, keys[0], keys[1].DID(), time.Hour, 500)).ID] = true
	}
	filler := filepath.Join(disk, "filler")
	switch {
	case by.removed:
		must(t, os.WriteFile(filler, make([]byte, megabytes<<20/4), 0o600))
	case by.before > 0:
		if refusal, n := fill(t, relay, by, kept, by.before); n < by.before {
			t.Fatalf("full after %d messages: %s", n, refusal)
		}
		if err := os.WriteFile(filler, make([]byte, megabytes<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("the disk is not full: %v", err)
		}
	}
	last, taken := fill(t, relay, by, kept, mostFill)
	if taken == mostFill {
		t.Fatalf("%d messages of %d bytes were taken, and the disk is not full", mostFill, fillSize)
	}
	t.Logf("full after %d messages: %s", taken, last)
	if last.Error != envelope.CodeUnavailable || last.retryAfter == "" || !last.Retryable {
		t.Errorf("a full disk is told as %s, Retry-After %q, retryable=%t", last, last.retryAfter, last.Retryable)
	}
	for _, path := range []string{"/events?cursor=0&timeout=0", "/events?timeout=0&since=2020-01-01T00:00:00Z", "/agents", "/.well-known/agora.json",
		"/events?timeout=0.1&cursor=0&recipient=" + string(keys[0].DID())} {
		if a := relay.ask(http.MethodGet, path, nil); !a.OK {
			t.Errorf("with a full disk %s is answered %s", path, a)
		}
	}
	checkKept(t, relay, kept)
	if by.removed {
		must(t, os.Remove(filler))
	}
	within(t, recoverTime, "messages are taken in again", func() bool {
		e := request(t, keys[0], keys[1].DID(), time.Hour, 500)
		a := relay.ask(http.MethodPost, "/events", e.Canonical())
		if a.OK {
			kept[e.ID] = true
		}
		return a.OK
	})
	checkKept(t, relay, kept)
	relay.kill()
	relay.start()
	checkKept(t, relay, kept)
	kept[relay.mustTake(request(t, keys[0], keys[1].DID(), time.Hour, 500)).ID] = true
	checkKept(t, relay, kept)
}

// fill posts until the relay refuses, and returns the refusal, or until it has posted most. What lives long it adds to
// kept.
func fill(t *testing.T, relay *server, by room, kept map[string]bool, most int) (refusal answer, taken int) {
	t.Helper()
	from, to := newKey(t), newKey(t).DID()
	for n := range most {
		e := request(t, from, to, by.ttl, fillSize)
		a := relay.ask(http.MethodPost, "/events", e.Canonical())
		if !a.OK {
			return a, n
		}
		if by.ttl >= time.Hour {
			kept[e.ID] = true
		}
	}
	return answer{}, most
}

// checkKept checks that all of these are stored, once.
func checkKept(t *testing.T, relay *server, kept map[string]bool) {
	t.Helper()
	there := map[string]int{}
	events, _ := relay.stored("0")
	for _, e := range events {
		there[e.ID]++
	}
	for id := range kept {
		if there[id] != 1 {
			t.Errorf("%s was acknowledged and is there %d times", id, there[id])
		}
	}
}

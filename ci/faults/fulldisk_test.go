//go:build faults && linux

package faults

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// smallDisk mounts a file system of this size in memory, until the test ends.
func smallDisk(t *testing.T, megabytes int) (folder string) {
	t.Helper()
	folder = t.TempDir()
	if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, fmt.Sprintf("mode=0700,size=%dm", megabytes)); err != nil {
		t.Fatalf("this test needs the right to mount file systems; run it as root: %v", err)
	}
	t.Cleanup(func() { must(t, syscall.Unmount(folder, syscall.MNT_DETACH)) })
	return folder
}

const (
	fillSize        = 8 << 10          // bytes of a message that fills the disk
	maxFillMessages = 4000             // more messages than fit on the disks of this test
	recoveryTimeout = 30 * time.Second // from the moment when space is free again
	shortTTL        = 8 * time.Second  // ttl of messages whose expiry frees space
)

// TestFullDisk tests that a relay with a full disk refuses posts with a retryable error and loses nothing. Reads must
// work, and acknowledged messages must stay. When space is free again, the relay must accept posts without a restart
// (SECURITY.md T12).
func TestFullDisk(t *testing.T) {
	for _, megabytes := range []int{4, 8} {
		t.Run(fmt.Sprintf("%d MB, messages expire", megabytes),
			func(t *testing.T) { fillAndRecover(t, megabytes, expiry) })
		t.Run(fmt.Sprintf("%d MB, another file fills it and messages expire", megabytes),
			func(t *testing.T) { fillAndRecover(t, megabytes, othersFill) })
		t.Run(fmt.Sprintf("%d MB, the operator frees space", megabytes),
			func(t *testing.T) { fillAndRecover(t, megabytes, operator) })
	}
}

// scenario describes how the disk becomes full and how space becomes free again.
type scenario struct {
	ttl             time.Duration // of the messages that fill the disk
	messagesBefore  int           // posted before another file fills the rest of the disk; 0: no such file
	operatorRemoves bool          // another file takes a quarter of the disk and is removed later
}

var (
	expiry     = scenario{ttl: shortTTL}
	othersFill = scenario{ttl: shortTTL, messagesBefore: 60}
	operator   = scenario{ttl: time.Hour, operatorRemoves: true}
)

func fillAndRecover(t *testing.T, megabytes int, scenario scenario) {
	disk := smallDisk(t, megabytes)
	relay := serverOn(t, filepath.Join(disk, "data"), longTimeouts...)
	relay.start()
	// Messages with a long ttl, posted before the disk is full. They must still be stored at the end.
	keys := newKeys(t, 2)
	kept := map[string]bool{}
	for range 10 {
		kept[relay.mustAccept(request(t, keys[0], keys[1].DID(), time.Hour, 500)).ID] = true
	}
	filler := filepath.Join(disk, "filler")
	switch {
	case scenario.operatorRemoves:
		must(t, os.WriteFile(filler, make([]byte, megabytes<<20/4), 0o600))
	case scenario.messagesBefore > 0:
		if refusal, n := fill(t, relay, scenario, kept, scenario.messagesBefore); n < scenario.messagesBefore {
			t.Fatalf("the disk is full after %d messages: %s", n, refusal)
		}
		if err := os.WriteFile(filler, make([]byte, megabytes<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("the disk is not full: %v", err)
		}
	}
	last, taken := fill(t, relay, scenario, kept, maxFillMessages)
	if taken == maxFillMessages {
		t.Fatalf("the disk is not full after %d messages of %d bytes", maxFillMessages, fillSize)
	}
	t.Logf("the disk is full after %d messages: %s", taken, last)
	if last.Error != envelope.CodeUnavailable || last.retryAfter == "" || !last.Retryable {
		t.Errorf("with a full disk a post is answered with %s, Retry-After %q, retryable=%t", last, last.retryAfter,
			last.Retryable)
	}
	for _, path := range []string{"/events?cursor=0&timeout=0", "/events?timeout=0&since=2020-01-01T00:00:00Z",
		"/agents", "/.well-known/agora.json",
		"/events?timeout=0.1&cursor=0&recipient=" + string(keys[0].DID())} {
		if a := relay.ask(http.MethodGet, path, nil); !a.OK {
			t.Errorf("with a full disk, GET %s is answered with %s", path, a)
		}
	}
	checkKept(t, relay, kept)
	if scenario.operatorRemoves {
		must(t, os.Remove(filler))
	}
	within(t, recoveryTimeout, "the relay accepts messages again", func() bool {
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
	kept[relay.mustAccept(request(t, keys[0], keys[1].DID(), time.Hour, 500)).ID] = true
	checkKept(t, relay, kept)
}

// fill posts messages until the relay refuses one, or until it has posted limit messages. It returns the refusal and
// the number of accepted messages. It adds messages with a long ttl to kept.
func fill(t *testing.T, relay *server, scenario scenario, kept map[string]bool, limit int) (refusal answer, taken int) {
	t.Helper()
	from, to := newKey(t), newKey(t).DID()
	for n := range limit {
		e := request(t, from, to, scenario.ttl, fillSize)
		a := relay.ask(http.MethodPost, "/events", e.Canonical())
		if !a.OK {
			return a, n
		}
		if scenario.ttl >= time.Hour {
			kept[e.ID] = true
		}
	}
	return answer{}, limit
}

// checkKept checks that each of these messages is stored once.
func checkKept(t *testing.T, relay *server, kept map[string]bool) {
	t.Helper()
	counts := map[string]int{}
	events, _ := relay.stored("0")
	for _, e := range events {
		counts[e.ID]++
	}
	for id := range kept {
		if counts[id] != 1 {
			t.Errorf("message %s was acknowledged and is stored %d times", id, counts[id])
		}
	}
}

// TestOperatorOnFullDisk checks that an operator can remove messages and ban senders on a full disk, over the admin socket
// while the relay runs and with agora prune while it does not. The relay then accepts messages again (SECURITY.md T12).
func TestOperatorOnFullDisk(t *testing.T) {
	for _, othersFill := range []bool{false, true} {
		t.Run(fmt.Sprintf("another file fills it: %t", othersFill), func(t *testing.T) { removeOnFullDisk(t, 48, othersFill) })
	}
}

func removeOnFullDisk(t *testing.T, megabytes int, othersFill bool) {
	disk := smallDisk(t, megabytes)
	relay := serverOn(t, filepath.Join(disk, "data"), longTimeouts...)
	relay.start()
	limit := maxFillMessages * megabytes / 8
	if othersFill {
		limit = 200
	}
	kept := map[string]bool{}
	_, taken := fill(t, relay, operator, kept, limit)
	if othersFill {
		if err := os.WriteFile(filepath.Join(disk, "filler"), make([]byte, megabytes<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("the disk is not full: %v", err)
		}
		within(t, recoveryTimeout, "the relay refuses messages", func() bool {
			refusal, _ := fill(t, relay, operator, kept, 1)
			return refusal.Error == envelope.CodeUnavailable
		})
	}
	filled := time.Now()
	govern := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(binary, append(args, "--data", relay.data)...).CombinedOutput(); err != nil {
			t.Errorf("agora %v: %v\n%s", args, err, out)
		}
	}
	govern("admin", "ban", "192.0.2.7")
	for seq := range taken / 4 {
		if seq < 18 {
			govern("admin", "remove", "--seq", fmt.Sprint(seq+1))
		}
	}
	govern("admin", "unban", "192.0.2.7")
	relay.stop()
	time.Sleep(time.Until(filled.Add(time.Second))) // then prune removes all messages, however fast this machine is
	govern("prune", "--older-than", "1s")
	relay.start()
	relay.mustAccept(request(t, newKey(t), newKey(t).DID(), time.Hour, 500))
}

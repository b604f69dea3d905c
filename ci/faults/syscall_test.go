//go:build faults && linux

package faults

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// Faults of a disk that affect the write-ahead log. The counts of strace's when= are per thread.
var (
	failingSyncs = map[string]string{
		"every sync":                               "inject=fsync,fdatasync:error=EIO",
		"the first sync of each thread":            "inject=fsync,fdatasync:error=EIO:when=1",
		"the second sync of each thread":           "inject=fsync,fdatasync:error=EIO:when=2",
		"the third and later syncs of each thread": "inject=fsync,fdatasync:error=EIO:when=3+",
	}
	failingWrites = map[string]string{
		"the disk is full":              "inject=pwrite64,ftruncate:error=ENOSPC",
		"the disk is full for a while":  "inject=pwrite64,ftruncate:error=ENOSPC:when=3..8",
		"the disk is full now and then": "inject=pwrite64:error=ENOSPC:when=2+5",
		"all writes fail":               "inject=pwrite64:error=EIO",
		"writes fail for a while":       "inject=pwrite64:error=EIO:when=4..9",
		"writes fail now and then":      "inject=pwrite64:error=EIO:when=3+4",
		"the first two writes fail":     "inject=pwrite64:error=EIO:when=1..2",
	}
)

// TestFailingSyncs tests that the relay accepts no messages after a failed fsync until it is restarted. The kernel may
// have dropped the pages that were not written, and a later fsync that succeeds does not show that they are on disk
// (SECURITY.md T3, T12).
func TestFailingSyncs(t *testing.T) {
	for name, inject := range failingSyncs {
		t.Run(name, func(t *testing.T) {
			relay, tr := startFailing(t, "trace=fsync,fdatasync", inject)
			refused := loadWhileFailing(t, relay, tr)
			if len(refused) == 0 {
				t.Fatal("no post was refused although an fsync failed")
			}
			// The disk works again, but the relay must still refuse.
			e := request(t, newKey(t), newKey(t).DID(), time.Hour, 100)
			if a := relay.ask(http.MethodPost, "/events", e.Canonical()); a.status != http.StatusServiceUnavailable {
				t.Errorf("after a failed fsync and without a restart, the relay answers a post with %s", a)
			}
			// /health must answer. It may report the relay as healthy or not.
			if a := relay.ask(http.MethodGet, "/health", nil); !a.OK && a.status != http.StatusServiceUnavailable {
				t.Errorf("after a failed fsync, GET /health is answered with %s", a)
			}
		})
	}
}

func TestFailingWrites(t *testing.T) {
	for name, inject := range failingWrites {
		t.Run(name, func(t *testing.T) {
			relay, tr := startFailing(t, "trace=pwrite64,ftruncate", inject)
			loadWhileFailing(t, relay, tr)
		})
	}
}

// startFailing starts a relay with a few messages, and a tracer that makes system calls on its write-ahead log fail.
func startFailing(t *testing.T, syscalls, inject string) (*server, *tracer) {
	t.Helper()
	relay := newServer(t, longTimeouts...)
	relay.start()
	if _, refused := tracedLoad(t, relay, 1, 5); len(refused) > 0 {
		t.Fatalf("a post was refused before any system call failed: %s", refused[0])
	}
	return relay, trace(t, relay, "-e", syscalls, "-e", inject, "-P", relay.data+"/agora.db-wal")
}

// loadWhileFailing posts messages while the disk fails, and then makes the disk work again. Refused posts must have the
// right answer, and reads must work. It returns the refusals. At the end of the test, it restarts the relay and checks
// that each acknowledged message is stored once.
func loadWhileFailing(t *testing.T, relay *server, tr *tracer) (refused []answer) {
	t.Helper()
	before, _ := relay.stored("0")
	taken, refused := tracedLoad(t, relay, 4, 12)
	for _, a := range refused {
		if a.status != http.StatusServiceUnavailable || a.Error != envelope.CodeUnavailable || a.retryAfter == "" ||
			!a.Retryable {
			t.Errorf("a post that cannot be stored is answered with %s, Retry-After %q, retryable=%t", a, a.retryAfter,
				a.Retryable)
			break
		}
	}
	during, _ := relay.stored("0")
	if len(during) < len(before)+len(taken) {
		t.Errorf("while the disk fails, the relay returns %d of %d events", len(during), len(before)+len(taken))
	}
	if a := relay.ask(http.MethodGet, "/threads/"+before[0].Thread, nil); !a.OK {
		t.Errorf("while the disk fails, GET /threads/{id} is answered with %s", a)
	}
	if n := tr.detach().countInjected(); n == 0 {
		t.Fatal("no system call has failed, so the test has tested nothing")
	}
	t.Logf("%d posts accepted, %d refused", len(taken), len(refused))
	t.Cleanup(func() { // after the other checks of the test
		relay.kill()
		relay.start()
		counts := map[string]int{}
		events, _ := relay.stored("0")
		for _, e := range events {
			counts[e.ID]++
		}
		for _, e := range before {
			taken = append(taken, answer{ID: e.ID})
		}
		for _, a := range taken {
			if counts[a.ID] != 1 {
				t.Errorf("message %s was acknowledged and is stored %d times after a restart", a.ID, counts[a.ID])
			}
		}
		relay.mustAccept(request(t, newKey(t), newKey(t).DID(), time.Hour, 100))
	})
	return refused
}

// TestFailingStart tests a relay whose disk fails while it starts. The relay must print an error and end. When the disk
// works again, it must start with the same data folder.
func TestFailingStart(t *testing.T) {
	needStrace(t)
	for name, inject := range map[string]string{
		"every sync":       "fsync,fdatasync:error=EIO",
		"the disk is full": "pwrite64:error=ENOSPC",
		"every write":      "pwrite64:error=EIO",
		"every read":       "pread64:error=EIO",
		"the third sync":   "fsync,fdatasync:error=EIO:when=3",
	} {
		t.Run(name, func(t *testing.T) {
			relay := newServer(t, longTimeouts...)
			calls, _, _ := strings.Cut(inject, ":")
			relay.commandPrefix = []string{
				"strace",
				"-f",
				"-o",
				t.TempDir() + "/log",
				"-e",
				"trace=" + calls,
				"-e",
				"inject=" + inject,
				"-P",
				relay.data + "/agora.db",
				"-P",
				relay.data + "/agora.db-wal",
			}
			must(t, relay.launch())
			timer := time.NewTimer(startTimeout)
			defer timer.Stop()
			select {
			case <-relay.process.ended:
				if output := relay.process.stderr.String(); relay.process.code <= 0 ||
					!strings.Contains(output, "agora: ") ||
					strings.Contains(output, "panic") {
					t.Errorf("the relay ended with exit code %d and the output %q; it must print an error",
						relay.process.code, output)
				}
			case <-relay.process.listens:
				if strings.HasPrefix(name, "every") {
					t.Error("the relay listens although its disk fails")
				}
			case <-timer.C:
				t.Errorf("the relay neither listens nor ends")
			}
			relay.kill()
			relay.commandPrefix = nil
			relay.start()
			relay.mustAccept(request(t, newKey(t), newKey(t).DID(), time.Hour, 100))
		})
	}
}

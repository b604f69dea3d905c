//go:build faults && linux

package faults

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// A disk that fails, in the ways that reach a write-ahead log.
var (
	failingSyncs = map[string]string{
		"every sync":            "inject=fsync,fdatasync:error=EIO",
		"a thread's first sync": "inject=fsync,fdatasync:error=EIO:when=1",
		"its second":            "inject=fsync,fdatasync:error=EIO:when=2",
		"its third and later":   "inject=fsync,fdatasync:error=EIO:when=3+",
	}
	failingWrites = map[string]string{
		"no room":               "inject=pwrite64,ftruncate:error=ENOSPC",
		"no room for a while":   "inject=pwrite64,ftruncate:error=ENOSPC:when=3..8",
		"now and then no room":  "inject=pwrite64:error=ENOSPC:when=2+5",
		"broken":                "inject=pwrite64:error=EIO",
		"broken for a while":    "inject=pwrite64:error=EIO:when=4..9",
		"now and then broken":   "inject=pwrite64:error=EIO:when=3+4",
		"broken for two writes": "inject=pwrite64:error=EIO:when=1..2",
	}
)

// A relay whose fsync fails acknowledges nothing more until it is started again: what the kernel holds of the pages that
// were not written is unknown, and a later fsync that succeeds says nothing about them (THREATS T3, T12).
func TestFailingSyncs(t *testing.T) {
	for name, inject := range failingSyncs {
		t.Run(name, func(t *testing.T) {
			relay, tr := failing(t, "trace=fsync,fdatasync", inject)
			refused := suffers(t, relay, tr)
			if len(refused) == 0 {
				t.Fatal("no post was refused although an fsync failed")
			}
			// The disk is well again; the relay does not believe it.
			e := request(t, newKey(t), newKey(t).DID(), time.Hour, 100)
			if a := relay.ask(http.MethodPost, "/events", e.Canonical()); a.status != http.StatusServiceUnavailable {
				t.Errorf("after a failed fsync, and not restarted, the relay answers a post with %s", a)
			}
			// /health answers; whether a relay that takes nothing in is well is for it to say.
			if a := relay.ask(http.MethodGet, "/health", nil); !a.OK && a.status != http.StatusServiceUnavailable {
				t.Errorf("after a failed fsync /health says %s", a)
			}
		})
	}
}

func TestFailingWrites(t *testing.T) {
	for name, inject := range failingWrites {
		t.Run(name, func(t *testing.T) {
			relay, tr := failing(t, "trace=pwrite64,ftruncate", inject)
			suffers(t, relay, tr)
		})
	}
}

// failing returns a relay that has a few messages, and the tracer that makes the calls on its write-ahead log fail.
func failing(t *testing.T, syscalls, inject string) (*server, *tracer) {
	t.Helper()
	relay := newServer(t, patient...)
	relay.start()
	if _, refused := tracedLoad(t, relay, 1, 5); len(refused) > 0 {
		t.Fatalf("refused before anything failed: %s", refused[0])
	}
	return relay, trace(t, relay, "-e", syscalls, "-e", inject, "-P", relay.data+"/agora.db-wal")
}

// suffers loads a relay whose disk fails, and heals the disk. Posts that are refused must be refused rightly, reads go
// on, and all that was acknowledged, then and before, is there after a restart, and nothing twice. It returns the
// refusals; a restart has not happened yet when the test goes on, it happens at its end.
func suffers(t *testing.T, relay *server, tr *tracer) (refused []answer) {
	t.Helper()
	before, _ := relay.stored("0")
	taken, refused := tracedLoad(t, relay, 4, 12)
	for _, a := range refused {
		if a.status != http.StatusServiceUnavailable || a.Error != envelope.CodeUnavailable || a.retryAfter == "" || !a.Retryable {
			t.Errorf("a post that cannot be stored is answered %s, Retry-After %q, retryable=%t", a, a.retryAfter, a.Retryable)
			break
		}
	}
	amid, _ := relay.stored("0")
	if len(amid) < len(before)+len(taken) {
		t.Errorf("while the disk fails the relay shows %d events of %d", len(amid), len(before)+len(taken))
	}
	if a := relay.ask(http.MethodGet, "/threads/"+before[0].Thread, nil); !a.OK {
		t.Errorf("while the disk fails a thread is answered %s", a)
	}
	if n := tr.detach().faults(); n == 0 {
		t.Fatal("no call has failed, so nothing was tested")
	}
	t.Logf("%d posts taken, %d refused", len(taken), len(refused))
	t.Cleanup(func() { // after what the test still looks at
		relay.kill()
		relay.start()
		there := map[string]int{}
		events, _ := relay.stored("0")
		for _, e := range events {
			there[e.ID]++
		}
		for _, e := range before {
			taken = append(taken, answer{ID: e.ID})
		}
		for _, a := range taken {
			if there[a.ID] != 1 {
				t.Errorf("%s was acknowledged and is there %d times after a restart", a.ID, there[a.ID])
			}
		}
		relay.mustTake(request(t, newKey(t), newKey(t).DID(), time.Hour, 100))
	})
	return refused
}

// A relay whose disk fails while it starts says so and ends, and starts on the same folder once the disk is well.
func TestFailingStart(t *testing.T) {
	needStrace(t)
	for name, inject := range map[string]string{
		"every sync":     "fsync,fdatasync:error=EIO",
		"no room":        "pwrite64:error=ENOSPC",
		"every write":    "pwrite64:error=EIO",
		"every read":     "pread64:error=EIO",
		"the third sync": "fsync,fdatasync:error=EIO:when=3",
	} {
		t.Run(name, func(t *testing.T) {
			relay := newServer(t, patient...)
			calls, _, _ := strings.Cut(inject, ":")
			relay.wrap = []string{"strace", "-f", "-o", t.TempDir() + "/log", "-e", "trace=" + calls, "-e", "inject=" + inject,
				"-P", relay.data + "/agora.db", "-P", relay.data + "/agora.db-wal"}
			must(t, relay.launch())
			patience := time.NewTimer(startTime)
			defer patience.Stop()
			select {
			case <-relay.process.ended:
				if said := relay.process.stderr.String(); relay.process.code <= 0 || !strings.Contains(said, "agora: ") || strings.Contains(said, "panic") {
					t.Errorf("the relay ended with code %d, saying %q", relay.process.code, said)
				}
			case <-relay.process.listens:
				if strings.HasPrefix(name, "every") {
					t.Error("the relay listens although its disk fails")
				}
			case <-patience.C:
				t.Errorf("the relay neither runs nor ends")
			}
			relay.kill()
			relay.wrap = nil
			relay.start()
			relay.mustTake(request(t, newKey(t), newKey(t).DID(), time.Hour, 100))
		})
	}
}

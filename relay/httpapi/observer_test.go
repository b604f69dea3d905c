package httpapi_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// refusals is an Observer that records refusals.
type refusals struct {
	relay.NoObserver
	mu   sync.Mutex
	seen []string
}

func (r *refusals) Refused(status int, code envelope.Code, limit string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, fmt.Sprint(status, " ", code, " ", limit))
}

// The observer is told about each error that a client gets, and about each connection that is closed because of a
// limit.
func TestObserverSeesRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := &refusals{}
		r := startWith(t, asIs, relay.Config{Observer: seen, Limits: relay.Limits{ConnectionsPerAddress: 1, ReadsPerAddress: relay.Rate{PerSecond: 0.01, Burst: 4}}})
		h := newFront(t, r, httpapi.Options{Log: quiet, Mounts: []httpapi.Mount{gateway{r}.mount("/gateway")}}).Handler(false)
		for _, target := range []string{
			"/nowhere", "/gateway/items/removed", "/gateway/items/fails", "/health", "/agents", "/agents",
		} {
			ask(t, h, "GET", target)
		}
		post(t, h, "/events", []byte("{}"))
		l, _ := serveOn(t, allInterfaces, r, httpapi.Options{Log: quiet})
		l.dialFrom("192.0.2.1:9")
		synctest.Wait()
		l.dialFrom("192.0.2.1:9")
		synctest.Wait()
		want := []string{"404 NOT_FOUND ", "410  ", "422 INTERNAL_ERROR ", "429 RATE_LIMITED readsPerAddress",
			"400 UNSUPPORTED_VERSION ", "0 RATE_LIMITED connectionsPerAddress"}
		if !slices.Equal(seen.seen, want) {
			t.Errorf("%q\nwant %q", seen.seen, want)
		}
	})
}

package conformance_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/conformance"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// showsThreads is a store that takes everybody for a party.
type showsThreads struct{ relay.Store }

func (s showsThreads) ThreadsOf(ctx context.Context, k thread.Key, _ didkey.DID, now time.Time) ([]thread.Thread, error) {
	t, err := s.Thread(ctx, k, now)
	if err != nil {
		return nil, nil
	}
	return []thread.Thread{t}, nil
}

// showsEvents is a store that does not ask who reads.
type showsEvents struct{ relay.Store }

func (s showsEvents) Read(ctx context.Context, q relay.Query) (relay.Page, error) {
	q.Viewer = relay.Viewer{}
	return s.Store.Read(ctx, q)
}

// takesNobody takes what is wrong with an Authorization for no Authorization.
func takesNobody(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" && !strings.HasPrefix(r.URL.Path, "/events") {
			r.Header.Del("Authorization")
		}
		h.ServeHTTP(w, r)
	})
}

// answersSoon holds no poll for longer than a second.
func answersSoon(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if q := r.URL.Query(); q.Has("timeout") {
			q.Set("timeout", "1")
			r.URL.RawQuery = q.Encode()
		}
		h.ServeHTTP(w, r)
	})
}

// TestTheKitNoticesLeaks is TestTheKitNotices for relays that show messages to their parties, or mean to.
func TestTheKitNoticesLeaks(t *testing.T) {
	t.Parallel()
	for _, b := range []broken{
		{name: "shows any thread", store: func(s relay.Store) relay.Store { return showsThreads{s} },
			fails: map[string]string{"X-36": "status 200", "X-37": "FORBIDDEN", "X-38": "status 200"}},
		{name: "shows any event", store: func(s relay.Store) relay.Store { return showsEvents{s} },
			fails: map[string]string{"X-35": "does not belong here"}},
		{name: "takes a broken token for none", wire: takesNobody,
			fails: map[string]string{"X-41": "it is accepted", "X-42": "it is accepted"}},
		{name: "answers soon", wire: answersSoon, fails: map[string]string{"X-43": "answered after 1"}},
		{name: "forbids", wire: otherStatus(http.StatusUnauthorized, http.StatusForbidden),
			fails: map[string]string{"X-33": "another way", "X-34": "another way", "X-39": "another way", "X-40": "another way"}},
	} {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			var only []string
			for number := range b.fails {
				only = append(only, number)
			}
			report, err := conformance.Run(t.Context(), startReads(t, relay.ToParties, b.store, b.wire), conformance.Options{Only: only})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range report.Results {
				if r.Status != conformance.Failed || !strings.Contains(r.Got, b.fails[r.Number]) {
					t.Errorf("%s %s, want it failed with %q\nsent %s\nexpected %s\ngot %s", r.Number, r.Status, b.fails[r.Number], r.Sent, r.Expected, r.Got)
				}
			}
		})
	}
}

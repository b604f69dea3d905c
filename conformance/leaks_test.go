package conformance_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// showsAllThreads is a store that treats every reader as a party of every thread.
type showsAllThreads struct{ relay.Store }

func (s showsAllThreads) ThreadsOf(
	ctx context.Context, k thread.Key, _ didkey.DID, now time.Time,
) ([]thread.Thread, error) {
	t, err := s.Thread(ctx, k, now)
	if err != nil {
		return nil, nil
	}
	return []thread.Thread{t}, nil
}

// showsAllEvents is a store that ignores who the reader is.
type showsAllEvents struct{ relay.Store }

func (s showsAllEvents) Read(ctx context.Context, q relay.Query) (relay.Page, error) {
	q.Viewer = relay.Viewer{}
	return s.Store.Read(ctx, q)
}

// ignoresBadTokens is a middleware that ignores Authorization, except for polls. So an invalid token is not refused.
func ignoresBadTokens(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" && !strings.HasPrefix(r.URL.Path, "/events") {
			r.Header.Del("Authorization")
		}
		h.ServeHTTP(w, r)
	})
}

// answersSoon is a middleware that holds no poll for longer than a second.
func answersSoon(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if q := r.URL.Query(); q.Has("timeout") {
			q.Set("timeout", "1")
			r.URL.RawQuery = q.Encode()
		}
		h.ServeHTTP(w, r)
	})
}

// TestLeaksAreDetected is TestFaultsAreDetected for private relays.
func TestLeaksAreDetected(t *testing.T) {
	t.Parallel()
	testRelayFaults(t, relay.Config{Reads: relay.ToParties, Key: relayKey(t)}, []fault{
		{name: "shows threads to any reader", store: func(s relay.Store) relay.Store { return showsAllThreads{s} },
			fails: map[string]string{"X-36": "status 200", "X-37": "FORBIDDEN", "X-38": "status 200"}},
		{name: "shows events to any reader", store: func(s relay.Store) relay.Store { return showsAllEvents{s} },
			fails: map[string]string{"X-35": "unexpected event", "X-54": "unexpected event",
				"X-63": "unexpected event"}},
		{name: "ignores an invalid token", front: ignoresBadTokens,
			fails: map[string]string{"X-41": "the relay accepted it", "X-42": "the relay accepted it"}},
		{name: "answers polls after a second", front: answersSoon,
			fails: map[string]string{"X-43": "answered after 1"}},
		{name: "answers 403 instead of 401", front: otherStatus(http.StatusUnauthorized, http.StatusForbidden),
			fails: map[string]string{"X-33": "another status or error", "X-34": "another status or error",
				"X-39": "another status or error", "X-40": "another status or error"}},
	})
}

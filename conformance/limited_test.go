package conformance_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/conformance"
	"github.com/agora-relay/agora/envelope"
)

// Tests with relays that limit the rate of requests. TestOwnRelayPasses tests the checks with the limits of this
// project's relay.

// limitsRateInsteadOfCount is a middleware that changes a limit on the number of messages into a rate limit. It refuses
// a message over the limit once, and accepts its retry.
func limitsRateInsteadOfCount(h http.Handler) http.Handler {
	var mu sync.Mutex
	refused := map[any]bool{}
	late := acceptsRefusals(func(e, a object) bool {
		mu.Lock()
		defer mu.Unlock()
		return a["error"] == "RATE_LIMITED" && refused[e["id"]]
	})(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isPost(r) {
			h.ServeHTTP(w, r)
			return
		}
		e := decode(readBody(r))
		answer := recorded(late, r)
		body := answer.Body.Bytes()
		if answer.Code == http.StatusTooManyRequests {
			mu.Lock()
			refused[e["id"]] = true
			mu.Unlock()
			a := decode(body)
			a["details"] = object{"limit": envelope.LimitPostsPerAddress}
			body = encode(a)
		}
		send(w, answer, body)
	})
}

// fromRemoteAddress is a middleware that makes all requests remote, so that the relay's limits apply to them.
func fromRemoteAddress(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.RemoteAddr = "192.0.2.1:9"
		h.ServeHTTP(w, r)
	})
}

// TestLongRetryAfterIsNotWaitedFor tests that a check fails at once if the relay requires a wait of a minute.
func TestLongRetryAfterIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	full := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !isPost(r) {
				h.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(http.StatusTooManyRequests)
			// The error is ignored, because the client may be gone.
			_, _ = w.Write([]byte(`{"ok":false,"error":"RATE_LIMITED","message":"full","retryable":true}`))
		})
	}
	report, err := conformance.Run(t.Context(), start(t, nil, full), conformance.Options{Only: []string{"C-2"}})
	if err != nil {
		t.Fatal(err)
	}
	r := report.Results[0]
	if r.Status != conformance.Failed || !strings.Contains(r.Got, "RATE_LIMITED") || r.Took > 10*time.Second {
		t.Errorf("after %v: %s", r.Took, r.Finding())
	}
}

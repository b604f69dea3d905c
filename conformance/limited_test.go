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

// Relays that limit what the kit asks of them. That it keeps to our own limits is TestOurRelayHolds.

// limitsRateForNumber is a wire that refuses what is one too many for its rate, and takes it when it comes again.
func limitsRateForNumber(h http.Handler) http.Handler {
	var mu sync.Mutex
	refused := map[any]bool{}
	late := pretends(func(e, a map[string]any) bool {
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
			a["details"] = map[string]any{"limit": envelope.LimitPostsPerAddress}
			body = encode(a)
		}
		send(w, answer, body)
	})
}

// fromAfar is our relay as others than its own machine see it, who are held to its limits.
func fromAfar(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.RemoteAddr = "192.0.2.1:9"
		h.ServeHTTP(w, r)
	})
}

// TestLongLimitsAreNotWaitedFor asks a relay that wants to be left alone for a minute.
func TestLongLimitsAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	full := func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !isPost(r) {
				h.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = w.Write([]byte(`{"ok":false,"error":"RATE_LIMITED","message":"full","retryable":true}`)) // the kit may have left
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

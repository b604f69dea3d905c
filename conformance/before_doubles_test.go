package conformance_test

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/agora-relay/agora/relay"
)

// Middlewares and stores with faults in reads with before.

// ofBefore applies a middleware to the reads with before, and to no other requests.
func ofBefore(middleware middleware) middleware {
	return func(h http.Handler) http.Handler {
		changed := middleware(h)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if isPoll(r) && r.URL.Query().Has("before") {
				changed.ServeHTTP(w, r)
				return
			}
			h.ServeHTTP(w, r)
		})
	}
}

func reversesEvents(h http.Handler) http.Handler {
	return rewritesEvents(func(events []json.RawMessage) []json.RawMessage {
		slices.Reverse(events)
		return events
	})(h)
}

// swapsAfter is a middleware that exchanges the members cursor and after.
func swapsAfter(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := recorded(h, r)
		page := decode(answer.Body.Bytes())
		page["cursor"], page["after"] = page["after"], page["cursor"]
		send(w, answer, encode(page))
	})
}

// answersLate is a middleware that waits for a few seconds before each answer.
func answersLate(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(4 * time.Second)
		h.ServeHTTP(w, r)
	})
}

// skipsNewest is a store that reads backwards from one event before the position.
type skipsNewest struct{ relay.Store }

func (s skipsNewest) Read(ctx context.Context, q relay.Query) (relay.Page, error) {
	if q.Backward && !q.Headers {
		q.After.Seq = max(q.After.Seq-1, 0)
	}
	return s.Store.Read(ctx, q)
}

// expiresForwards is a store that reads backwards from another one.
type expiresForwards struct {
	relay.Store
	backward relay.Store
}

func (s expiresForwards) Read(ctx context.Context, q relay.Query) (relay.Page, error) {
	if q.Backward {
		return s.backward.Read(ctx, q)
	}
	return s.Store.Read(ctx, q)
}

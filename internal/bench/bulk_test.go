package bench

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/agora-relay/agora/relay"
)

// TestBulk posts bulk requests, of which the last is not full.
func TestBulk(t *testing.T) {
	t.Parallel()
	o := small(Post)
	o.Bulk = 25
	r := bench(t, start(t, nil), o)
	if !r.Holds() || r.Accepted != 60 || r.Stored < 60 || r.Ack == nil || r.Ack.Count < 3 || r.Bulk != 25 {
		t.Errorf("%+v", r)
	}
}

// TestBulkIsLimited posts faster than the relay allows. What was refused is not stored.
func TestBulkIsLimited(t *testing.T) {
	t.Parallel()
	o := small(Post)
	o.Bulk, o.Senders, o.Count, o.Connections = 30, 1, 60, 1
	url := start(t, withRemote, func(c *relay.Config) {
		c.Limits.PostsPerAddress = relay.Rate{PerSecond: 1000}
		c.Limits.PostsPerAgent = relay.Rate{PerSecond: 1, Burst: 10}
	})
	r := bench(t, url, o)
	if !r.Holds() || r.Accepted == 0 || r.Accepted > 12 || r.Refused == 0 || r.Stored < r.Accepted {
		t.Errorf("%+v", r)
	}
}

// withRemote makes all requests come from another machine.
func withRemote(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.RemoteAddr = "192.0.2.1:1234"
		h.ServeHTTP(w, r)
	})
}

// TestBulkAnswersAreChecked has relays with wrong results.
func TestBulkAnswersAreChecked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ old, new, want string }{
		"other ids":        {`"id":"msg_`, `"id":"msg_x`, "has the result"},
		"duplicates":       {`"duplicate":false`, `"duplicate":true`, "has the result"},
		"no JSON":          {`"results":[`, `"results":(`, "without one result"},
		"too many results": {`"results":[`, `"results":[` + strings.Repeat("{},", 60), "without one result"},
	} {
		t.Run(name, func(t *testing.T) {
			o := small(Post)
			o.Bulk = 25
			r := bench(t, start(t, func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path != "/events/bulk" {
						h.ServeHTTP(w, r)
						return
					}
					recorder := httptest.NewRecorder()
					h.ServeHTTP(recorder, r)
					_, _ = w.Write(bytes.ReplaceAll(recorder.Body.Bytes(), []byte(c.old), []byte(c.new)))
				})
			}), o)
			if r.Holds() || len(r.Mismatches) == 0 || !strings.Contains(r.Mismatches[0].What, c.want) {
				t.Errorf("%+v", r)
			}
		})
	}
}

package bench

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// start runs a real relay until the test ends and returns its address. If wire is not nil, it wraps the relay's HTTP
// handler.
func start(t *testing.T, wire func(http.Handler) http.Handler, settings ...func(*relay.Config)) string {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "agora.db"), sqlite.Options{Reserve: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	server := httptest.NewUnstartedServer(nil)
	c := relay.Config{Store: store, Key: key, Log: quiet, Origin: "http://" + server.Listener.Addr().String()}
	for _, set := range settings {
		set(&c)
	}
	r, err := relay.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	stop := engine.Run(t, r, store)
	handler := httpapi.New(r, httpapi.Options{Log: quiet}).Handler(true)
	if wire != nil {
		handler = wire(handler)
	}
	server.Config.Handler = handler
	server.Start()
	t.Cleanup(func() {
		r.Drain()
		server.Close()
		stop()
	})
	return server.URL
}

// small returns options for a run of 60 posts.
func small(m Mode) Options {
	o := Options{Mode: m, Connections: 4, Senders: 8, Count: 60, Duration: time.Minute,
		calibration: 20 * time.Millisecond}
	if o.delivers() {
		o.Pollers = 5
	}
	if m == Deliver {
		o.Rate = 400
	}
	return o
}

func bench(t *testing.T, url string, o Options) Report {
	t.Helper()
	report, err := Run(t.Context(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestModes(t *testing.T) {
	t.Parallel()
	for _, mode := range Modes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			o := small(mode)
			o.Pretty, o.Idle, o.Body = true, 3, 900
			if mode != CatchUp {
				o.WarmUp = 100 * time.Millisecond
			}
			var progressCalls atomic.Int64
			if mode == Post {
				o.calibration = 1100 * time.Millisecond // longer than a second, so that Progress is called
			}
			o.Progress = func(Progress) { progressCalls.Add(1) }
			r := bench(t, start(t, nil), o)
			if !r.Holds() || r.Accepted != 60 || r.Stored < 60 || r.Refused != 0 || r.BodyBytes != 900 ||
				r.Cursor == "" {
				t.Errorf("%+v", r)
			}
			if mode != CatchUp && r.Stored == 60 {
				t.Error("the warm-up posted nothing")
			}
			if r.Rate <= 0 || r.RateRatio <= 0 || r.Std.Before <= 0 || r.Std.After <= 0 ||
				mode == Post && progressCalls.Load() == 0 {
				t.Errorf("%+v, Progress was called %d times", r, progressCalls.Load())
			}
			if r.Ack == nil || r.Ack.Count != 60 || (r.Delivery != nil) != o.delivers() ||
				(r.AckFromSending != nil) != (mode == Deliver) {
				t.Errorf("latencies of %s: %+v", mode, r)
			}
			if o.delivers() && (r.Delivered != 60 || r.Delivery.Count != 60 || r.DeliveredRatio <= 0) {
				t.Errorf("%d delivered, %+v", r.Delivered, r.Delivery)
			}
			if mode == CatchUp && (r.Read != 60 || r.ReadRatio <= 0 || r.Page == nil) {
				t.Errorf("%d read", r.Read)
			}
			checkForms(t, r)
		})
	}
}

// TestPrivateReads measures a relay that shows an event only to its sender and its recipient. The readers of the run
// must then sign their reads.
func TestPrivateReads(t *testing.T) {
	t.Parallel()
	for _, mode := range []Mode{Post, Deliver} {
		o := small(mode)
		o.Idle = 2
		r := bench(t, start(t, nil, func(c *relay.Config) { c.Reads = relay.ToParties }), o)
		if !r.Holds() || r.Accepted != 60 || r.Stored < 60 || o.delivers() && r.Delivered != 60 {
			t.Errorf("%s: %+v", mode, r)
		}
	}
}

// checkForms checks the JSON form and the text form of a report.
func checkForms(t *testing.T, r Report) {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var members map[string]any
	if err := json.Unmarshal(text, &members); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"url", "mode", "cursor", "rate", "rateRatio", "std", "ack", "accepted", "stored",
		"complete", "interrupted", "refused"} {
		if members[name] == nil {
			t.Errorf("%s is not in %s", name, text)
		}
	}
	if list, ok := members["mismatches"].([]any); !ok || len(list) != 0 {
		t.Errorf("mismatches are %v, want an empty list", members["mismatches"])
	}
	var printed strings.Builder
	if err := r.WriteText(&printed); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"accepted    60 in", "× std", "p99.9", "verified"} {
		if !strings.Contains(printed.String(), want) {
			t.Errorf("%q is not in\n%s", want, printed.String())
		}
	}
	if strings.Contains(printed.String(), "WRONG") {
		t.Error(printed.String())
	}
}

// rewrite changes the relay's answers to the requests that match.
func rewrite(match func(*http.Request) bool,
	change func(body string, status int) (string, int)) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !match(r) {
				next.ServeHTTP(w, r)
				return
			}
			recorded := httptest.NewRecorder()
			next.ServeHTTP(recorded, r)
			body, status := change(recorded.Body.String(), recorded.Code)
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body) // an error means that the test has ended
		})
	}
}

func isPost(r *http.Request) bool { return r.Method == http.MethodPost }
func isWait(r *http.Request) bool { return r.URL.Query().Get("recipient") != "" }
func isRead(r *http.Request) bool { return r.URL.Query().Get("timeout") == "0" }

// second matches only the second request that match accepts. For posts, this skips the first post of a run, which only
// tests whether the relay answers.
func second(match func(*http.Request) bool) func(*http.Request) bool {
	var n atomic.Int64
	return func(r *http.Request) bool { return match(r) && n.Add(1) == 2 }
}

// duplicateFirst repeats the first event of a page.
func duplicateFirst(body string, status int) (string, int) {
	p, err := parsePage([]byte(body), page{})
	if err != nil || len(p.events) == 0 {
		return body, status
	}
	return strings.Replace(body, `"events":[`, `"events":[`+string(p.events[0])+",", 1), status
}

// changeText changes the text in the events of a page.
func changeText(body string, status int) (string, int) {
	return strings.Replace(body, "Translate", "Translatf", 1), status
}

// removeEvents removes all events from a page.
func removeEvents(body string, status int) (string, int) {
	from, to := strings.Index(body, "["), strings.LastIndex(body, "]")
	if from < 0 || to < from {
		return body, status
	}
	return body[:from+1] + body[to:], status
}

// acceptWithoutStoring answers the posts that match with a receipt and does not pass them to the relay.
func acceptWithoutStoring(match func(*http.Request) bool) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !match(r) {
				next.ServeHTTP(w, r)
				return
			}
			var e struct {
				ID string `json:"id"`
			}
			body, _ := io.ReadAll(r.Body) // after an error the JSON is incomplete and cannot be decoded
			if json.NewDecoder(bytes.NewReader(body)).Decode(&e) == nil {
				_, _ = io.WriteString(w, `{"ok": true, "duplicate": false, "id": "`+e.ID+`"}`)
			}
		})
	}
}

// TestFaultyRelays checks that a run finds each fault of a relay, in each mode that can find it.
func TestFaultyRelays(t *testing.T) {
	t.Parallel()
	all, delivering := Modes(), []Mode{Deliver, Mixed}
	for _, fault := range []struct {
		name  string
		wire  func() func(http.Handler) http.Handler
		modes []Mode
		want  string
	}{
		{"not stored", func() func(http.Handler) http.Handler {
			return acceptWithoutStoring(second(isPost))
		}, all, "accepted, but missing when read back"},
		{"not stored and not delivered", func() func(http.Handler) http.Handler {
			return acceptWithoutStoring(second(isPost))
		}, delivering, "accepted, but not delivered to its poll"},
		{"another id", func() func(http.Handler) http.Handler {
			return rewrite(second(isPost), func(body string, status int) (string, int) {
				return strings.Replace(body, `"id":"msg_`, `"id":"msg_x`, 1), status
			})
		}, all, "answered 200 with another id"},
		{"a duplicate", func() func(http.Handler) http.Handler {
			return rewrite(second(isPost), func(body string, status int) (string, int) {
				return strings.Replace(body, `"duplicate":false`, `"duplicate":true`, 1), status
			})
		}, all, "answered as a duplicate, but posted for the first time"},
		{"an error", func() func(http.Handler) http.Handler {
			return rewrite(second(isPost), func(body string, _ int) (string, int) { return body, 500 })
		}, all, "answered with status 500"},
		{"refused and stored", func() func(http.Handler) http.Handler {
			return rewrite(second(isPost), func(body string, _ int) (string, int) { return body, 429 })
		}, all, "refused, but stored"},
		{"repeated when read back", func() func(http.Handler) http.Handler {
			return rewrite(isRead, duplicateFirst)
		}, all, "returned twice when read back"},
		{"changed when read back", func() func(http.Handler) http.Handler {
			return rewrite(isRead, changeText)
		}, all, "stored with bytes that differ from its canonical form"},
		{"missing when read back", func() func(http.Handler) http.Handler {
			return rewrite(isRead, removeEvents)
		}, all, "accepted, but missing when read back"},
		{"repeated to a poll", func() func(http.Handler) http.Handler {
			return rewrite(isWait, duplicateFirst)
		}, delivering, "delivered twice"},
		{"changed to a poll", func() func(http.Handler) http.Handler {
			return rewrite(isWait, changeText)
		}, delivering, "delivered with bytes that differ from its canonical form"},
		{"missing from a poll", func() func(http.Handler) http.Handler {
			return rewrite(isWait, removeEvents)
		}, delivering, "accepted, but not delivered to its poll"},
		{"delivered to every poll", func() func(http.Handler) http.Handler {
			return ignoreRecipient
		}, delivering, "delivered to the wrong inbox"},
	} {
		for _, mode := range fault.modes {
			t.Run(fault.name+" "+string(mode), func(t *testing.T) {
				t.Parallel()
				r := bench(t, start(t, fault.wire()), small(mode))
				found := false
				for _, m := range r.Mismatches {
					found = found || m.What == fault.want && m.Count > 0
				}
				var printed strings.Builder
				if err := r.WriteText(&printed); err != nil || r.Holds() || !found ||
					!strings.Contains(printed.String(), fault.want) {
					t.Errorf("not reported: %+v\n%s", r.Mismatches, printed.String())
				}
			})
		}
	}
}

// ignoreRecipient removes the recipient from polls, so that each poll gets all events.
func ignoreRecipient(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		q.Del("recipient")
		r.URL.RawQuery = q.Encode()
		next.ServeHTTP(w, r)
	})
}

// TestMain lets up to 16 tests run in parallel, because they spend most of their time waiting. If the first argument
// names one of floorPrograms, it runs that program instead of the tests.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && floorPrograms[os.Args[1]] != nil {
		if err := floorPrograms[os.Args[1]](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

package metrics_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/relay/metrics"
	"github.com/agora-relay/agora/store/sqlite"
)

// maxSeries is how many series a relay may export, without those of Go and of the process.
const maxSeries = 500

// series returns the number of series of the relay itself, with those of the buckets.
func series(t testing.TB, m *metrics.Metrics) (n int) {
	t.Helper()
	for name := range scrape(t, m).values {
		if strings.HasPrefix(name, "agora_") {
			n++
		}
	}
	return n
}

// limitNames returns the names of all limits of the relay, and of the gateways by their source.
func limitNames(t *testing.T) (names []string) {
	t.Helper()
	for _, row := range relay.LimitTable() {
		names = append(names, row.Name)
	}
	own := len(names)
	files, err := filepath.Glob("../../gateway/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\blimit[A-Z]\w*\s*= "(\w+)"|New(?:Caller|Address)Rate\("(\w+)"`)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, m := range named.FindAllStringSubmatch(readFile(t, file), -1) {
			names = append(names, m[1]+m[2])
		}
	}
	for _, want := range []string{"deliveries", "queuedBytes", "payments", "newTasks"} { // one of each gateway
		if !slices.Contains(names[own:], want) {
			t.Fatalf("the limits of gateways are %q, without %s", names[own:], want)
		}
	}
	return append(names, envelope.LimitRequests)
}

// mounts are the prefixes of all parts of the HTTP API.
var mounts = []string{"", "/hub", "/.well-known/chorus.json", "/channel", "/channel/inbox", "/jobs", "/a2a",
	"/a2a/agents", "/a2a/work", "/a2a/hooks", "/a2a/hook", "/page"}

// reportEverything makes a report of each kind that can occur: every code with a status of the relay and one of a
// gateway, every limit with each of its statuses, and every part of the API.
func reportEverything(m *metrics.Metrics, limits []string, r *rand.Rand) {
	number := func() int { return int(r.Uint64()) >> r.IntN(64) }
	duration := func() time.Duration { return time.Duration(number()) }
	for _, row := range append(envelope.Codes(), envelope.CodeInfo{}) {
		code := row.Code
		m.Posted(relay.PostReport{Code: code, Bytes: number() & math.MaxInt, Check: duration(), Store: duration()})
		m.Refused(http.StatusBadRequest, code, "")
		m.Refused(http.StatusUnprocessableEntity, code, "")
	}
	for _, limit := range limits {
		for _, status := range []int{0, http.StatusTooManyRequests, http.StatusServiceUnavailable} {
			m.Refused(status, envelope.CodeRateLimited, limit)
		}
	}
	for _, mount := range mounts {
		m.Served(mount, admission.Reads)
		m.Served(mount, admission.Posts)
		m.Served(mount, admission.Kind(number()))
	}
	m.Posted(relay.PostReport{Duplicate: true})
	m.Posted(relay.PostReport{Code: envelope.Code(fmt.Sprint(number()))})
	m.Committed(relay.CommitReport{Events: number(), Work: duration(), Commit: duration()})
	m.Waiting(number())
	m.Delivered(relay.DeliveryReport{Events: number() & math.MaxInt, Bytes: number() & math.MaxInt, Waited: true,
		Wake: duration()})
	m.Swept(duration(), fmt.Errorf("failure %d", number()))
	m.Reloaded(fmt.Errorf("failure %d", number()))
}

// TestSeriesAreBounded checks that the number of series does not grow with the number of reports, whatever figures they
// have.
func TestSeriesAreBounded(t *testing.T) {
	m, limits, r := full(t), limitNames(t), rand.New(rand.NewPCG(1, 2))
	reportEverything(m, limits, r)
	first := series(t, m)
	if first > maxSeries {
		t.Errorf("%d series, want at most %d", first, maxSeries)
	}
	const perRound = 180 // reports, at least
	for range 100_000 / perRound {
		reportEverything(m, limits, r)
	}
	if now := series(t, m); now != first {
		t.Errorf("%d series after many reports, %d before", now, first)
	}
	t.Logf("%d series", first)
}

// hostileError is an error of a gateway's own type. Its text has what the client sent.
type hostileError struct{ input string }

func (e hostileError) Error() string { return "cannot use " + e.input }

// hostileMount is a part of the API whose errors contain what the client sent.
func hostileMount(r *relay.Relay) httpapi.Mount {
	return httpapi.Mount{Prefix: "/gate",
		Handler: func(_ http.ResponseWriter, q *http.Request, from relay.Peer) error {
			switch {
			case strings.HasPrefix(q.URL.Path, "/own"):
				return hostileError{q.URL.Path}
			case strings.HasPrefix(q.URL.Path, "/fails"):
				return errors.New(q.URL.Path)
			case strings.HasPrefix(q.URL.Path, "/panics"):
				panic(q.URL.Path)
			case strings.HasPrefix(q.URL.Path, "/limited"):
				for { // until the allowance of the caller is used up
					if err := r.Gate().AdmitCaller(from, q.URL.Path); err != nil {
						return err
					}
				}
			}
			return envelope.Errorf(envelope.CodeNotFound, "there is no %s", q.URL.Path)
		},
		Errors: func(err error) (httpapi.ErrorAnswer, bool) {
			if e, own := errors.AsType[hostileError](err); own {
				return httpapi.ErrorAnswer{Status: http.StatusGone, Body: e.input}, true
			}
			return httpapi.RelayError(err)
		}}
}

// TestClientsCannotMakeSeries sends requests to a real relay whose every part is new: methods, paths, queries, headers,
// identities, threads and addresses. After one request of each kind, no request makes a further series.
func TestClientsCannotMakeSeries(t *testing.T) {
	m := metrics.New("")
	r, _ := gatetest.Run(t, filepath.Join(t.TempDir(), "agora.db"), sqlite.Options{Observer: m},
		relay.Config{Observer: m, Limits: relay.Limits{PostsPerAddress: relay.Rate{PerSecond: 0.01, Burst: 5},
			ReadsPerAddress: relay.Rate{PerSecond: 0.01, Burst: 20}}})
	handler := httpapi.New(r, httpapi.Options{Log: quiet, Mounts: []httpapi.Mount{hostileMount(r)}}).Handler(false)
	number := 0
	next := func() string { number++; return fmt.Sprintf("x%d", number) }
	ask := func(from, method, path, body string) int {
		q := httptest.NewRequest(method, path, strings.NewReader(body))
		q.RemoteAddr = from
		q.Header.Set("Authorization", "Agora "+next())
		q.Header.Set("User-Agent", next())
		q.Header.Set("X-Request-Id", next())
		q.Host = next() + ".example"
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, q)
		return w.Code
	}
	statuses := map[int]bool{}
	round := func() {
		address := func() string { return fmt.Sprintf("198.51.%d.%d:9", number>>8&255, number&255) }
		for _, q := range []struct{ method, path, body string }{
			{"GET", "/" + next(), ""},
			{"GET", "/health", ""},
			{"M" + next(), "/health", ""},
			{"GET", "/events?cursor=0&timeout=0&thread=" + next(), ""},
			{"GET", "/events?" + next() + "=1", ""},
			{"GET", "/threads/" + next(), ""},
			{"GET", "/agents/did:key:" + next(), ""},
			{"GET", "/gate/own/" + next(), ""},
			{"POST", "/gate/fails/" + next(), ""},
			{"GET", "/gate/panics/" + next(), ""},
			{"POST", "/gate/limited/" + next(), ""},
			{"GET", "/gate/" + next(), ""},
			{"POST", "/events", next()},
			{"POST", "/events", `{"v":"` + next() + `"}`},
			{"POST", "/events", string(signed(t, next()))},
			{"POST", "/events", strings.Replace(string(signed(t, next())), "translate", "forged", 1)},
		} {
			statuses[ask(address(), q.method, q.path, q.body)] = true
		}
		for range 25 { // more than the allowances
			statuses[ask("192.0.2.1:9", "GET", "/"+next(), "")] = true
			statuses[ask("192.0.2.1:9", "POST", "/events", next())] = true
		}
	}
	round()
	first := scrape(t, m).values
	for range 50 {
		round()
	}
	for name := range scrape(t, m).values {
		if _, known := first[name]; !known && strings.HasPrefix(name, "agora_") {
			t.Errorf("new series: %s", name)
		}
	}
	for _, status := range []int{200, 400, 404, 405, 410, 429, 500} {
		if !statuses[status] {
			t.Errorf("no request was answered with %d, only with %v", status, statuses)
		}
	}
	if n := first[`agora_posts_total{code="stored"}`]; n != 1 {
		t.Errorf("%v posts were stored in the first round", n)
	}
}

// signed returns a REQUEST by a new identity in a new thread.
func signed(t *testing.T, id string) []byte {
	t.Helper()
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	e, err := envelope.Draft{Payload: &envelope.Request{RequestID: id, Intent: "translate"}}.Sign(key, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return e.Canonical()
}

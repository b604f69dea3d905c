package conformance_test

import (
	"flag"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/agora-relay/agora/conformance"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/storetest/engine"
)

var quiet = slog.New(slog.DiscardHandler)

// start runs this project's relay until the test ends and returns its address. store wraps its store, and middleware
// wraps its HTTP handler. Both may be nil.
func start(t *testing.T, store func(relay.Store) relay.Store, middleware func(http.Handler) http.Handler) string {
	t.Helper()
	return startWith(t, relay.Config{Key: relayKey(t)}, store, middleware)
}

func relayKey(t *testing.T) didkey.Key {
	t.Helper()
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// startWith does the same as start, for a relay with this configuration. A relay with a log has it in SQLite.
func startWith(
	t *testing.T, c relay.Config, store func(relay.Store) relay.Store, middleware func(http.Handler) http.Handler,
) string {
	t.Helper()
	open := engine.Open
	if c.Transparency {
		open = func(t testing.TB, path string, o sqlite.Options) (engine.Store, error) {
			return sqlite.Open(t.Context(), path, o)
		}
	}
	db, err := open(t, filepath.Join(t.TempDir(), "agora.db"), sqlite.Options{Reserve: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	var s relay.Store = db
	if store != nil {
		s = store(s)
	}
	server := httptest.NewUnstartedServer(nil)
	c.Store, c.Log, c.Origin = s, quiet, "http://"+server.Listener.Addr().String()
	r, err := relay.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	stop := engine.Run(t, r, db)
	server.Config.Handler = httpapi.New(r, httpapi.Options{Log: quiet}).Handler(true)
	if middleware != nil {
		server.Config.Handler = middleware(server.Config.Handler)
	}
	server.Start()
	t.Cleanup(func() {
		r.Drain()
		server.Close()
		stop()
	})
	return server.URL
}

// TestMain lets up to 32 tests run at the same time, because they mostly wait.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "32"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// TestOwnRelayPasses runs all checks against this project's relay, which keeps a log unless its store is PostgreSQL. The
// requests are remote, so that the relay's limits apply. With the race detector the requests are local and have no
// limits: reads are so slow then that the checks would wait for their allowance and get their answers too late. The check
// that takes a minute runs only in CI.
func TestOwnRelayPasses(t *testing.T) {
	t.Parallel()
	for _, reads := range []relay.Visibility{relay.ToAll, relay.ToParties} {
		t.Run(string(reads), func(t *testing.T) {
			t.Parallel()
			runAllChecks(t, reads)
		})
	}
}

func runAllChecks(t *testing.T, reads relay.Visibility) {
	var only []string
	for _, c := range conformance.Checks() {
		// C-43 waits for more than a minute.
		if c.Number != "C-43" || os.Getenv("CI") == "true" {
			only = append(only, c.Number)
		}
	}
	var middleware func(http.Handler) http.Handler
	if !racing.Detector {
		middleware = fromRemoteAddress
	}
	log := os.Getenv("AGORA_TEST_STORE") != "postgres" // see engine.Open
	report := passChecks(t, func(r conformance.Result) bool { return r.Theme == "Proofs" && !log }, only,
		func(only []string) (conformance.Report, error) {
			url := startWith(t, relay.Config{Reads: reads, Key: relayKey(t), Transparency: log}, nil, middleware)
			return conformance.Run(t.Context(), url, conformance.Options{Only: only})
		})
	if n := len(report.Results); n != len(only) || report.Requests > 3000 {
		t.Errorf("%d results of %d checks, %d requests", n, len(only), report.Requests)
	}
}

// untested allows all checks that need an option which is not given.
func untested(conformance.Result) bool { return true }

// passChecks runs checks that must pass. Those that optional allows may be untested. run runs the checks with the given
// numbers, or all if there are none. A check that does not pass runs once more, together only with others that did not
// pass: a machine that stalls for seconds breaks checks that wait for a time, and a relay charges slow work to the
// address of the kit. The report of the first run is returned, with the results of the second one in it.
func passChecks(
	t *testing.T, optional func(conformance.Result) bool, only []string,
	run func(only []string) (conformance.Report, error),
) conformance.Report {
	t.Helper()
	passed := func(r conformance.Result) bool {
		return r.Status == conformance.Passed || r.Status == conformance.NotTested && optional(r)
	}
	report, err := run(only)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d checks in %v with %d requests", len(report.Results), report.Took, report.Requests)
	again := map[string]int{} // the places of results in the report, by number
	for i, r := range report.Results {
		if !passed(r) {
			t.Logf("runs once more: %s", r.Finding())
			again[r.Number] = i
		}
	}
	if len(again) == 0 {
		return report
	}
	second, err := run(slices.Sorted(maps.Keys(again)))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range second.Results {
		if i, failed := again[r.Number]; failed {
			report.Results[i] = r
		}
	}
	for _, r := range report.Results { // also a check that the second run has left out
		if !passed(r) {
			t.Error(r.Finding())
		}
	}
	return report
}

// TestCoreRequiresOnlyTheSpecification tests that the core level requires no more than the specification. The relay of
// this test must pass it. It takes since literally, refuses in plain text, and uses other statuses.
func TestCoreRequiresOnlyTheSpecification(t *testing.T) {
	t.Parallel()
	literal := func(h http.Handler) http.Handler {
		return plainErrors(otherStatus(http.StatusConflict, http.StatusUnprocessableEntity)(h))
	}
	var only []string
	for _, c := range conformance.Checks() {
		// C-42 and C-43 take long, and TestOwnRelayPasses runs them.
		if c.Level() == conformance.Core && c.Number != "C-42" && c.Number != "C-43" {
			only = append(only, c.Number)
		}
	}
	report, err := conformance.Run(t.Context(), start(t, literalSince, literal), conformance.Options{Only: only})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range report.Results {
		if r.Status != conformance.Passed {
			t.Error(r.Finding())
		}
	}
}

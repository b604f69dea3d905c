package gatetest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/relay/httpapi/apidocs"
	"github.com/agora-relay/agora/relay/httpapi/apidocs/apicheck"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/sqlite/check"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// PublicURL is the URL of the relay of a Site.
const PublicURL = "https://relay.example"

// Site is a relay with a gateway, on its own ports, over a database in a temporary folder.
type Site struct {
	Path       string
	Key        didkey.Key // of the relay and of the gateways
	Operator   string
	Extensions []relay.Extension // of the gateway
	Open       func(*gateway.Core) (Served, error)
	Limits     relay.Limits
	Policy     relay.Policy
	Outgoing   gateway.OutgoingOptions // Run adds an exception for 127.0.0.1
	Public     bool                    // the relay has PublicURL as its configured URL, so no client is local
	Bubble     bool                    // use connections in memory, and a BubbleStore
	Broken     atomic.Bool             // breaks the BubbleStore
	From       string                  // the address of clients in a bubble; empty: 127.0.0.1:9
	Frozen     time.Time               // the relay's clock, without Ahead; zero: the clock goes
	Ahead      atomic.Int64            // how far the relay's clock is ahead
	Wrap       func(relay.Extender) relay.Extender

	Relay  *relay.Relay
	Core   *gateway.Core
	Front  *httpapi.Front
	URL    string // of the main listener
	Own    string // of the gateway's own listener
	Client *http.Client
	Stop   func() // nil: the site does not run

	host  atomic.Value // a string
	t     testing.TB
	apis  []apidocs.Part // of the OpenAPI document
	logMu sync.Mutex
	log   bytes.Buffer
}

// Served is the gateway of a Site.
type Served struct {
	Prefix string                              // on the main listener
	Mounts func(prefix string) []httpapi.Mount // on both listeners
	Root   []httpapi.Mount                     // further mounts of the main listener
	API    apidocs.Part                        // for the check of all requests and answers
	Slash  bool                                // each path of API may end with a slash
	Run    func(context.Context)
}

// remote is a client that the relay does not take for its own machine, because it closes its connections.
var remote = &http.Client{Transport: &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// Start runs the site until the test ends. Then it checks the database as `agora check` does.
func (s *Site) Start(t testing.TB) {
	t.Helper()
	s.t, s.Path, s.Operator = t, filepath.Join(t.TempDir(), "agora.db"), gateway.NewKey(gateway.Operator)
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	s.Key = key
	if s.Client == nil {
		s.Client = remote
	}
	if s.Bubble {
		if s.Outgoing.Dial == nil {
			s.Outgoing.Dial = DialPipe
		}
		// Connections are kept alive, because the relay limits clients of its own machine that close them.
		s.Client = &http.Client{Transport: &http.Transport{DialContext: DialPipe}}
	}
	s.Run()
	t.Cleanup(func() {
		if s.Stop != nil {
			s.Stop()
		}
		s.CheckDatabase()
	})
}

// Now is the relay's clock.
func (s *Site) Now() time.Time {
	now := s.Frozen
	if now.IsZero() {
		now = time.Now()
	}
	return now.Add(time.Duration(s.Ahead.Load()))
}

// Write implements io.Writer for the log.
func (s *Site) Write(b []byte) (int, error) {
	s.logMu.Lock()
	defer s.logMu.Unlock()
	return s.log.Write(b)
}

// Logged returns what was logged.
func (s *Site) Logged() string {
	s.logMu.Lock()
	defer s.logMu.Unlock()
	return s.log.String()
}

func (s *Site) must(err error) {
	if err != nil {
		s.t.Helper()
		s.t.Fatal(err)
	}
}

// Run starts the relay and the gateway on the database of the site. Start calls it first.
func (s *Site) Run() {
	s.t.Helper()
	log := slog.New(slog.NewJSONHandler(s, &slog.HandlerOptions{Level: slog.LevelDebug}))
	store := Open(s.t, s.Path, sqlite.Options{Log: log, Extensions: s.extensions(), Now: s.Now, Policy: s.Policy})
	used := relay.Extender(store)
	if !s.Bubble {
		used = patientStore{used}
	}
	if s.Wrap != nil {
		used = s.Wrap(used)
	}
	if s.Bubble {
		used = &BubbleStore{Extender: used, Broken: &s.Broken}
	}
	limits := s.Limits
	if engine.Postgres() { // how long its server works is charged, and a busy machine makes it slow
		for _, rate := range []*relay.Rate{&limits.PostsPerAddress, &limits.ReadsPerAddress} {
			if *rate == (relay.Rate{}) {
				rate.PerSecond = relay.Unlimited
			}
		}
	}
	var err error
	s.Relay, err = relay.New(context.Background(), relay.Config{Store: used, Key: s.Key, Origin: PublicURL, Log: log,
		Limits: limits, Now: s.Now})
	s.must(err)
	exception, err := gateway.ParseException("127.0.0.1")
	s.must(err)
	outgoing := s.Outgoing
	outgoing.Exceptions = append([]gateway.Exception{exception}, outgoing.Exceptions...)
	s.Core, err = gateway.NewCore(context.Background(), gateway.CoreOptions{Relay: s.Relay, Key: s.Key,
		Operator: s.Operator, Build: "test", Log: log, Outgoing: outgoing})
	s.must(err)
	served, err := s.Open(s.Core)
	s.must(err)
	s.serve(store, served, log)
}

// serve runs everything until Stop.
func (s *Site) serve(store engine.Store, served Served, log *slog.Logger) {
	options := httpapi.Options{Log: log, Grace: time.Second, Redact: gateway.Redact,
		Gateways: map[string]any{"did": s.Key.DID(), strings.Trim(served.Prefix, "/"): map[string]any{"url": PublicURL + served.Prefix}},
		Mounts:   append(served.Mounts(served.Prefix), served.Root...)}
	if s.Public {
		options.PublicURL = PublicURL
	}
	main, own := s.listen(), s.listen()
	s.apis = []apidocs.Part{gateway.API, served.API}
	options.APIs = s.apis
	options.Wrap = s.documented(served, own.Addr())
	s.Front = httpapi.New(s.Relay, options)
	s.URL, s.Own = "http://"+main.Addr().String(), "http://"+own.Addr().String()
	s.host.Store(main.Addr().String())
	ctx, cancel := context.WithCancel(context.Background())
	working, end := context.WithCancel(context.Background())
	var serving, work sync.WaitGroup
	work.Go(func() { s.Core.Run(working) })
	work.Go(func() { served.Run(working) })
	work.Go(func() { s.report(s.Relay.Run(working)) })
	serving.Go(func() {
		s.report(s.Front.Run(ctx, httpapi.Listener{Listener: main},
			httpapi.Listener{Listener: own, Mounts: served.Mounts("")}))
	})
	s.Stop = func() {
		cancel()
		serving.Wait()
		end()
		work.Wait()
		if engine.Postgres() {
			s.checkRows(store)
		}
		s.report(store.Close())
		s.Stop = nil
	}
}

// documented returns a function that checks all requests and answers against the OpenAPI document. own is the address of
// the gateway's own listener, where the paths have no prefix.
func (s *Site) documented(served Served, own net.Addr) func(http.Handler) http.Handler {
	checker, err := apicheck.Of(s.apis...)
	s.must(err)
	prefix := served.Prefix
	return checker.Wrap(s.t, func(r *http.Request) (string, bool) {
		path := r.URL.Path
		if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && local.String() == own.String() {
			path = prefix + path
		}
		if rest, found := strings.CutPrefix(path, prefix+"/k/"); found { // a base URL with a key
			_, rest, _ = strings.Cut(rest, "/")
			path = prefix + "/" + rest
		}
		if served.Slash {
			path = strings.TrimSuffix(path, "/")
		}
		return path, true
	})
}

// Host returns the host and port of URL. Unlike URL, it may be read while Restart runs.
func (s *Site) Host() string { return s.host.Load().(string) }

func (s *Site) report(err error) {
	if err != nil {
		s.t.Error(err)
	}
}

func (s *Site) listen() net.Listener {
	s.t.Helper()
	if s.Bubble {
		return NewPipeListener(s.From)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	s.must(err)
	return l
}

// Restart stops the relay and starts it again.
func (s *Site) Restart() {
	s.t.Helper()
	s.Stop()
	s.Run()
}

func (s *Site) extensions() []relay.Extension {
	return append([]relay.Extension{gateway.Extension}, s.Extensions...)
}

// checkRows runs the checks of the extensions on an open store.
func (s *Site) checkRows(store engine.Store) {
	_, err := store.View(context.Background(), func(q relay.Querier) (err error) {
		for _, x := range s.extensions() {
			if x.Check != nil {
				err = errors.Join(err, x.Check(q, func(where, what string) { s.t.Errorf("check: %s: %s", where, what) }))
			}
		}
		return err
	})
	s.report(err)
}

// CheckDatabase runs what `agora check` runs, which only reads files of SQLite. With PostgreSQL, Stop checks the rows of
// the gateways.
func (s *Site) CheckDatabase() {
	s.t.Helper()
	if engine.Postgres() {
		return
	}
	if _, err := check.Database(context.Background(), s.Path, check.Options{Now: s.Now(), Extensions: s.extensions(),
		Found: func(found check.Finding) { s.t.Errorf("check: %v", found) }}); err != nil {
		s.t.Fatal(err)
	}
}

// patientStore is a store for tests outside of bubbles. An Update that took too long is made again, as a client would
// repeat its request: the machine may have stood still meanwhile.
type patientStore struct{ relay.Extender }

// Update implements relay.Extender.
func (s patientStore) Update(ctx context.Context, f func(relay.StoreTx) error) (took time.Duration, err error) {
	for range 5 {
		if took, err = s.Extender.Update(ctx, f); !errors.Is(err, ledger.ErrTooLong) {
			break
		}
	}
	return took, err
}

// BubbleStore is a store for tests in bubbles. It runs the function of each Update twice, and undoes the first run. A
// store may do that. While Broken is set, all Updates fail. It sweeps once a minute and not each second, because otherwise
// the sweeps are most of the work of a test that sleeps long.
type BubbleStore struct {
	relay.Extender
	Broken *atomic.Bool
	next   time.Time // of the next sweep
}

// ErrBroken is the error of a broken BubbleStore.
var ErrBroken = errors.New("the disk is full")

// Expire implements relay.Store.
func (s *BubbleStore) Expire(ctx context.Context, now time.Time, notices relay.Notices) error {
	if time.Now().Before(s.next) {
		return nil
	}
	s.next = time.Now().Add(time.Minute)
	return s.Extender.Expire(ctx, now, notices)
}

// Update implements relay.Extender.
func (s *BubbleStore) Update(ctx context.Context, f func(relay.StoreTx) error) (time.Duration, error) {
	took, err := s.Extender.Update(ctx, func(tx relay.StoreTx) error { return cmp.Or(f(tx), ErrBroken) })
	if s.Broken.Load() || !errors.Is(err, ErrBroken) {
		return took, err
	}
	return s.Extender.Update(ctx, f)
}

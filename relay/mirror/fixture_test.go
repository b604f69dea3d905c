package mirror_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/relay/mirror"
	"github.com/agora-relay/agora/relay/witness"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/storetest/engine"
)

var (
	quiet = slog.New(slog.DiscardHandler)
	local = relay.Peer{Local: true}
)

func key(t testing.TB) didkey.Key {
	t.Helper()
	k, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// network connects relays by their URLs, without sockets, because sockets would stop the time of a synctest bubble.
type network struct {
	*testing.T
	mu    sync.Mutex
	hosts map[string]http.Handler // by host and port; none: the relay does not answer
	asked map[string][]asked
}

// asked is a request, and when it came.
type asked struct {
	at     time.Time
	target string
	signed bool
}

func newNetwork(t *testing.T) *network {
	return &network{T: t, hosts: map[string]http.Handler{}, asked: map[string][]asked{}}
}

// RoundTrip implements http.RoundTripper.
func (n *network) RoundTrip(r *http.Request) (*http.Response, error) {
	n.mu.Lock()
	h := n.hosts[r.URL.Host]
	n.asked[r.URL.Host] = append(n.asked[r.URL.Host],
		asked{time.Now(), r.URL.RequestURI(), r.Header.Get("Authorization") != ""})
	n.mu.Unlock()
	if h == nil {
		return nil, errors.New("connection refused")
	}
	r = r.Clone(r.Context())
	r.RemoteAddr, r.Host, r.RequestURI = "127.0.0.1:9", r.URL.Host, r.URL.RequestURI()
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return answer.Result(), nil
}

func (n *network) put(host string, h http.Handler) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hosts[host] = h
}

// requests returns the requests to a host so far.
func (n *network) requests(host string) []asked {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]asked{}, n.asked[host]...)
}

// observer counts what a relay reports about its mirrors.
type observer struct {
	relay.NoObserver
	stored, again, refused, failed atomic.Int64
}

func (o *observer) Mirrored(code envelope.Code, duplicate bool) {
	switch {
	case code != "":
		o.refused.Add(1)
	case duplicate:
		o.again.Add(1)
	default:
		o.stored.Add(1)
	}
}

func (o *observer) MirrorFailed() { o.failed.Add(1) }

// site is a relay in a network.
type site struct {
	*testing.T
	net    *network
	key    didkey.Key
	host   string
	folder string
	peers  []witness.Peer
	config relay.Config                     // what differs from the default
	wrap   func(relay.Extender) relay.Store // around the store; nil: nothing
	direct bool                             // its mirror uses sockets
	step   atomic.Int64                     // what was added to the clock

	relay    *relay.Relay
	observer observer
	stop     func()

	mu   sync.Mutex
	seen map[string]int // how often each event was stored, by sender and id
}

func (n *network) site(number int) *site {
	return &site{T: n.T, net: n, key: key(n), host: fmt.Sprintf("127.0.0.1:%d", 1000+number), folder: n.TempDir(),
		seen: map[string]int{}}
}

func (s *site) url() string        { return "http://" + s.host }
func (s *site) peer() witness.Peer { return witness.Peer{DID: s.key.DID(), URL: s.url()} }
func (s *site) home() *envelope.Home {
	return &envelope.Home{DID: s.key.DID(), URL: s.url()}
}
func (s *site) now() time.Time { return time.Now().Add(time.Duration(s.step.Load())) }

// start starts the relay and its mirror.
func (s *site) start() {
	s.Helper()
	store, err := sqlite.Open(context.Background(), filepath.Join(s.folder, "agora.db"), sqlite.Options{Reserve: 1 << 20,
		Log: quiet, Extensions: []relay.Extension{mirror.Extension}})
	if err != nil {
		s.Fatal(err)
	}
	c := s.config
	c.Store, c.Key, c.Log, c.Origin, c.Transparency, c.Now, c.Observer = store, s.key, quiet, s.url(), true,
		s.now, &s.observer
	if s.wrap != nil {
		c.Store = s.wrap(store)
	}
	if s.relay, err = relay.New(context.Background(), c); err != nil {
		s.Fatal(err)
	}
	o := mirror.Options{Relay: s.relay, Key: s.key, Peers: s.peers, Log: quiet}
	if !s.direct {
		o.Transport = s.net
	}
	m, err := mirror.New(o)
	if err != nil {
		s.Fatal(err)
	}
	end, err := store.Read(context.Background(), relay.Query{})
	if err != nil {
		s.Fatal(err)
	}
	stop := engine.Run(s, s.relay, store, m.Run, func(ctx context.Context) { _ = store.Watch(ctx, end.Cursor, nil, s.note) })
	s.net.put(s.host, httpapi.New(s.relay, httpapi.Options{Log: quiet}).Handler(false))
	s.stop = func() {
		s.net.put(s.host, nil)
		stop()
	}
}

func (s *site) note(events []relay.Posted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range events {
		s.seen[string(e.Envelope.Sender.ID)+" "+e.ID]++
	}
}

// count returns how often the relay has stored e since it was started first.
func (s *site) count(e *envelope.Envelope) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[string(e.Sender.ID)+" "+e.ID]
}

// once fails unless each message was stored exactly once.
func (s *site) once(all ...*envelope.Envelope) {
	s.Helper()
	for _, e := range all {
		if n := s.count(e); n != 1 {
			s.Errorf("%s has stored %s %s %d times, want once", s.host, e.Type, e.ID, n)
		}
	}
}

// post signs a draft at the relay's time and posts it.
func (s *site) post(by didkey.Key, d envelope.Draft) *envelope.Envelope {
	s.Helper()
	e := sign(s, by, d, s.now())
	if _, err := s.relay.Post(context.Background(), local, e.Canonical()); err != nil {
		s.Fatalf("%s %s: %v", e.Type, e.ID, err)
	}
	return e
}

func sign(t testing.TB, by didkey.Key, d envelope.Draft, at time.Time) *envelope.Envelope {
	t.Helper()
	e, err := d.Sign(by, at)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// get reads a path of the relay.
func (s *site) get(path string) (status int, body string) {
	s.Helper()
	r, err := http.NewRequest(http.MethodGet, s.url()+path, nil)
	if err != nil {
		s.Fatal(err)
	}
	answer, err := s.net.RoundTrip(r)
	if err != nil {
		s.Fatal(err)
	}
	var text strings.Builder
	if err := answer.Write(&text); err != nil {
		s.Fatal(err)
	}
	return answer.StatusCode, text.String()
}

// manifest returns the payload of a MANIFEST that names a relay.
func manifest(id string, relays ...*envelope.Home) envelope.Manifest {
	m := envelope.Manifest{ID: id, Intents: []envelope.Intent{{ID: "echo"}}}
	for _, r := range relays {
		m.Relays = append(m.Relays, *r)
	}
	return m
}

var request = envelope.Request{Intent: "echo"}

// fake is a relay that answers as a test says.
type fake struct {
	did    didkey.DID
	events func(query url.Values) (status int, body string)
}

func (f fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status, body := http.StatusOK, fmt.Sprintf(`{"ok":true,"did":%q,"reads":"open"}`, f.did)
	if r.URL.Path == "/events" {
		status, body = f.events(r.URL.Query())
	}
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body)) // a recorder never fails
}

// page returns an answer with these messages.
func page(cursor string, all ...*envelope.Envelope) string {
	var bodies []string
	for _, e := range all {
		bodies = append(bodies, string(e.Canonical()))
	}
	return `{"ok":true,"hasMore":false,"events":[` + strings.Join(bodies, ",") + `],"cursor":"` + cursor + `"}`
}

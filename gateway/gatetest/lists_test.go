package gatetest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/a2a"
	"github.com/agora-relay/agora/gateway/channel"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/gateway/hub"
	"github.com/agora-relay/agora/gateway/jobs"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/relay/httpapi/apidocs"
)

// served is a gateway for the tests that run over every gateway. A new gateway needs an element in gateways.
type served struct {
	name      string
	extension relay.Extension
	api       apidocs.Part
	open      func(*gateway.Core) (gatetest.Served, error)
	// lists are the GET requests whose answers have a list, by their paths in the OpenAPI document. Each fills its list.
	lists map[string]list
	// queue returns a queue that strangers fill. noQueue says why there is none.
	queue   func(*listSite) queue
	noQueue string
}

// list fills a list and returns the request for it. long means that the list can have more than a few kilobytes.
type list struct {
	long bool
	fill func(*listSite) gatetest.Call
}

var gateways = []served{
	{"hub", hub.Extension, hub.API, func(c *gateway.Core) (gatetest.Served, error) {
		h, err := hub.New(context.Background(), c, hub.Options{})
		return gatetest.Served{Prefix: "/hub", API: hub.API, Run: h.Run,
			Mounts: func(prefix string) []httpapi.Mount { return []httpapi.Mount{h.Mount(prefix)} }}, err
	}, hubLists, hubQueue, ""},
	{"channel", channel.Extension, channel.API, func(c *gateway.Core) (gatetest.Served, error) {
		g, err := channel.New(context.Background(), c)
		return gatetest.Served{Prefix: "/channel", API: channel.API, Run: g.Run, Mounts: g.Mounts}, err
	}, channelLists, channelQueue, ""},
	{"jobs", jobs.Extension, jobs.API, func(c *gateway.Core) (gatetest.Served, error) {
		g, err := jobs.New(context.Background(), c, jobs.Options{Initial: 100 * credits.One, Supply: 10_000 * credits.One})
		return gatetest.Served{Prefix: "/jobs", API: jobs.API, Run: g.Run, Mounts: g.Mounts}, err
	}, jobsLists, nil, "a job in a queue costs its hirer credits"},
	{"a2a", a2a.Extension, a2a.API, func(c *gateway.Core) (gatetest.Served, error) {
		g, err := a2a.New(context.Background(), c, a2a.Options{Endpoints: 1000, Retention: time.Hour, Wait: time.Minute})
		return gatetest.Served{Prefix: "/a2a", API: a2a.API, Run: g.Run, Mounts: g.Mounts, Slash: true}, err
	}, a2aLists, a2aQueue, ""},
}

// maxPart is how many bytes a gateway may write at a time: a part of a list, with one large element.
const maxPart = 72 << 10

// G-33: no list of a gateway is built whole in memory. It is written in parts, and nothing more is read when the client has
// left. The lists come from the OpenAPI document, so a new one cannot be forgotten here.
func TestListsAreSentInParts(t *testing.T) {
	for _, g := range gateways {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			documented, err := listPaths(g.api)
			if err != nil {
				t.Fatal(err)
			}
			if tested := slices.Sorted(maps.Keys(g.lists)); !slices.Equal(documented, tested) {
				t.Fatalf("the OpenAPI document has the lists %q, this test has %q", documented, tested)
			}
			s := &listSite{Site: &gatetest.Site{Extensions: []relay.Extension{g.extension}, Open: g.open, Limits: relay.Limits{
				PostsPerAddress: relay.Rate{PerSecond: relay.Unlimited}, PostsPerAgent: relay.Rate{PerSecond: relay.Unlimited},
				ReadsPerAddress: relay.Rate{PerSecond: relay.Unlimited}}}, t: t}
			s.Wrap = func(x relay.Extender) relay.Extender { return countedViews{x, s} }
			s.Start(t)
			for path, l := range g.lists {
				s.checkList(path, l)
			}
		})
	}
}

// G-33: with 10,000 agents, 500 clients that stop reading a list, and then leave, cost little memory.
func TestListsOfManyClients(t *testing.T) {
	const most = 100 << 20
	clients := 500
	if racing.Detector { // it is slow, and a view of a remote client may take a second
		clients = 50
	}
	g := gateways[0]
	s := &listSite{Site: &gatetest.Site{Extensions: []relay.Extension{g.extension}, Open: g.open}, t: t}
	s.Start(t)
	s.fillAgents(10_000)
	for _, path := range []string{"/hub/discover", "/hub/agents"} {
		var before, during runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		stopped, goOn := make(chan struct{}, clients), make(chan struct{})
		var all sync.WaitGroup
		for n := range clients {
			all.Go(func() {
				r := httptest.NewRequest("GET", gatetest.PublicURL+path, nil)
				r.RemoteAddr = fmt.Sprintf("198.51.%d.%d:1", n/250, n%250)
				w := &partWriter{header: http.Header{}, stop: func() { stopped <- struct{}{}; <-goOn }}
				s.Front.Handler(false).ServeHTTP(w, r)
				if w.status != http.StatusOK || w.size > maxPart {
					t.Errorf("%s: status %d with %d bytes", path, w.status, w.size)
				}
			})
		}
		for range clients {
			<-stopped
		}
		runtime.GC()
		runtime.ReadMemStats(&during)
		close(goOn)
		all.Wait()
		if used := int64(during.HeapAlloc) - int64(before.HeapAlloc); used > most {
			t.Errorf("%s: %d clients in the middle of the list use %d MiB, want at most %d", path, clients, used>>20, most>>20)
		}
	}
}

// listSite is a relay with one gateway. It counts the views of the store.
type listSite struct {
	*gatetest.Site
	t      *testing.T
	views  int  // of the request that is being served
	filled bool // with agents of the hub
}

type countedViews struct {
	relay.Extender
	s *listSite
}

type countKey struct{}

func (c countedViews) View(ctx context.Context, f func(relay.Querier) error) (took time.Duration, err error) {
	if ctx.Value(countKey{}) != nil {
		c.s.views++
	}
	return c.Extender.View(ctx, f)
}

// checkList asks for a list twice: as a client that reads all of it, and as one that leaves after the first part.
func (s *listSite) checkList(path string, l list) {
	s.t.Helper()
	c := l.fill(s)
	all := s.serve(c, 1<<30)
	size, views := all.size, s.views
	if all.status != http.StatusOK || l.long != (size > maxPart) {
		s.t.Errorf("%s: status %d with %d bytes", path, all.status, size)
	}
	if all.largest > maxPart {
		s.t.Errorf("%s writes %d bytes at a time; send it with httpapi.WriteList and gateway.List", path, all.largest)
	}
	if left := s.serve(c, 0); l.long && (left.size > maxPart || s.views > views/2+2) {
		s.t.Errorf("%s: after the client has left, %d bytes are written and %d views made; for all there are %d views",
			path, left.size, s.views, views)
	}
}

// serve sends a request without a connection. The client leaves when it has got so many bytes.
func (s *listSite) serve(c gatetest.Call, leaves int) *partWriter {
	s.t.Helper()
	r, err := gatetest.NewRequest(context.WithValue(s.t.Context(), countKey{}, true), gatetest.PublicURL, c)
	if err != nil {
		s.t.Fatal(err)
	}
	r.RemoteAddr, r.RequestURI, r.Body = "127.0.0.1:1234", r.URL.RequestURI(), http.NoBody
	s.views = 0
	w := &partWriter{header: http.Header{}, leaves: leaves}
	s.Front.Handler(false).ServeHTTP(w, r)
	return w
}

// partWriter measures the parts of an answer.
type partWriter struct {
	header                        http.Header
	status, size, largest, leaves int
	stop                          func() // is called before the first part; nil: not
}

func (w *partWriter) Header() http.Header    { return w.header }
func (w *partWriter) WriteHeader(status int) { w.status = status }

func (w *partWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	if w.stop != nil && w.size == 0 {
		w.stop()
	}
	w.size += len(b)
	w.largest = max(w.largest, len(b))
	if w.size > w.leaves {
		return 0, errors.New("the client has left")
	}
	return len(b), nil
}

// do sends a request that must succeed.
func (s *listSite) do(c gatetest.Call) map[string]any {
	s.t.Helper()
	r, err := gatetest.NewRequest(s.t.Context(), gatetest.PublicURL, c)
	if err != nil {
		s.t.Fatal(err)
	}
	if r.Body == nil {
		r.Body = http.NoBody
	}
	r.RemoteAddr, r.RequestURI = "127.0.0.1:1234", r.URL.RequestURI()
	w := httptest.NewRecorder()
	s.Front.Handler(false).ServeHTTP(w, r)
	var members map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &members); w.Code > 299 || err != nil {
		s.t.Fatalf("%s %s: %d %s", c.Method, c.Path, w.Code, w.Body)
	}
	return members
}

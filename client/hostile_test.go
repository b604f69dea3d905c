package client_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
)

// methods returns all methods of a client that send requests to a relay, by name.
func methods(c *client.Client, key envelope.Signer) map[string]func(context.Context) error {
	ignore := func(context.Context, *envelope.Envelope) error { return nil }
	work := func(context.Context, client.Job) (envelope.Result, error) { return envelope.Result{}, nil }
	return map[string]func(context.Context) error{
		"Post": func(ctx context.Context) error { _, _, err := c.Post(ctx, request); return err },
		"Request": func(ctx context.Context) error {
			_, err := c.Request(ctx, client.RequestOptions{Intent: "i"})
			return err
		},
		"Resume":      func(ctx context.Context) error { _, err := c.Resume(ctx, "t"); return err },
		"Thread":      func(ctx context.Context) error { _, err := c.Thread(ctx, "t", ""); return err },
		"Stored":      func(ctx context.Context) error { _, _, err := c.Stored(ctx, client.Filter{Thread: "t"}); return err },
		"Agents":      func(ctx context.Context) error { _, err := c.Agents(ctx, client.AgentQuery{}); return err },
		"Agent":       func(ctx context.Context) error { _, err := c.Agent(ctx, key.DID()); return err },
		"NewInbox":    func(ctx context.Context) error { _, _, err := c.NewInbox(ctx, "i"); return err },
		"Inboxes":     func(ctx context.Context) error { _, err := c.Inboxes(ctx); return err },
		"RotateInbox": func(ctx context.Context) error { _, err := c.RotateInbox(ctx, "in_1"); return err },
		"DeleteInbox": func(ctx context.Context) error { return c.DeleteInbox(ctx, "in_1") },
		"Info":        func(ctx context.Context) error { _, err := c.Info(ctx); return err },
		"Health":      func(ctx context.Context) error { _, err := c.Health(ctx); return err },
		"Directory": func(ctx context.Context) error {
			for _, err := range c.Directory(ctx, client.AgentQuery{}) {
				if err != nil {
					return err
				}
			}
			return nil
		},
		"Follow": func(ctx context.Context) error {
			return c.Follow(ctx, client.FollowOptions{FromOldest: true}, ignore)
		},
		"Follow since": func(ctx context.Context) error { return c.Follow(ctx, client.FollowOptions{}, ignore) },
		"Serve": func(ctx context.Context) error {
			return c.Serve(ctx, client.ServeOptions{Intents: []string{"i"}}, client.Handler{Work: work})
		},
	}
}

// endless returns a handler that writes head and then repeats unit until the client closes the connection.
func endless(head, unit string) http.HandlerFunc {
	many := []byte(strings.Repeat(unit, 1+(64<<10)/len(unit)))
	return func(w http.ResponseWriter, _ *http.Request) {
		_, err := io.WriteString(w, head)
		for err == nil {
			_, err = w.Write(many)
		}
	}
}

// bomb returns a handler whose small response grows to 64 MiB when it is decompressed.
func bomb(status int) http.HandlerFunc {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	chunk := []byte(strings.Repeat("{},", 1<<18))
	_, err := io.WriteString(z, `{"ok":false,"error":"FORBIDDEN","message":"no","details":{"all":[`)
	for range 64 << 20 / len(chunk) {
		_, failed := z.Write(chunk)
		err = errors.Join(err, failed)
	}
	_, failed := io.WriteString(z, `{}]}}`)
	if err = errors.Join(err, failed, z.Close()); err != nil {
		panic(err)
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(status)
		_, _ = w.Write(packed.Bytes()) // the client may have closed the connection
	}
}

// respondWith returns a handler that always sends the same response.
func respondWith(status int, header, value, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(header, value)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// TestHostileRelay calls every method with relays that send hostile responses. No call takes much memory or time.
func TestHostileRelay(t *testing.T) {
	racing.Skip(t, "one thing after another")
	const refusal = `{"ok":false,"error":"UNAVAILABLE","message":"no"}`
	list := func(name string) string { return `{"ok":true,"cursor":"1","` + name + `":[` }
	answers := map[string]http.HandlerFunc{
		"a bomb as a refusal":  bomb(403),
		"a bomb":               bomb(200),
		"an endless refusal":   func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(403); endless(`{"details":[`, "{},")(w, r) },
		"endless events":       endless(list("events"), "{},"),
		"endless agents":       endless(list("agents"), `{"id":"x"},`),
		"endless manifests":    endless(`{"ok":true,"agent":{"manifests":[`, "0,"),
		"endless offers":       endless(`{"ok":true,"thread":{"offers":[`, "{},"),
		"endless members":      endless(`{"ok":true`, `,"a":1`),
		"an endless event":     endless(list("events")+`"`, "a"),
		"an endless name":      endless(`{"`, "a"),
		"an endless number":    endless(`{"ok":`, "1"),
		"endless space":        endless(`{"ok":true,`, " "),
		"endless space after":  endless(`{"ok":true,"cursor":"1","events":[]}`, " "),
		"endless depth":        endless(list("events"), "["),
		"large events":         endless(list("events"), `{"a":"`+strings.Repeat("é", 1<<19)+`"},`),
		"a large cursor":       respondWith(200, "X", "", `{"ok":true,"hasMore":true,"events":[],"agents":[],"cursor":"`+strings.Repeat("a", 60<<10)+`"}`),
		"large headers":        respondWith(200, "X", strings.Repeat("a", 1<<20), `{"ok":true}`),
		"a redirect to itself": respondWith(307, "Location", "/", refusal),
		"wait without end":     respondWith(503, "Retry-After", "99999999999999999999", refusal),
		"wait a negative time": respondWith(503, "Retry-After", "-1", refusal),
		"wait not a number":    respondWith(503, "Retry-After", "NaN", refusal),
		"wait until year 9999": respondWith(429, "Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT", refusal),
		"nonsense dates":       respondWith(200, "X", "", `{"ok":true,"expiresAt":"9999-99-99","thread":{"deadline":"x"},"agent":{"lastSeen":1},"did":"x"}`),
		"more and more":        respondWith(200, "X", "", `{"ok":true,"hasMore":true,"events":[],"agents":[],"cursor":"1"}`),
	}
	key := newKey(t)
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(answer)
			defer server.Close()
			c, err := client.New(server.URL, key, client.Options{Attempts: 1})
			if err != nil {
				t.Fatal(err)
			}
			peak := watchHeap()
			for name, ask := range methods(c, key) {
				ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
				began := time.Now()
				err := ask(ctx)
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("%s took %v", name, took)
				}
				if cancel(); err == nil && name != "Health" && name != "Agents" && name != "Directory" && name != "Stored" {
					t.Errorf("%s: no error", name)
				}
				if len(fmt.Sprint(err)) > 4<<10 {
					t.Errorf("%s: an error of %d bytes", name, len(fmt.Sprint(err)))
				}
			}
			if grown := peak() >> 20; grown > 64 {
				t.Errorf("the heap grew by %d MiB", grown)
			}
		})
	}
}

// watchHeap measures the heap until grown is called. grown returns the largest growth in bytes.
func watchHeap() (grown func() int64) {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	before, most := int64(m.HeapAlloc), atomic.Int64{}
	ended := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most.Store(max(most.Load(), int64(m.HeapAlloc)-before))
			select {
			case <-ended:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	})
	return func() int64 { close(ended); watching.Wait(); return most.Load() }
}

// TestSlowRelay calls every method with relays that do not answer, or whose responses never end.
func TestSlowRelay(t *testing.T) {
	for name, speak := range map[string]func(w io.Writer) error{
		"silence":       func(io.Writer) error { return nil },
		"slow headers":  func(w io.Writer) error { return drip(w, "HTTP/1.1 200 OK\r\nX: ", "a") },
		"slow answer":   func(w io.Writer) error { return drip(w, "HTTP/1.1 200 OK\r\n\r\n", " ") },
		"slow refusal":  func(w io.Writer) error { return drip(w, "HTTP/1.1 403 No\r\n\r\n", " ") },
		"endless hints": func(w io.Writer) error { return drip(w, "", "HTTP/1.1 103 Early Hints\r\n\r\n") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var relays sync.WaitGroup
				transport := &http.Transport{MaxResponseHeaderBytes: 64 << 10, DialContext: func(context.Context, string, string) (net.Conn, error) {
					mine, theirs := net.Pipe()
					relays.Go(func() {
						defer theirs.Close()
						if _, err := http.ReadRequest(bufio.NewReader(theirs)); err != nil || speak(theirs) != nil {
							return
						}
						_, _ = io.Copy(io.Discard, theirs) // ends when the client closes the connection
					})
					return mine, nil
				}}
				key := newKey(t)
				c, err := client.New("http://relay.test", key, client.Options{HTTPClient: &http.Client{Transport: transport}, Attempts: 2})
				if err != nil {
					t.Fatal(err)
				}
				for name, ask := range methods(c, key) {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
					began := time.Now()
					err := ask(ctx)
					most := 3 * time.Minute // for the document and two attempts
					if name == "Follow" || name == "Follow since" || name == "Serve" {
						most = 10 * time.Minute // they retry until ctx ends
					}
					if took := time.Since(began); err == nil || took > most {
						t.Errorf("%s: %v after %v", name, err, took)
					}
					cancel()
				}
				transport.CloseIdleConnections()
				relays.Wait()
			})
		})
	}
}

// drip writes head, and then unit once a second until the other side closes the connection.
func drip(w io.Writer, head, unit string) error {
	_, err := io.WriteString(w, head)
	for err == nil {
		time.Sleep(time.Second)
		_, err = io.WriteString(w, unit)
	}
	return err
}

// TestDirectoryEnds reads directories in which every page claims that there is another page.
func TestDirectoryEnds(t *testing.T) {
	relay, key := newFakeRelay(), newKey(t)
	manifest := relay.put(t, key, envelope.Draft{Payload: envelope.Manifest{ID: "m", Intents: []envelope.Intent{{ID: "translate"}}}})
	row := fmt.Sprintf(`{"id":%q,"online":true,"lastSeen":"2026-02-02T12:00:00Z","envelope":%s}`, key.DID(), manifest.Canonical())
	for name, page := range map[string]func(n int) string{
		"the same cursor": func(int) string { return `"hasMore":true,"cursor":"1","agents":[` + row + `]` },
		"no cursor":       func(int) string { return `"hasMore":true,"agents":[` + row + `]` },
		"alternating":     func(n int) string { return fmt.Sprintf(`"hasMore":true,"cursor":"%d","agents":[%s]`, n%2, row) },
		"new cursors":     func(n int) string { return fmt.Sprintf(`"hasMore":true,"cursor":"%d","agents":[%s]`, n, row) },
		"empty pages":     func(n int) string { return fmt.Sprintf(`"hasMore":true,"cursor":"%d","agents":[]`, n) },
	} {
		pages, agents := 0, 0
		relay.setHook(func(*http.Request, http.RoundTripper) (*http.Response, error) {
			pages++
			return response(200, `{"ok":true,`+page(pages)+`}`), nil
		})
		var ended error
		for _, err := range newClient(t, relay, key, client.Options{}).Directory(t.Context(), client.AgentQuery{}) {
			if ended = err; err == nil {
				agents++
			}
		}
		if !errors.Is(ended, client.ErrEndless) || pages > 101 {
			t.Errorf("%s: %v after %d pages and %d agents", name, ended, pages, agents)
		}
	}
	relay.setHook(nil)
	for a, err := range newClient(t, relay, key, client.Options{}).Directory(t.Context(), client.AgentQuery{}) {
		if err != nil || a.ID != key.DID() || len(a.Manifests) != 1 {
			t.Errorf("%v, %v", a, err)
		}
	}
}

// TestCompressedAnswers: the client asks for uncompressed answers and refuses compressed ones.
func TestCompressedAnswers(t *testing.T) {
	asked := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.Header.Get("Accept-Encoding")
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = io.WriteString(w, `{"ok":true,"version":"1.0"}`) // plain, so that only the header is wrong
	}))
	defer server.Close()
	c, err := client.New(server.URL, nil, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Health(t.Context()); err == nil || !strings.Contains(err.Error(), "compressed") || asked != "identity" {
		t.Errorf("Accept-Encoding was %q, and the error was %v", asked, err)
	}
}

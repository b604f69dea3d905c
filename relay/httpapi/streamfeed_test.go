package httpapi_test

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// feed is a client that reads a stream in the background.
type feed struct {
	t      testing.TB
	status int
	header http.Header
	leave  func()

	mu     sync.Mutex
	text   string
	times  string // like text, and before the text of each moment the time since the stream began
	latest time.Duration
	ended  time.Time
	err    error // why reading has ended; nil: the stream ended cleanly
}

// streamEvent is an event of a stream.
type streamEvent struct{ id, data string }

// follow opens a stream. headers are names and values.
func follow(t testing.TB, c *http.Client, target string, headers ...string) *feed {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", "https://localhost"+target, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	began := time.Now()
	response, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	s := &feed{t: t, status: response.StatusCode, header: response.Header}
	done := make(chan struct{})
	s.leave = func() {
		cancel()
		<-done
	}
	t.Cleanup(s.leave)
	go func() {
		defer close(done)
		defer response.Body.Close()
		b := make([]byte, 256<<10)
		for {
			n, err := response.Body.Read(b)
			s.mu.Lock()
			if at := time.Since(began); n > 0 && (s.text == "" || at != s.latest) {
				s.times += "\n" + at.String() + " "
				s.latest = at
			}
			s.text += string(b[:n])
			s.times += string(b[:n])
			if err != nil {
				s.ended = time.Now()
				if err != io.EOF {
					s.err = err
				}
				s.mu.Unlock()
				return
			}
			s.mu.Unlock()
		}
	}()
	return s
}

// read returns what was read so far.
func (s *feed) read() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text
}

// parse returns the events that were read so far, and the last id, by the rules of WHATWG HTML.
func (s *feed) parse() (events []streamEvent, last string) {
	s.t.Helper()
	id, data, hasData := "", "", false
	for line := range strings.SplitSeq(s.read(), "\n") {
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "":
			if line != "" {
				continue // a comment
			}
			if last = id; hasData {
				events = append(events, streamEvent{id, data})
			}
			data, hasData = "", false
		case "id":
			id = value
		case "data":
			if hasData {
				s.t.Errorf("an event has two lines of data")
			}
			data, hasData = value, true
		case "retry":
		default:
			s.t.Errorf("the stream has the line %q", line)
		}
	}
	return events, last
}

// data returns the data of the events that were read so far.
func (s *feed) data() []string {
	s.t.Helper()
	events, _ := s.parse()
	all := []string{}
	for _, e := range events {
		all = append(all, e.data)
	}
	return all
}

// lastID returns the id with which the client would open its next stream.
func (s *feed) lastID() string {
	s.t.Helper()
	_, id := s.parse()
	return id
}

// end returns when the stream has ended, and why. The zero time means that it is open.
func (s *feed) end() (time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended, s.err
}

// wantOpen checks that the stream has not ended.
func (s *feed) wantOpen(what string) {
	s.t.Helper()
	synctest.Wait()
	if at, err := s.end(); !at.IsZero() {
		s.t.Errorf("%s: the stream has ended: %v, %q", what, err, s.read())
	}
}

// wantEnd checks that the stream has just ended cleanly, and that it says why.
func (s *feed) wantEnd(what, reason string) {
	s.t.Helper()
	s.wantEndAt(time.Now(), what, reason)
}

// wantEndAt checks that the stream has ended cleanly at about this time, and that it says why.
func (s *feed) wantEndAt(when time.Time, what, reason string) {
	s.t.Helper()
	synctest.Wait()
	at, err := s.end()
	if when.Sub(at).Abs() > 100*time.Millisecond || err != nil || !strings.Contains(s.read(), "\n: end; "+reason) {
		s.t.Errorf("%s: the stream ended at %v with %v; it is %v\n%q", what, at, err, time.Now(), s.read())
	}
}

var randomParts = regexp.MustCompile(`(?m)(retry: )\d+$|(id: )[0-9a-f]{32}$`)

// transcript returns when the client has read what, without the parts that are random on a private relay.
func (s *feed) transcript() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return randomParts.ReplaceAllString(s.times, "$1$2…")
}

// streamTest is a relay that serves both versions of HTTP.
type streamTest struct {
	*relay.Relay
	l    *pipeListener
	h    http.Handler // for posts and polls
	stop func()
}

// serveStreams runs a relay with this configuration.
func serveStreams(t *testing.T, c relay.Config) streamTest {
	t.Helper()
	r := startWith(t, asIs, c)
	l, stop := serveTLS(t, r, httpapi.Options{Log: quiet})
	return streamTest{r, l, httpapi.New(r, httpapi.Options{Log: quiet}).Handler(false), stop}
}

// inBubbles runs a test in bubbles of testing/synctest: for both versions of HTTP, and for both kinds of relays.
func inBubbles(t *testing.T, c relay.Config, test func(t *testing.T, s streamTest, client *http.Client)) {
	t.Helper()
	for name, useHTTP2 := range map[string]bool{"HTTP1": false, "HTTP2": true} {
		for _, reads := range []relay.Visibility{relay.ToAll, relay.ToParties} {
			t.Run(name+"-"+string(reads), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c.Origin, c.Reads = origin, reads
					s := serveStreams(t, c)
					test(t, s, s.l.client(t, stranger, useHTTP2))
				})
			})
		}
	}
}

// followAs opens a stream that k signs.
func followAs(t testing.TB, c *http.Client, k didkey.Key, target string, headers ...string) *feed {
	t.Helper()
	return follow(t, c, target, append(headers, "Authorization", authorization(t, k, target))...)
}

package client_test

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

func newKey(t *testing.T) didkey.Key {
	t.Helper()
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newClient(t *testing.T, relay *fakeRelay, key didkey.Key, opts client.Options) *client.Client {
	t.Helper()
	opts.HTTPClient = relay.Client()
	c, err := client.New(relay.URL, key, opts)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var request = envelope.Draft{Payload: envelope.Request{Intent: "translate"}}

// fault is a hook that changes the outcome of one request.
type fault func(r *http.Request, next http.RoundTripper) (*http.Response, error)

// answering responds with a status, a body and headers. The relay does not get the request.
func answering(status int, text string, header ...string) fault {
	return func(*http.Request, http.RoundTripper) (*http.Response, error) {
		return response(status, text, header...), nil
	}
}

// lost lets the relay handle the request, and loses the response.
func lost(r *http.Request, next http.RoundTripper) (*http.Response, error) {
	if _, err := next.RoundTrip(r); err != nil {
		return nil, err
	}
	return reset(r, next)
}

// reset breaks the connection. The relay does not get the request.
func reset(*http.Request, http.RoundTripper) (*http.Response, error) {
	return nil, &net.OpError{Op: "read", Err: errors.New("connection reset by peer")}
}

// noConnection fails to connect.
func noConnection(*http.Request, http.RoundTripper) (*http.Response, error) {
	return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
}

// pass changes nothing.
func pass(r *http.Request, next http.RoundTripper) (*http.Response, error) { return next.RoundTrip(r) }

const (
	unavailable = `{"ok":false,"error":"UNAVAILABLE","message":"shutting down","retryable":true}`
	full        = `{"ok":false,"error":"UNAVAILABLE","message":"nothing was stored","details":{"stored":false},"retryable":true}`
	wrongState  = `{"ok":false,"error":"INVALID_TRANSITION","message":"no","details":{"state":"ERROR"}}`
)

// script applies one fault to each POST, in order. The last fault applies to all further POSTs. script stores the
// bodies of the POSTs.
func script(relay *fakeRelay, faults ...fault) (bodies *[]string) {
	bodies = new([]string)
	relay.setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		if r.Method != http.MethodPost {
			return next.RoundTrip(r)
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		again := r.Clone(r.Context())
		again.Body = io.NopCloser(strings.NewReader(string(body)))
		*bodies = append(*bodies, string(body))
		return faults[min(len(*bodies), len(faults))-1](again, next)
	})
	return bodies
}

func TestPostOutcome(t *testing.T) {
	staleBy := func(d time.Duration) fault {
		return func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			return response(400, `{"ok":false,"error":"STALE_TIMESTAMP","message":"stale","details":{"now":"`+
				envelope.FormatTime(time.Now().Add(d))+`"}}`), nil
		}
	}
	stale := staleBy(time.Hour)
	const limited = `{"ok":false,"error":"RATE_LIMITED","message":"slowly","retryable":true}`
	for name, test := range map[string]struct {
		faults  []fault
		unknown bool          // the error has ErrUnknownOutcome
		code    envelope.Code // the code of the *envelope.Error in the error; "": there is none
		ok      bool          // Post returns no error
		posts   int           // the number of posts
		signed  int           // the number of different bodies
	}{
		"stored at once":                     {faults: []fault{pass}, ok: true, posts: 1, signed: 1},
		"lost answer, then a duplicate":      {faults: []fault{lost, pass}, ok: true, posts: 2, signed: 1},
		"no connection, then stored":         {faults: []fault{noConnection, noConnection, pass}, ok: true, posts: 3, signed: 1},
		"limited and unavailable":            {faults: []fault{answering(429, limited), answering(503, unavailable), pass}, ok: true, posts: 3, signed: 1},
		"a gateway's 502, then stored":       {faults: []fault{answering(502, "<html>"), pass}, ok: true, posts: 2, signed: 1},
		"a 200 from no relay, then stored":   {faults: []fault{answering(200, "<html>"), pass}, ok: true, posts: 2, signed: 1},
		"another receipt, then stored":       {faults: []fault{answering(200, `{"ok":true,"id":"other"}`), pass}, ok: true, posts: 2, signed: 1},
		"refused":                            {faults: []fault{answering(409, wrongState)}, code: envelope.CodeInvalidTransition, posts: 1, signed: 1},
		"stale first: signed again":          {faults: []fault{stale}, code: envelope.CodeStaleTimestamp, posts: 2, signed: 2},
		"no connection, stale: signed again": {faults: []fault{noConnection, stale}, code: envelope.CodeStaleTimestamp, posts: 3, signed: 2},
		"limited, stale: signed again":       {faults: []fault{answering(429, limited), stale}, code: envelope.CodeStaleTimestamp, posts: 3, signed: 2},
		"reset, always stale":                {faults: []fault{reset, stale}, unknown: true, code: envelope.CodeStaleTimestamp, posts: 3, signed: 2},
		"500, always stale":                  {faults: []fault{answering(500, unavailable), stale}, unknown: true, code: envelope.CodeStaleTimestamp, posts: 3, signed: 2},
		"reset, stale, then stored":          {faults: []fault{reset, staleBy(0), pass}, ok: true, posts: 3, signed: 2},
		"reset, stale, refused":              {faults: []fault{reset, staleBy(0), answering(409, wrongState)}, code: envelope.CodeInvalidTransition, posts: 3, signed: 2},
		"lost, stale, stored before":         {faults: []fault{lost, staleBy(0), pass}, unknown: true, code: envelope.CodeDuplicateID, posts: 3, signed: 2},
		"502, a gateway's 404":               {faults: []fault{answering(502, ""), answering(404, "<html>")}, unknown: true, posts: 2, signed: 1},
		"reset, refused by the thread":       {faults: []fault{reset, answering(409, wrongState)}, code: envelope.CodeInvalidTransition, posts: 2, signed: 1},
		"always reset":                       {faults: []fault{reset}, unknown: true, posts: 8, signed: 1},
		"always unavailable":                 {faults: []fault{answering(503, unavailable)}, unknown: true, code: envelope.CodeUnavailable, posts: 8, signed: 1},
		"always full":                        {faults: []fault{answering(503, full)}, code: envelope.CodeUnavailable, posts: 8, signed: 1},
		"full, stale: signed again":          {faults: []fault{answering(503, full), stale}, code: envelope.CodeStaleTimestamp, posts: 3, signed: 2},
		"reset, then full":                   {faults: []fault{reset, answering(503, full)}, unknown: true, code: envelope.CodeUnavailable, posts: 8, signed: 1},
		"never a connection":                 {faults: []fault{noConnection}, posts: 8, signed: 1},
		"reset once, then no connection":     {faults: []fault{reset, noConnection}, unknown: true, posts: 8, signed: 1},
		"always limited":                     {faults: []fault{answering(429, limited)}, code: envelope.CodeRateLimited, posts: 8, signed: 1},
		"another server":                     {faults: []fault{answering(404, "<html>")}, posts: 1, signed: 1},
		"a redirect":                         {faults: []fault{answering(302, "", "Location", "/other")}, unknown: true, posts: 1, signed: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				relay := newFakeRelay()
				bodies := script(relay, test.faults...)
				e, receipt, err := newClient(t, relay, newKey(t), client.Options{}).Post(t.Context(), request)
				if test.ok != (err == nil) || test.unknown != errors.Is(err, client.ErrUnknownOutcome) {
					t.Errorf("got error %v; want ok %v, unknown outcome %v", err, test.ok, test.unknown)
				}
				if refusal, _ := errors.AsType[*envelope.Error](err); test.code != "" && (refusal == nil || refusal.Code != test.code) {
					t.Errorf("got error %v, want one with %s", err, test.code)
				} else if test.code == "" && refusal != nil {
					t.Errorf("got an error code that the relay has not sent: %v", err)
				}
				if e == nil || test.ok && receipt.ID != e.ID {
					t.Errorf("got envelope %v and receipt %v", e, receipt)
				}
				different := map[string]bool{}
				for _, body := range *bodies {
					different[body] = true
				}
				if len(*bodies) != test.posts || len(different) != test.signed {
					t.Errorf("sent %d times, %d different bodies; want %d and %d", len(*bodies), len(different), test.posts, test.signed)
				}
				if test.ok && len(relay.events) != 1 {
					t.Errorf("the relay has %d events, want one", len(relay.events))
				}
			})
		})
	}
}

func TestPostCorrectsItsClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		relay := newFakeRelay()
		relay.skew = 2 * time.Hour
		c := newClient(t, relay, newKey(t), client.Options{})
		for range 2 {
			e, _, err := c.Post(t.Context(), request)
			if err != nil {
				t.Fatal(err)
			}
			if off := relay.now().Sub(e.TS); off.Abs() > time.Second {
				t.Errorf("the message's time is off by %v", off)
			}
		}
		if len(relay.posts) != 3 || relay.posts[0] != relay.posts[1] {
			t.Errorf("posted %q; want three posts, the first two with the same id", relay.posts)
		}
		d := envelope.Draft{Payload: request.Payload, TS: time.Now()}
		if _, _, err := c.Post(t.Context(), d); !hasCode(err, envelope.CodeStaleTimestamp) {
			t.Errorf("posting with Draft.TS: got %v", err)
		}
		if len(relay.posts) != 4 {
			t.Errorf("a message with Draft.TS was posted %d times", len(relay.posts)-3)
		}
		relay.skew = 100 * 24 * time.Hour
		if _, _, err := c.Post(t.Context(), request); !hasCode(err, envelope.CodeStaleTimestamp) {
			t.Errorf("the client used a relay's clock that is a hundred days off: %v", err)
		}
	})
}

// hasCode reports whether err has an *envelope.Error with this code.
func hasCode(err error, code envelope.Code) bool {
	refusal, ok := errors.AsType[*envelope.Error](err)
	return ok && refusal.Code == code
}

func TestPostWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		relay := newFakeRelay()
		c := newClient(t, relay, newKey(t), client.Options{})
		script(relay, answering(429, unavailable, "Retry-After", "60"), pass)
		began := time.Now()
		if _, _, err := c.Post(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < time.Minute || took > time.Minute+time.Second {
			t.Errorf("retried after %v; the relay asked for a minute", took)
		}
		script(relay, answering(503, unavailable, "Retry-After", "99999999"), pass)
		began = time.Now()
		if _, _, err := c.Post(t.Context(), request); err != nil || time.Since(began) > 6*time.Minute {
			t.Errorf("got %v after %v; want at most two minutes and a pause for each retry", err, time.Since(began))
		}
		script(relay, reset)
		began = time.Now()
		c.Post(t.Context(), request)
		if took := time.Since(began); took < 16*time.Second || took > 64*time.Second {
			t.Errorf("8 attempts took %v; want pauses that double from half a second", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began = time.Now()
		if _, _, err := c.Post(ctx, request); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, client.ErrUnknownOutcome) {
			t.Errorf("got %v; want the context's error, and an unknown outcome", err)
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("Post took %v; the context ended after 3s", took)
		}
		if _, _, err := c.Post(ctx, request); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, client.ErrUnknownOutcome) {
			t.Errorf("posting after the context's end: got %v; want no ErrUnknownOutcome, because nothing was sent", err)
		}
	})
}

// TestPostHangingRelay: a relay never answers. Each attempt ends after 30 s, and the outcome is unknown.
func TestPostHangingRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		relay := newFakeRelay()
		script(relay, func(r *http.Request, _ http.RoundTripper) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		began := time.Now()
		_, _, err := newClient(t, relay, newKey(t), client.Options{Attempts: 2}).Post(t.Context(), request)
		if took := time.Since(began); !errors.Is(err, client.ErrUnknownOutcome) || took < time.Minute || took > 62*time.Second {
			t.Errorf("two attempts ended after %v with %v", took, err)
		}
	})
}

// TestRealFailures checks with real connections that the outcome is known after a failed connect, and unknown after a
// broken connection.
func TestRealFailures(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS() // with a certificate that the client does not trust
	defer secure.Close()
	post := func(url string) error {
		c, err := client.New(url, newKey(t), client.Options{Attempts: 1})
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = c.Post(t.Context(), request)
		return err
	}
	if err := post(server.URL); !errors.Is(err, client.ErrUnknownOutcome) {
		t.Errorf("a connection that broke after the request: got %v", err)
	}
	server.Close()
	if err := post(server.URL); err == nil || errors.Is(err, client.ErrUnknownOutcome) {
		t.Errorf("a refused connection: got %v", err)
	}
	if err := post(secure.URL); err == nil || errors.Is(err, client.ErrUnknownOutcome) {
		t.Errorf("an untrusted certificate: got %v", err)
	}
}

func TestNewRefusesURL(t *testing.T) {
	for _, url := range []string{"", "relay.example", "ftp://relay.example", "http://", "http://relay.example?x=1", "http://a b"} {
		if _, err := client.New(url, nil, client.Options{}); err == nil {
			t.Errorf("New accepted the URL %q", url)
		}
	}
	relay := newFakeRelay()
	c, err := client.New(relay.URL+"/", nil, client.Options{HTTPClient: relay.Client()})
	if err != nil {
		t.Fatal(err)
	}
	if version, err := c.Health(t.Context()); err != nil || version != "1.0.0" {
		t.Errorf("reading without a signer: got %q, %v", version, err)
	}
	if _, _, err := c.Post(t.Context(), request); err == nil {
		t.Error("posting without a signer returned no error")
	}
}

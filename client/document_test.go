package client_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
)

const document = "/.well-known/agora.json"

// newClientVia returns a client that sends its requests through transport.
func newClientVia(t *testing.T, url string, key envelope.Signer, transport roundTripFunc) *client.Client {
	t.Helper()
	c, err := client.New(url, key, client.Options{HTTPClient: &http.Client{Transport: transport}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestBadDocumentIsFetchedAgain: if the first request for the document gets a bad response, the client asks again and
// signs its reads. If a relay never has the document, the client treats it as open.
func TestBadDocumentIsFetchedAgain(t *testing.T) {
	racing.Skip(t, "one thing after another")
	refusal := `{"ok":false,"error":"NOT_FOUND","message":"no such path"}`
	for name, bad := range map[string]func() *http.Response{
		"a proxy's 404": func() *http.Response { return response(404, "not found") }, "404": func() *http.Response { return response(404, refusal) },
		"403": func() *http.Response { return response(403, refusal) }, "400": func() *http.Response { return response(400, "{}") },
		"half a document": func() *http.Response { return response(200, `{"ok":true,"reads":`) },
	} {
		r, key, asked := startPrivate(t), newKey(t), 0
		c := newClientVia(t, r.URL, key, func(q *http.Request) (*http.Response, error) {
			if q.URL.Path == document {
				if asked++; asked == 1 {
					return bad(), nil
				}
			}
			return http.DefaultTransport.RoundTrip(q)
		})
		if _, _, err := c.Post(t.Context(), envelope.Draft{Payload: envelope.Request{Intent: "echo"}, Recipient: key.DID()}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		enough := errors.New("enough")
		err := c.Follow(ctx, client.FollowOptions{FromOldest: true}, func(context.Context, *envelope.Envelope) error { return enough })
		if cancel(); !errors.Is(err, enough) || asked != 2 {
			t.Errorf("%s: %v, asked %d times", name, err, asked)
		}
	}
	r, err := newRealRelay(relay.ToAll)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	c := newClientVia(t, r.URL, newKey(t), func(q *http.Request) (*http.Response, error) {
		if q.URL.Path == document {
			return response(404, "not found"), nil
		}
		return http.DefaultTransport.RoundTrip(q)
	})
	if _, err := c.Agents(t.Context(), client.AgentQuery{}); err != nil {
		t.Errorf("a relay without the document: %v", err)
	}
}

// TestRequirePartiesIsRechecked: a client with RequireParties stops posting to a relay that has become open.
func TestRequirePartiesIsRechecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, reads := newFakeRelay(), "parties"
		fake.hookDocument = true
		fake.setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			if r.URL.Path == document {
				return response(200, fmt.Sprintf(`{"ok":true,"url":"http://relay.test","reads":%q}`, reads)), nil
			}
			return next.RoundTrip(r)
		})
		c := newClient(t, fake, newKey(t), client.Options{RequireParties: true})
		if _, _, err := c.Post(t.Context(), request); err != nil {
			t.Fatal(err)
		}
		reads = "open"
		time.Sleep(6 * time.Minute)
		if _, _, err := c.Post(t.Context(), request); !errors.Is(err, client.ErrOpenReads) || len(fake.posts) != 1 {
			t.Errorf("%v, %d posts", err, len(fake.posts))
		}
	})
}

// TestSigningContinues: a relay that was private once gets signed reads, even after its document says that it is open.
func TestSigningContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, reads, signed := newFakeRelay(), "parties", 0
		fake.hookDocument = true
		fake.setHook(func(r *http.Request, _ http.RoundTripper) (*http.Response, error) {
			if r.URL.Path == document {
				return response(200, fmt.Sprintf(`{"ok":true,"url":"http://relay.test","reads":%q}`, reads)), nil
			}
			if strings.HasPrefix(r.Header.Get("Authorization"), "Agora ") {
				signed++
			}
			return response(200, `{"ok":true,"agents":[],"hasMore":false}`), nil
		})
		c := newClient(t, fake, newKey(t), client.Options{})
		for want := 1; want <= 2; want++ {
			if _, err := c.Agents(t.Context(), client.AgentQuery{}); err != nil || signed != want {
				t.Errorf("%v; %d signed reads, want %d", err, signed, want)
			}
			reads = "open"
			time.Sleep(6 * time.Minute)
		}
	})
}

// TestTokensAreNotDatedAhead: a relay asks for a later time after each read. The client corrects the time of its tokens
// only once.
func TestTokensAreNotDatedAhead(t *testing.T) {
	r, asked, latest := startPrivate(t), 0, time.Duration(0)
	c := newClientVia(t, r.URL, newKey(t), func(q *http.Request) (*http.Response, error) {
		if q.URL.Path == document {
			return http.DefaultTransport.RoundTrip(q)
		}
		text, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(q.Header.Get("Authorization"), "Agora "))
		var token struct{ TS time.Time }
		if err = errors.Join(err, json.Unmarshal(text, &token)); err != nil {
			return nil, err
		}
		latest = max(latest, time.Until(token.TS))
		asked++
		return response(401, fmt.Sprintf(`{"ok":false,"error":"UNAUTHORIZED","message":"time","details":{"reason":"time","now":%q}}`,
			envelope.FormatTime(time.Now().Add(time.Duration(asked)*time.Minute))), "WWW-Authenticate", "Agora"), nil
	})
	for range 4 {
		if _, err := c.Agents(t.Context(), client.AgentQuery{}); err == nil {
			t.Error("a read that the relay refuses returned no error")
		}
	}
	if latest > time.Minute+time.Second {
		t.Errorf("the time of a token is %v ahead of the clock", latest)
	}
}

// TestTokensGoToTheAddressTheyName: a client that was given the name localhost sends its tokens to the loopback address
// in the relay's document. A client that was given an address does not switch to the name localhost. So no other
// process that listens on this machine gets a token.
func TestTokensGoToTheAddressTheyName(t *testing.T) {
	r, stolen := startPrivate(t), 0
	c := newClientVia(t, strings.Replace(r.URL, "127.0.0.1", "localhost", 1), newKey(t), func(q *http.Request) (*http.Response, error) {
		if q.URL.Hostname() == "localhost" && q.Header.Get("Authorization") != "" {
			stolen++
		}
		return http.DefaultTransport.RoundTrip(q)
	})
	if _, err := c.Agents(t.Context(), client.AgentQuery{}); err != nil || stolen != 0 {
		t.Errorf("%v; %d tokens were sent to localhost, want none", err, stolen)
	}
	c = newClientVia(t, r.URL, newKey(t), func(q *http.Request) (*http.Response, error) {
		if q.URL.Path == document {
			return response(200, fmt.Sprintf(`{"ok":true,"reads":"parties","url":%q}`, strings.Replace(r.URL, "127.0.0.1", "localhost", 1))), nil
		}
		return http.DefaultTransport.RoundTrip(q)
	})
	if _, err := c.Agents(t.Context(), client.AgentQuery{}); !hasCode(err, envelope.CodeUnauthorized) {
		t.Errorf("a document with a name instead of the address: got %v, want UNAUTHORIZED", err)
	}
}

// TestReadWaitsForDocumentUntilItsContextEnds: one read waits for the relay's document, and the relay does not answer.
// Other reads wait for that document too, but each only until its own context ends.
func TestReadWaitsForDocumentUntilItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClientVia(t, "http://relay.example", newKey(t), func(q *http.Request) (*http.Response, error) {
			<-q.Context().Done()
			return nil, q.Context().Err()
		})
		patient, cancel := context.WithCancel(t.Context())
		first := make(chan error)
		go func() {
			_, err := c.Agents(patient, client.AgentQuery{})
			first <- err
		}()
		synctest.Wait()
		hasty, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		began := time.Now()
		if _, err := c.Agents(hasty, client.AgentQuery{}); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("got %v after %v, want DeadlineExceeded after 1s", err, time.Since(began))
		}
		cancel()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("the first read: %v", err)
		}
	})
}

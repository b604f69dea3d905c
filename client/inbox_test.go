package client_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
)

// TestInboxes creates, lists, rotates and deletes inboxes. Each owner sees its own only (C-22).
func TestInboxes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeChannel()
		bob, carol := f.client(t, newKey(t)), f.client(t, newKey(t))
		inbox, url, err := bob.NewInbox(t.Context(), "ops bot")
		if err != nil || inbox.Label != "ops bot" || url != "http://relay.test/channel/inbox/sk_a" || inbox.CreatedAt.IsZero() {
			t.Fatalf("%+v, %q, %v", inbox, url, err)
		}
		if all, err := bob.Inboxes(t.Context()); err != nil || !slices.Equal(all, []client.Inbox{inbox}) {
			t.Errorf("bob has %+v, %v", all, err)
		}
		if all, err := carol.Inboxes(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("carol has %+v, %v", all, err)
		}
		if url, err := bob.RotateInbox(t.Context(), inbox.ID); err != nil || url != "http://relay.test/channel/inbox/sk_aa" {
			t.Errorf("%q, %v", url, err)
		}
		_, err = carol.RotateInbox(t.Context(), inbox.ID)
		if err2 := carol.DeleteInbox(t.Context(), inbox.ID); envelope.CodeOf(err) != envelope.CodeForbidden || envelope.CodeOf(err2) != envelope.CodeForbidden {
			t.Errorf("%v, %v", err, err2)
		}
		if err := bob.DeleteInbox(t.Context(), inbox.ID); err != nil || len(f.inboxes) != 0 {
			t.Errorf("%v, %v", f.inboxes, err)
		}
		if base, did, err := bob.ChannelGateway(t.Context()); err != nil || base != "http://relay.test/channel" || did != f.key.DID() {
			t.Errorf("%q, %q, %v", base, did, err)
		}
		if _, _, err := f.client(t, nil).NewInbox(t.Context(), ""); err == nil || len(f.calls) != 7 {
			t.Errorf("without a key: %v, %q", err, f.calls)
		}
	})
}

// TestInboxNewToken checks that a call is repeated with a new token if the old one had a wrong time or was used before,
// and not for any other reason.
func TestInboxNewToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeChannel()
		f.skew = 4 * time.Minute
		if _, _, err := f.client(t, newKey(t)).NewInbox(t.Context(), ""); err != nil || len(f.calls) != 2 {
			t.Errorf("another clock: %v, %q", err, f.calls)
		}
		f.skew, f.calls = 16*time.Minute, nil
		if _, _, err := f.client(t, newKey(t)).NewInbox(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "set this machine's clock") ||
			len(f.calls) != 1 {
			t.Errorf("a very different clock: %v, %q", err, f.calls)
		}
		for reason, want := range map[string]int{"used": 2, "audience": 1, "request": 1, "body": 1, "malformed": 1} {
			f.skew, f.calls = 0, nil
			f.faults = []fault{func(*http.Request, http.RoundTripper) (*http.Response, error) {
				return refusal(401, "UNAUTHORIZED", map[string]any{"reason": reason}), nil
			}}
			if _, err := f.client(t, newKey(t)).Inboxes(t.Context()); (err == nil) != (want == 2) || len(f.calls) != want {
				t.Errorf("%s: %v, %q", reason, err, f.calls)
			}
		}
	})
}

// TestInboxRepeats checks that a call is repeated only if that cannot create or delete a second inbox.
func TestInboxRepeats(t *testing.T) {
	busy := answering(429, `{"ok":false,"error":"RATE_LIMITED","message":"slow down"}`, "Retry-After", "2")
	for name, test := range map[string]struct {
		fault    fault
		do       func(context.Context, *client.Client) error
		requests int
	}{
		"new, lost":     {lost, func(ctx context.Context, c *client.Client) error { _, _, err := c.NewInbox(ctx, ""); return err }, 1},
		"new, busy":     {busy, func(ctx context.Context, c *client.Client) error { _, _, err := c.NewInbox(ctx, ""); return err }, 2},
		"list, lost":    {lost, func(ctx context.Context, c *client.Client) error { _, err := c.Inboxes(ctx); return err }, 2},
		"rotate, lost":  {lost, func(ctx context.Context, c *client.Client) error { _, err := c.RotateInbox(ctx, "in_b"); return err }, 2},
		"delete, lost":  {lost, func(ctx context.Context, c *client.Client) error { return c.DeleteInbox(ctx, "in_b") }, 1},
		"list, refused": {answering(403, `{"ok":false,"error":"FORBIDDEN","message":"no"}`), func(ctx context.Context, c *client.Client) error { _, err := c.Inboxes(ctx); return err }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, key := newFakeChannel(), newKey(t)
				c := f.client(t, key)
				if _, _, err := c.NewInbox(t.Context(), ""); err != nil {
					t.Fatal(err)
				}
				f.calls, f.faults = nil, []fault{test.fault}
				began := time.Now()
				err := test.do(t.Context(), c)
				if (err == nil) != (test.requests == 2) || len(f.calls) != test.requests {
					t.Errorf("%v, %q", err, f.calls)
				}
				if err != nil && strings.Contains(name, "lost") && !strings.Contains(err.Error(), "unknown whether") {
					t.Errorf("%v does not say that the outcome is unknown", err)
				}
				if waited := time.Since(began); strings.Contains(name, "busy") && waited < 2*time.Second {
					t.Errorf("waited %v", waited)
				}
			})
		})
	}
}

// TestInboxDocument checks what the client believes of the relay's document: it sends no token to another origin.
func TestInboxDocument(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := func(url string) map[string]any { return map[string]any{"url": url} }
		for name, test := range map[string]struct {
			url      string
			gateways map[string]any
			want     string
		}{
			"no gateways":           {"http://relay.test", nil, "agora serve --channel"},
			"another gateway":       {"http://relay.test", map[string]any{"hub": at("http://relay.test/hub")}, "agora serve --channel"},
			"another relay":         {"http://other.test", map[string]any{"channel": at("http://other.test/channel")}, "another URL"},
			"a gateway elsewhere":   {"http://relay.test", map[string]any{"channel": at("http://other.test/channel")}, "another URL"},
			"a gateway that begins": {"http://relay.test", map[string]any{"channel": at("http://relay.test.other/channel")}, "another URL"},
			"a bad did":             {"http://relay.test", map[string]any{"did": "did:web:x", "channel": at("http://relay.test/channel")}, "did of the gateways"},
		} {
			f := newFakeChannel()
			f.document["url"] = test.url
			if f.document["gateways"] = test.gateways; test.gateways["did"] == nil && test.gateways != nil {
				test.gateways["did"] = f.key.DID()
			}
			_, _, err := f.client(t, newKey(t)).NewInbox(t.Context(), "")
			if err == nil || !strings.Contains(err.Error(), test.want) || len(f.calls) > 0 {
				t.Errorf("%s: %v, %q", name, err, f.calls)
			}
			if none := strings.Contains(test.want, "serve"); errors.Is(err, client.ErrNoChannel) != none {
				t.Errorf("%s: %v is ErrNoChannel: %v", name, err, !none)
			}
		}
	})
}

// TestInboxPrivacy checks that a client which requires private reads creates no inbox at an open relay.
func TestInboxPrivacy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeChannel()
		c, err := client.New(f.relay.URL, newKey(t), client.Options{RequireParties: true, HTTPClient: &http.Client{Transport: f}})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.NewInbox(t.Context(), ""); !errors.Is(err, client.ErrOpenReads) || len(f.calls) > 0 {
			t.Errorf("%v, %q", err, f.calls)
		}
	})
}

// TestInboxLoopback checks that a client which was given another address of this machine calls the one in the document,
// and only if the document at that address names it too.
func TestInboxLoopback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeChannel()
		f.relay.URL = "http://127.0.0.1:8789"
		f.document["url"] = f.relay.URL
		f.document["gateways"].(map[string]any)["channel"] = map[string]any{"url": f.relay.URL + "/channel"}
		var hosts []string
		via := func(r *http.Request) (*http.Response, error) {
			hosts = append(hosts, r.URL.Host)
			return f.RoundTrip(r)
		}
		c := newClientVia(t, "http://localhost:8789", newKey(t), via)
		want := []string{"localhost:8789", "127.0.0.1:8789", "127.0.0.1:8789"}
		if _, _, err := c.NewInbox(t.Context(), ""); err != nil || !slices.Equal(hosts, want) {
			t.Errorf("%v, asked %q", err, hosts)
		}
		c = newClientVia(t, "http://localhost:8789", newKey(t), func(r *http.Request) (*http.Response, error) {
			if r.URL.Path == document && r.URL.Host == "127.0.0.1:8789" {
				return response(200, `{"ok":true,"url":"http://127.0.0.2:8789","gateways":{"channel":{"url":"http://127.0.0.2:8789/channel"}}}`), nil
			}
			return via(r)
		})
		if _, _, err := c.NewInbox(t.Context(), ""); err == nil || len(f.calls) != 1 {
			t.Errorf("another program at the other address: %v, %q", err, f.calls)
		}
	})
}

// TestInboxAnswers checks that answers about something else are refused.
func TestInboxAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeChannel()
		c := f.client(t, newKey(t))
		const foreign = `{"ok":true,"inbox":{"id":"in_x","owner":"did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp"},"url":"http://relay.test/channel/inbox/sk_a"}`
		f.faults = []fault{answering(201, foreign), answering(200, `{"ok":true,"url":"http://other.test/channel/inbox/sk_a"}`),
			answering(200, foreign)}
		if _, _, err := c.NewInbox(t.Context(), ""); err == nil {
			t.Error("an inbox of another owner was taken")
		}
		if _, err := c.RotateInbox(t.Context(), "in_x"); err == nil {
			t.Error("a URL elsewhere was taken")
		}
		if _, _, err := c.NewInbox(t.Context(), ""); err == nil {
			t.Error("the status 200 was taken for 201")
		}
	})
}

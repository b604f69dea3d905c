package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
)

// put signs a draft and adds it to the relay's events without any checks.
func (f *fakeRelay) put(t *testing.T, signer envelope.Signer, d envelope.Draft) *envelope.Envelope {
	t.Helper()
	if d.Payload == nil {
		d.Payload = request.Payload
	}
	e, err := d.Sign(signer, f.now())
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.append(e)
	return e
}

// collect follows until n events have arrived, and returns their ids.
func collect(t *testing.T, c *client.Client, opts client.FollowOptions, n int) []string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ids []string
	err := c.Follow(ctx, opts, func(_ context.Context, e *envelope.Envelope) error {
		if ids = append(ids, e.ID); len(ids) == n {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Follow ended with %v", err)
	}
	return ids
}

func TestFollowResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		relay, key := newFakeRelay(), newKey(t)
		c := newClient(t, relay, key, client.Options{})
		var want []string
		post := func(n int) {
			for range n {
				want = append(want, relay.put(t, key, envelope.Draft{}).ID)
			}
		}
		opts := client.FollowOptions{FromOldest: true, Cursor: client.FileCursor(filepath.Join(t.TempDir(), "cursor"))}
		post(250)
		got := collect(t, c, opts, 250)
		post(3)
		got = append(got, collect(t, c, opts, 3)...)
		defer later(10*time.Minute, func() { post(1) })()
		got = append(got, collect(t, c, opts, 1)...)
		synctest.Wait()
		if !slices.Equal(got, want) {
			t.Errorf("got %d events, want %d, each once and in order", len(got), len(want))
		}
	})
}

func TestFollowBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		relay, key := newFakeRelay(), newKey(t)
		c := newClient(t, relay, key, client.Options{})
		ids := make([]string, 3)
		for i := range ids {
			ids[i] = relay.put(t, key, envelope.Draft{}).ID
			time.Sleep(time.Minute)
		}
		defer later(time.Minute, func() { ids = append(ids, relay.put(t, key, envelope.Draft{}).ID) })()
		got := collect(t, c, client.FollowOptions{}, 1)
		synctest.Wait()
		if !slices.Equal(got, ids[3:]) {
			t.Errorf("from now: got %q, want the last of %q", got, ids)
		}
		if got := collect(t, c, client.FollowOptions{Since: time.Now().Add(-210 * time.Second)}, 3); !slices.Equal(got, ids[1:]) {
			t.Errorf("since a time: got %q, want all but the first of %q", got, ids)
		}
	})
}

func TestFollowHandlerFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		relay, key := newFakeRelay(), newKey(t)
		c := newClient(t, relay, key, client.Options{})
		file := filepath.Join(t.TempDir(), "cursor")
		opts := client.FollowOptions{FromOldest: true, Cursor: client.FileCursor(file)}
		first := relay.put(t, key, envelope.Draft{})
		collect(t, c, opts, 1)
		saved, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		second, third := relay.put(t, key, envelope.Draft{}), relay.put(t, key, envelope.Draft{})
		broken := errors.New("the handler's disk is full")
		var got []string
		err = c.Follow(t.Context(), opts, func(_ context.Context, e *envelope.Envelope) error {
			if got = append(got, e.ID); e.ID == third.ID {
				return broken
			}
			return nil
		})
		if err != broken || !slices.Equal(got, []string{second.ID, third.ID}) {
			t.Errorf("got %v after the events %q; %s was handled before", err, got, first.ID)
		}
		if text, err := os.ReadFile(file); err != nil || string(text) != string(saved) {
			t.Errorf("the cursor moved past an event that was not handled: %q, %v", text, err)
		}
		if got := collect(t, c, opts, 2); !slices.Equal(got, []string{second.ID, third.ID}) {
			t.Errorf("the event whose handler failed was not delivered again: got %q", got)
		}
	})
}

// brokenStore is a CursorStore whose methods return these errors.
type brokenStore struct{ load, save error }

func (s brokenStore) Load(context.Context) (string, error) { return "", s.load }
func (s brokenStore) Save(context.Context, string) error   { return s.save }

func TestFollowBrokenStore(t *testing.T) {
	relay, broken := newFakeRelay(), errors.New("no such folder")
	c := newClient(t, relay, newKey(t), client.Options{})
	for _, store := range []brokenStore{{load: broken}, {save: broken}} {
		err := c.Follow(t.Context(), client.FollowOptions{Cursor: store}, func(context.Context, *envelope.Envelope) error { return nil })
		if !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
	}
	missing := client.FileCursor(filepath.Join(t.TempDir(), "no", "folder"))
	if cursor, err := missing.Load(t.Context()); cursor != "" || err != nil {
		t.Errorf("loading a cursor that was never saved: %q, %v", cursor, err)
	}
	if err := missing.Save(t.Context(), "a.1"); err == nil {
		t.Error("saving in a folder that does not exist returned no error")
	}
}

func TestFileCursorLeavesNothingBehind(t *testing.T) {
	file := client.FileCursor(filepath.Join(t.TempDir(), "cursor"))
	for _, cursor := range []string{"a.1", "a.22", "b.0"} {
		if err := file.Save(t.Context(), cursor); err != nil {
			t.Fatal(err)
		}
		if got, err := file.Load(t.Context()); got != cursor || err != nil {
			t.Errorf("saved %q, loaded %q, %v", cursor, got, err)
		}
	}
	if entries, err := os.ReadDir(filepath.Dir(string(file))); err != nil || len(entries) != 1 {
		t.Errorf("the folder has %v, %v; want only the cursor file", entries, err)
	}
	if err := os.WriteFile(string(file), make([]byte, 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := file.Load(t.Context()); err == nil {
		t.Error("loading a file of 5000 bytes returned no error")
	}
}

// TestFollowLyingRelay: a relay sends forged events, repeated events, events that do not match the filter, and valid
// events. The handler gets only the valid events that match.
func TestFollowLyingRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		me, ann, bob := newKey(t), newKey(t), newKey(t)
		var texts []string
		sign := func(signer envelope.Signer, d envelope.Draft) string {
			e, err := d.Sign(signer, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			return string(e.Canonical())
		}
		good := envelope.Draft{Payload: request.Payload, ID: "good", Recipient: me.DID(), Thread: "t1"}
		other := func(change func(*envelope.Draft)) envelope.Draft {
			d := good
			d.ID = "bad" + fmt.Sprint(len(texts))
			change(&d)
			return d
		}
		texts = append(texts, strings.Replace(sign(ann, good), `"intent":"translate"`, `"intent":"transfer"`, 1)) // a forged copy before the genuine event
		texts = append(texts, sign(ann, good), sign(ann, good))
		texts = append(texts, sign(ann, other(func(d *envelope.Draft) { d.Recipient = bob.DID() })))
		texts = append(texts, sign(ann, other(func(d *envelope.Draft) { d.Recipient = "" })))
		texts = append(texts, sign(bob, other(func(d *envelope.Draft) {})))
		texts = append(texts, sign(ann, other(func(d *envelope.Draft) { d.Thread = "t2" })))
		texts = append(texts, sign(ann, other(func(d *envelope.Draft) { d.Payload = envelope.Cancel{} })))
		texts = append(texts, "null", "17", `{}`, `[]`, `"x"`, sign(ann, envelope.Draft{Payload: request.Payload, ID: "last", Recipient: me.DID(), Thread: "t1"}))
		relay := newFakeRelay()
		relay.setHook(answering(200, `{"ok":true,"cursor":"x","events":[`+strings.Join(texts, ",")+`]}`))
		filter := client.Filter{Recipient: me.DID(), Sender: ann.DID(), Type: envelope.TypeRequest, Thread: "t1"}
		got := collect(t, newClient(t, relay, me, client.Options{}), client.FollowOptions{Filter: filter, FromOldest: true}, 2)
		if !slices.Equal(got, []string{"good", "last"}) {
			t.Errorf("the handler got %q", got)
		}
		filter.Broadcast = true
		got = collect(t, newClient(t, relay, me, client.Options{}), client.FollowOptions{Filter: filter, FromOldest: true}, 3)
		if !slices.Equal(got, []string{"good", "bad4", "last"}) {
			t.Errorf("with broadcasts: the handler got %q", got)
		}
	})
}

// TestFollowHasNoHotLoop: relays answer each poll at once and send nothing new. The reader pauses between its polls.
func TestFollowHasNoHotLoop(t *testing.T) {
	racing.Skip(t, "one thing after another")
	key := newKey(t)
	e, err := request.Sign(key, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	same := `{"ok":true,"hasMore":true,"cursor":"x","events":[` + string(e.Canonical()) + `]}`
	for name, hook := range map[string]fault{
		"no events":       answering(200, `{"ok":true,"cursor":"x","events":[],"hasMore":true}`),
		"the same event":  answering(200, same),
		"no cursor":       answering(200, `{"ok":true,"events":[],"hasMore":true}`),
		"a long cursor":   answering(200, `{"ok":true,"events":[],"cursor":"`+strings.Repeat("x", 100_000)+`"}`),
		"unknown cursor":  answering(400, `{"ok":false,"error":"INVALID_REQUEST","details":{"reason":"unknown_cursor"}}`),
		"500":             answering(500, `{"ok":false,"error":"INTERNAL_ERROR"}`),
		"429, empty body": answering(429, ""),
		"not a relay":     answering(404, "<html>"),
		"nonsense":        answering(200, "nonsense"),
		"cut off":         reset,
		"new cursors": func(*http.Request, http.RoundTripper) (*http.Response, error) {
			count++
			return response(200, fmt.Sprintf(`{"ok":true,"cursor":"%d","events":[]}`, count)), nil
		},
		"new cursors, same event": func(*http.Request, http.RoundTripper) (*http.Response, error) {
			count++
			return response(200, strings.Replace(same, `"x"`, fmt.Sprintf(`"%d"`, count), 1)), nil
		},
		"new cursors, forged events": func(*http.Request, http.RoundTripper) (*http.Response, error) {
			count++
			return response(200, fmt.Sprintf(`{"ok":true,"cursor":"%d","events":[{},{}],"hasMore":true}`, count)), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				relay := newFakeRelay()
				relay.setHook(hook)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				err := newClient(t, relay, key, client.Options{}).Follow(ctx, client.FollowOptions{},
					func(context.Context, *envelope.Envelope) error { return nil })
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("ended with %v", err)
				}
				if relay.polls > 900 || relay.polls < 10 {
					t.Errorf("polled %d times in ten minutes", relay.polls)
				}
			})
		})
	}
}

func TestFollowQuietRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		relay := newFakeRelay()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		newClient(t, relay, newKey(t), client.Options{}).Follow(ctx, client.FollowOptions{}, nil)
		if relay.polls > 122 || relay.polls < 121 {
			t.Errorf("polled %d times in an hour; want one poll every 30s, without pauses", relay.polls)
		}
	})
}

func TestFollowWipedRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		relay, key := newFakeRelay(), newKey(t)
		c := newClient(t, relay, key, client.Options{})
		var want []string
		var got []string
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			for range 3 {
				time.Sleep(time.Minute)
				relay.wipe()
				want = append(want, relay.put(t, key, envelope.Draft{}).ID, relay.put(t, key, envelope.Draft{}).ID)
			}
		}()
		err := c.Follow(ctx, client.FollowOptions{}, func(_ context.Context, e *envelope.Envelope) error {
			if got = append(got, e.ID); len(got) == 6 {
				cancel()
			}
			return nil
		})
		synctest.Wait()
		if !errors.Is(err, context.Canceled) || !slices.Equal(got, want) {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
	})
}

func TestFollowRefusedForGood(t *testing.T) {
	relay := newFakeRelay()
	relay.setHook(answering(401, `{"ok":false,"error":"UNAUTHORIZED","message":"sign your reads","details":{"a":1}}`))
	err := newClient(t, relay, newKey(t), client.Options{}).Follow(t.Context(), client.FollowOptions{}, nil)
	refusal, ok := errors.AsType[*envelope.Error](err)
	if !ok || refusal.Code != envelope.CodeUnauthorized || refusal.Message != "sign your reads" || refusal.Details["a"] != 1.0 {
		t.Errorf("got %#v", err)
	}
}

// TestFollowFlakyRelay: every second response is lost. Follow still delivers every event once.
func TestFollowFlakyRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		relay, key := newFakeRelay(), newKey(t)
		n := 0
		relay.setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
			if n++; n%2 == 0 {
				return lost(r, next)
			}
			return next.RoundTrip(r)
		})
		var want []string
		for range 450 {
			want = append(want, relay.put(t, key, envelope.Draft{}).ID)
		}
		if got := collect(t, newClient(t, relay, key, client.Options{}), client.FollowOptions{FromOldest: true}, 450); !slices.Equal(got, want) {
			t.Errorf("got %d events of %d", len(got), len(want))
		}
	})
}

func TestDirectory(t *testing.T) {
	relay, ann, bob := newFakeRelay(), newKey(t), newKey(t)
	c := newClient(t, relay, ann, client.Options{})
	manifest := envelope.Manifest{ID: "cap", Intents: []envelope.Intent{{ID: "translate"}}}
	_, receipt, err := c.Post(t.Context(), envelope.Draft{Payload: manifest})
	if err != nil || receipt.Thread != nil {
		t.Fatalf("announcing: %v, %v", receipt, err)
	}
	page, err := c.Agents(t.Context(), client.AgentQuery{Intent: "translate", Text: "x", Online: true, Limit: 3, Cursor: "c"})
	if err != nil || len(page.Agents) != 1 || page.Agents[0].ID != ann.DID() || len(page.Agents[0].Manifests) != 1 {
		t.Errorf("got %v, %v", page, err)
	}
	agent, err := c.Agent(t.Context(), ann.DID())
	if err != nil || len(agent.Manifests) != 1 || agent.LastSeen.IsZero() {
		t.Errorf("got %v, %v", agent, err)
	}
	if _, err := c.Agent(t.Context(), bob.DID()); !hasCode(err, envelope.CodeAgentNotFound) {
		t.Errorf("got %v", err)
	}
	var query string
	relay.setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		query = r.URL.RawQuery
		row, err := json.Marshal(map[string]any{"id": bob.DID(), "envelope": page.Agents[0].Manifests[0]})
		return response(200, `{"ok":true,"agents":[`+string(row)+`]}`), err
	})
	page, err = c.Agents(t.Context(), client.AgentQuery{Intent: "a b", Text: "x", Online: true, Limit: 3, Cursor: "c"})
	if err != nil || len(page.Agents) != 0 {
		t.Errorf("ann's manifest was accepted for bob: %v, %v", page, err)
	}
	if query != "cursor=c&intent=a+b&limit=3&online=true&q=x" {
		t.Errorf("the query was %q", query)
	}
	info, err := newClient(t, newFakeRelay(), ann, client.Options{}).Info(t.Context())
	if err != nil || info.DID == "" || !json.Valid(info.JSON) {
		t.Errorf("got %v, %v", info, err)
	}
}

// TestFollowHangingRelay: a relay never answers. Each poll ends after a minute: 30 s for which a relay may hold a poll,
// and 30 s for the response.
func TestFollowHangingRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		relay := newFakeRelay()
		var asked []time.Time
		relay.setHook(func(r *http.Request, _ http.RoundTripper) (*http.Response, error) {
			asked = append(asked, time.Now())
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		err := newClient(t, relay, newKey(t), client.Options{}).Follow(ctx, client.FollowOptions{}, nil)
		if !errors.Is(err, context.DeadlineExceeded) || len(asked) < 6 {
			t.Fatalf("%d polls, then %v", len(asked), err)
		}
		for i, at := range asked[1:] {
			if gap := at.Sub(asked[i]); gap < time.Minute || gap > time.Minute+30*time.Second {
				t.Errorf("poll %d ended after %v, want a minute and a pause", i, gap)
			}
		}
	})
}

// TestReadsOfHangingRelay: a relay never answers. Reads other than polls end after 30 s, as posts do.
func TestReadsOfHangingRelay(t *testing.T) {
	for name, ask := range map[string]func(context.Context, *client.Client) error{
		"thread": func(ctx context.Context, c *client.Client) error { _, err := c.Thread(ctx, "t", ""); return err },
		"agents": func(ctx context.Context, c *client.Client) error {
			_, err := c.Agents(ctx, client.AgentQuery{})
			return err
		},
		"info":   func(ctx context.Context, c *client.Client) error { _, err := c.Info(ctx); return err },
		"health": func(ctx context.Context, c *client.Client) error { _, err := c.Health(ctx); return err },
	} {
		synctest.Test(t, func(t *testing.T) {
			relay := newFakeRelay()
			relay.hookDocument = true
			relay.setHook(func(r *http.Request, _ http.RoundTripper) (*http.Response, error) {
				<-r.Context().Done()
				return nil, r.Context().Err()
			})
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			err := ask(ctx, newClient(t, relay, newKey(t), client.Options{}))
			if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != 30*time.Second {
				t.Errorf("%s: %v after %v, want 30s", name, err, took)
			}
		})
	}
}

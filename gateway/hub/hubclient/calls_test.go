package hubclient

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/internal/exchange"
)

// send sends "hi" from alice to bob and records it, as `agora hub send` does.
func send(ctx context.Context, h *fakeHub, f *Folder) (Outcome, error) {
	c := h.client()
	me, err := c.Profile(ctx, alice)
	if err != nil {
		return Outcome{}, err
	}
	o, err := c.Send(ctx, me, bob, Envelope{Text: "hi", Culture: me.Culture, Conversation: "c", Turn: 1, Context: "only an example"})
	if err != nil {
		return o, err
	}
	return o, f.Append(ctx, o.Records...)
}

// hi is the envelope that send sends, in the form of RFC 8785.
const hi = `{"chorus_version":"0.4","conversation_id":"c","cultural_context":"only an example","original_text":"hi",` +
	`"sender_culture":"en","sender_id":"alice@relay.example","turn_number":1}`

// H-36: send leaves the history to the byte. What the hub hands out with it is recorded too, and is still shown later.
func TestSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, f := newHub(t)
		h.add(bob, alice, hello(bob, "before"))
		h.before = func(r *http.Request, _ []byte) (*http.Response, error) {
			if r.URL.Path == "/hub/messages" {
				h.mu.Lock()
				defer h.mu.Unlock()
				h.add("carol@x", alice, hello("carol@x", "meanwhile"))
			}
			return nil, nil
		}
		o, err := send(t.Context(), h, f)
		if err != nil || o.Delivery != "queued" || string(o.Data) != `{"delivery":"queued","trace_id":"trace-30","state":"queued"}` {
			t.Fatalf("Send = %+v, %v", o, err)
		}
		carol := line(Received, 2, "carol@x", hello("carol@x", "meanwhile"))
		if got, want := content(t, f, bob+".jsonl"), line(Sent, 3, bob, hi); got != want {
			t.Errorf("the history is\n%s, want\n%s", got, want)
		}
		if got := content(t, f, "carol@x.jsonl"); got != carol {
			t.Errorf("the history with carol is\n%s, want\n%s", got, carol)
		}
		if got := content(t, f, ".state.json"); got != "" {
			t.Errorf("send has written the state %s", got)
		}
		var shown lines
		if err := Follow(t.Context(), f, h.client(), FollowOptions{Count: 2, Show: shown.show}); err != nil {
			t.Fatal(err)
		}
		if want := line(Received, 1, bob, hello(bob, "before")) + carol; shown.String() != want || content(t, f, "carol@x.jsonl") != carol {
			t.Errorf("shown were\n%s, want\n%s", shown.String(), want)
		}
	})
}

// TestSendRepeats checks when a message is sent again: always with the same Idempotency-Key and body, so that the hub
// stores it once.
func TestSendRepeats(t *testing.T) {
	lostAnswer := func(*http.Request) (*http.Response, error) { return nil, errors.New("connection reset") }
	status := func(code int, retryAfter, body string) func(*http.Request) (*http.Response, error) {
		return func(*http.Request) (*http.Response, error) {
			r := reply(code, body)
			r.Header.Set("Retry-After", retryAfter)
			return r, nil
		}
	}
	before := "" // the Idempotency-Key of the message before
	full := `{"success":false,"error":{"code":"ERR_INBOX_FULL","message":"full"}}`
	for name, c := range map[string]struct {
		answer func(*http.Request) (*http.Response, error)
		fails  int           // how many answers are as above
		lost   bool          // the request has had its effect
		posts  int           // how many requests there are
		pause  time.Duration // at least, before each repeat
		want   string        // in the error; empty: none
	}{
		"lost request":     {answer: lostAnswer, fails: 3, posts: 4},
		"lost answer":      {answer: lostAnswer, fails: 3, posts: 4, lost: true},
		"never an answer":  {answer: lostAnswer, fails: 99, posts: exchange.Attempts, lost: true, want: "has not answered completely"},
		"500":              {answer: status(500, "", ""), fails: 1, posts: 2},
		"503":              {answer: status(503, "7", ""), fails: 2, posts: 3, pause: 7 * time.Second},
		"429":              {answer: status(429, "60", full), fails: 1, posts: 2, pause: time.Minute},
		"429 for long":     {answer: status(429, "61", full), fails: 1, posts: 1, want: "ERR_INBOX_FULL: full; try again in 1m1s"},
		"404":              {answer: status(404, "", `{"error":{"code":"ERR_AGENT_NOT_FOUND","message":"nobody"}}`), fails: 1, posts: 1, want: "404, ERR_AGENT_NOT_FOUND: nobody"},
		"no hub":           {answer: status(404, "", "<html>"), fails: 1, posts: 1, want: "at URL/hub if it runs with --hub"},
		"redirect":         {answer: status(302, "", ""), fails: 1, posts: 1, want: "status 302"},
		"another program":  {answer: status(200, "", "hello"), fails: 99, posts: exchange.Attempts, want: "does not have the form of Chorus"},
		"a cut off answer": {answer: status(200, "", `{"success":true,"data":{"tra`), fails: 1, posts: 2, lost: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			h, f := newHub(t)
			var requests []string
			var times []time.Time
			h.before = func(r *http.Request, body []byte) (*http.Response, error) {
				if r.URL.Path != "/hub/messages" {
					return nil, nil
				}
				if own := r.Header.Get("Idempotency-Key"); len(own) < 20 || own == before {
					t.Errorf("%s: the Idempotency-Key is %q", name, own)
				}
				requests = append(requests, r.Header.Get("Idempotency-Key")+string(body))
				times = append(times, time.Now())
				if len(requests) > c.fails {
					return nil, nil
				}
				if c.lost {
					h.answer(r, "/messages", body)
				}
				return c.answer(r)
			}
			_, err := send(t.Context(), h, f)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s: %v, want %q", name, err, c.want)
			}
			if len(requests) != c.posts || len(slices.Compact(requests)) != 1 {
				t.Errorf("%s: %d requests, want %d: %q", name, len(requests), c.posts, requests)
			}
			for i := range times[1:] {
				if pause := times[i+1].Sub(times[i]); pause < c.pause || pause < exchange.MinPause/2 || pause > max(c.pause, exchange.MinPause<<i) {
					t.Errorf("%s: pause %d is %v", name, i, pause)
				}
			}
			if want := c.lost || c.want == ""; want != (len(h.rows) == 1) {
				t.Errorf("%s: the hub has %d messages", name, len(h.rows))
			}
			if recorded := content(t, f, bob+".jsonl"); c.want == "" && recorded != line(Sent, 1, bob, hi) || c.want != "" && recorded != "" {
				t.Errorf("%s: the history is %s", name, recorded)
			}
			before = requests[0][:len(rand.Text())]
			// What was sent without an answer is recorded by the next run of inbox.
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_ = Follow(ctx, f, h.client(), FollowOptions{})
			if recorded := content(t, f, bob+".jsonl"); (len(h.rows) == 1) != (recorded == line(Sent, 1, bob, hi)) {
				t.Errorf("%s: after inbox the history is %s", name, recorded)
			}
		})
	}
}

// TestSendWithoutHistory sends to a hub that does not show the message in its history. It is recorded without an id.
func TestSendWithoutHistory(t *testing.T) {
	for name, history := range map[string]string{
		"empty": `{"success":true,"data":[],"metadata":{}}`, "refused": "",
		"invalid": `{"success":true,"data":[{"id":10,"trace_id":"trace-10","sender_id":"` + alice + `"}],"metadata":{}}`,
	} {
		synctest.Test(t, func(t *testing.T) {
			h, f := newHub(t)
			h.before = func(r *http.Request, _ []byte) (*http.Response, error) {
				if r.URL.Path != "/hub/agent/messages" {
					return nil, nil
				}
				if history == "" {
					return reply(403, ""), nil
				}
				return reply(200, history), nil
			}
			_, err := send(t.Context(), h, f)
			want := `{"ts":"2026-03-22T04:30:02Z","dir":"sent","peer":"bob@relay.example","envelope":` + hi + `,"trace_id":"trace-10"}` + "\n"
			if got := content(t, f, bob+".jsonl"); err != nil || got != want {
				t.Errorf("%s: %v, the history is\n%s, want\n%s", name, err, got, want)
			}
		})
	}
}

// TestInterruptedSend interrupts a send that waits before it repeats.
func TestInterruptedSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, f := newHub(t)
		h.before = func(r *http.Request, _ []byte) (*http.Response, error) { return reply(503, ""), nil }
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := send(ctx, h, f); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestDiscover(t *testing.T) {
	var target string
	answers := map[string]string{
		"bare":    `[{"agent_id":"bob@x","culture":null,"languages":[],"online":true},{"agent_id":"<b>"}]`,
		"wrapped": `{"success":true,"data":[{"agent_id":"bob@x","culture":null,"languages":[],"online":true},{"agent_id":"<b>"}],"metadata":{}}`,
	}
	for name, body := range answers {
		h := &fakeHub{t: t, before: func(r *http.Request, _ []byte) (*http.Response, error) {
			target = r.URL.RequestURI()
			return reply(200, body), nil
		}}
		agents, err := h.client().Discover(t.Context(), "zh-CN", true)
		if err != nil || len(agents) != 2 || string(agents[1]) != `{"agent_id":"<b>"}` || target != "/hub/discover?culture=zh-CN&online=true" {
			t.Errorf("%s: %s, %v, asked for %s", name, agents, err, target)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHub{t: t, before: func(r *http.Request, _ []byte) (*http.Response, error) { return reply(200, `{"agents":1}`), nil }}
		if _, err := h.client().Discover(t.Context(), "", false); err == nil || !strings.Contains(err.Error(), "not a list of agents") {
			t.Errorf("got %v", err)
		}
	})
}

func TestAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHub{t: t}
		document := `{"chorus_version":"0.4","server_name":"relay.example","endpoints":{}}`
		h.before = func(r *http.Request, _ []byte) (*http.Response, error) { return reply(200, document), nil }
		for name, want := range map[string]string{"bob": bob, bob: bob, "x@y": "x@y", "": "@relay.example",
			strings.Repeat("a", 126) + "@b": strings.Repeat("a", 126) + "@b", strings.Repeat("a", 127) + "@b": ""} {
			got, err := h.client().Address(t.Context(), name)
			if got != want || (err == nil) != (want != "") {
				t.Errorf("%q: %q, %v", name, got, err)
			}
		}
		if n := len(h.requests()); n != 2 {
			t.Errorf("%d requests, want 2", n)
		}
		document = `{"server_name":5}`
		if got, err := h.client().Address(t.Context(), "bob"); err == nil || !strings.Contains(err.Error(), "NAME@HOST") {
			t.Errorf("got %q, %v", got, err)
		}
	})
}

func TestCheckURL(t *testing.T) {
	for text, want := range map[string]string{
		"https://relay.example/hub/": "https://relay.example/hub", "http://127.0.0.1:8789": "http://127.0.0.1:8789", "": "", "hub": "",
		"ftp://x/": "", "https://": "", "https://user:secret@x/hub": "", "https://x/hub?a=b": "", "https://x/hub#a": "", "https://x/\n": "",
	} {
		got, err := CheckURL(text)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", text, got, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Error("the error has the password")
		}
	}
}

// TestOverHTTP makes requests over a network: a key goes only to the hub, and the error says what is wrong.
func TestOverHTTP(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("a redirect was followed, with %q", r.Header.Get("Authorization"))
	}))
	defer other.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/hub/discover":
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		case "/hub/agents/long":
			_, _ = w.Write(bytes.Repeat([]byte(" "), maxAnswer+1))
		case "/hub/agents/cut":
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("{"))
		}
	}))
	defer server.Close()
	hub := New(server.URL+"/hub", key, slog.New(slog.DiscardHandler))
	defer hub.Close()
	if _, err := hub.Discover(t.Context(), "", false); err == nil || !strings.Contains(err.Error(), "status 307") {
		t.Errorf("got %v", err)
	}
	get := func(path string) error {
		_, err := hub.exchange(t.Context(), http.MethodGet, path, nil, nil, nil)
		return err
	}
	address := server.Listener.Addr().String()
	for path, want := range map[string]string{"/agents/long": "more than 33554432 bytes", "/agents/cut": "the hub at " + address + " has not answered completely"} {
		if err := get(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", path, err)
		}
	}
	server.Close()
	err := get("/discover")
	if _, wrapped := errors.AsType[*url.Error](err); err == nil || wrapped || !strings.Contains(err.Error(), "no hub answers at "+address) {
		t.Errorf("got %v", err)
	}
}

// TestSlowHub has a hub that does not answer.
func TestSlowHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHub{t: t, before: func(r *http.Request, _ []byte) (*http.Response, error) {
			<-r.Context().Done()
			return nil, &url.Error{Op: "Get", URL: r.URL.String(), Err: r.Context().Err()}
		}}
		begin := time.Now()
		_, err := h.client().exchange(t.Context(), http.MethodGet, "/health", nil, nil, nil)
		if err == nil || !strings.Contains(err.Error(), "has not answered within 1m0s") || time.Since(begin) != exchangeTimeout {
			t.Errorf("got %v after %v", err, time.Since(begin))
		}
		begin = time.Now()
		err = h.client().stream(t.Context(), 0, nil)
		if err == nil || !strings.Contains(err.Error(), "has sent nothing for 1m0s") || time.Since(begin) != idleLimit {
			t.Errorf("got %v after %v", err, time.Since(begin))
		}
	})
}

func TestRefusals(t *testing.T) {
	long := strings.Repeat("你", exchange.MaxText)
	e := refusal(reply(400, fmt.Sprintf(`{"error":{"code":"ERR_VALIDATION","message":%q}}`, long)), []byte(fmt.Sprintf(`{"error":{"code":"C","message":%q}}`, long)))
	if text := e.Error(); len(text) > exchange.MaxText+100 || !strings.HasSuffix(text, "你…") {
		t.Errorf("got %s", text)
	}
	if _, again := exchange.Repeatable(&net.OpError{}, true); again {
		t.Error("an unknown error is repeated")
	}
}

package channelclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/internal/exchange"
)

const (
	gatewayURL = "https://relay.example/channel"
	channelURL = gatewayURL + "/channels/ch_1"
)

var (
	ck = "ck_" + strings.Repeat("A", keyLength)
	cm = "cm_" + strings.Repeat("B", keyLength)
	op = "op_" + strings.Repeat("C", keyLength)
)

// fakeGateway is a channel gateway with one channel, in memory. It is the HTTP transport of its clients. It keeps what
// is asked of it. faults change the outcome of the next requests.
type fakeGateway struct {
	mu          sync.Mutex // a request holds it, except while it waits for events
	faults      []fault
	asked       []string // method and target of each request, and its body
	said        map[string]string
	events      []string
	members     []string
	connections []string
	news        chan struct{} // gets an element when an event comes while a request waits
}

// fault answers a request in place of the gateway, which serve calls.
type fault func(r *http.Request, serve func() *http.Response) (*http.Response, error)

func newFakeGateway() *fakeGateway {
	return &fakeGateway{said: map[string]string{}, members: []string{"alice"}, connections: []string{"bot"}, news: make(chan struct{}, 1)}
}

func (f *fakeGateway) client(url, key string) *Client {
	return &Client{URL: url, Key: key, HTTP: &http.Client{Transport: f}, Log: slog.New(slog.DiscardHandler)}
}

// post adds an event.
func (f *fakeGateway) post(content string) string {
	e := fmt.Sprintf(`{"seq":%d,"id":"msg_%d","ts":"2026-03-20T10:00:00.000Z","sender":"alice","kind":"member","type":"message","content":%q,"depth":0}`,
		len(f.events)+1, len(f.events)+1, content)
	f.events = append(f.events, e)
	select {
	case f.news <- struct{}{}:
	default:
	}
	return e
}

func (f *fakeGateway) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, strings.TrimSpace(r.Method+" "+strings.TrimPrefix(r.URL.RequestURI(), "/channel")+" "+string(body)))
	w := httptest.NewRecorder()
	serve := func() *http.Response {
		status, text := f.serve(r, string(body))
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
		return w.Result()
	}
	if len(f.faults) > 0 {
		next := f.faults[0]
		if f.faults = f.faults[1:]; next != nil {
			return next(r, serve)
		}
	}
	return serve(), nil
}

func (f *fakeGateway) serve(r *http.Request, body string) (status int, text string) {
	who := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")[:2]
	path := strings.TrimPrefix(r.URL.Path, "/channel")
	path, inChannel := strings.CutPrefix(path, "/channels/ch_1")
	switch route := r.Method + " " + path; {
	case route == "POST /channels" && who == "op":
		return 201, `{"ok":true,"channel":{"id":"ch_1","name":"ops","context":"c"},"key":"` + ck + `"}`
	case !inChannel || who == "cm" && path != "/messages" && path != "/events" || who == "ck" && path == "/messages":
		return 403, `{"ok":false,"error":"FORBIDDEN","message":"not with this key"}`
	case route == "GET ":
		return 200, `{"ok":true,"channel":{"id":"ch_1","name":"ops","context":"c"}}`
	case route == "POST /members":
		return 201, `{"ok":true,"member":{"name":"x"},"key":"` + cm + `"}`
	case route == "GET /members":
		return 200, `{"ok":true,"members":[{"name":"` + strings.Join(f.members, `"},{"name":"`) + `"}]}`
	case route == "GET /connections":
		return 200, `{"ok":true,"connections":[{"host":"a.example","status":"active","queued":1,"dead":2,"mcp":"object","name":"` + strings.Join(f.connections, `"},{"name":"`) + `"}]}`
	case route == "POST /connections":
		if slices.ContainsFunc(f.connections, func(name string) bool { return strings.Contains(body, `"name":"`+name+`"`) }) {
			return 409, `{"ok":false,"error":"CONFLICT","message":"the name is taken"}`
		}
		return 201, `{"ok":true,"connection":{"name":"new","host":"a.example","status":"active","mcp":"array"}}`
	case r.Method == "PUT" && slices.Contains(f.connections, strings.TrimPrefix(path, "/connections/")):
		return 200, `{"ok":true,"connection":{"name":"bot","host":"b.example","status":"active","mcp":"object"}}`
	case r.Method == "DELETE" && path != "":
		return 200, `{"ok":true}`
	case route == "POST /messages":
		return f.say(r.Header.Get("Idempotency-Key"), body)
	case route == "GET /events":
		return f.read(r)
	}
	return 404, `{"ok":false,"error":"NOT_FOUND","message":"nothing here"}`
}

func (f *fakeGateway) say(key, body string) (int, string) {
	if text, again := f.said[key]; again && key != "" {
		return 201, text
	}
	var asked struct{ Content string }
	if json.Unmarshal([]byte(body), &asked) != nil || asked.Content == "" {
		return 400, `{"ok":false,"error":"INVALID_REQUEST","message":"content"}`
	}
	f.said[key] = `{"ok":true,"deliveries":1,"event":` + f.post(asked.Content) + `}`
	return 201, f.said[key]
}

func (f *fakeGateway) read(r *http.Request) (int, string) {
	q := r.URL.Query()
	after, err := strconv.Atoi(q.Get("after"))
	limit, err2 := strconv.Atoi(q.Get("limit"))
	if err != nil || err2 != nil || limit < 1 || limit > MaxEvents {
		return 400, `{"ok":false,"error":"INVALID_REQUEST","message":"bad parameter"}`
	}
	if wait, _ := strconv.Atoi(q.Get("wait")); after >= len(f.events) && wait > 0 {
		select {
		case <-f.news:
		default:
		}
		f.mu.Unlock()
		select {
		case <-f.news:
		case <-time.After(time.Duration(wait) * time.Second):
		case <-r.Context().Done():
		}
		f.mu.Lock()
	}
	page := f.events[min(after, len(f.events)):min(after+limit, len(f.events))]
	return 200, fmt.Sprintf(`{"ok":true,"events":[%s],"cursor":%d}`, strings.Join(page, ","), after+len(page))
}

// Faults.
func lose(_ *http.Request, serve func() *http.Response) (*http.Response, error) {
	serve()
	return nil, errors.New("connection reset")
}

func refuse(status int, code string, header ...string) fault {
	return func(*http.Request, func() *http.Response) (*http.Response, error) {
		w := httptest.NewRecorder()
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"ok":false,"error":%q,"message":"refused"}`, code)
		return w.Result(), nil
	}
}

func unsent(*http.Request, func() *http.Response) (*http.Response, error) {
	return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
}

// TestOwner runs the calls of a channel's owner.
func TestOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, ctx := newFakeGateway(), t.Context()
		channel, key, err := f.client(gatewayURL, op).Create(ctx, "ops", "c")
		if err != nil || key != ck || channel != (Channel{"ch_1", "ops", "c"}) {
			t.Fatalf("%+v, %q, %v", channel, key, err)
		}
		c := f.client(channelURL, ck)
		if read, err := c.Read(ctx); err != nil || read != channel {
			t.Errorf("%+v, %v", read, err)
		}
		if key, err := c.AddMember(ctx, "x"); err != nil || key != cm {
			t.Errorf("%q, %v", key, err)
		}
		if all, err := c.Members(ctx); err != nil || !slices.Equal(all, []Member{{"alice"}}) {
			t.Errorf("%+v, %v", all, err)
		}
		want := Connection{"bot", "a.example", "active", 1, 2, "object"}
		if all, err := c.Connections(ctx); err != nil || !slices.Equal(all, []Connection{want}) {
			t.Errorf("%+v, %v", all, err)
		}
		f.asked = nil
		_, err = c.Connect(ctx, "new", "https://a.example/inbox/sk", "array", false)
		_, err2 := c.Connect(ctx, "bot", "https://b.example/inbox/sk", "", true)
		_, err3 := c.Connect(ctx, "other", "https://c.example/inbox/sk", "none", true)
		_, err4 := c.Connect(ctx, "bot", "https://b.example/inbox/sk", "", false)
		asked := []string{`POST /channels/ch_1/connections {"mcp":"array","name":"new","url":"https://a.example/inbox/sk"}`,
			`PUT /channels/ch_1/connections/bot {"url":"https://b.example/inbox/sk"}`,
			`PUT /channels/ch_1/connections/other {"mcp":"none","url":"https://c.example/inbox/sk"}`,
			`POST /channels/ch_1/connections {"mcp":"none","name":"other","url":"https://c.example/inbox/sk"}`,
			`POST /channels/ch_1/connections {"name":"bot","url":"https://b.example/inbox/sk"}`}
		if taken, ok := errors.AsType[*Error](err4); errors.Join(err, err2, err3) != nil || !ok || taken.Status != 409 || !slices.Equal(f.asked, asked) {
			t.Errorf("%v, %v, %q", errors.Join(err, err2, err3), err4, f.asked)
		}
		f.asked = nil
		for name, kind := range map[string]string{"bot": "agent", "alice": "member", "nobody": ""} {
			if got, err := c.Remove(ctx, name); got != kind || errors.Is(err, ErrNoSuchName) != (kind == "") {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
		if !slices.Contains(f.asked, "DELETE /channels/ch_1/connections/bot") || !slices.Contains(f.asked, "DELETE /channels/ch_1/members/alice") {
			t.Errorf("%q", f.asked)
		}
		if _, err := f.client(channelURL, cm).Members(ctx); err == nil || !strings.Contains(err.Error(), "403, FORBIDDEN: not with this key") {
			t.Errorf("%v", err)
		}
	})
}

// TestRepeats checks which requests are sent again after which failures. A message is said once in any case.
func TestRepeats(t *testing.T) {
	busy, failing := refuse(429, "RATE_LIMITED", "Retry-After", "3"), refuse(503, "UNAVAILABLE")
	forLong := refuse(429, "RATE_LIMITED", "Retry-After", "600")
	say := func(ctx context.Context, c *Client) error { _, _, err := c.Say(ctx, "hi"); return err }
	add := func(ctx context.Context, c *Client) error { c.Key = ck; _, err := c.AddMember(ctx, "x"); return err }
	read := func(ctx context.Context, c *Client) error {
		return c.Follow(ctx, FollowOptions{}, func(Event) error { return nil })
	}
	for name, test := range map[string]struct {
		do       func(context.Context, *Client) error
		faults   []fault
		requests int
		fails    bool
	}{
		"say, lost, failing": {say, []fault{lose, failing, busy, unsent}, 5, false},
		"say, lost for long": {say, slices.Repeat([]fault{lose}, 6), 6, true},
		"say, busy for long": {say, []fault{forLong}, 1, true},
		"say, refused":       {say, []fault{refuse(403, "FORBIDDEN")}, 1, true},
		"read, lost":         {read, []fault{lose, failing}, 3, false},
		"add, lost":          {add, []fault{lose}, 1, true},
		"add, failing":       {add, []fault{failing}, 1, true},
		"add, not sent":      {add, []fault{unsent, busy}, 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeGateway()
				f.faults = test.faults
				began := time.Now()
				if err := test.do(t.Context(), f.client(channelURL, cm)); (err != nil) != test.fails || len(f.asked) != test.requests {
					t.Errorf("%v after %q", err, f.asked)
				}
				if strings.HasPrefix(name, "say, lost") && len(f.events) != 1 {
					t.Errorf("said %q", f.events)
				}
				if name == "say, lost, failing" && time.Since(began) < 3*time.Second {
					t.Errorf("waited only %v", time.Since(began))
				}
			})
		})
	}
}

// TestFollow reads pages, waits for later events, survives failures, and ends when it should.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGateway()
		for i := range MaxEvents + 50 {
			f.post(strconv.Itoa(i + 1))
		}
		c := f.client(channelURL, cm)
		var seen []string
		show := func(e Event) error { seen = append(seen, e.Content); return nil }
		if err := c.Follow(t.Context(), FollowOptions{After: 10}, show); err != nil || len(seen) != MaxEvents+40 || seen[0] != "11" || seen[len(seen)-1] != "250" {
			t.Errorf("%d events, %v", len(seen), err)
		}
		seen = nil
		if err := c.Follow(t.Context(), FollowOptions{Limit: 205, Wait: true}, show); err != nil || len(seen) != 205 {
			t.Errorf("%d events, %v", len(seen), err)
		}
		later := []string{"a", "b"}
		go func() {
			time.Sleep(70 * time.Second)
			f.mu.Lock()
			f.faults = append(f.faults, lose, refuse(503, "UNAVAILABLE"))
			f.post("a")
			f.mu.Unlock()
			time.Sleep(time.Hour)
			f.mu.Lock()
			f.post("b")
			f.mu.Unlock()
		}()
		seen, f.asked = nil, nil
		began := time.Now()
		err := c.Follow(t.Context(), FollowOptions{After: 250, Wait: true, Limit: 2}, show)
		if took := time.Since(began); err != nil || !slices.Equal(seen, later) || took < time.Hour || took > time.Hour+3*time.Minute || len(f.asked) > 80 {
			t.Errorf("%q, %v after %v and %d requests", seen, err, took, len(f.asked))
		}
		if err := c.Follow(t.Context(), FollowOptions{}, func(Event) error { return ErrEnough }); err != nil {
			t.Error(err)
		}
		f.faults = append(f.faults, refuse(403, "FORBIDDEN"))
		if err := c.Follow(t.Context(), FollowOptions{Wait: true}, show); err == nil {
			t.Error("follows without the right")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := c.Follow(ctx, FollowOptions{After: 252, Wait: true}, show); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// TestFollowSlowly checks that a gateway that does not wait is not asked in a hot loop, and that events which came
// before are left out.
func TestFollowSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGateway()
		f.post("old")
		empty := func(*http.Request, func() *http.Response) (*http.Response, error) {
			w := httptest.NewRecorder()
			_, _ = io.WriteString(w, `{"ok":true,"events":[`+f.events[0]+`],"cursor":0}`)
			return w.Result(), nil
		}
		f.faults = slices.Repeat([]fault{empty}, 10000)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		err := f.client(channelURL, cm).Follow(ctx, FollowOptions{After: 1, Wait: true}, func(e Event) error { return fmt.Errorf("got %s", e.JSON) })
		if !errors.Is(err, context.DeadlineExceeded) || len(f.asked) > 40 {
			t.Errorf("%v after %d requests", err, len(f.asked))
		}
	})
}

// TestOddAnswers checks answers that no channel gateway gives, and events with members of another type.
func TestOddAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, text := range []string{"", "<html>", `{"events":[]}`, `{"ok":true,"events":7}`, `{"ok":true,"events":[` + strings.Repeat(" ", maxAnswer)} {
			f := newFakeGateway()
			f.faults = slices.Repeat([]fault{func(*http.Request, func() *http.Response) (*http.Response, error) {
				w := httptest.NewRecorder()
				_, _ = io.WriteString(w, text)
				return w.Result(), nil
			}}, exchange.Attempts)
			if err := f.client(channelURL, cm).Follow(t.Context(), FollowOptions{}, func(Event) error { return nil }); err == nil {
				t.Errorf("%.40q was taken", text)
			}
		}
		f := newFakeGateway()
		f.events = []string{`{"seq":1,"type":"tool_result","content":{"x":1},"more":[1]}`}
		var seen Event
		err := f.client(channelURL, cm).Follow(t.Context(), FollowOptions{}, func(e Event) error { seen = e; return nil })
		if err != nil || seen.Seq != 1 || string(seen.JSON) != f.events[0] {
			t.Errorf("%+v, %v", seen, err)
		}
	})
}

func TestCheck(t *testing.T) {
	for text, want := range map[string]string{
		"https://r.example/channel/channels/ch_1": "https://r.example/channel/channels/ch_1", "http://r.example:1/channels/ch_1/": "http://r.example:1/channels/ch_1",
		"https://r.example/channel": "", "https://r.example/channel/channels/": "", "ch_1": "", "ftp://r.example/channels/ch_1": "",
		"https://a:b@r.example/channels/ch_1": "", "https://r.example/channels/ch_1?x=1": "", "https://r.example/channels/ch_1#x": "",
	} {
		if got, err := CheckURL(text); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	for text, want := range map[string]Key{ck: ChannelKey, cm: MemberKey, op: OperatorKey, "": "", "ck_": "", "sk_" + ck[3:]: "", ck + "A": ""} {
		if got, err := ParseKey(text); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	c := New(channelURL, ck, slog.New(slog.DiscardHandler))
	defer c.Close()
	if c.HTTP.CheckRedirect(nil, nil) != http.ErrUseLastResponse {
		t.Error("follows redirects")
	}
}

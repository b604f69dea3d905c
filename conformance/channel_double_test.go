package conformance_test

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/gateway"
)

// channelDouble is a channel service in memory, under the path /channel. It has no faults but those in faults.
type channelDouble struct {
	t        *testing.T
	url      string // of the service
	operator string // the operator's key
	doubleFaults
	urls     gateway.Destinations
	client   *http.Client
	toHost   chan struct{} // has an element for each delivery in progress
	ctx      context.Context
	work     sync.WaitGroup
	requests atomic.Int64

	mu       sync.Mutex // guards what follows, and all that it contains
	channels map[string]*doubleChannel
	keys     map[string]doubleKey
	tokens   map[string]*doubleToken // of callbacks and of the MCP server
	answers  map[string]doubleAnswer // to requests with an Idempotency-Key
	created  int                     // how many channels
	seq      int                     // of all channels, for a fault
	oneLane  sync.Mutex              // for a fault
}

type doubleChannel struct {
	id, name, context string
	created           time.Time
	members           []string
	lanes             []*doubleLane
	events            []map[string]any
	said              []time.Time // when agents have said a message
	shown             map[string]string
	changed           chan struct{} // closed when there is another event
	ended             bool
}

type doubleKey struct {
	kind    string // operator, channel or member
	channel *doubleChannel
	name    string // of the member
}

type doubleToken struct {
	lane   *doubleLane
	depth  int
	events int
}

type doubleAnswer struct {
	sent   string // the body of the request, in RFC 8785 form
	status int
	body   []byte
}

// startChannelDouble runs a double with these faults until the test ends.
func startChannelDouble(t *testing.T, faults ...string) *channelDouble {
	t.Helper()
	loopback, err := gateway.ParseException("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	d := &channelDouble{t: t, doubleFaults: faults, operator: newKey("op_"), toHost: make(chan struct{}, 4), ctx: ctx,
		channels: map[string]*doubleChannel{}, keys: map[string]doubleKey{}, tokens: map[string]*doubleToken{},
		answers: map[string]doubleAnswer{}}
	d.keys[d.operator] = doubleKey{kind: "operator"}
	d.client = &http.Client{Timeout: 10 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error {
		if d.has("follows redirects") {
			return nil
		}
		return http.ErrUseLastResponse
	}}
	if d.has("waits for ever") {
		d.client.Timeout = time.Minute
	}
	server := httptest.NewServer(http.HandlerFunc(d.serve))
	d.url = server.URL + "/channel"
	d.urls = gateway.Destinations{Origin: server.URL, Exceptions: []gateway.Exception{loopback}}
	if d.has("calls itself") {
		d.urls.Origin = ""
	}
	t.Cleanup(func() {
		cancel()
		server.Close()
		d.work.Wait()
		d.client.CloseIdleConnections()
	})
	return d
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // it never fails
	return b
}

func newKey(prefix string) string {
	return prefix + base64.RawURLEncoding.EncodeToString(randomBytes(32))
}

func newDoubleID(prefix string) string {
	return prefix + strings.ToLower(base32.StdEncoding.EncodeToString(randomBytes(20)))[:26]
}

func milliseconds(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// doubleError is a refusal.
type doubleError struct {
	status int
	code   string
	limit  string
}

var doubleCodes = map[int]string{400: "INVALID_REQUEST", 401: "UNAUTHORIZED", 403: "FORBIDDEN", 404: "NOT_FOUND",
	405: "METHOD_NOT_ALLOWED", 409: "CONFLICT", 410: "GONE", 413: "PAYLOAD_TOO_LARGE", 415: "UNSUPPORTED_MEDIA_TYPE",
	429: "RATE_LIMITED"}

// refuse ends the handling of a request.
func refuse(status int) { panic(doubleError{status: status, code: doubleCodes[status]}) }

// object is a JSON object.
type object = map[string]any

// doubleCall is a request that a double handles.
type doubleCall struct {
	*http.Request
	w       http.ResponseWriter
	channel string // the id in the path
	name    string // the name or the token in the path
	text    []byte // the body
	body    object
	form    string // the body in RFC 8785 form
}

func (d *channelDouble) serve(w http.ResponseWriter, r *http.Request) {
	c := &doubleCall{Request: r, w: w}
	defer func() {
		switch e := recover().(type) {
		case nil:
		case doubleError:
			d.answerError(c, e)
		default:
			panic(e)
		}
	}()
	path, ok := strings.CutPrefix(r.URL.Path, "/channel")
	if d.has("redirects double slashes") && strings.Contains(path, "//") {
		http.Redirect(w, r, "/channel/channels", http.StatusMovedPermanently)
		return
	}
	if d.requests.Add(1)%10 == 0 && d.has("limits the rate of requests") {
		w.Header().Set("Retry-After", "0")
		d.answer(c, http.StatusTooManyRequests, object{"error": "RATE_LIMITED", "message": "too fast", "retryable": true,
			"details": object{"limit": "requests"}})
		return
	}
	handlers := d.route(c, path)
	if !ok || handlers == nil {
		refuse(http.StatusNotFound)
	}
	handle := handlers[r.Method]
	if handle == nil {
		var allow []string
		for method := range handlers {
			allow = append(allow, method)
		}
		if !d.has("has no Allow header") {
			w.Header().Set("Allow", strings.Join(allow, ", "))
		}
		refuse(http.StatusMethodNotAllowed)
	}
	if strings.Contains(path, "/inbox/") && !d.has("lets answers be stored") {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Referrer-Policy", "no-referrer")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	handle(c)
}

// answer writes an answer. It has the member ok.
func (d *channelDouble) answer(c *doubleCall, status int, body object) []byte {
	body["ok"] = status < 300
	text := encode(body)
	d.write(c, status, text)
	return text
}

func (d *channelDouble) write(c *doubleCall, status int, text []byte) {
	c.w.Header().Set("Content-Type", "application/json")
	c.w.WriteHeader(status)
	_, _ = c.w.Write(text) // the client may be gone
}

func (d *channelDouble) answerError(c *doubleCall, e doubleError) {
	if e.status == http.StatusRequestEntityTooLarge && d.has("refuses large bodies with 400") {
		e.status = http.StatusBadRequest
	}
	if e.status == http.StatusUnauthorized && !d.has("does not say how to authorize") {
		c.w.Header().Set("WWW-Authenticate", "Bearer")
	}
	body := object{"error": e.code, "message": "the double refuses this", "retryable": e.status == 429}
	if e.limit != "" {
		c.w.Header().Set("Retry-After", "60")
		body["details"] = object{"limit": e.limit}
	}
	if d.has("does not say whether to retry") {
		delete(body, "retryable")
	}
	d.answer(c, e.status, body)
}

// route returns the handlers of a path by method, or nil.
func (d *channelDouble) route(c *doubleCall, path string) map[string]func(*doubleCall) {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	if slices.Contains(parts, "") || len(parts) > 4 {
		return nil
	}
	if len(parts) > 1 {
		c.channel = parts[1]
		parts[1] = "{}"
	}
	if len(parts) > 3 {
		c.name = parts[3]
		parts[3] = "{}"
	}
	return map[string]map[string]func(*doubleCall){
		"channels":                   {"POST": d.create},
		"channels/{}":                {"GET": d.show, "PATCH": d.patch, "DELETE": d.deleteChannel},
		"channels/{}/members":        {"POST": d.addMember, "GET": d.listMembers},
		"channels/{}/members/{}":     {"DELETE": d.deleteMember},
		"channels/{}/connections":    {"POST": d.connect, "GET": d.listConnections},
		"channels/{}/connections/{}": {"PUT": d.put, "DELETE": d.disconnect},
		"channels/{}/messages":       {"POST": d.post},
		"channels/{}/events":         {"GET": d.listEvents},
		"channels/{}/inbox/{}":       {"POST": d.report},
		"mcp/{}":                     {"POST": d.mcp},
	}[strings.Join(parts, "/")]
}

// caller returns who calls, and the channel of the path. Only the kinds of callers may call.
func (d *channelDouble) caller(c *doubleCall, kinds ...string) (doubleKey, *doubleChannel) {
	all := c.Header["Authorization"]
	scheme, key, _ := "", "", false
	if len(all) == 1 {
		scheme, key, _ = strings.Cut(all[0], " ")
	}
	if d.has("takes any scheme") && len(all) > 0 {
		scheme, key = "Bearer", all[0][strings.LastIndexByte(all[0], ' ')+1:]
	}
	caller, known := d.keys[key]
	if token := d.tokens[key]; d.has("takes tokens as keys") && token != nil {
		caller, known = doubleKey{kind: "channel", channel: token.lane.channel}, true
	}
	if !known || !strings.EqualFold(scheme, "Bearer") || d.has("compares the scheme exactly") && scheme != "Bearer" {
		refuse(http.StatusUnauthorized)
	}
	channel := d.channels[c.channel]
	if c.channel != "" && channel == nil && (caller.kind == "operator" || d.has("tells which channels exist")) {
		refuse(http.StatusNotFound)
	}
	foreign := c.channel != "" && caller.kind != "operator" && caller.channel != channel
	if d.has("takes keys of other channels") && channel != nil {
		foreign = false
	}
	if foreign || !slices.Contains(kinds, caller.kind) {
		refuse(http.StatusForbidden)
	}
	return caller, channel
}

// once handles a request, unless it has an Idempotency-Key that the caller has used already.
func (d *channelDouble) once(c *doubleCall, caller string, handle func() (int, object)) {
	ids := c.Header["Idempotency-Key"]
	if len(ids) == 0 {
		status, body := handle()
		d.answer(c, status, body)
		return
	}
	most := 256
	if d.has("takes long Idempotency-Keys") {
		most = 1000
	}
	if len(ids) > 1 || ids[0] == "" || len(ids[0]) > most ||
		strings.ContainsFunc(ids[0], func(r rune) bool { return r < ' ' || r > '~' }) {
		refuse(http.StatusBadRequest)
	}
	place := caller + " " + ids[0]
	if d.has("has one set of Idempotency-Keys") {
		place = ids[0]
	}
	form := c.form
	if d.has("compares the bytes of bodies") {
		form = string(c.text)
	}
	if first, known := d.answers[place]; known {
		switch {
		case first.sent == form || d.has("repeats answers to other bodies"):
			if !d.has("hides that it repeats") {
				c.w.Header().Set("Idempotent-Replay", "true")
			}
			d.write(c, first.status, first.body)
		default:
			refuse(http.StatusConflict)
		}
		return
	}
	if d.has("does not wait for the first request") {
		d.mu.Unlock()
		time.Sleep(50 * time.Millisecond)
		d.mu.Lock()
	}
	status, body := handle()
	d.answers[place] = doubleAnswer{form, status, d.answer(c, status, body)}
}

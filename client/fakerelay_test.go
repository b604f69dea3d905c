package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// fakeRelay is a relay in memory with the rules of PROTOCOL §3 to §5. It is also the HTTP transport of its clients, so
// it needs no network and works in a synctest bubble. A hook between client and relay can change, lose or refuse
// requests and responses.
type fakeRelay struct {
	URL   string
	key   didkey.Key
	homes bool // the relay has the feature home

	mu           sync.Mutex
	db           string // the prefix of the relay's cursors; wipe changes it
	hook         func(r *http.Request, next http.RoundTripper) (*http.Response, error)
	skew         time.Duration // how far the relay's clock is ahead
	hookDocument bool          // the hook also gets the requests for the relay's document
	events       []*envelope.Envelope
	threads      []thread.Thread
	changed      chan struct{} // closed and replaced by each append
	polls        int           // the number of GET /events requests
	posts        []string      // the ids of all posted messages, including refused ones
}

func newFakeRelay() *fakeRelay {
	key, err := didkey.Generate()
	if err != nil {
		panic(err)
	}
	return &fakeRelay{URL: "http://relay.test", key: key, db: "a", changed: make(chan struct{})}
}

// Client returns an HTTP client that reaches the relay.
func (f *fakeRelay) Client() *http.Client { return &http.Client{Transport: f} }

// Close does nothing, because the relay has no resources.
func (f *fakeRelay) Close() {}

func (f *fakeRelay) now() time.Time { return time.Now().Add(f.skew) }

func (f *fakeRelay) setHook(hook func(r *http.Request, next http.RoundTripper) (*http.Response, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (f *fakeRelay) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	hook, hookDocument := f.hook, f.hookDocument
	if r.Method == http.MethodGet && r.URL.Path == "/events" {
		f.polls++
	}
	f.mu.Unlock()
	// A client fetches the relay's document before its first read. Most hooks are not meant for that request.
	if hook != nil && (hookDocument || r.URL.Path != "/.well-known/agora.json") {
		return hook(r, roundTripFunc(f.serve))
	}
	return f.serve(r)
}

// serve answers a request without the hook.
func (f *fakeRelay) serve(r *http.Request) (*http.Response, error) {
	status, answer := f.route(r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	answer["ok"] = status == http.StatusOK
	text, err := json.Marshal(answer)
	if err != nil {
		return nil, err
	}
	return response(status, string(text)), nil
}

// response returns a response with a status, a body, and headers in pairs of name and value.
func response(status int, text string, header ...string) *http.Response {
	w := httptest.NewRecorder()
	for i := 0; i < len(header); i += 2 {
		w.Header().Set(header[i], header[i+1])
	}
	w.WriteHeader(status)
	io.WriteString(w, text)
	return w.Result()
}

// route returns the status and the body of the response to a request.
func (f *fakeRelay) route(r *http.Request) (int, map[string]any) {
	switch path := r.URL.Path; {
	case r.Method == http.MethodPost && path == "/events":
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return 400, refuse(err)
		}
		return f.post(body)
	case r.Method == http.MethodPost && path == "/events/bulk":
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return 400, refuse(err)
		}
		return f.postBulk(body)
	case path == "/events":
		return f.poll(r.Context(), r.URL.Query())
	case strings.HasPrefix(path, "/threads/"):
		return f.thread(strings.TrimPrefix(path, "/threads/"), r.URL.Query().Get("client"))
	case strings.HasPrefix(path, "/agents"):
		return f.agents(strings.Trim(strings.TrimPrefix(path, "/agents"), "/"))
	case path == "/.well-known/agora.json":
		about := map[string]any{"did": f.key.DID()}
		if f.homes {
			about["url"], about["features"] = f.URL, []string{"home"}
		}
		return 200, about
	case path == "/health":
		return 200, map[string]any{"version": "1.0.0"}
	}
	return 404, refuse(envelope.Errorf(envelope.CodeNotFound, "no such path"))
}

// refuse returns the body of an error response.
func refuse(err error) map[string]any {
	e, ok := errors.AsType[*envelope.Error](err)
	if !ok {
		e = envelope.Errorf(envelope.CodeInternal, "%v", err)
	}
	return map[string]any{"error": e.Code, "message": e.Message, "retryable": e.Code.Retryable(), "details": e.Details}
}

var statuses = map[envelope.Code]int{
	envelope.CodeForbidden: 403, envelope.CodeThreadNotFound: 404, envelope.CodeInvalidTransition: 409,
	envelope.CodeDuplicateID: 409, envelope.CodeRateLimited: 429, envelope.CodePayloadTooLarge: 413,
}

func (f *fakeRelay) post(body []byte) (int, map[string]any) {
	e, err := envelope.Parse(body, 0)
	if err == nil {
		err = e.Verify()
	}
	if err != nil {
		return 400, refuse(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.posts = append(f.posts, e.ID)
	now := f.now()
	if e.TS.Sub(now).Abs() >= 5*time.Minute {
		return 400, refuse(&envelope.Error{Code: envelope.CodeStaleTimestamp, Message: "stale",
			Details: map[string]any{"now": envelope.FormatTime(now)}})
	}
	answer := map[string]any{"id": e.ID, "expiresAt": e.ExpiresAt(), "duplicate": false}
	if i := slices.IndexFunc(f.events, func(o *envelope.Envelope) bool { return o.ID == e.ID && o.Sender.ID == e.Sender.ID }); i >= 0 {
		if string(f.events[i].Canonical()) != string(e.Canonical()) {
			return 409, refuse(envelope.Errorf(envelope.CodeDuplicateID, "another message has this id"))
		}
		answer["duplicate"], answer["cursor"] = true, f.cursor(i+1)
		return 200, answer
	}
	if e.Type != envelope.TypeManifest {
		var candidates []thread.Thread
		var indexes []int
		for i, t := range f.threads {
			if t.ID == e.Thread {
				candidates, indexes = append(candidates, t), append(indexes, i)
			}
		}
		t, chosen, err := thread.Rules{}.Apply(candidates, e, now)
		if refusal, ok := errors.AsType[*envelope.Error](err); ok {
			return statuses[refusal.Code], refuse(err)
		}
		if chosen < 0 {
			f.threads = append(f.threads, t)
		} else {
			f.threads[indexes[chosen]] = t
		}
		answer["thread"] = map[string]any{"id": t.ID, "client": t.Client, "state": t.State}
	}
	f.append(e)
	answer["cursor"] = f.cursor(len(f.events))
	return 200, answer
}

// postBulk posts each line of body.
func (f *fakeRelay) postBulk(body []byte) (int, map[string]any) {
	results := []any{}
	for line := range bytes.Lines(body) {
		_, result := f.post(bytes.TrimSuffix(line, []byte("\n")))
		results = append(results, result)
	}
	return 200, map[string]any{"results": results}
}

// append adds an event without any checks. The caller holds f.mu.
func (f *fakeRelay) append(e *envelope.Envelope) {
	f.events = append(f.events, e)
	close(f.changed)
	f.changed = make(chan struct{})
}

// all returns the events so far.
func (f *fakeRelay) all() []*envelope.Envelope {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.events)
}

// last returns the newest event.
func (f *fakeRelay) last() *envelope.Envelope {
	all := f.all()
	return all[len(all)-1]
}

// wipe deletes all events and threads, and makes all cursors unknown.
func (f *fakeRelay) wipe() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.db += "a"
	f.events, f.threads = nil, nil
}

// restore goes back to the time before the first message of this type, and makes all cursors unknown.
func (f *fakeRelay) restore(before envelope.Type) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := slices.IndexFunc(f.events, func(e *envelope.Envelope) bool { return e.Type == before })
	kept := f.events[:n]
	f.db += "a"
	f.events, f.threads = nil, nil
	for _, e := range kept {
		if e.Type == envelope.TypeManifest {
			f.events = append(f.events, e)
			continue
		}
		t, chosen, err := thread.Rules{}.Apply(f.threads, e, f.now())
		if err != nil {
			panic(err)
		}
		if f.events = append(f.events, e); chosen < 0 {
			f.threads = append(f.threads, t)
		} else {
			f.threads[chosen] = t
		}
	}
	close(f.changed)
	f.changed = make(chan struct{})
}

// cursor returns the cursor after the first n events.
func (f *fakeRelay) cursor(n int) string { return f.db + "." + strconv.Itoa(n) }

func (f *fakeRelay) poll(ctx context.Context, q url.Values) (int, map[string]any) {
	seconds, err := strconv.ParseFloat(q.Get("timeout"), 64)
	if err != nil || q.Has("since") == q.Has("cursor") {
		return 400, refuse(envelope.Errorf(envelope.CodeInvalidRequest, "give timeout, and since or cursor"))
	}
	timeout := time.NewTimer(time.Duration(seconds * float64(time.Second)))
	defer timeout.Stop()
	for {
		answer, n, changed, err := f.page(q)
		if err != nil {
			return 400, refuse(err)
		}
		if n > 0 || seconds == 0 {
			return 200, answer
		}
		select {
		case <-changed:
		case <-timeout.C:
			return 200, answer
		case <-ctx.Done():
			return 499, refuse(ctx.Err())
		}
	}
}

// page returns the response to a read of events, the number n of its events, and a channel that is closed when there is
// a new event.
func (f *fakeRelay) page(q url.Values) (answer map[string]any, n int, changed chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	start := 0
	if cursor := q.Get("cursor"); cursor != "0" && cursor != "" {
		db, at, _ := strings.Cut(cursor, ".")
		if start, err = strconv.Atoi(at); err != nil || db != f.db {
			return nil, 0, nil, &envelope.Error{Code: envelope.CodeInvalidRequest, Message: "not a cursor of this relay",
				Details: map[string]any{"reason": "unknown_cursor"}}
		}
	}
	since, _ := envelope.ParseTime(q.Get("since"))
	limit, _ := strconv.Atoi(q.Get("limit"))
	events, end := []*envelope.Envelope{}, len(f.events)
	for i, e := range f.events[start:] {
		if !matches(e, q) || !e.TS.After(since) || !f.now().Before(e.ExpiresAt()) {
			continue
		}
		if events = append(events, e); len(events) == limit {
			end = start + i + 1
			break
		}
	}
	return map[string]any{"events": events, "hasMore": end < len(f.events), "cursor": f.cursor(end)}, len(events), f.changed, nil
}

// matches reports whether e matches the filter in the query.
func matches(e *envelope.Envelope, q url.Values) bool {
	recipient := q.Get("recipient")
	return (recipient == "" || string(e.Recipient) == recipient || q.Get("broadcast") == "true" && e.Recipient == "") &&
		(!q.Has("sender") || string(e.Sender.ID) == q.Get("sender")) &&
		(!q.Has("type") || string(e.Type) == q.Get("type")) &&
		(!q.Has("thread") || e.Thread == q.Get("thread"))
}

func (f *fakeRelay) thread(id, client string) (int, map[string]any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range f.threads {
		if t.ID != id || client != "" && string(t.Client) != client {
			continue
		}
		t = thread.Rules{}.At(t, f.now())
		record := map[string]any{}
		text, err := json.Marshal(t)
		if err == nil {
			err = json.Unmarshal(text, &record)
		}
		if err != nil {
			return 500, refuse(err)
		}
		if deadline, ok := (thread.Rules{}).Deadline(t); ok {
			record["deadline"] = deadline
		}
		events, expired := []*envelope.Envelope{}, 0
		for _, e := range f.events {
			switch inThread := slices.ContainsFunc(t.Transitions, func(s thread.Transition) bool { return s.ID == e.ID && s.By == e.Sender.ID }); {
			case !inThread:
			case !f.now().Before(e.ExpiresAt()):
				expired++
			default:
				events = append(events, e)
			}
		}
		return 200, map[string]any{"thread": record, "events": events, "expired": expired}
	}
	return 404, refuse(envelope.Errorf(envelope.CodeThreadNotFound, "there is no such thread"))
}

func (f *fakeRelay) agents(did string) (int, map[string]any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rows := []map[string]any{}
	for _, e := range f.events {
		if e.Type != envelope.TypeManifest {
			continue
		}
		row := map[string]any{"id": e.Sender.ID, "online": true, "lastSeen": e.TS, "envelope": e}
		if string(e.Sender.ID) == did {
			delete(row, "envelope")
			row["manifests"] = []*envelope.Envelope{e}
			return 200, map[string]any{"agent": row}
		}
		rows = append(rows, row)
	}
	if did != "" {
		return 404, refuse(envelope.Errorf(envelope.CodeAgentNotFound, "there is no such agent"))
	}
	return 200, map[string]any{"agents": rows, "hasMore": false, "cursor": ""}
}

package hubclient

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/internal/jsontext"
)

const (
	hubURL = "https://relay.example/hub"
	alice  = "alice@relay.example"
	bob    = "bob@relay.example"
	key    = "ca_0123456789abcdef0123456789abcdef"
)

// fakeHub is a hub without a network. It does what the hub of a relay never does: it loses answers, sends text that no
// hub would send, and refuses requests when a test wants it. It has one agent, alice.
type fakeHub struct {
	t *testing.T
	// before, if not nil, is called with each request. If it returns a response or an error, the client gets that. The
	// request then has no effect.
	before func(*http.Request, []byte) (*http.Response, error)
	// after, if not nil, is called when a request has had its effect. If it returns an error, the answer is lost.
	after func(*http.Request) error

	mu       sync.Mutex
	log      []string // method and path of each request
	rows     []message
	byKey    map[string]string // the answers to requests with an Idempotency-Key
	acked    int64
	streams  []*io.PipeWriter
	lastSeen []string // Last-Event-ID of each stream
}

// client returns a client of the hub.
func (h *fakeHub) client() *Client {
	return &Client{URL: hubURL, Key: key, HTTP: &http.Client{Transport: h}, Log: slog.New(slog.DiscardHandler)}
}

// requests returns the requests so far, and forgets them.
func (h *fakeHub) requests() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	log := h.log
	h.log = nil
	return log
}

func (h *fakeHub) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
	}
	path := strings.TrimPrefix(r.URL.Path, "/hub")
	h.mu.Lock()
	h.log = append(h.log, r.Method+" "+path)
	h.mu.Unlock()
	if h.before != nil {
		if response, err := h.before(r, body); response != nil || err != nil {
			return response, err
		}
	}
	response := h.answer(r, path, body)
	if h.after != nil {
		if err := h.after(r); err != nil {
			return nil, errors.Join(err, response.Body.Close())
		}
	}
	return response, nil
}

func (h *fakeHub) answer(r *http.Request, path string, body []byte) *http.Response {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch path {
	case "/register":
		return reply(201, `{"success":true,"data":{"agent_id":"`+alice+`","api_key":"`+key+`"},"metadata":{}}`)
	case "/agents/" + alice:
		return reply(200, fmt.Sprintf(`{"success":true,"data":{"agent_id":%q,"agent_card":{"user_culture":"en"}},"metadata":{"timestamp":%q}}`,
			alice, h.clock(len(h.rows)+1)))
	case "/messages":
		return reply(200, h.send(r.Header.Get("Idempotency-Key"), body))
	case "/agent/messages":
		return reply(200, h.history(r))
	case "/agent/ack":
		var ack struct {
			UpTo int64 `json:"up_to"`
		}
		if err := json.Unmarshal(body, &ack); err != nil {
			h.t.Error(err)
		}
		h.acked = max(h.acked, ack.UpTo)
		return reply(200, `{"success":true,"data":{"acknowledged":1},"metadata":{}}`)
	case "/agent/inbox":
		return h.stream(r)
	}
	h.t.Errorf("unexpected request: %s %s", r.Method, r.URL)
	return reply(404, "")
}

func reply(status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
}

// send is POST /messages.
func (h *fakeHub) send(idempotencyKey string, body []byte) string {
	if answer := h.byKey[idempotencyKey]; answer != "" {
		return answer
	}
	var sent struct {
		ReceiverID string          `json:"receiver_id"`
		Envelope   json.RawMessage `json:"envelope"`
	}
	if err := json.Unmarshal(body, &sent); err != nil {
		h.t.Error(err)
	}
	m := h.add(alice, sent.ReceiverID, string(sent.Envelope))
	answer := fmt.Sprintf(`{"success":true,"data":{"delivery":"queued","trace_id":%q,"state":"queued"},"metadata":{"timestamp":%q}}`,
		m.TraceID, h.clock(len(h.rows)+1))
	h.byKey[idempotencyKey] = answer
	return answer
}

// add stores a message. Ids are 10 apart, because other agents of the hub send messages too.
func (h *fakeHub) add(from, to, envelope string) message {
	id := int64(len(h.rows)+1) * 10
	m := message{ID: id, TraceID: fmt.Sprintf("trace-%d", id), SenderID: from, ReceiverID: to,
		Envelope: json.RawMessage(envelope), Timestamp: h.clock(len(h.rows) + 1)}
	h.rows = append(h.rows, m)
	return m
}

// clock returns the time of message n: n seconds and a half after 04:30.
func (h *fakeHub) clock(n int) string {
	return time.Date(2026, 3, 22, 4, 30, n, 5e8, time.UTC).Format("2006-01-02T15:04:05.000Z")
}

// history is GET /agent/messages.
func (h *fakeHub) history(r *http.Request) string {
	from := r.URL.Query().Get("since")
	since, err := strconv.ParseInt(from, 10, 64)
	if _, notTime := time.Parse(time.RFC3339, from); err != nil && notTime != nil {
		h.t.Errorf("since is %q", from)
	}
	isTime := err != nil
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil {
		h.t.Error(err)
	}
	var rows []message
	more := false
	for _, m := range h.rows {
		if !isTime && m.ID <= since || isTime && m.Timestamp < from {
			continue
		}
		if len(rows) == limit {
			more = true
			break
		}
		rows = append(rows, m)
	}
	return fmt.Sprintf(`{"success":true,"data":%s,"metadata":{"has_more":%v}}`, jsontext.Compact(rows), more)
}

// stream is GET /agent/inbox. It begins with everything after Last-Event-ID.
func (h *fakeHub) stream(r *http.Request) *http.Response {
	reader, writer := io.Pipe()
	after, err := strconv.ParseInt(r.Header.Get("Last-Event-ID"), 10, 64)
	if err != nil {
		h.t.Error(err)
	}
	h.streams, h.lastSeen = append(h.streams, writer), append(h.lastSeen, r.Header.Get("Last-Event-ID"))
	text := "retry: 3000\nevent: connected\ndata: {\"agent_id\":\"" + alice + "\",\"message\":\"Inbox open.\"}\n\n"
	for _, m := range h.rows {
		if m.ID > after && m.ReceiverID == alice {
			text += frame(m)
		}
	}
	go func() {
		_, _ = writer.Write([]byte(text)) // the reader may be closed
		<-r.Context().Done()
		_ = reader.CloseWithError(r.Context().Err())
	}()
	response := reply(200, "")
	response.Header.Set("Content-Type", "text/event-stream")
	response.Body = reader
	return response
}

func frame(m message) string {
	return fmt.Sprintf("event: message\nid: %d\ndata: {\"id\":%d,\"trace_id\":%q,\"sender_id\":%s,\"envelope\":%s,\"timestamp\":%q}\n\n",
		m.ID, m.ID, m.TraceID, jsontext.Compact(m.SenderID), m.Envelope, m.Timestamp)
}

// deliver stores a message to alice and writes it to the newest stream.
func (h *fakeHub) deliver(from, envelope string) {
	h.mu.Lock()
	m := h.add(from, alice, envelope)
	writer := h.streams[len(h.streams)-1]
	h.mu.Unlock()
	h.write(writer, frame(m))
}

// push writes text to the newest stream.
func (h *fakeHub) push(text string) {
	h.mu.Lock()
	writer := h.streams[len(h.streams)-1]
	h.mu.Unlock()
	h.write(writer, text)
}

func (h *fakeHub) write(writer *io.PipeWriter, text string) {
	if _, err := writer.Write([]byte(text)); err != nil {
		h.t.Errorf("the stream cannot be written: %v", err)
	}
}

// cut breaks the newest stream.
func (h *fakeHub) cut() {
	h.mu.Lock()
	defer h.mu.Unlock()
	_ = h.streams[len(h.streams)-1].CloseWithError(errors.New("connection reset"))
}

// hello is an envelope from an agent.
func hello(from, text string) string {
	return fmt.Sprintf(`{"chorus_version":"0.4","original_text":%s,"sender_culture":"en","sender_id":%s}`, jsontext.Compact(text), jsontext.Compact(from))
}

// newHub returns a hub, and a folder with alice's credentials for it.
func newHub(t *testing.T) (*fakeHub, *Folder) {
	t.Helper()
	h := &fakeHub{t: t, byKey: map[string]string{}}
	dir := t.TempDir()
	f, err := OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	write(t, f.CredentialsFile(), string(Credentials{alice, key, hubURL}.text()))
	return h, f
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// content returns the text of a file in the history folder; empty if there is none.
func content(t *testing.T, f *Folder, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(f.HistoryFolder(), name))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(text)
}

// line is the line of a history for the message with the id n·10.
func line(dir string, n int, peer, envelope string) string {
	return fmt.Sprintf(`{"ts":"2026-03-22T04:30:%02dZ","dir":%q,"peer":%s,"envelope":%s,"id":%d,"trace_id":"trace-%d"}`+"\n",
		n, dir, jsontext.Compact(peer), envelope, n*10, n*10)
}

// lines collects what Follow shows.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) show(line []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(append(line, '\n'))
	return nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

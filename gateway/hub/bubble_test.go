package hub_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/gateway/gatetest"
)

// inBubble runs a test with a hub in a bubble of testing/synctest. There, time is fake, and connections are in memory.
// The function of each Update is run twice, as a store may do.
func inBubble(t *testing.T, test func(t *testing.T, f *fixture), configure ...func(*fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(t, start(t, append(configure, func(f *fixture) { f.Bubble = true })...))
	})
}

// feed reads a stream in the background and remembers when it has read what.
type feed struct {
	t    testing.TB
	body io.Closer

	mu    sync.Mutex
	reads []chunk
	text  string
	ended time.Time
}

// chunk is what was read at one time.
type chunk struct {
	at    time.Time
	bytes int
}

// follow opens a stream and reads it until it ends.
func (f *fixture) follow(key string, header map[string]string) *feed {
	f.t.Helper()
	return f.followPath("/agent/inbox", key, header)
}

func (f *fixture) followPath(path, key string, header map[string]string) *feed {
	f.t.Helper()
	i := f.openPath(path, key, header)
	s := &feed{t: f.t, body: i.body}
	go func() {
		b := make([]byte, 64<<10)
		for {
			n, err := i.lines.Read(b)
			s.mu.Lock()
			s.text += string(b[:n])
			if n > 0 {
				s.reads = append(s.reads, chunk{time.Now(), n})
			}
			if err != nil {
				s.ended = time.Now()
			}
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return s
}

// bytes returns what was read so far.
func (s *feed) bytes() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text
}

// end returns when the stream has ended; zero: not yet.
func (s *feed) end() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// close leaves the stream, and waits until the hub has ended it.
func (s *feed) close() {
	_ = s.body.Close() // only ends the stream
	synctest.Wait()
}

// frames returns the whole frames that were read so far, without their empty lines.
func (s *feed) frames() []string {
	frames := strings.SplitAfter(s.bytes(), "\n\n")
	frames = frames[:len(frames)-1] // what follows the last empty line
	for i, text := range frames {
		frames[i] = strings.TrimSuffix(text, "\n")
	}
	return frames
}

// events returns the messages that were read so far.
func (s *feed) events() (all []event) {
	s.t.Helper()
	for _, frame := range s.frames() {
		if !strings.HasPrefix(frame, "event: message\n") {
			continue
		}
		var e event
		_, data, _ := strings.Cut(frame, "data: ")
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			s.t.Fatalf("the frame %q: %v", frame, err)
		}
		all = append(all, e)
	}
	return all
}

// texts returns the texts of the messages that were read so far.
func (s *feed) texts() string {
	s.t.Helper()
	var all []string
	for _, e := range s.events() {
		all = append(all, e.text())
	}
	return strings.Join(all, " ")
}

// wantTexts waits until nothing happens any more, and checks which messages were read.
func (s *feed) wantTexts(what, want string) {
	s.t.Helper()
	time.Sleep(200 * time.Millisecond) // for the pace
	synctest.Wait()
	if got := s.texts(); got != want {
		s.t.Errorf("%s: the stream has the messages %q, want %q", what, got, want)
	}
}

// wantClosed checks that the stream has ended, and why.
func (s *feed) wantClosed(reason string) {
	s.t.Helper()
	time.Sleep(200 * time.Millisecond)
	synctest.Wait()
	frames := s.frames()
	want := "event: closed\ndata: {\"reason\":\"" + reason + "\"}\n"
	if s.end().IsZero() || frames[len(frames)-1] != want {
		s.t.Errorf("the stream has %q, and its end is %v; want %q at the end", frames, s.end(), want)
	}
}

// hook is the webhook of an agent.
type hook struct {
	url string

	mu     sync.Mutex
	answer func(http.ResponseWriter, hookCall)
	calls  []hookCall
}

// hookCall is a request to a webhook.
type hookCall struct {
	at     time.Time
	header http.Header
	body   string
	trace  string // the header Chorus-Trace-Id
	text   string // original_text
	ctx    context.Context
}

// newHook starts a webhook, which answers with answer. nil: {"status":"ok"}.
func newHook(t testing.TB, answer func(http.ResponseWriter, hookCall)) *hook {
	l := gatetest.NewPipeListener("")
	h := &hook{url: "http://" + l.Addr().String() + "/hook", answer: answer}
	server := &http.Server{Handler: h}
	go server.Serve(l)
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// answerWith changes what the webhook answers.
func (h *hook) answerWith(answer func(http.ResponseWriter, hookCall)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer = answer
}

// status returns an answer for a webhook.
func status(code int, body string) func(http.ResponseWriter, hookCall) {
	return func(w http.ResponseWriter, _ hookCall) {
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body) // if the client has left, nobody needs it
	}
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var m struct {
		Envelope struct {
			Text string `json:"original_text"`
		}
	}
	_ = json.Unmarshal(body, &m) // then the text is empty, and the test fails
	c := hookCall{time.Now(), r.Header, string(body), r.Header.Get("Chorus-Trace-Id"), m.Envelope.Text, r.Context()}
	h.mu.Lock()
	h.calls = append(h.calls, c)
	answer := h.answer
	h.mu.Unlock()
	if answer == nil {
		answer = status(200, `{"status":"ok"}`)
	}
	answer(w, c)
}

// seen returns the calls so far.
func (h *hook) seen() []hookCall {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.calls)
}

// texts returns the texts of the messages in the calls so far.
func (h *hook) texts() string {
	var all []string
	for _, c := range h.seen() {
		all = append(all, c.text)
	}
	return strings.Join(all, " ")
}

// registerHook registers an agent with a webhook.
func (f *fixture) registerHook(name string, answer func(http.ResponseWriter, hookCall)) (key string, h *hook) {
	f.t.Helper()
	h = newHook(f.t, answer)
	return f.register(name, object{"endpoint": h.url}), h
}

// sendLater sends a message in the background. The result is available when the answer has come.
func (f *fixture) sendLater(key, from, to, text string) <-chan answer {
	answers := make(chan answer, 1)
	go func() {
		a, err := f.try(f.t.Context(), call{"POST", "/messages", key, messageTo(to, from, text), nil})
		if err != nil {
			a = answer{gatetest.Answer{Body: []byte(err.Error())}}
		}
		answers <- a
	}()
	return answers
}

// wantStates checks the states in an agent's history, such as "a sent, b queued".
func (f *fixture) wantStates(what, key, want string) {
	f.t.Helper()
	states := f.states(key)
	var all []string
	for _, text := range slices.Sorted(maps.Keys(states)) {
		all = append(all, text+" "+states[text])
	}
	if got := strings.Join(all, ", "); got != want {
		f.t.Errorf("%s: the history is %q, want %q", what, got, want)
	}
}

// dataOf returns data as JSON.
func (a answer) dataOf() string {
	text, err := json.Marshal(a.data(""))
	if err != nil {
		return fmt.Sprint(err)
	}
	return string(text)
}

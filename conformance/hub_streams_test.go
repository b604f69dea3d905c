package conformance_test

import (
	"bytes"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Middlewares that wrap this project's hub and change its histories, confirmations and streams.

// leaksMessages adds to a history a message of strangers, and those of other agents that the hub has shown.
func leaksMessages(h http.Handler) http.Handler {
	var mu sync.Mutex
	seen := []any{object{"id": 1, "trace_id": "00000000-0000-4000-8000-000000000000", "sender_id": "stranger@x",
		"receiver_id": "stranger@x", "envelope": object{"chorus_version": "0.4", "sender_id": "stranger@x",
			"original_text": "not for you", "sender_culture": "en"},
		"delivered_via": "sse", "timestamp": "2026-03-20T10:00:00.000Z", "state": "sent"}}
	return editsAnswers(func(r *http.Request, a *exchange) {
		if !isHistory(r) || a.Code != http.StatusOK {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		own := a.list()
		a.body["data"] = append(slices.Clone(own), seen...)
		seen = append(seen, own...)
	})(h)
}

// eachHistoryRow is a middleware that changes the rows of histories.
func eachHistoryRow(change func(row object)) middleware {
	return editsAnswers(func(r *http.Request, a *exchange) {
		if !isHistory(r) {
			return
		}
		for _, row := range a.list() {
			change(row.(object))
		}
	})
}

func isAck(r *http.Request) bool { return isTo(r, http.MethodPost, "/agent/ack") }

// handsOutEverything makes all messages to the caller received.
func handsOutEverything(h http.Handler, r *http.Request) {
	atHub(h, r, "GET", "/agent/messages", keyOf(r), nil)
}

// confirmsForAll makes every agent confirm what one confirms by up_to.
func confirmsForAll(h http.Handler, keys *keyring) http.Handler {
	return before(isAck, func(h http.Handler, r *http.Request) {
		body := decode(readBody(r))
		if n, ok := wholeNumber(body["up_to"]); ok && n > 0 {
			for _, key := range keys.all() {
				if key != keyOf(r) {
					atHub(h, r, "POST", "/agent/ack", key, body)
				}
			}
		}
	})(h)
}

// confirmsWhatItWrites confirms each message as soon as it is written to a stream.
func confirmsWhatItWrites(h http.Handler, _ *keyring) http.Handler {
	return editsFrames(func(r *http.Request) func(string) string {
		return func(frame string) string {
			if id := lineOf(frame, "id: "); id != "" {
				n, _ := strconv.Atoi(id)                      // the hub has written it
				time.AfterFunc(100*time.Millisecond, func() { // when the hub has recorded it
					atHub(h, r, "POST", "/agent/ack", keyOf(r), object{"up_to": n})
				})
			}
			return frame
		}
	})(h)
}

// lineOf returns the rest of the line of a frame that begins with name.
func lineOf(frame, name string) string {
	for line := range strings.SplitSeq(frame, "\n") {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return rest
		}
	}
	return ""
}

// eachFrame is a middleware that changes all frames of streams in the same way.
func eachFrame(change func(frame string) string) middleware {
	return editsFrames(func(*http.Request) func(string) string { return change })
}

// loosens writes JSON with a space after each colon between members.
func loosens(frame string) string { return strings.ReplaceAll(frame, `","`, `", "`) }

// swapsMessages writes every second message before the one before it.
func swapsMessages(*http.Request) func(frame string) string {
	held := ""
	return func(frame string) string {
		if lineOf(frame, "event: ") != "message" {
			return frame
		}
		if held == "" {
			held = frame
			return ""
		}
		both := frame + held
		held = ""
		return both
	}
}

// readsAhead reads a stream as fast as the hub writes it, and keeps in memory what the client does not take.
func readsAhead(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isInbox(r) {
			h.ServeHTTP(w, r)
			return
		}
		chunks := make(chan []byte, 1<<16)
		ended := make(chan struct{})
		rc := http.NewResponseController(w)
		go func() {
			defer close(ended)
			for chunk := range chunks {
				_, _ = w.Write(chunk) // the client may be gone
				_ = rc.Flush()
			}
		}()
		h.ServeHTTP(&chunkWriter{header: w.Header(), chunks: chunks}, r)
		close(chunks)
		<-ended
	})
}

type chunkWriter struct {
	header http.Header
	chunks chan []byte
}

func (w *chunkWriter) Header() http.Header                { return w.header }
func (w *chunkWriter) WriteHeader(int)                    {}
func (w *chunkWriter) Flush()                             {}
func (w *chunkWriter) SetWriteDeadline(_ time.Time) error { return nil }
func (w *chunkWriter) Write(text []byte) (n int, err error) {
	w.chunks <- bytes.Clone(text)
	return len(text), nil
}

// showsOwnMessages writes what an agent sends also to its own stream.
func showsOwnMessages(h http.Handler) http.Handler {
	var mu sync.Mutex
	streams := map[string]*editedAnswer{} // by key
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := keyOf(r)
		if isInbox(r) {
			stream := &editedAnswer{ResponseWriter: w, frame: func(frame string) string { return frame }}
			mu.Lock()
			streams[key] = stream
			mu.Unlock()
			h.ServeHTTP(stream, r)
			stream.end()
			mu.Lock()
			delete(streams, key)
			mu.Unlock()
			return
		}
		h.ServeHTTP(w, r)
		mu.Lock()
		defer mu.Unlock()
		if stream := streams[key]; isSend(r) && stream != nil {
			stream.add("event: message\nid: 1\ndata: {\"id\":1,\"trace_id\":\"0b8c\"}\n\n")
		}
	})
}

package httpapi

import (
	"net/http"
	"time"
)

// EventStream writes an answer of server-sent events (WHATWG HTML, "Server-sent events"). Only one goroutine may use
// it.
type EventStream struct {
	w   http.ResponseWriter
	out *http.ResponseController
}

// NewEventStream returns the stream of an answer. It changes nothing yet, so the handler may still return an error.
func NewEventStream(w http.ResponseWriter) *EventStream {
	return &EventStream{w, http.NewResponseController(w)}
}

// Begin sets the headers of the answer. After it, the handler writes, and returns no error.
func (s *EventStream) Begin() {
	// net/http reads from the connection to learn whether the client is still there. A deadline would end that. A
	// ResponseWriter without a network connection has no deadlines; its errors do not matter.
	_ = s.out.SetReadDeadline(time.Time{})
	SetHeader(s.w, typeEventStream)
	s.w.Header().Set("X-Accel-Buffering", "no") // nginx then passes on each event at once
}

// Write sends a part of the stream at once. It fails if the client has left, or does not read the part within 30
// seconds. Between two writes there is no deadline.
func (s *EventStream) Write(b []byte) (int, error) {
	ExtendWrite(s.w)
	n, err := s.w.Write(b)
	if err == nil {
		err = s.out.Flush()
	}
	clearWriteDeadline(s.w) // over HTTP/2, a deadline ends the stream even if nothing is being written
	return n, err
}

// Abort ends a Write that makes no progress. Any goroutine may call it.
func (s *EventStream) Abort() { _ = s.out.SetWriteDeadline(time.Now()) }

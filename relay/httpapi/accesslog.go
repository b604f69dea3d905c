package httpapi

import (
	"crypto/rand"
	"log/slog"
	"net/http"
	"regexp"
	"time"
)

// headerRequestID is the header with the id of a request. With it, an operator finds the lines of the log about a
// request that a user complains about.
const headerRequestID = "X-Request-Id"

// requestIDForm is the form of an id that a proxy has given to a request.
var requestIDForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// requestID returns the id of a request: the one that a trusted proxy has given to it, or else a new one. The ids of
// other clients are ignored. Otherwise a client could make its lines in the log look like those of another request.
func (s *site) requestID(r *http.Request) string {
	if ids := r.Header.Values(headerRequestID); len(ids) == 1 && requestIDForm.MatchString(ids[0]) && s.fromProxy(r) {
		return ids[0]
	}
	return rand.Text()
}

// nameAnswer returns the id in the answer to r. If the answer has none yet, it gets one.
func (s *site) nameAnswer(w http.ResponseWriter, r *http.Request) string {
	id := w.Header().Get(headerRequestID)
	if id == "" {
		id = s.requestID(r)
		w.Header().Set(headerRequestID, id)
	}
	return id
}

// traceForm is the form of the header traceparent (W3C Trace Context).
var traceForm = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// loggedAnswer is a ResponseWriter that keeps what the access log needs. One goroutine uses it.
type loggedAnswer struct {
	http.ResponseWriter
	id     string
	began  time.Time
	status int // 0: nothing was written
	bytes  int64
}

func newLoggedAnswer(w http.ResponseWriter, id string) *loggedAnswer {
	w.Header().Set(headerRequestID, id)
	return &loggedAnswer{ResponseWriter: w, id: id, began: time.Now()}
}

// Unwrap lets http.ResponseController find the connection.
func (l *loggedAnswer) Unwrap() http.ResponseWriter { return l.ResponseWriter }

func (l *loggedAnswer) WriteHeader(status int) {
	if l.status == 0 && status >= 200 {
		l.status = status
	}
	l.ResponseWriter.WriteHeader(status)
}

func (l *loggedAnswer) Write(b []byte) (int, error) {
	if l.status == 0 {
		l.status = http.StatusOK
	}
	n, err := l.ResponseWriter.Write(b)
	l.bytes += int64(n)
	return n, err
}

// How many bytes of a method, a path and a User-Agent are logged.
const maxLoggedMethod, maxLoggedPath, maxLoggedAgent = 20, 512, 200

// cut returns text, or its first bytes if it has more than most.
func cut(text string, most int) string { return text[:min(len(text), most)] }

// accessLevel returns the level of the lines about requests.
func (f *Front) accessLevel() slog.Level {
	if f.options.AccessLog {
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

// logAccess logs a line about a request and its answer.
func (s *site) logAccess(r *http.Request, l *loggedAnswer, level slog.Level) {
	if r.Method == http.MethodHead {
		l.bytes = 0 // net/http has not sent them
	}
	addr := "unix"
	if a := s.client(r); a.IsValid() {
		addr = a.String()
	}
	fields := []any{"id", l.id, "addr", addr, "proto", r.Proto,
		"method", cut(r.Method, maxLoggedMethod), "path", cut(s.loggedPath(r), maxLoggedPath), "status", l.status,
		"bytes", l.bytes, "ms", float64(time.Since(l.began).Microseconds()) / 1000, "agent", cut(r.UserAgent(), maxLoggedAgent)}
	if trace := r.Header.Get("Traceparent"); traceForm.MatchString(trace) {
		fields = append(fields, "traceparent", trace)
	}
	s.log.Log(r.Context(), level, "request", fields...)
}

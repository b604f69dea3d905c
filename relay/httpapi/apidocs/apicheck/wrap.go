package apicheck

import (
	"bytes"
	"io"
	"net/http"
	"sync"
	"testing"
)

// Wrap returns a function that wraps the handler of a server, for the option Wrap of package httpapi. It checks each
// exchange. When the test ends, it fails with all that was wrong. path returns the path of a request in the document, and
// false if the request is not to be checked. nil: the path is the request's path.
func (c *Checker) Wrap(t testing.TB, path func(*http.Request) (string, bool)) func(http.Handler) http.Handler {
	var mu sync.Mutex
	known := map[string]bool{} // each problem is reported once
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		for problem := range known {
			t.Errorf("the OpenAPI document: %s", problem)
		}
	})
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			at, checked := r.URL.Path, true
			if path != nil {
				at, checked = path(r)
			}
			if !checked {
				next.ServeHTTP(w, r)
				return
			}
			e := Exchange{Method: r.Method, Path: at, Query: r.URL.RawQuery, RequestHeader: r.Header.Clone()}
			request, answer := &readBody{ReadCloser: r.Body}, &writtenAnswer{ResponseWriter: w}
			if r.Body != nil {
				r.Body = request
			}
			next.ServeHTTP(answer, r) // a panic means that the answer was cut off
			if answer.cut {
				return // the client has left
			}
			e.Status, e.AnswerHeader, e.Answer = answer.status, w.Header(), answer.body.Bytes()
			if request.ended {
				e.Request = request.body.Bytes()
			}
			problems := c.Check(e)
			mu.Lock()
			defer mu.Unlock()
			for _, problem := range problems {
				known[problem] = true
			}
		})
	}
}

// readBody keeps what a handler reads of a body.
type readBody struct {
	io.ReadCloser
	body  bytes.Buffer
	ended bool // all of it was read
}

func (b *readBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.body.Write(p[:n])
	b.ended = b.ended || err == io.EOF
	return n, err
}

// writtenAnswer keeps what a handler writes.
type writtenAnswer struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
	cut    bool // the client has not got all of it
}

// Unwrap lets http.ResponseController find the connection.
func (a *writtenAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// Flush implements http.Flusher. If it fails, the client has left, and the handler notices that with its next write.
func (a *writtenAnswer) Flush() { _ = http.NewResponseController(a.ResponseWriter).Flush() }

func (a *writtenAnswer) WriteHeader(status int) {
	if a.status == 0 && status >= 200 {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *writtenAnswer) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	n, err := a.ResponseWriter.Write(p)
	a.body.Write(p[:n])
	a.cut = a.cut || err != nil
	return n, err
}

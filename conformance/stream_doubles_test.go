package conformance_test

import (
	"bytes"
	"net/http"
	"net/url"
	"strings"
)

// Middlewares with faults in streams.

func isStream(r *http.Request) bool {
	return isPoll(r) && r.Header.Get("Accept") == "text/event-stream"
}

// ofStreams applies a middleware to streams, and to no other requests.
func ofStreams(middleware middleware) middleware {
	return func(h http.Handler) http.Handler {
		changed := middleware(h)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if isStream(r) {
				changed.ServeHTTP(w, r)
				return
			}
			h.ServeHTTP(w, r)
		})
	}
}

// changedStream is a stream that changes each part that is written. If the part is then empty, it writes nothing.
type changedStream struct {
	http.ResponseWriter
	change func([]byte) []byte
}

func (s changedStream) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (s changedStream) Write(b []byte) (int, error) {
	_, err := s.ResponseWriter.Write(s.change(b))
	return len(b), err
}

// rewritesStreams is a middleware that replaces text in streams. If by is empty, the whole part with the text is left
// out.
func rewritesStreams(text, by string) middleware {
	return changesStreams(func(_ http.Header, b []byte) []byte {
		if by == "" && bytes.Contains(b, []byte(text)) {
			return nil
		}
		return bytes.ReplaceAll(b, []byte(text), []byte(by))
	})
}

func withoutStreamHeader(name string) middleware {
	return changesStreams(func(h http.Header, b []byte) []byte {
		h.Del(name)
		return b
	})
}

func changesStreams(change func(http.Header, []byte) []byte) middleware {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(changedStream{w, func(b []byte) []byte { return change(w.Header(), b) }}, r)
		})
	}
}

func withoutRequestHeader(name string) middleware {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del(name)
			h.ServeHTTP(w, r)
		})
	}
}

// fromTheOldest is a middleware that begins polls without a position with the oldest event.
func fromTheOldest(h http.Handler) http.Handler {
	return withQuery("/events", func(q url.Values) {
		if !q.Has("cursor") && !q.Has("since") {
			q.Set("cursor", "0")
		}
	})(h)
}

// prefersStreams is a middleware that takes each Accept with text/event-stream for one with nothing else.
func prefersStreams(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
			r.Header.Set("Accept", "text/event-stream")
		}
		h.ServeHTTP(w, r)
	})
}

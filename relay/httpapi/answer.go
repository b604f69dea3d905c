package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// status is the one table from codes to HTTP statuses (PROTOCOL §5); a test walks all codes through it.
func status(code envelope.Code) int {
	switch code {
	case envelope.CodeInvalidRequest, envelope.CodeUnsupportedVersion, envelope.CodeInvalidDID,
		envelope.CodeStaleTimestamp, envelope.CodeExpired:
		return http.StatusBadRequest
	case envelope.CodeUnauthorized:
		return http.StatusUnauthorized
	case envelope.CodeInvalidSignature, envelope.CodeForbidden:
		return http.StatusForbidden
	case envelope.CodeThreadNotFound, envelope.CodeAgentNotFound, envelope.CodeNotFound:
		return http.StatusNotFound
	case envelope.CodeMethodNotAllowed:
		return http.StatusMethodNotAllowed
	case envelope.CodeDuplicateID, envelope.CodeInvalidTransition:
		return http.StatusConflict
	case envelope.CodePayloadTooLarge:
		return http.StatusRequestEntityTooLarge
	case envelope.CodeUnsupportedMedia:
		return http.StatusUnsupportedMediaType
	case envelope.CodeRateLimited:
		return http.StatusTooManyRequests
	case envelope.CodeUnavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

type errorAnswer struct {
	OK        bool           `json:"ok"` // false
	Error     envelope.Code  `json:"error"`
	Message   string         `json:"message"`
	Retryable bool           `json:"retryable"`
	Details   map[string]any `json:"details,omitempty"`
}

// answerError writes err as the protocol has it. An error without a code is the relay's own trouble: it is logged, and
// the client learns no more than that.
func (s *server) answerError(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, context.Canceled) && r.Context().Err() != nil {
		// The client has left, or only closed its sending side and listens still: silence would be sent as a 200.
		err = envelope.Errorf(envelope.CodeUnavailable, "the wait was given up, as the client closed its side of the connection")
	}
	var e *envelope.Error
	if !errors.As(err, &e) {
		s.log.Error("request failed", "method", r.Method, "path", r.URL.Path, "err", err)
		e = envelope.Errorf(envelope.CodeInternal, "the relay could not do this; the reason is in its log")
	}
	if code := status(e.Code); code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable {
		seconds := math.Ceil(max(e.RetryAfter, time.Second).Seconds())
		w.Header().Set("Retry-After", strconv.Itoa(int(seconds)))
	}
	if e.Code == envelope.CodeUnauthorized {
		w.Header().Set("WWW-Authenticate", authScheme)
	}
	s.answer(w, status(e.Code), errorAnswer{false, e.Code, e.Message, e.Code.Retryable(), e.Details})
}

// answer writes v as JSON.
func (s *server) answer(w http.ResponseWriter, status int, v any) {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		s.log.Error("answer cannot be written as JSON", "err", err)
		http.Error(w, `{"ok":false,"error":"INTERNAL_ERROR","message":"the relay could not write its answer","retryable":true}`, http.StatusInternalServerError)
		return
	}
	s.write(w, status, body.Bytes())
}

// write sends a finished answer.
func (s *server) write(w http.ResponseWriter, status int, body []byte) {
	s.setHeader(w)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	s.send(w, body)
}

// setHeader sets what all answers have in common, and the time to write this one.
func (s *server) setHeader(w http.ResponseWriter) {
	s.extend(w)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
}

// extend gives the client the full time again to read what comes next.
func (s *server) extend(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // see getEvents
}

// send writes the end of an answer, and sees it off: a handler that has returned has answered, see Shutdown.
func (s *server) send(w http.ResponseWriter, body []byte) {
	_, err := w.Write(body)
	if err == nil {
		err = http.NewResponseController(w).Flush()
	}
	if err != nil {
		s.log.Debug("client left before its answer", "err", err)
	}
}

// sendBytes is how much of a long answer is collected before it is sent.
const sendBytes = 64 << 10

// list is the JSON text before and after the elements of an answer's list.
type list struct{ head, tail string }

// answerEvents writes the events of d, and after them the members of last, which is an object.
func (s *server) answerEvents(w http.ResponseWriter, d relay.Delivery, last any) error {
	tail, err := json.Marshal(last)
	if err != nil {
		return err
	}
	l := list{head: `{"ok":true,"events":[`, tail: "]," + string(tail[1:]) + "\n"}
	s.answerList(w, l, elements(d.Pieces(), func(e relay.Event) []byte { return e.Body }))
	return nil
}

// elements yields the bytes of each element of the pieces. An error ends it.
func elements[T any](pieces iter.Seq2[[]T, error], bytes func(T) []byte) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for piece, err := range pieces {
			if err != nil {
				yield(nil, err)
				return
			}
			for _, element := range piece {
				if !yield(bytes(element), nil) {
					return
				}
			}
		}
	}
}

// answerList writes a list of envelopes: the canonical bytes that were signed, never encoded again. A long answer is
// sent in parts, without a Content-Length, so that only a part of it is in memory while a slow client reads.
func (s *server) answerList(w http.ResponseWriter, l list, envelopes iter.Seq2[[]byte, error]) {
	var body bytes.Buffer
	body.WriteString(l.head)
	begun, sent := false, false
	for envelope, err := range envelopes {
		if err != nil {
			s.log.Error("an answer was cut off: its next events cannot be read", "err", err)
			panic(http.ErrAbortHandler) // the client sees a broken answer instead of a short one
		}
		if begun {
			body.WriteByte(',')
		}
		body.Write(envelope)
		begun = true
		if body.Len() < sendBytes {
			continue
		}
		if sent {
			s.extend(w)
		} else {
			s.setHeader(w)
			sent = true
		}
		if _, err := w.Write(body.Bytes()); err != nil {
			return // the client has gone
		}
		body.Reset()
	}
	body.WriteString(l.tail)
	if sent {
		s.extend(w)
		s.send(w, body.Bytes())
	} else {
		s.write(w, http.StatusOK, body.Bytes())
	}
}

package httpapi

import (
	"bytes"
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

// status returns the HTTP status of a code (PROTOCOL §5). A test checks that it knows every code.
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

type errorBody struct {
	OK        bool           `json:"ok"` // false
	Error     envelope.Code  `json:"error"`
	Message   string         `json:"message"`
	Retryable bool           `json:"retryable"`
	Details   map[string]any `json:"details,omitempty"`
}

// RelayError is the function Mount.Errors of the relay's own routes (PROTOCOL §5). It knows every *envelope.Error.
func RelayError(err error) (ErrorAnswer, bool) {
	e, ok := errors.AsType[*envelope.Error](err)
	if !ok {
		return ErrorAnswer{}, false
	}
	a := ErrorAnswer{Status: status(e.Code), RetryAfter: e.RetryAfter,
		Body: errorBody{false, e.Code, e.Message, e.Code.Retryable(), e.Details}}
	if e.Code == envelope.CodeUnauthorized {
		a.Challenge = authScheme
	}
	return a, true
}

// Write sends the answer. It returns an error, and has written nothing, if Body cannot be encoded.
func (a ErrorAnswer) Write(w http.ResponseWriter) error {
	if a.Status == http.StatusTooManyRequests || a.Status == http.StatusServiceUnavailable {
		seconds := math.Ceil(max(a.RetryAfter, time.Second).Seconds())
		w.Header().Set("Retry-After", strconv.Itoa(int(seconds)))
	}
	if a.Challenge != "" {
		w.Header().Set("WWW-Authenticate", a.Challenge)
	}
	return WriteJSON(w, a.Status, a.Body)
}

// WriteJSON answers a request with this status and with v as JSON. If v cannot be encoded, it writes nothing and
// returns an error.
func WriteJSON(w http.ResponseWriter, status int, v any) error {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return err
	}
	write(w, status, body.Bytes())
	return nil
}

// write sends a complete JSON answer.
func write(w http.ResponseWriter, status int, body []byte) {
	SetHeader(w, contentJSON)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	send(w, body)
}

const contentJSON = "application/json"

// SetHeader sets the headers that all answers have, and the Content-Type. It gives the client 30 seconds to read what is
// written next, see ExtendWrite.
func SetHeader(w http.ResponseWriter, contentType string) {
	ExtendWrite(w)
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
}

// ExtendWrite gives the client 30 seconds from now to read what is written next. A handler that writes for longer calls
// it before each part. It has no effect on a ResponseWriter that cannot set deadlines, such as the recorder of
// httptest. Such a writer has no network connection, and so no slow client.
func ExtendWrite(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
}

// clearWriteDeadline removes the deadline that net/http has set when the request came. That deadline would end a long
// poll. It remains for the answers that net/http gives without calling a handler, such as 431. Without it, an HTTP/2
// client with a window of 0 could keep such an answer, and the request's headers, in memory for any time.
func clearWriteDeadline(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
}

// send writes the end of an answer and flushes it, so that the whole answer is sent when the handler returns. If that
// fails, the client has left, so the error is not reported.
func send(w http.ResponseWriter, body []byte) {
	if _, err := w.Write(body); err == nil {
		_ = http.NewResponseController(w).Flush()
	}
}

// sendBytes is how many bytes of a long answer are collected before they are sent.
const sendBytes = 64 << 10

// list is the JSON text before and after the elements of an answer's list.
type list struct{ head, tail string }

// answerEvents writes the events of d, and after them the members of last, which must be a JSON object.
func (a *api) answerEvents(w http.ResponseWriter, d relay.Delivery, last any) error {
	tail, err := json.Marshal(last)
	if err != nil {
		return err
	}
	l := list{head: `{"ok":true,"events":[`, tail: "]," + string(tail[1:]) + "\n"}
	a.answerList(w, l, elements(d.Pieces(), func(e relay.Event) []byte { return e.Body }))
	return nil
}

// elements yields the bytes of each element of the pieces. It ends after the first error.
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

// answerList writes a list of envelopes. It writes the canonical bytes that were signed, and never encodes them again.
// A long answer is sent in parts, without a Content-Length, so that only a part of it is in memory while a slow client
// reads.
func (a *api) answerList(w http.ResponseWriter, l list, envelopes iter.Seq2[[]byte, error]) {
	var body bytes.Buffer
	body.WriteString(l.head)
	begun, sent := false, false
	for envelope, err := range envelopes {
		if err != nil {
			a.log.Error("an answer was cut off because its next events cannot be read", "err", err)
			panic(http.ErrAbortHandler) // breaks the connection, so that the client does not take this for the whole answer
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
			ExtendWrite(w)
		} else {
			SetHeader(w, contentJSON)
			sent = true
		}
		if _, err := w.Write(body.Bytes()); err != nil {
			return // the client has left
		}
		body.Reset()
	}
	body.WriteString(l.tail)
	if sent {
		ExtendWrite(w)
		send(w, body.Bytes())
	} else {
		write(w, http.StatusOK, body.Bytes())
	}
}

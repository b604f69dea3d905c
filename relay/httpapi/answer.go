package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/agora-relay/agora/envelope"
)

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
	a := ErrorAnswer{Status: e.Code.Info().Status, RetryAfter: e.RetryAfter,
		Body: errorBody{false, e.Code, e.Message, e.Code.Retryable(), e.Details}}
	if e.Code == envelope.CodeUnauthorized {
		a.Challenge = authScheme
	}
	return a, true
}

// Write sends the answer. It returns an error, and has written nothing, if Body cannot be encoded.
func (a ErrorAnswer) Write(w http.ResponseWriter) error {
	if a.Status == http.StatusTooManyRequests || a.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", strconv.Itoa(wholeSeconds(max(a.RetryAfter, time.Second))))
	}
	if a.Challenge != "" {
		w.Header().Set("WWW-Authenticate", a.Challenge)
	}
	return WriteJSON(w, a.Status, a.Body)
}

// wholeSeconds returns d in seconds, rounded up.
func wholeSeconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }

// WriteJSON answers a request with this status and with v as JSON. If v cannot be encoded, it writes nothing and
// returns an error.
func WriteJSON(w http.ResponseWriter, status int, v any) error {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return err
	}
	write(w, status, contentJSON, body.Bytes())
	return nil
}

// write sends a complete JSON answer.
func write(w http.ResponseWriter, status int, contentType string, body []byte) {
	SetHeader(w, contentType)
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

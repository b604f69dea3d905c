package wire

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// A relay may be hostile, or an impostor may answer instead of it. So the client bounds each response before it reads
// the response: the size of the headers, the size of the body, the number of events, and the size of each event. The
// client reads lists one element at a time, because a decoded list takes many times as much memory as its JSON text.
// It rejects compressed responses, because a small one could become very large when it is decompressed.

// Bounds of a response, in bytes. The caller sets that of the body, see Spec.
const (
	MaxHeaders   = 64 << 10
	MaxShort     = 64 << 10  // an error response, a receipt, the answer of /health
	MaxDocument  = 256 << 10 // the well-known document
	MaxDirectory = 8 << 20   // a page of agents (relays end a page at 256 KiB), or all manifests of one agent
	MaxPage      = 32 << 20  // a page of events (relays end a page at 4 MiB), or a thread (it may have 100 offers)
	maxElement   = 4 << 20   // one element of a list
	maxEvent     = 1 << 20   // an event; a larger event is skipped
	maxRest      = 512 << 10 // all members of a response except its list
	maxText      = 1 << 10   // a text of the relay that goes into an error, or a version; the rest is cut off
)

// How many elements a list may have.
const (
	MaxRows       = 1000    // agents in a page; manifests of one agent
	MaxThread     = 10_000  // events of a thread
	MaxSinceBatch = 100_000 // events in a response to a read with since; it may exceed the limit (PROTOCOL §7)
)

// ErrTooLong is the error of a response that exceeds a bound.
var ErrTooLong = errors.New("the response is too long")

// transport returns the transport of all clients for which none is given. They share it, so they share connections.
var transport = sync.OnceValue(func() http.RoundTripper {
	defaultTransport, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return http.DefaultTransport
	}
	clone := defaultTransport.Clone()
	clone.MaxResponseHeaderBytes = MaxHeaders
	return clone
})

// Spec says how to read a successful response.
type Spec struct {
	Out   any // the response is decoded into this
	Limit int // the largest size of the body, in bytes

	Status int     // the status of a successful response; 0: 200
	Text   *string // in place of Out: the body is a text, not JSON
	Sister bool    // it comes from the hub or from the registry of jobs, whose answers have other forms

	// ListName is the member of the response whose elements are passed to OnElement, one at a time, instead of being
	// decoded into Out. Empty: there is no such member. If the response turns out to be malformed, OnElement may have
	// been called already.
	ListName  string
	OnElement func(element []byte) error
}

// responseHead has the members that are common to all responses of a relay (PROTOCOL §5).
type responseHead struct {
	OK    bool          `json:"ok"`
	Error envelope.Code `json:"error"`
}

// refusal has the other members of a response that is not ok.
type refusal struct {
	Message string         `json:"message"`
	Details map[string]any `json:"details"`
}

// readResponse reads the response of the relay at base as spec says. It returns nil if the request succeeded.
func (s *Sender) readResponse(base string, response *http.Response, spec Spec) *Failure {
	header := response.Header
	failed := &Failure{Status: response.StatusCode, Challenged: challenge(header), RetryAfter: s.retryAfter(header)}
	if encoding := header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		failed.Err = fmt.Errorf("the response is compressed (%s), although the request does not allow that",
			Shorten(encoding))
		return failed
	}
	success := spec.success(response.StatusCode)
	if response.StatusCode != success {
		spec = Spec{Limit: MaxShort, Out: new(struct{}), Sister: spec.Sister}
	}
	body := &limitedReader{r: response.Body, total: spec.Limit, left: spec.Limit}
	text, err := spec.readObject(body)
	if body.err != nil {
		// A failure without a status: a response that cannot be read counts as no response.
		return &Failure{Err: fmt.Errorf("reading the response: %w", body.err)}
	}
	if errors.Is(err, ErrTooLong) {
		failed.Err = err
		return failed
	}
	if spec.Text != nil && err == nil {
		*spec.Text = string(text)
		return nil
	}
	if spec.Sister && err == nil {
		if failed.Err = readSister(text, response, success, spec.Out); failed.Err == nil {
			return nil
		}
		return failed
	}
	var head responseHead
	var refused refusal
	if err == nil {
		err = json.Unmarshal(text, &head)
	}
	if err == nil && !head.OK {
		err = json.Unmarshal(text, &refused)
	}
	switch {
	case err != nil || !head.OK && head.Error == "":
		failed.Err = fmt.Errorf("%s answered with status %s and a body that is not from an Agora relay; check its URL",
			base, Shorten(response.Status))
	case !head.OK:
		failed.Err = &envelope.Error{Code: envelope.Code(Shorten(string(head.Error))), Message: Shorten(refused.Message),
			Details: refused.Details, RetryAfter: failed.RetryAfter}
	case response.StatusCode != success:
		failed.Err = fmt.Errorf("the relay's response says ok, but has the status %s", Shorten(response.Status))
	default:
		if failed.Err = json.Unmarshal(text, spec.Out); failed.Err == nil {
			return nil
		}
	}
	return failed
}

// success returns the status that an answer must have.
func (s Spec) success(status int) int {
	if s.Sister && status == http.StatusCreated {
		return status // the hub has 201 for a new agent, and 200 for a known one
	}
	return cmp.Or(s.Status, http.StatusOK)
}

// readSister decodes an answer of the hub or of the registry of jobs. It returns the refusal unless it has the status of a
// success.
func readSister(text []byte, response *http.Response, success int, out any) error {
	if response.StatusCode != success {
		return sisterRefusal(text, response.Status)
	}
	return json.Unmarshal(text, out)
}

// sisterRefusal returns the refusal of the hub or of the registry of jobs. The hub has its details in error, the registry
// beside detail (GATEWAYS §4). Without a code, the refusal gets the number of the
// status.
func sisterRefusal(text []byte, status string) error {
	var body struct {
		Error     map[string]any
		Detail    json.RawMessage // a text, or a list of what is wrong
		ErrorCode string          `json:"error_code"`
	}
	var beside map[string]any
	number, _, _ := strings.Cut(status, " ")
	if err := errors.Join(json.Unmarshal(text, &body), json.Unmarshal(text, &beside)); err != nil {
		return fmt.Errorf("the status is %s, and the body is not a refusal of a gateway", Shorten(status))
	}
	if body.Error != nil {
		code, _ := body.Error["code"].(string)
		message, _ := body.Error["message"].(string)
		return &envelope.Error{Code: envelope.Code(Shorten(cmp.Or(code, number))), Message: Shorten(message), Details: body.Error}
	}
	var message string
	var fields []struct{ Msg string }
	if json.Unmarshal(body.Detail, &message) != nil && json.Unmarshal(body.Detail, &fields) == nil {
		for _, field := range fields {
			message += field.Msg + "; "
		}
		message = strings.TrimSuffix(message, "; ")
	}
	return &envelope.Error{Code: envelope.Code(Shorten(cmp.Or(body.ErrorCode, number))), Message: Shorten(message), Details: beside}
}

// readObject returns the text of the body without its list. Errors: ErrTooLong; errors of reading the body, which are
// also in body.err; errors about malformed JSON.
func (s Spec) readObject(body *limitedReader) ([]byte, error) {
	if s.ListName == "" {
		return io.ReadAll(body)
	}
	return splitList(body, s.ListName, s.OnElement)
}

// splitList reads a JSON object from body. It passes each element of the member listName to onElement, and returns the
// text of the object without that member.
func splitList(body *limitedReader, listName string, onElement func(element []byte) error) ([]byte, error) {
	decoder := json.NewDecoder(body)
	body.allow(maxRest)
	if err := expect(decoder, '{'); err != nil {
		return nil, err
	}
	rest := []byte{'{'}
	for decoder.More() {
		body.allow(maxRest)
		name, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		if name == listName {
			if err := readList(decoder, body, onElement); err != nil {
				return nil, err
			}
			continue
		}
		member, err := json.Marshal(name)
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, err
		}
		if len(rest)+len(member)+len(value) > maxRest {
			return nil, ErrTooLong
		}
		if len(rest) > 1 {
			rest = append(rest, ',')
		}
		rest = append(append(append(rest, member...), ':'), value...)
	}
	body.allow(maxRest)
	if err := expect(decoder, '}'); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, errors.Join(errors.New("there is more text after the JSON object"), err)
	}
	return append(rest, '}'), nil
}

// readList reads a JSON array, or null, and passes each element of the array to onElement.
func readList(decoder *json.Decoder, body *limitedReader, onElement func(element []byte) error) error {
	switch token, err := decoder.Token(); {
	case err != nil:
		return err
	case token == nil: // null
		return nil
	case token != json.Delim('['):
		return fmt.Errorf("found %v, want a JSON array", token)
	}
	for decoder.More() {
		body.allow(maxElement)
		var element json.RawMessage
		if err := decoder.Decode(&element); err != nil {
			return err
		}
		if err := onElement(element); err != nil {
			return err
		}
	}
	return expect(decoder, ']')
}

// expect reads the next token and returns an error unless it is want.
func expect(decoder *json.Decoder, want json.Delim) error {
	token, err := decoder.Token()
	if err == nil && token != want {
		err = fmt.Errorf("found %v, want %v", token, want)
	}
	return err
}

// limitedReader limits how many bytes are read from r: in total, and since the last call of allow.
type limitedReader struct {
	r           io.Reader
	total, left int   // how many bytes may still be read: in total, and until the next call of allow
	err         error // the last error of r other than io.EOF
}

// allow permits the next n bytes, but no more than the total.
func (m *limitedReader) allow(n int) { m.left = min(n, m.total) }

// Read reads from r. It returns ErrTooLong if r has more bytes than are permitted.
func (m *limitedReader) Read(p []byte) (int, error) {
	if m.left <= 0 { // the body may end exactly here
		var one [1]byte
		if n, err := m.r.Read(one[:]); n == 0 && err == io.EOF {
			return 0, io.EOF
		}
		return 0, ErrTooLong
	}
	n, err := m.r.Read(p[:min(len(p), m.left)])
	m.total -= n
	m.left -= n
	if err != nil && err != io.EOF {
		m.err = err
	}
	return n, err
}

// Events collects the events of a response.
type Events struct {
	Limit    int                  // the largest allowed number of events
	Received int                  // the number of events that were received
	Valid    []*envelope.Envelope // the events that parse and verify
	invalid  int                  // the number of the other events
	firstErr error                // what is wrong with the first invalid event
}

// Add parses and verifies one event. It is used as Spec.OnElement.
func (e *Events) Add(text []byte) error {
	if e.Received++; e.Received > e.Limit {
		return fmt.Errorf("%w: more than %d events", ErrTooLong, e.Limit)
	}
	event, err := ParseVerified(text)
	if err == nil {
		e.Valid = append(e.Valid, event)
		return nil
	}
	if e.invalid++; e.invalid == 1 {
		e.firstErr = err
	}
	return nil
}

// Log logs the number of invalid events.
func (e *Events) Log(log *slog.Logger) {
	if e.invalid > 0 {
		log.Warn("events were skipped because they are invalid", "events", e.invalid, "first", e.firstErr)
	}
}

// Page is the response to a read of events (PROTOCOL §5).
type Page struct {
	Cursor  string `json:"cursor"`
	HasMore bool   `json:"hasMore"`
	Events  `json:"-"`
}

// Spec says how to read the response into p.
func (p *Page) Spec() Spec {
	return Spec{Out: p, Limit: MaxPage, ListName: "events", OnElement: p.Add}
}

// ParseVerified parses and verifies a delivered envelope. It accepts envelopes of up to maxEvent bytes, because a relay
// may accept larger envelopes than envelope.DefaultMaxBytes.
func ParseVerified(text []byte) (*envelope.Envelope, error) {
	e, err := envelope.Parse(text, maxEvent)
	if err != nil {
		return nil, err
	}
	return e, e.Verify()
}

// Shorten cuts a text of the relay to maxText bytes and removes invalid UTF-8.
func Shorten(message string) string {
	return strings.ToValidUTF8(message[:min(len(message), maxText)], "")
}

// maxRetryAfter is the longest accepted Retry-After.
const maxRetryAfter = math.MaxInt32 * time.Second

// retryAfter returns the delay from the header Retry-After, which has seconds or a date (RFC 9110 §10.2.3). It returns
// 0 if the header is absent, malformed or in the past. The longest delay is maxRetryAfter.
func (s *Sender) retryAfter(header http.Header) time.Duration {
	text := header.Get("Retry-After")
	if seconds, err := strconv.Atoi(text); err == nil {
		return time.Duration(min(max(seconds, 0), math.MaxInt32)) * time.Second
	}
	if date, err := http.ParseTime(text); err == nil {
		return min(max(date.Sub(s.now()), 0), maxRetryAfter)
	}
	return 0
}

// SplitList does the same as splitList, for a JSON object that is already in memory.
func SplitList(text []byte, listName string, onElement func(element []byte) error) ([]byte, error) {
	return splitList(&limitedReader{r: bytes.NewReader(text), total: len(text)}, listName, onElement)
}

package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// A relay may be hostile, or someone else may answer in its place. So each answer is bounded before it is read: its
// headers, its bytes, the number of its events, and the size of each. Lists are read one element at a time, because a
// list in memory is many times as large as its text. No answer is compressed: a small one could grow without end.

// Bounds of an answer, in bytes.
const (
	maxHeaders   = 64 << 10
	maxShort     = 64 << 10  // a refusal, a receipt
	maxDocument  = 256 << 10 // the well-known document
	maxDirectory = 8 << 20   // a page of agents, which a relay ends at 256 KiB; or all manifests of one agent
	maxPage      = 32 << 20  // a page of events, which ends at 4 MiB, or a thread, which may hold 100 offers
	maxElement   = 4 << 20   // an element of a list
	maxEvent     = 1 << 20   // an event that is parsed; a larger one is left out
	maxRest      = 512 << 10 // what an answer holds besides its list
	maxText      = 1 << 10   // a message of the relay; the rest is cut off
)

// How many elements a list may have.
const (
	maxRows       = 1000    // agents in a page, and events in the answer to a poll that sets no limit
	maxThread     = 10_000  // events of a thread
	maxSinceBatch = 100_000 // events after a time; a relay may have to exceed the limit there (PROTOCOL §7)
)

var errTooLong = errors.New("the answer is too long")

// transport is shared by all clients that were not given one, so that they also share connections.
var transport = sync.OnceValue(func() http.RoundTripper {
	shared, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return http.DefaultTransport
	}
	own := shared.Clone()
	own.MaxResponseHeaderBytes = maxHeaders
	return own
})

// reply says how to read a successful answer.
type reply struct {
	out   any // what the answer is decoded into
	limit int // bytes of the whole answer

	present bool // sign the read also at an open relay, where that only shows that the reader is online

	// list names the member whose elements are passed to take, one at a time, instead of being decoded into out. Empty:
	// the answer has no such member. take may have been called before the answer turns out to be broken.
	list string
	take func(element []byte) error
}

// answer is what every answer of a relay has (PROTOCOL §5).
type answer struct {
	OK      bool           `json:"ok"`
	Error   envelope.Code  `json:"error"`
	Message string         `json:"message"`
	Details map[string]any `json:"details"`
}

// answer reads the answer of the relay at base. It returns nil if the answer is a success.
func (c *Client) answer(base string, response *http.Response, good reply) *failure {
	header := response.Header
	failed := &failure{status: response.StatusCode, challenged: challenge(header), retryAfter: c.retryAfter(header)}
	if coding := header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		failed.err = fmt.Errorf("the answer is compressed (%s), which was not asked for", shorten(coding))
		return failed
	}
	if response.StatusCode != http.StatusOK {
		good = reply{limit: maxShort, out: new(struct{})}
	}
	body := &meter{r: response.Body, whole: good.limit, left: good.limit}
	text, err := good.text(body)
	if body.err != nil {
		return &failure{err: fmt.Errorf("reading the answer: %w", body.err)} // no status: the same as no answer
	}
	if errors.Is(err, errTooLong) {
		failed.err = err
		return failed
	}
	var head answer
	if err == nil {
		err = json.Unmarshal(text, &head)
	}
	switch {
	case err != nil || !head.OK && head.Error == "":
		failed.err = fmt.Errorf("%s gave %s, which is not an answer of an Agora relay; check its URL",
			base, shorten(response.Status))
	case !head.OK:
		failed.err = &envelope.Error{Code: envelope.Code(shorten(string(head.Error))), Message: shorten(head.Message),
			Details: head.Details, RetryAfter: failed.retryAfter}
	case response.StatusCode != http.StatusOK:
		failed.err = fmt.Errorf("the relay says ok with status %s", shorten(response.Status))
	default:
		if failed.err = json.Unmarshal(text, good.out); failed.err == nil {
			return nil
		}
	}
	return failed
}

// text returns the answer as one JSON object, without its list.
// Errors: errTooLong; any other error means that the answer is not a JSON object.
func (g reply) text(body *meter) ([]byte, error) {
	if g.list == "" {
		return io.ReadAll(body)
	}
	return split(body, g.list, g.take)
}

// split reads a JSON object. It gives each element of the list to take and returns the object without the list.
func split(body *meter, list string, take func(element []byte) error) ([]byte, error) {
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
		if name == list {
			if err := elements(decoder, body, take); err != nil {
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
			return nil, errTooLong
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
		return nil, errors.Join(errors.New("there is more text after the answer"), err)
	}
	return append(rest, '}'), nil
}

// elements reads an array and passes each element to take.
func elements(decoder *json.Decoder, body *meter, take func(element []byte) error) error {
	switch token, err := decoder.Token(); {
	case err != nil:
		return err
	case token == nil: // null
		return nil
	case token != json.Delim('['):
		return fmt.Errorf("%v where a list was expected", token)
	}
	for decoder.More() {
		body.allow(maxElement)
		var element json.RawMessage
		if err := decoder.Decode(&element); err != nil {
			return err
		}
		if err := take(element); err != nil {
			return err
		}
	}
	return expect(decoder, ']')
}

func expect(decoder *json.Decoder, want json.Delim) error {
	token, err := decoder.Token()
	if err == nil && token != want {
		err = fmt.Errorf("%v where %v was expected", token, want)
	}
	return err
}

// meter limits how many bytes of an answer are read: in total, and since the last call of allow.
type meter struct {
	r           io.Reader
	whole, left int
	err         error // an error of r other than io.EOF
}

// allow permits the next n bytes, within the total.
func (m *meter) allow(n int) { m.left = min(n, m.whole) }

func (m *meter) Read(p []byte) (int, error) {
	if m.left <= 0 { // the answer may end exactly here
		var one [1]byte
		if n, err := m.r.Read(one[:]); n == 0 && err == io.EOF {
			return 0, io.EOF
		}
		return 0, errTooLong
	}
	n, err := m.r.Read(p[:min(len(p), m.left)])
	m.whole -= n
	m.left -= n
	if err != nil && err != io.EOF {
		m.err = err
	}
	return n, err
}

// envelopes collects the events of an answer.
type envelopes struct {
	most  int                  // the highest allowed number of events
	count int                  // how many were received
	good  []*envelope.Envelope // those that verify
	bad   int                  // how many do not verify
	why   error                // why the first of those does not
}

// take parses and verifies one event. It is used as reply.take.
func (e *envelopes) take(text []byte) error {
	if e.count++; e.count > e.most {
		return fmt.Errorf("%w: more than %d events", errTooLong, e.most)
	}
	event, err := verified(text)
	if err == nil {
		e.good = append(e.good, event)
		return nil
	}
	if e.bad++; e.bad == 1 {
		e.why = err
	}
	return nil
}

// log reports the events that were left out.
func (e *envelopes) log(c *Client) {
	if e.bad > 0 {
		c.log.Warn("events were left out: they do not verify", "events", e.bad, "first", e.why)
	}
}

// verified parses and verifies a delivered envelope. It accepts larger ones than the protocol's default, as a relay
// may.
func verified(text []byte) (*envelope.Envelope, error) {
	e, err := envelope.Parse(text, maxEvent)
	if err != nil {
		return nil, err
	}
	return e, e.Verify()
}

// shorten cuts a relay's text to maxText bytes.
func shorten(message string) string {
	return strings.ToValidUTF8(message[:min(len(message), maxText)], "")
}

// maxRetryAfter is the longest accepted Retry-After.
const maxRetryAfter = math.MaxInt32 * time.Second

// retryAfter reads Retry-After, seconds or a date (RFC 9110 §10.2.3); 0 if there is none.
func (c *Client) retryAfter(header http.Header) time.Duration {
	text := header.Get("Retry-After")
	if seconds, err := strconv.Atoi(text); err == nil {
		return time.Duration(min(max(seconds, 0), math.MaxInt32)) * time.Second
	}
	if date, err := http.ParseTime(text); err == nil {
		return min(max(date.Sub(c.now()), 0), maxRetryAfter)
	}
	return 0
}

// retryAfter returns how long a refusal asks to wait; 0: it does not say.
func retryAfter(err error) time.Duration {
	refusal, ok := errors.AsType[*envelope.Error](err)
	if !ok {
		return 0
	}
	return refusal.RetryAfter
}

// members is split for a JSON object that is already in memory.
func members(text []byte, list string, take func(element []byte) error) ([]byte, error) {
	return split(&meter{r: bytes.NewReader(text), whole: len(text)}, list, take)
}

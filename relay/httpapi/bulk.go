package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
)

// This file answers POST /events/bulk (PROTOCOL §5, "Posting many messages").

// bulkResult is the result of one stored line, see bulkError for the others.
type bulkResult struct {
	ID        string    `json:"id"`
	Duplicate bool      `json:"duplicate"`
	ExpiresAt time.Time `json:"expiresAt"`
	Proof     string    `json:"proof,omitempty"`
}

// bulkError says why a line was refused, or why a bulk request has stopped.
type bulkError struct {
	Error      envelope.Code  `json:"error"`
	Message    string         `json:"message"`
	RetryAfter int            `json:"retryAfter,omitempty"` // in seconds, as in the header Retry-After
	Details    map[string]any `json:"details,omitempty"`
}

func (a *api) postBulk(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	p, err := parseParams(r, "proofs")
	if err != nil {
		return err
	}
	proofs, _, err := p.bool("proofs")
	if err != nil {
		return err
	}
	if err := checkPlain(r); err != nil {
		return err
	}
	lines := newBodyLines(w, r, a.relay.MaxBody())
	var results bulkResults
	// If the client closes its side of the connection now, what it has sent is stored nevertheless.
	begun, stopped := a.relay.PostAll(context.WithoutCancel(r.Context()), from, lines, func(o relay.Outcome) {
		if o.Err != nil {
			results.add(a.bulkError(o.Err))
		} else {
			if proofs {
				a.relay.Prove(&o.Receipt)
			}
			results.add(bulkResult{o.Receipt.ID, o.Receipt.Duplicate, o.Receipt.ExpiresAt.UTC(), o.Receipt.Proof})
		}
	})
	if !begun {
		return stopped
	}
	tail := "]}\n"
	if lines.stopped {
		// net/http notices by a read that the client leaves. The deadline may have ended that read too. net/http would
		// then end all later requests on the connection.
		w.Header().Set("Connection", "close")
	}
	if stopped != nil {
		reason, err := json.Marshal(a.bulkError(stopped))
		if err != nil {
			return err
		}
		tail = `],"stopped":` + string(reason) + "}\n"
		lines.drop(a.relay.Gate(), from)
	}
	return WriteList(w, List{Head: `{"ok":true,"results":[`, Elements: results.parts, Tail: func() string { return tail }})
}

// bulkError returns the text of an error. An internal error is logged, and the client only learns that there was one.
func (a *api) bulkError(err error) bulkError {
	e, ok := errors.AsType[*envelope.Error](err)
	if !ok {
		a.log.Error("a line of a bulk request failed", "err", err)
		e = envelope.Errorf(envelope.CodeInternal, "the relay could not store this message; the reason is in its log")
	}
	return bulkError{e.Code, e.Message, wholeSeconds(e.RetryAfter), e.Details}
}

// bulkResults are results as JSON, with commas between them, in parts of about sendBytes.
type bulkResults struct{ list []*bytes.Buffer }

func (b *bulkResults) add(result any) {
	n := len(b.list)
	if n == 0 || b.list[n-1].Len() >= sendBytes {
		b.list, n = append(b.list, new(bytes.Buffer)), n+1
	}
	part := b.list[n-1]
	if part.Len() > 0 {
		part.WriteByte(',')
	}
	encoder := json.NewEncoder(part)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(result); err != nil {
		panic(err) // a result has only texts, numbers and details, which are JSON
	}
	part.Truncate(part.Len() - 1) // the line break
}

// parts is the Elements of a List.
func (b *bulkResults) parts(yield func([]byte, error) bool) {
	for _, part := range b.list {
		if !yield(part.Bytes(), nil) {
			return
		}
	}
}

// bodyLines reads the lines of a request. It implements relay.Lines.
type bodyLines struct {
	body    io.ReadCloser
	buffer  *bufio.Reader
	control *http.ResponseController
	limit   int // the longest line, in bytes

	mu      sync.Mutex // for the deadline
	stopped bool       // Stop was called before the end
	ended   bool
}

func newBodyLines(w http.ResponseWriter, r *http.Request, limit int) *bodyLines {
	return &bodyLines{body: r.Body, buffer: bufio.NewReaderSize(r.Body, 64<<10), control: http.NewResponseController(w),
		limit: limit}
}

// Next implements relay.Lines. Refusals: CodePayloadTooLarge for a line that is too long, CodeInvalidRequest for a body
// that ends early and after readTimeout without a line.
func (l *bodyLines) Next() ([]byte, error) {
	if buffered, _ := l.buffer.Peek(l.buffer.Buffered()); bytes.IndexByte(buffered, '\n') < 0 {
		l.setDeadline(time.Now().Add(readTimeout))
		// After the end of the body, net/http reads from the connection to learn whether the client is still there. A
		// deadline would end that.
		defer l.setDeadline(time.Time{})
	}
	var line []byte
	for {
		part, err := l.buffer.ReadSlice('\n')
		if line = append(line, part...); err == nil {
			line = line[:len(line)-1]
		}
		switch {
		case len(line) > l.limit:
			return nil, envelope.TooLarge(0, l.limit)
		case err == nil, err == io.EOF && len(line) > 0:
			return line, nil
		case err == io.EOF:
			l.setEnded()
			return nil, err
		case err != bufio.ErrBufferFull:
			return nil, errBodyEnded
		}
	}
}

// setDeadline sets the time until which reads wait. Zero: they wait for any time. A ResponseWriter without a network
// connection has no deadlines; its error does not matter.
func (l *bodyLines) setDeadline(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stopped {
		_ = l.control.SetReadDeadline(at)
	}
}

// setEnded notes that the body has ended.
func (l *bodyLines) setEnded() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
}

// Stop implements relay.Lines.
func (l *bodyLines) Stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.stopped = true
		_ = l.control.SetReadDeadline(time.Now())
	}
}

// droppedTime is how long the rest of a bulk request is read. A client that still sends when the server closes the
// connection would not get the answer.
const droppedTime = 2 * time.Second

// drop reads the rest of the body, up to the size of another bulk request. It charges the address for it.
func (l *bodyLines) drop(gate *admission.Gate, from relay.Peer) {
	l.setDeadline(time.Now().Add(droppedTime))
	defer l.setDeadline(time.Time{})
	for range relay.MaxBulkBytes / admission.TrafficUnit {
		_, err := io.CopyN(io.Discard, l.body, admission.TrafficUnit)
		if err != nil || gate.ChargeTraffic(from, 1) != nil {
			return
		}
	}
}

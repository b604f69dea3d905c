package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// Limits of the answers of a peer.
const (
	pollWait    = 30 * time.Second // how long the peer may wait for messages
	answerTime  = 15 * time.Second // how long an answer may take, without pollWait
	maxAnswer   = 8 << 20          // bytes; relays end a page at 4 MiB
	maxDocument = 256 << 10        // bytes
	maxCursor   = 256              // bytes
)

// first is the cursor before all messages.
const first = "0"

// errUnknownCursor is the error of poll if the peer has another database than before.
var errUnknownCursor = errors.New("the other relay does not know the cursor")

// answer is a page of the peer's messages.
type answer struct {
	events [][]byte // at most batch; a message that is too large to be copied is nil
	cursor string   // after the last one
}

// meet reads the well-known document of the peer. The document must have the DID that the operator has given with
// --mirror (RELAYS R-20).
func (p *peer) meet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var document struct {
		DID   didkey.DID       `json:"did"`
		Reads relay.Visibility `json:"reads"`
	}
	err := p.get(ctx, "/.well-known/agora.json", false, maxDocument, func(body io.Reader) error {
		return json.NewDecoder(body).Decode(&document)
	})
	if err != nil {
		return fmt.Errorf("the document of the relay: %w", err)
	}
	if document.DID != p.DID {
		return fmt.Errorf("the relay at this URL is %.100q; correct the DID or the URL of --mirror", document.DID)
	}
	p.met, p.signed = time.Now(), document.Reads == relay.ToParties
	return nil
}

// poll asks for the messages after cursor, and waits for them.
func (p *peer) poll(ctx context.Context, cursor string) (a answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, pollWait+answerTime)
	defer cancel()
	query := url.Values{"cursor": {cursor}, "recipient": {string(p.relay.DID())}, "broadcast": {"true"},
		"timeout": {strconv.Itoa(int(pollWait.Seconds()))}, "limit": {strconv.Itoa(batch)}}
	err = p.get(ctx, "/events?"+query.Encode(), p.signed, maxAnswer, a.read)
	return a, err
}

// read reads a page of events member by member, so that it never holds more than one message that is too large.
func (a *answer) read(body io.Reader) error {
	d := json.NewDecoder(body)
	if err := expect(d, '{'); err != nil {
		return err
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		switch name {
		case "events":
			err = a.readEvents(d)
		case "cursor":
			err = d.Decode(&a.cursor)
		default:
			err = d.Decode(new(json.RawMessage))
		}
		if err != nil {
			return err
		}
	}
	if !validCursor(a.cursor) {
		return errors.New("the answer has no cursor")
	}
	return expect(d, '}')
}

func (a *answer) readEvents(d *json.Decoder) error {
	if err := expect(d, '['); err != nil {
		return err
	}
	for d.More() {
		if len(a.events) == batch {
			return fmt.Errorf("the answer has more than %d events", batch)
		}
		var body json.RawMessage
		if err := d.Decode(&body); err != nil {
			return err
		}
		if len(body) > relay.MaxMirrored {
			body = nil
		}
		a.events = append(a.events, body)
	}
	return expect(d, ']')
}

// expect reads a delimiter.
func expect(d *json.Decoder, want json.Delim) error {
	token, err := d.Token()
	if err == nil && token != want {
		err = errors.New("the answer is not a page of events")
	}
	return err
}

// validCursor reports whether a cursor may be stored and sent.
func validCursor(text string) bool {
	if text == "" || len(text) > maxCursor {
		return false
	}
	for _, c := range []byte(text) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}

// get sends a GET and passes the body of a good answer to read, at most limit bytes of it. Other answers are errors.
func (p *peer) get(ctx context.Context, target string, signed bool, limit int64,
	read func(io.Reader) error) (err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+target, nil)
	if err != nil {
		return err
	}
	if signed {
		token, err := p.token(request.URL.RequestURI())
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Agora "+token)
	}
	response, err := p.http.Do(request)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	body := &io.LimitedReader{R: response.Body, N: limit}
	if response.StatusCode == http.StatusOK {
		if err = read(body); err != nil && body.N <= 0 {
			err = fmt.Errorf("the answer has more than %d bytes", limit)
		}
		return err
	}
	var refusal struct {
		Error   string `json:"error"`
		Details struct {
			Reason string `json:"reason"`
		} `json:"details"`
	}
	// An answer that is not JSON is an answer without these members.
	_ = json.NewDecoder(body).Decode(&refusal)
	if refusal.Details.Reason == envelope.ReasonUnknownCursor {
		return errUnknownCursor
	}
	return fmt.Errorf("the relay answers with the status %d %.100q", response.StatusCode, refusal.Error)
}

// token returns a token for a read of target. Its audience is the origin that the operator has given, never one that
// the peer names: another relay must not accept it.
func (p *peer) token(target string) (string, error) {
	origin, err := relay.ParseOrigin(p.URL)
	if err != nil {
		return "", err
	}
	return envelope.Read{Audience: origin, Method: http.MethodGet, Target: target, TS: p.relay.Now()}.Sign(p.key)
}

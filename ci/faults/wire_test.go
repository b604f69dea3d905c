package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// answer has the members of all kinds of answers. Missing members are zero.
type answer struct {
	status     int
	retryAfter string

	OK        bool              `json:"ok"`
	Error     envelope.Code     `json:"error"`
	Message   string            `json:"message"`
	Retryable bool              `json:"retryable"`
	ID        string            `json:"id"`
	Cursor    string            `json:"cursor"`
	Duplicate bool              `json:"duplicate"`
	ExpiresAt time.Time         `json:"expiresAt"`
	Events    []json.RawMessage `json:"events"`
	HasMore   bool              `json:"hasMore"`
	Thread    thread.Thread     `json:"thread"`
	Results   []json.RawMessage `json:"results"` // of a bulk request
}

func (a answer) String() string { return fmt.Sprintf("%d %s %q", a.status, a.Error, a.Message) }

// connections is the HTTP client of all tests. A restarted relay listens at another address.
var connections = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

const forwardedFor = "X-Forwarded-For"

const exchangeTimeout = 40 * time.Second

// exchange sends one request. It returns an error if no complete answer came.
func exchange(ctx context.Context, method, target string, body []byte) (a answer, err error) {
	return exchangeFrom(ctx, "", method, target, body)
}

// exchangeFrom is exchange with the header of a trusted proxy, for a client with this address. If address is empty, the
// request has no such header.
func exchangeFrom(ctx context.Context, address, method, target string, body []byte) (a answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if address != "" {
		request.Header.Set(forwardedFor, address)
	}
	response, err := connections.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{}, err
	}
	a.status, a.retryAfter = response.StatusCode, response.Header.Get("Retry-After")
	if err := json.Unmarshal(text, &a); err != nil {
		return answer{}, fmt.Errorf("%s %s: status %d with a body that is not JSON: %w", method, target, a.status, err)
	}
	if a.OK != (a.status == http.StatusOK) {
		return answer{}, fmt.Errorf("%s %s: status %d with ok=%t", method, target, a.status, a.OK)
	}
	return a, nil
}

func post(ctx context.Context, relay string, e *envelope.Envelope) (answer, error) {
	a, err := exchange(ctx, http.MethodPost, relay+"/events", e.Canonical())
	if err == nil && a.OK && a.ID != e.ID {
		err = fmt.Errorf("the receipt for message %s has the id %s", e.ID, a.ID)
	}
	return a, err
}

// postBulk posts envelopes in one bulk request. It returns the results of the first ones, as answers to posts.
func postBulk(ctx context.Context, relay string, all []*envelope.Envelope) (results []answer, err error) {
	var body []byte
	for _, e := range all {
		body = append(append(body, e.Canonical()...), '\n')
	}
	a, err := exchange(ctx, http.MethodPost, relay+"/events/bulk", body)
	for i, text := range a.Results {
		result := answer{status: http.StatusOK}
		if err = json.Unmarshal(text, &result); err != nil {
			return nil, err
		}
		if result.OK = result.Error == ""; result.OK && result.ID != all[i].ID {
			return nil, fmt.Errorf("the receipt for line %d, message %s, has the id %s", i+1, all[i].ID, result.ID)
		}
		results = append(results, result)
	}
	return results, err
}

func poll(ctx context.Context, relay string, q url.Values) (answer, error) {
	return exchange(ctx, http.MethodGet, relay+"/events?"+q.Encode(), nil)
}

// ask sends one request to a relay that must be running.
func (s *server) ask(method, path string, body []byte) answer {
	s.t.Helper()
	a, err := s.tryAsk(method, path, body)
	must(s.t, err)
	return a
}

func (s *server) tryAsk(method, path string, body []byte) (answer, error) {
	relay, err := s.address(context.Background())
	if err != nil {
		return answer{}, err
	}
	return exchange(context.Background(), method, relay+path, body)
}

// mustAccept posts an envelope that the relay must accept, and returns the receipt.
func (s *server) mustAccept(e *envelope.Envelope) answer {
	s.t.Helper()
	a := s.ask(http.MethodPost, "/events", e.Canonical())
	if !a.OK {
		s.t.Fatalf("a valid message was refused: %s", a)
	}
	return a
}

// stored returns all unexpired events after a cursor, in the order of the relay, and the cursor after them.
func (s *server) stored(cursor string) (events []*envelope.Envelope, end string) {
	s.t.Helper()
	for {
		a := s.ask(http.MethodGet, "/events?limit=1000&timeout=0&cursor="+url.QueryEscape(cursor), nil)
		if !a.OK {
			s.t.Fatalf("a read of all events was refused: %s", a)
		}
		for _, text := range a.Events {
			events = append(events, parse(s.t, text))
		}
		cursor = a.Cursor
		if len(a.Events) == 0 {
			return events, cursor
		}
	}
}

// parse returns a delivered envelope. The envelope must be well-formed and its signature must verify.
func parse(t testing.TB, text []byte) *envelope.Envelope {
	e, err := envelope.Parse(text, 0)
	if err == nil {
		err = e.Verify()
	}
	if err != nil {
		t.Errorf("the relay delivers an invalid envelope: %v", err)
		return &envelope.Envelope{}
	}
	return e
}

func newKey(t testing.TB) didkey.Key {
	t.Helper()
	k, err := didkey.Generate()
	must(t, err)
	return k
}

func newKeys(t testing.TB, n int) []didkey.Key {
	t.Helper()
	keys := make([]didkey.Key, n)
	for i := range keys {
		keys[i] = newKey(t)
	}
	return keys
}

// request returns a signed REQUEST that opens a thread. Its payload has about size bytes.
func request(t testing.TB, from didkey.Key, to didkey.DID, ttl time.Duration, size int) *envelope.Envelope {
	t.Helper()
	params, err := json.Marshal(string(bytes.Repeat([]byte{'x'}, size)))
	must(t, err)
	e, err := envelope.Draft{
		Recipient: to,
		TTL:       ttl,
		Payload:   envelope.Request{Intent: "echo", Params: params},
	}.Sign(from, time.Now())
	must(t, err)
	return e
}

func values(pairs ...string) url.Values {
	v := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		v.Set(pairs[i], pairs[i+1])
	}
	return v
}

package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
)

// proving is a relay with a log whose answers a test can change.
type proving struct {
	*testing.T
	relay *realRelay

	mu    sync.Mutex
	spoil map[string]func(body string) (string, int) // by the path of the request; the result has the new status, 0: 200
	reads int                                        // of /proofs
}

func newProving(t *testing.T) *proving {
	t.Helper()
	r, err := newRealRelay(relay.ToAll, func(c *relay.Config) { c.Transparency = true })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return &proving{T: t, relay: r, spoil: map[string]func(string) (string, int){}}
}

// RoundTrip implements http.RoundTripper.
func (p *proving) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.URL.Path == "/proofs" {
		p.reads++
	}
	change := p.spoil[r.URL.Path]
	if change == nil {
		return response, nil
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, errors.Join(err, response.Body.Close())
	}
	text, status := change(string(body))
	if status != 0 {
		response.StatusCode = status
	}
	response.ContentLength, response.Body = int64(len(text)), struct {
		io.Reader
		io.Closer
	}{bytes.NewReader([]byte(text)), response.Body}
	response.Header.Del("Content-Length")
	return response, nil
}

// set changes the answers to requests with a path; nil: no more.
func (p *proving) set(path string, change func(string) (string, int)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spoil[path] = change
}

// proofsRead returns how often /proofs was read since the last call.
func (p *proving) proofsRead() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.reads
	p.reads = 0
	return n
}

func (p *proving) client(mode client.Proofs) *client.Client {
	p.Helper()
	key, err := didkey.Generate()
	if err != nil {
		p.Fatal(err)
	}
	c, err := client.New(p.relay.URL, key, client.Options{HTTPClient: &http.Client{Transport: p}, Proofs: mode, Attempts: 2})
	if err != nil {
		p.Fatal(err)
	}
	return c
}

// Changes of answers.
func otherIndex(body string) (string, int) {
	return regexp.MustCompile(`index \d+`).ReplaceAllString(body, "index 0"), 0
}

func noProof(body string) (string, int) {
	begin := strings.Index(body, `,"proof":"`)
	if begin < 0 {
		return body, 0
	}
	end := begin + len(`,"proof":"`) + strings.Index(body[begin+len(`,"proof":"`):], `"`) + 1
	return body[:begin] + body[end:], 0
}

func notFound(string) (string, int) {
	return `{"ok":false,"error":"NOT_FOUND","message":"no"}`, http.StatusNotFound
}

func broken(string) (string, int) {
	return `{"ok":false,"error":"UNAVAILABLE","message":"no"}`, http.StatusServiceUnavailable
}

// askOnce asks for the service x and accepts the first offer.
func askOnce(ctx context.Context, c *client.Client) (*client.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	call, err := c.Request(ctx, client.RequestOptions{Intent: "x"})
	if err != nil {
		return nil, err
	}
	for offer, err := range call.Offers(ctx) {
		if err != nil {
			return nil, err
		}
		if err := call.Accept(ctx, offer); err != nil {
			return nil, err
		}
		break
	}
	return call.Result(ctx)
}

var requestDraft = envelope.Draft{Payload: envelope.Request{Intent: "x"}}

// TestProofsOfPosts checks which proofs a client needs and checks (LOG §7).
func TestProofsOfPosts(t *testing.T) {
	racing.Skip(t, "one thing after another")
	p := newProving(t)
	for _, test := range []struct {
		what           string
		mode           client.Proofs
		receipt, proof func(string) (string, int)
		proved, fails  bool
		reads          int
	}{
		{"a proof", "", nil, nil, true, false, 0},
		{"a proof", client.ProofsRequired, nil, nil, true, false, 0},
		{"a proof", client.ProofsOff, nil, nil, false, false, 0},
		{"a wrong proof", client.ProofsOff, otherIndex, nil, false, false, 0},
		{"a wrong proof, then a right one", client.ProofsPrefer, otherIndex, nil, true, false, 1},
		{"two wrong proofs", client.ProofsPrefer, otherIndex, otherIndex, false, true, 1},
		{"a wrong proof, then none", client.ProofsPrefer, otherIndex, notFound, false, true, 1},
		{"no proof", client.ProofsPrefer, noProof, nil, false, false, 0},
		{"no proof, then one", client.ProofsRequired, noProof, nil, true, false, 1},
		{"no proof at all", client.ProofsRequired, noProof, notFound, false, true, 1},
		{"no proof, and it cannot be read", client.ProofsRequired, noProof, broken, false, true, 1},
	} {
		t.Run(test.what+" "+string(test.mode), func(t *testing.T) {
			c := p.client(test.mode)
			p.set("/events", test.receipt)
			p.set("/events/bulk", test.receipt)
			p.set("/proofs", test.proof)
			e, receipt, err := c.Post(t.Context(), requestDraft)
			check := func(receipt client.Receipt, err error) {
				t.Helper()
				if reads := p.proofsRead(); reads != test.reads {
					t.Errorf("proofs were read %d times, want %d", reads, test.reads)
				}
				if test.fails != errors.Is(err, client.ErrUnproved) || test.fails != errors.Is(err, client.ErrUnknownOutcome) ||
					test.fails != (err != nil) {
					t.Errorf("error %v", err)
				}
				if (receipt.Proof != "") != test.proved || (receipt.Proved != nil) != test.proved {
					t.Errorf("the receipt has the proof %q, want one: %v", receipt.Proof, test.proved)
				}
			}
			check(receipt, err)
			if receipt.Proved != nil && receipt.Proved.Leaf.Event != e.Hash() {
				t.Error("the proof is of another message")
			}
			draft := requestDraft
			all := []*envelope.Envelope{}
			key, err := didkey.Generate()
			if err != nil {
				t.Fatal(err)
			}
			e, err = draft.Sign(key, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			result := c.PostAll(t.Context(), append(all, e))[0]
			check(result.Receipt, result.Err)
		})
	}
	p.set("/events", nil)
	p.set("/proofs", nil)
	p.set("/.well-known/agora.json", broken) // the relay stops after it has stored the message
	if _, receipt, err := p.client("").Post(t.Context(), requestDraft); err != nil || receipt.Proof != "" {
		t.Errorf("a proof that cannot be checked: %+v, %v", receipt, err)
	}
	if _, _, err := p.client(client.ProofsRequired).Post(t.Context(), requestDraft); !errors.Is(err, client.ErrUnproved) {
		t.Errorf("a required proof that cannot be checked: %v", err)
	}
	p.set("/.well-known/agora.json", nil)
	c := p.client(client.ProofsRequired)
	e, _, err := c.Post(t.Context(), requestDraft)
	if err != nil {
		t.Fatal(err)
	}
	if receipt, err := c.PostEnvelope(t.Context(), e); err != nil || !receipt.Duplicate || receipt.Proof == "" {
		t.Errorf("the proof of a duplicate is not read: %+v, %v", receipt, err)
	}
	if _, err := client.New(p.relay.URL, nil, client.Options{Proofs: "always"}); err == nil {
		t.Error("an unknown value of Proofs is accepted")
	}
}

// TestProofsOfOthers checks that the proof of another relay, and of another message, is not accepted.
func TestProofsOfOthers(t *testing.T) {
	racing.Skip(t, "one thing after another")
	p, other := newProving(t), newProving(t)
	_, receipt, err := other.client("").Post(t.Context(), requestDraft)
	if err != nil {
		t.Fatal(err)
	}
	_, mine, err := p.client("").Post(t.Context(), requestDraft)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{receipt.Proof, mine.Proof} {
		p.set("/proofs", func(string) (string, int) { return text, 0 })
		p.set("/events", noProof)
		if _, _, err := p.client(client.ProofsRequired).Post(t.Context(), requestDraft); !errors.Is(err, client.ErrUnproved) {
			t.Errorf("a strange proof is accepted: %v", err)
		}
	}
}

// TestAgentNeedsProof checks when an agent begins to work (LOG §7).
func TestAgentNeedsProof(t *testing.T) {
	for _, test := range []struct {
		what  string
		mode  client.Proofs
		proof func(string) (string, int)
		works bool
	}{
		{"a proof", client.ProofsPrefer, nil, true},
		{"a proof", client.ProofsRequired, nil, true},
		{"a wrong proof", client.ProofsOff, otherIndex, true},
		{"a wrong proof", client.ProofsPrefer, otherIndex, false},
		{"a wrong proof", client.ProofsRequired, otherIndex, false},
		{"none", client.ProofsPrefer, notFound, true},
		{"none", client.ProofsRequired, notFound, false},
		{"once unreadable", client.ProofsRequired, func() func(string) (string, int) {
			var asked int
			return func(body string) (string, int) {
				if asked++; asked == 1 {
					return broken(body)
				}
				return body, 0
			}
		}(), true},
	} {
		t.Run(test.what+" "+string(test.mode), func(t *testing.T) {
			t.Parallel()
			p := newProving(t)
			p.set("/proofs", test.proof)
			ctx, stop := context.WithCancel(t.Context())
			worked := false
			agent, me := p.client(test.mode), p.client(client.ProofsOff)
			var serving sync.WaitGroup
			serving.Go(func() {
				err := agent.Serve(ctx, client.ServeOptions{Intents: []string{"x"}, Manifest: envelope.Manifest{ID: "m",
					Intents: []envelope.Intent{{ID: "x"}}}}, client.Handler{
					Work: func(context.Context, client.Job) (envelope.Result, error) {
						worked = true
						return envelope.Result{Output: []byte(`1`)}, nil
					}})
				if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
			result, err := askOnce(t.Context(), me)
			stop()
			serving.Wait()
			failure, isFailure := errors.AsType[*client.AgentError](err)
			if worked != test.works || test.works != (err == nil) || !test.works &&
				(!isFailure || failure.Code != envelope.AgentUnavailable || !strings.Contains(failure.Message, "prove")) {
				t.Errorf("worked: %v, result %+v, %v", worked, result, err)
			}
		})
	}
}

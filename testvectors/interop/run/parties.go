package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// params are the parameters that every client sends and every agent returns. They have the JSON about which
// canonicalizers and parsers disagree most.
const params = `{"text":"Hello, \u4e16\u754c \ud83c\udf0d",` +
	`"numbers":[0.1,1E21,1e20,1e-7,0.000001,5e-324,-0,333333333.33333329,9007199254740993],` +
	`"order":{"\ud83d\ude00":"by UTF-16 before","\ufb33":"this","\u20ac":1,"\r":2,"1":3,"\u0080":4},` +
	`"escapes":"\u2028\u0001\u007f\"\\\/\b","\u005f_proto__":{"constructor":null},"empty":[{},[],""],"true":true}`

// party is one kind of participant. serve starts an agent for an intent and returns its DID. Errors of the agent are
// written to logs. ask runs a client that requests the intent and returns the output of the RESULT.
type party struct {
	name    string
	canName bool // as a client, it can send the REQUEST to a named agent
	serve   func(ctx context.Context, running *sync.WaitGroup, logs *os.File, at place, intent string) (did string, err error)
	ask     func(ctx context.Context, at place, q question) ([]byte, error)
}

// place is where a party is: the URL of its relay, and how far its clock is ahead. relay may have several URLs, with
// spaces between them. worked is called with the thread each time an agent works; nil: not called. The work ends when
// there is a file with the name hold; empty: at once. The stand-in for the SDK knows neither of these.
type place struct {
	relay  string
	clock  time.Duration
	worked func(thread string)
	hold   string
}

// held waits until the work may end, or ctx ends.
func (p place) held(ctx context.Context) error {
	for p.hold != "" && ctx.Err() == nil {
		if _, err := os.Stat(p.hold); err == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond) // the agents in other languages look at the file in the same way
	}
	return ctx.Err()
}

// question is what a client asks for. If did is not empty, only the agent with this DID is asked. A sealed question
// needs a did.
type question struct {
	intent, did string
	sealed      bool
}

// sdkPolling is the name of the SDK's client that polls only messages with itself as recipient. It does not see the
// offers of the SDK's agent, which have no recipient.
const sdkPolling = "sdk, recipient="

func (p party) canSeeOffers(agent party) bool { return p.name != sdkPolling || agent.name != "sdk" }

// parties returns the kinds of participants that can run on this machine.
func parties(languages []language) []party {
	all := []party{{name: "go", canName: true, serve: serveGo, ask: askGo}}
	for _, l := range languages {
		all = append(all, party{name: l.name, canName: true,
			serve: func(ctx context.Context, running *sync.WaitGroup, logs *os.File, at place, intent string) (string, error) {
				return l.start(ctx, running, logs, at, "agent", at.relay, intent)
			},
			ask: func(ctx context.Context, at place, q question) ([]byte, error) {
				args := []string{at.relay, q.intent, params}
				if q.did != "" {
					args = append(args, q.did)
				}
				out := l.run(ctx, environment(at, q), "client", args...)
				return []byte(out.text), out.err
			},
		})
		if l.name == "node" {
			all = append(all, sdk(l)...)
		}
	}
	return all
}

// sdk returns two participants: the stand-in for the ecosystem's SDK, and its client with recipient= in its polls.
func sdk(node language) []party {
	ask := func(more ...string) func(context.Context, place, question) ([]byte, error) {
		return func(ctx context.Context, at place, q question) ([]byte, error) {
			out := node.run(ctx, nil, "sdk", append([]string{"client", at.relay, q.intent, params}, more...)...)
			return []byte(out.text), out.err
		}
	}
	serve := func(ctx context.Context, running *sync.WaitGroup, logs *os.File, at place, intent string) (string, error) {
		return node.start(ctx, running, logs, at, "sdk", "agent", at.relay, intent)
	}
	return []party{{name: "sdk", serve: serve, ask: ask()}, {name: sdkPolling, ask: ask("--recipient")}}
}

// converse runs the conversation. It checks that the canonical form of the returned output is as expected, byte for
// byte.
func (p pair) converse(ctx context.Context, at place) error {
	q := question{intent: "interop." + p.agent.name, sealed: p.sealed}
	if p.named {
		q.did = p.did
	}
	output, err := p.client.ask(ctx, at, q)
	if err != nil {
		return err
	}
	have, err := envelope.Canonicalize(output)
	if err != nil {
		return fmt.Errorf("canonicalizing the output %q: %w", output, err)
	}
	want, err := envelope.Canonicalize([]byte(echo(p.agent.name, params)))
	if err == nil && !bytes.Equal(have, want) {
		err = fmt.Errorf("the output is\n%s, not\n%s", have, want)
	}
	return err
}

// echo returns the output of an agent.
func echo(by, params string) string { return fmt.Sprintf(`{"by":%q,"echo":%s}`, by, params) }

// goParty is what the clients of one relay and of several have in common, with the DID of the party. request opens a
// thread with client.Client.Request or client.Network.Request.
type goParty struct {
	did     didkey.DID
	serve   func(context.Context, client.ServeOptions, client.Handler) error
	request func(context.Context, client.RequestOptions) (goCall, error)
}

// goCall is what client.Call and client.NetworkCall have in common.
type goCall interface {
	Offers(context.Context) iter.Seq2[client.Offer, error]
	Accept(context.Context, client.Offer) error
	Result(context.Context) (*client.Result, error)
}

func newParty(at place) (goParty, error) {
	key, err := didkey.Generate()
	if err != nil {
		return goParty{}, err
	}
	options := client.Options{Now: func() time.Time { return time.Now().Add(at.clock) }}
	if urls := strings.Fields(at.relay); len(urls) > 1 {
		n, err := client.NewNetwork(urls, key, client.NetworkOptions{Options: options, Silence: silence})
		if err != nil {
			return goParty{}, err
		}
		return goParty{key.DID(), n.Serve, func(ctx context.Context, o client.RequestOptions) (goCall, error) {
			return n.Request(ctx, o)
		}}, nil
	}
	c, err := client.New(at.relay, key, options)
	if err != nil {
		return goParty{}, err
	}
	return goParty{key.DID(), c.Serve, func(ctx context.Context, o client.RequestOptions) (goCall, error) {
		return c.Request(ctx, o)
	}}, nil
}

// serveGo runs an agent that uses the Go client.
func serveGo(ctx context.Context, running *sync.WaitGroup, logs *os.File, at place, intent string) (string, error) {
	c, err := newParty(at)
	if err != nil {
		return "", err
	}
	manifest := envelope.Manifest{ID: "cap_go", Name: "go", Intents: []envelope.Intent{{ID: intent}}}
	// The agent starts with the oldest message on the relay, so it misses no REQUEST.
	running.Go(func() {
		err := c.serve(ctx, client.ServeOptions{Intents: []string{intent}, Manifest: manifest}, client.Handler{
			Quote: func(context.Context, client.Job) (envelope.Offer, error) {
				return envelope.Offer{Price: &envelope.Price{Amount: 0.001, Currency: "USD"}, ETASeconds: 1}, nil
			},
			Work: func(ctx context.Context, job client.Job) (envelope.Result, error) {
				if at.worked != nil {
					at.worked(job.Envelope.Thread)
				}
				return envelope.Result{Output: json.RawMessage(echo("go", string(job.Request.Params)))}, at.held(ctx)
			},
		})
		if ctx.Err() == nil {
			fmt.Fprintln(logs, "the go agent ended:", err) // its conversations will fail too
		}
	})
	return string(c.did), nil
}

// askGo runs a client that uses the Go client. The id that it gives to the thread is also the request_id, because the
// SDK's agents send only the request_id. In a thread with another id their messages would not belong to the thread.
func askGo(ctx context.Context, at place, q question) ([]byte, error) {
	c, err := newParty(at)
	if err != nil {
		return nil, err
	}
	budget := 0.01
	call, err := c.request(ctx, client.RequestOptions{Thread: envelope.NewID("req", time.Now()), Intent: q.intent,
		Params: json.RawMessage(params), Recipient: didkey.DID(q.did), Seal: q.sealed,
		Constraints: &envelope.Constraints{MaxCostUSD: &budget}})
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
		result, err := call.Result(ctx)
		if err != nil {
			return nil, err
		}
		return result.Output, nil
	}
	return nil, errors.New("the client got no offer")
}

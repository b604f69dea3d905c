package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// ask plays the gateway: it sends the sample delivery, accepts the offer and returns the RESULT.
func (f *fakeChannel) ask(ctx context.Context, agent didkey.DID) (*client.Result, error) {
	gateway, err := client.New(f.relay.URL, f.key, client.Options{HTTPClient: f.relay.Client()})
	if err != nil {
		return nil, err
	}
	call, err := gateway.Request(ctx, client.RequestOptions{Intent: client.ChannelIntent, Recipient: agent, Seal: true,
		Params: json.RawMessage(sampleDelivery), Thread: envelope.NewID("dlv", f.relay.now())})
	if err != nil {
		return nil, err
	}
	for offer, err := range call.Offers(ctx) {
		if err != nil {
			return nil, err
		}
		if offer.Price != nil && offer.Price.Amount != 0 {
			return nil, fmt.Errorf("the offer costs %v", offer.Price.Amount)
		}
		if err := call.Accept(ctx, offer); err != nil {
			return nil, err
		}
		break
	}
	return call.Result(ctx)
}

// An agent that answers the messages of channels. It has no address that a service could call.
func ExampleClient_ChannelDelivery() {
	gateway := newFakeChannel() // the relay at https://relay.example, with agora serve --channel
	key, err := didkey.Generate()
	if err != nil {
		log.Fatal(err)
	}
	agent, err := client.New(gateway.relay.URL, key, client.Options{HTTPClient: &http.Client{Transport: gateway}})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	_, url, err := agent.NewInbox(ctx, "echo") // give the url to the service; it is a secret
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(url)

	said := make(chan struct{})
	go func() { // the service, and the gateway to which it delivers
		defer close(said)
		defer cancel()
		result, err := gateway.ask(ctx, key.DID())
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(result.Output))
	}()
	err = agent.Serve(ctx, client.ServeOptions{Intents: []string{client.ChannelIntent}}, client.Handler{
		Work: func(ctx context.Context, job client.Job) (envelope.Result, error) {
			d, err := agent.ChannelDelivery(ctx, job.Envelope)
			if err != nil {
				return envelope.Result{}, err
			}
			reply, err := agent.Reply(d) // only needed to say something while the work is going on
			if err != nil {
				return envelope.Result{}, err
			}
			if err := reply.Post(ctx, client.ChannelEvent{Type: "status", Status: "thinking"}); err != nil {
				return envelope.Result{}, err
			}
			output, err := json.Marshal("You said: " + d.Message.Content)
			return envelope.Result{Output: output}, err
		},
	})
	<-said
	fmt.Println(err)
	// Output:
	// http://relay.test/channel/inbox/sk_a
	// "You said: hello"
	// context canceled
}

// TestServeOutputs checks that each form of output of a RESULT reaches the gateway, sealed and unchanged.
func TestServeOutputs(t *testing.T) {
	events, err := client.ChannelOutput(client.ChannelEvent{Type: "status", Status: "s"}, client.ChannelEvent{Type: "message", Content: "hi"})
	if err != nil {
		t.Fatal(err)
	}
	for _, output := range []string{`"hi"`, `{"content":"hi"}`, string(events)} {
		synctest.Test(t, func(t *testing.T) {
			f, key := newFakeChannel(), newKey(t)
			ctx, cancel := context.WithCancel(t.Context())
			served := make(chan struct{})
			go func() {
				defer close(served)
				_ = f.client(t, key).Serve(ctx, client.ServeOptions{Intents: []string{client.ChannelIntent}}, client.Handler{
					Work: func(context.Context, client.Job) (envelope.Result, error) {
						return envelope.Result{Output: json.RawMessage(output)}, nil
					},
				})
			}()
			result, err := f.ask(ctx, key.DID())
			cancel()
			<-served
			if err != nil || string(result.Output) != output || !result.Envelope.Sealed() {
				t.Errorf("%s: %+v, %v", output, result, err)
			}
			for _, e := range f.relay.all() {
				if strings.Contains(string(e.Canonical()), `"hi"`) {
					t.Errorf("readable in the relay: %s", e.Canonical())
				}
			}
		})
	}
	if none, err := client.ChannelOutput(); err != nil || string(none) != `{"events":[]}` {
		t.Errorf("no events are %s, %v", none, err)
	}
	if _, err := client.ChannelOutput(client.ChannelEvent{Type: "dance"}); err == nil {
		t.Error("an event of an unknown type was taken")
	}
}

package client_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

func ExampleClient_Post() {
	relay := startRelay()
	defer relay.Close()
	key, err := didkey.Generate() // use didkey.LoadOrCreate to keep the key in a file
	if err != nil {
		log.Fatal(err)
	}
	c, err := client.New(relay.URL, key, client.Options{HTTPClient: relay.Client(), SenderName: "Ann"})
	if err != nil {
		log.Fatal(err)
	}
	_, receipt, err := c.Post(context.Background(), envelope.Draft{
		Payload: envelope.Request{Intent: "translation.en_zh", Params: json.RawMessage(`{"text":"Hello"}`)},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(receipt.Thread.State)
	// Output: PENDING
}

func ExampleClient_Follow() {
	relay := startRelay()
	defer relay.Close()
	key, err := didkey.Generate()
	if err != nil {
		log.Fatal(err)
	}
	c, err := client.New(relay.URL, key, client.Options{HTTPClient: relay.Client()})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, intent := range []string{"news", "weather"} {
		if _, _, err := c.Post(ctx, envelope.Draft{Payload: envelope.Request{Intent: intent}}); err != nil {
			log.Fatal(err)
		}
	}
	// With Cursor: client.FileCursor("inbox.cursor") a restarted program continues after the last handled event.
	opts := client.FollowOptions{Filter: client.Filter{Type: envelope.TypeRequest}, FromOldest: true}
	err = c.Follow(ctx, opts, func(_ context.Context, e *envelope.Envelope) error {
		intent := e.PayloadString("intent")
		fmt.Println(e.Type, intent)
		if intent == "weather" {
			cancel()
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// REQUEST news
	// REQUEST weather
	// context canceled
}

func ExampleClient_Request() {
	relay := startRelay()
	defer relay.Close()
	ctx, cancel := context.WithCancel(context.Background())
	stopped := startTranslator(ctx, relay)
	defer func() { cancel(); <-stopped }()

	key, err := didkey.Generate()
	if err != nil {
		log.Fatal(err)
	}
	c, err := client.New(relay.URL, key, client.Options{HTTPClient: relay.Client()})
	if err != nil {
		log.Fatal(err)
	}
	budget := 0.01
	call, err := c.Request(ctx, client.RequestOptions{
		Intent:      "translation.en_zh",
		Params:      map[string]string{"text": "Hello"},
		Constraints: &envelope.Constraints{MaxCostUSD: &budget},
	})
	if err != nil {
		log.Fatal(err)
	}
	for offer, err := range call.Offers(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("offered for", offer.Price.Amount, offer.Price.Currency)
		if err := call.Accept(ctx, offer); err != nil {
			log.Fatal(err)
		}
		break
	}
	result, err := call.Result(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Status, string(result.Output))
	// Output:
	// offered for 0.005 USD
	// success {"translation":"你好"}
}

func ExampleCall_Collect() {
	relay := startRelay()
	defer relay.Close()
	ctx, cancel := context.WithCancel(context.Background())
	stopped := startTranslator(ctx, relay)
	defer func() { cancel(); <-stopped }()

	folder, err := os.MkdirTemp("", "agora")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	key, err := didkey.LoadOrCreate(filepath.Join(folder, "ann.key"))
	if err != nil {
		log.Fatal(err)
	}
	c, err := client.New(relay.URL, key, client.Options{HTTPClient: relay.Client()})
	if err != nil {
		log.Fatal(err)
	}
	// Save the id before you call Request. After a crash, Request with the same id continues the thread.
	id := client.NewThread()
	call, err := c.Request(ctx, client.RequestOptions{Thread: id, Intent: "translation.en_zh", Params: map[string]string{"text": "Hello"}})
	if err != nil {
		log.Fatal(err)
	}
	offers, err := call.Collect(ctx, 2*time.Second)
	if err != nil || len(offers) == 0 {
		log.Fatal("no offers: ", err)
	}
	price := func(o client.Offer) float64 {
		if o.Price == nil {
			return 0
		}
		return o.Price.Amount
	}
	cheapest := slices.MinFunc(offers, func(a, b client.Offer) int { return cmp.Compare(price(a), price(b)) })
	if err := call.Accept(ctx, cheapest); err != nil {
		log.Fatal(err)
	}
	if _, err := call.Result(ctx); err != nil {
		log.Fatal(err)
	}
	state, err := call.State(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(offers), state.State, state.Agent == cheapest.Agent, state.Thread == id)
	// Output: 1 COMPLETED true true
}

func ExampleClient_Serve() {
	relay := startRelay()
	defer relay.Close()
	key, err := didkey.Generate()
	if err != nil {
		log.Fatal(err)
	}
	agent, err := client.New(relay.URL, key, client.Options{HTTPClient: relay.Client()})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	asked := make(chan struct{})
	go func() { // a client in another process
		defer close(asked)
		defer cancel()
		ask(ctx, relay, key.DID(), "greet")
	}()
	err = agent.Serve(ctx, client.ServeOptions{
		Intents:  []string{"greet"},
		Manifest: &envelope.Manifest{ID: "cap_greeter", Intents: []envelope.Intent{{ID: "greet"}}},
		// With Cursor: client.FileCursor("agent.cursor") a restarted agent finishes the jobs that it had accepted.
	}, client.Handler{
		Work: func(_ context.Context, job client.Job) (envelope.Result, error) {
			return envelope.Result{Output: json.RawMessage(`"Hello from an agent"`)}, nil
		},
	})
	<-asked
	fmt.Println(err)
	// Output:
	// success "Hello from an agent"
	// context canceled
}

// startTranslator runs an agent that serves translation.en_zh until ctx ends. The channel is closed when the agent has
// stopped.
func startTranslator(ctx context.Context, relay *realRelay) <-chan struct{} {
	key, err := didkey.Generate()
	if err != nil {
		log.Fatal(err)
	}
	c, err := client.New(relay.URL, key, client.Options{HTTPClient: relay.Client()})
	if err != nil {
		log.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		err := c.Serve(ctx, client.ServeOptions{Intents: []string{"translation.en_zh"}}, client.Handler{
			Quote: func(context.Context, client.Job) (envelope.Offer, error) {
				return envelope.Offer{Price: &envelope.Price{Amount: 0.005, Currency: "USD"}}, nil
			},
			Work: func(context.Context, client.Job) (envelope.Result, error) {
				return envelope.Result{Output: json.RawMessage(`{"translation":"你好"}`)}, nil
			},
		})
		if ctx.Err() == nil {
			log.Fatal(err)
		}
	}()
	return stopped
}

// ask sends one agent a request for an intent, accepts the first offer and prints the result.
func ask(ctx context.Context, relay *realRelay, agent didkey.DID, intent string) {
	key, err := didkey.Generate()
	if err != nil {
		log.Fatal(err)
	}
	c, err := client.New(relay.URL, key, client.Options{HTTPClient: relay.Client()})
	if err != nil {
		log.Fatal(err)
	}
	call, err := c.Request(ctx, client.RequestOptions{Intent: intent, Recipient: agent})
	if err != nil {
		log.Fatal(err)
	}
	for offer, err := range call.Offers(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		if err := call.Accept(ctx, offer); err != nil {
			log.Fatal(err)
		}
		break
	}
	result, err := call.Result(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Status, string(result.Output))
}

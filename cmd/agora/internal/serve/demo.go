package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/trade"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// demoAgent is an agent that agora serve --demo runs beside the relay. It does everything through the relay's socket, as
// an agent elsewhere does.
type demoAgent struct {
	intent, description, schema string
	price                       float64 // USD
	work                        func(params json.RawMessage) (json.RawMessage, error)
}

var demoAgents = []demoAgent{
	{"echo", "Returns the params as they are.", `{}`, 0,
		func(params json.RawMessage) (json.RawMessage, error) { return params, nil }},
	{"text.count", "Counts the lines, words and characters of a text.",
		`{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}`, 0.001, countText},
}

// countText counts in a text what wc counts. A last line without a line break counts too.
func countText(params json.RawMessage) (json.RawMessage, error) {
	text, err := trade.TextOf(params)
	if err != nil {
		return nil, err
	}
	count := struct {
		Lines      int `json:"lines"`
		Words      int `json:"words"`
		Characters int `json:"characters"`
	}{strings.Count(text, "\n"), len(strings.Fields(text)), utf8.RuneCountInString(text)}
	if text != "" && !strings.HasSuffix(text, "\n") {
		count.Lines++
	}
	return json.Marshal(count)
}

// serve runs the agent until ctx ends. cursor is a file.
func (a demoAgent) serve(ctx context.Context, c *client.Client, cursor string) error {
	return c.Serve(ctx, client.ServeOptions{
		Intents: []string{a.intent},
		Cursor:  client.FileCursor(cursor),
		Manifest: envelope.Manifest{ID: "cap_demo", Name: "Demo " + a.intent, Description: a.description,
			Intents: []envelope.Intent{{ID: a.intent, InputSchema: json.RawMessage(a.schema)}}, Pricing: pricing(a.price)},
	}, client.Handler{
		Quote: func(_ context.Context, job client.Job) (envelope.Offer, error) {
			_, err := a.work(job.Request.Params) // it is quick, and says what is wrong with the params
			return envelope.Offer{Price: &envelope.Price{Amount: a.price, Currency: "USD"}}, err
		},
		Work: func(_ context.Context, job client.Job) (envelope.Result, error) {
			output, err := a.work(job.Request.Params)
			return envelope.Result{Output: output}, err
		},
	})
}

func pricing(price float64) *envelope.Pricing {
	if price == 0 {
		return &envelope.Pricing{Model: "free"}
	}
	return &envelope.Pricing{Model: "fixed", Currency: "USD", FixedPrice: price}
}

// demo has the agents of agora serve --demo. The zero demo has none.
type demo struct {
	transport *http.Transport // of all clients
	clients   []*client.Client
}

// openDemo makes the clients of the demonstration agents. Their keys are beside the database, so an agent has the same
// DID after a restart.
func (s *server) openDemo() (d demo, err error) {
	if !s.Demo {
		return demo{}, nil
	}
	at := s.sockets.main[0].Addr()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, at.Network(), at.String())
	}
	d.transport = &http.Transport{DialContext: dial}
	if s.certificates == nil {
		d.transport.DialTLSContext = dial // if the public URL is https, a proxy has the TLS
	}
	for _, a := range demoAgents {
		key, err := didkey.LoadOrCreate(s.demoFile(a, ".key"))
		if err != nil {
			return demo{}, fmt.Errorf("the key of the demonstration agent %s: %w", a.intent, err)
		}
		c, err := client.New(s.relay.Origin(), key, client.Options{HTTPClient: &http.Client{Transport: d.transport},
			Logger: s.log.With("demo", a.intent), SenderName: "Demo " + a.intent})
		if err != nil {
			return demo{}, err
		}
		d.clients = append(d.clients, c)
	}
	return d, nil
}

// demoFile returns the name of a file of a demonstration agent.
func (s *server) demoFile(a demoAgent, extension string) string {
	return filepath.Join(s.Data, "demo-"+a.intent+extension)
}

// runDemo runs the demonstration agents until the relay is told to stop, or ctx ends.
func (s *server) runDemo(ctx context.Context) {
	if !s.Demo {
		return
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(s.env.Ctx, stop)()
	var agents sync.WaitGroup
	for i, a := range demoAgents {
		agents.Go(func() {
			if err := a.serve(ctx, s.demo.clients[i], s.demoFile(a, ".cursor")); ctx.Err() == nil {
				s.log.Error("a demonstration agent has ended", "demo", a.intent, "err", err)
			}
		})
	}
	agents.Wait()
	s.demo.transport.CloseIdleConnections()
}

// lines says what to type next, in another terminal. url is where the relay is.
func (d demo) lines(url string) string {
	if len(d.clients) == 0 {
		return ""
	}
	where := ""
	if url != cli.RelayURL {
		where = " --relay " + cli.ShellQuoted(url)
	}
	return "agents echo and text.count run here; to hire them, type in another terminal:\n" +
		"  agora keygen try.key\n" +
		"  agora ask echo --key try.key --params '{\"text\":\"hello\"}'" + where + "\n" +
		"  agora ask text.count --key try.key --params '{\"text\":\"two words\"}' --max-cost 0.01" + where + "\n"
}

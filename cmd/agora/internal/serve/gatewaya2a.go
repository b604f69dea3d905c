package serve

import (
	"context"
	"errors"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/a2a"
	"github.com/agora-relay/agora/relay"
)

// a2aFlags are the flags of serve for the gateway of Agent2Agent.
type a2aFlags struct {
	A2A          bool              `name:"a2a" help:"Serve public A2A endpoints of agents, for clients of Agent2Agent 1.0, under /a2a."`
	A2AAddr      cli.ListenAddress `name:"a2a-addr" placeholder:"HOST:PORT" help:"Serve the A2A endpoints at the root of this address too."`
	A2AEndpoints int               `name:"a2a-endpoints" default:"1000" placeholder:"N" help:"How many agents may have an A2A endpoint (default: ${default})."`
	A2ARetention time.Duration     `name:"a2a-retention" default:"168h" placeholder:"DURATION" help:"How long an A2A task is kept after its last change (default: ${default})."`
	A2AWait      time.Duration     `name:"a2a-wait" default:"60s" placeholder:"DURATION" help:"How long an A2A call waits for the agent before it answers the task as it is (default: ${default})."`
}

func (f a2aFlags) choice() choice           { return choice{"a2a", f.A2A, f.A2AAddr} }
func (a2aFlags) extension() relay.Extension { return a2a.Extension }

func (f a2aFlags) check() error {
	switch {
	case f.A2AEndpoints < 1:
		return errors.New("--a2a-endpoints must be at least 1")
	case f.A2ARetention < time.Minute || f.A2ARetention > 366*24*time.Hour:
		return errors.New("--a2a-retention must be from 1m to 8784h")
	case f.A2AWait < time.Second || f.A2AWait > time.Hour:
		return errors.New("--a2a-wait must be from 1s to 1h")
	}
	return nil
}

func (f a2aFlags) open(ctx context.Context, core *gateway.Core) (servedGateway, error) {
	g, err := a2a.New(ctx, core, a2a.Options{Endpoints: f.A2AEndpoints, Retention: f.A2ARetention, Wait: f.A2AWait})
	if err != nil {
		return servedGateway{}, err
	}
	return servedGateway{url: g.URL(), api: a2a.API, mounts: g.Mounts, run: g.Run, remove: g.Remove,
		removeSender: g.RemoveSender}, nil
}

func (a2aFlags) standby(core *gateway.Core) servedGateway {
	return servedGateway{api: a2a.API, mounts: (&a2a.Gateway{Core: core}).Mounts}
}

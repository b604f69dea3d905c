package serve

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/hub"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/replay"
)

// hubFlags are the flags of serve for the hub.
type hubFlags struct {
	Hub          bool              `help:"Serve a hub for Chorus agents under /hub."`
	HubAddr      cli.ListenAddress `placeholder:"HOST:PORT" help:"Serve the hub at the root of this address too, for programs that cannot use the path /hub."`
	HubName      hubName           `placeholder:"HOST" help:"Let the short address bob mean bob@HOST (default: the host of the relay's URL)."`
	HubAgents    int               `default:"10000" placeholder:"N" help:"How many agents may be registered at the hub (default: ${default})."`
	HubRetention time.Duration     `default:"720h" placeholder:"DURATION" help:"How long the hub keeps a message (default: ${default})."`
}

func (f hubFlags) choice() choice           { return choice{"hub", f.Hub, f.HubAddr} }
func (hubFlags) extension() relay.Extension { return hub.Extension }

func (f hubFlags) check() error {
	switch {
	case f.HubAgents < 1:
		return errors.New("--hub-agents must be at least 1")
	case f.HubRetention < time.Second || f.HubRetention > replay.MaxSpan:
		return fmt.Errorf("--hub-retention must be from 1s to %v", replay.MaxSpan)
	}
	return nil
}

func (f hubFlags) open(ctx context.Context, core *gateway.Core) (servedGateway, error) {
	h, err := hub.New(ctx, core, hub.Options{Name: string(f.HubName), MaxAgents: f.HubAgents, Retention: f.HubRetention})
	if err != nil {
		return servedGateway{}, err
	}
	g := hubRoutes(h)
	g.url, g.run, g.remove, g.removeSender = h.URL(), h.Run, h.Remove, h.RemoveSender
	return g, nil
}

func (hubFlags) standby(core *gateway.Core) servedGateway { return hubRoutes(&hub.Hub{Core: core}) }

func hubRoutes(h *hub.Hub) servedGateway {
	mounts := func(prefix string) []httpapi.Mount { return []httpapi.Mount{h.Mount(prefix)} }
	return servedGateway{api: hub.API, mounts: mounts, root: []httpapi.Mount{h.Document()}}
}

// hubName is the host of a hub address.
type hubName string

var hubNameForm = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,100}$`)

func (n *hubName) UnmarshalText(text []byte) error {
	if !hubNameForm.Match(text) || string(text) == "did.key" {
		return errors.New("want a host name such as relay.example, of 1 to 100 letters, digits or ._-; not did.key, which " +
			"is reserved")
	}
	*n = hubName(text)
	return nil
}

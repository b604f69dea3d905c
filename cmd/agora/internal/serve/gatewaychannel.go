package serve

import (
	"context"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/channel"
	"github.com/agora-relay/agora/relay"
)

// channelFlags are the flags of serve for the gateway of channels and inboxes.
type channelFlags struct {
	Channel     bool              `help:"Serve channels, and inboxes of agents, for the Chorus Channel protocol under /channel."`
	ChannelAddr cli.ListenAddress `placeholder:"HOST:PORT" help:"Serve the channels and inboxes at the root of this address too."`
}

func (f channelFlags) choice() choice           { return choice{"channel", f.Channel, f.ChannelAddr} }
func (channelFlags) extension() relay.Extension { return channel.Extension }
func (channelFlags) check() error               { return nil }

func (channelFlags) open(ctx context.Context, core *gateway.Core) (servedGateway, error) {
	c, err := channel.New(ctx, core)
	if err != nil {
		return servedGateway{}, err
	}
	return servedGateway{url: c.URL(), api: channel.API, mounts: c.Mounts, run: c.Run, remove: c.Remove,
		removeSender: c.RemoveSender}, nil
}

func (channelFlags) standby(core *gateway.Core) servedGateway {
	return servedGateway{api: channel.API, mounts: (&channel.Gateway{Core: core}).Mounts}
}

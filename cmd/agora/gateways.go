package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/channel"
	"github.com/agora-relay/agora/gateway/hub"
	"github.com/agora-relay/agora/gateway/jobs"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/internal/fsync"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admin"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/relay/httpapi/apidocs"
	"github.com/agora-relay/agora/replay"
)

// extensions returns the extensions of every relay. A relay has the tables of all gateways, so turning a gateway on or
// off does not change the schema.
func extensions() []relay.Extension {
	return []relay.Extension{admin.Extension, gateway.Extension, hub.Extension, channel.Extension, jobs.Extension}
}

// gatewayFlags are the flags of serve for gateways.
type gatewayFlags struct {
	Hub           bool              `help:"Serve a hub for Chorus agents under /hub."`
	HubAddr       cli.ListenAddress `placeholder:"HOST:PORT" help:"Serve the hub at the root of this address too, for programs that cannot use the path /hub."`
	HubName       hubName           `placeholder:"HOST" help:"Let the short address bob mean bob@HOST (default: the host of the relay's URL)."`
	HubAgents     int               `default:"10000" placeholder:"N" help:"How many agents may be registered at the hub (default: ${default})."`
	HubRetention  time.Duration     `default:"720h" placeholder:"DURATION" help:"How long the hub keeps a message (default: ${default})."`
	Channel       bool              `help:"Serve channels, and inboxes of agents, for the Chorus Channel protocol under /channel."`
	ChannelAddr   cli.ListenAddress `placeholder:"HOST:PORT" help:"Serve the channels and inboxes at the root of this address too."`
	Jobs          bool              `help:"Serve a registry of skills, jobs, credits and reputation for Chorus agents under /jobs."`
	JobsAddr      cli.ListenAddress `placeholder:"HOST:PORT" help:"Serve the registry at the root of this address too."`
	JobsInitial   cli.CreditAmount  `default:"100" placeholder:"CREDITS" help:"The most initial credits of one user of the registry, over all its accounts (default: ${default})."`
	JobsSupply    cli.CreditAmount  `default:"1000000" placeholder:"CREDITS" help:"The most credits that the registry ever issues, to all users together (default: ${default})."`
	JobsTimeout   time.Duration     `default:"1h" placeholder:"DURATION" help:"Longest run of a job (default: ${default})."`
	JobsDaily     int               `default:"5000" placeholder:"N" help:"How many transfers and jobs one account of the registry may pay in 24 hours. All accounts of one address together may pay twice as many (default: ${default})."`
	OutboundAllow []exceptionText   `placeholder:"CIDR|HOST" sep:"none" help:"Let gateways call URLs in this network or on this host, also over http. By default they call only public addresses, and only over https. May be repeated."`
}

func (f gatewayFlags) Validate() error {
	switch {
	case f.HubAddr != "" && !f.Hub:
		return errors.New("--hub-addr has no effect without --hub; give both, or none")
	case f.ChannelAddr != "" && !f.Channel:
		return errors.New("--channel-addr has no effect without --channel; give both, or none")
	case f.JobsAddr != "" && !f.Jobs:
		return errors.New("--jobs-addr has no effect without --jobs; give both, or none")
	case f.JobsTimeout < time.Second || f.JobsTimeout > 30*24*time.Hour:
		return errors.New("--jobs-timeout must be from 1s to 720h")
	case f.JobsDaily < 1:
		return errors.New("--jobs-daily must be at least 1")
	case f.HubAgents < 1:
		return errors.New("--hub-agents must be at least 1")
	case f.HubRetention < time.Second || f.HubRetention > replay.MaxSpan:
		return fmt.Errorf("--hub-retention must be from 1s to %v", replay.MaxSpan)
	}
	return nil
}

// first returns the name of a gateway that is on; empty: none is.
func (f gatewayFlags) first() string {
	switch {
	case f.Hub:
		return "hub"
	case f.Channel:
		return "channel"
	case f.Jobs:
		return "jobs"
	}
	return ""
}

// missing returns the flag without which the setting with this name has no effect; empty: it has one.
func (f gatewayFlags) missing(setting string) string {
	switch {
	case strings.HasPrefix(setting, "hub-") && !f.Hub:
		return "--hub"
	case strings.HasPrefix(setting, "channel-") && !f.Channel:
		return "--channel"
	case strings.HasPrefix(setting, "jobs-") && !f.Jobs:
		return "--jobs"
	case setting == "outbound-allow" && f.first() == "":
		return "a gateway: --hub, --channel or --jobs"
	}
	return ""
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

// exceptionText is a host or a network that gateways may call, in a form that gateway.ParseException reads.
type exceptionText string

func (e *exceptionText) UnmarshalText(text []byte) error {
	_, err := gateway.ParseException(string(text))
	*e = exceptionText(text)
	return err
}

// gateways are the gateways of a relay that are on. The zero value has none.
type gateways struct {
	core    *gateway.Core
	all     []servedGateway
	secured bool // their own listeners have TLS
}

// servedGateway is a gateway that is on.
type servedGateway struct {
	name         string // as in its flags, its path and the well-known document
	url          string
	api          apidocs.Part
	mounts       func(prefix string) []httpapi.Mount
	root         []httpapi.Mount // further mounts on the main listener
	run          func(context.Context)
	remove       func(ctx context.Context, id string) error // removes content for the operator
	removeSender gateway.SenderRemover
	addr         cli.ListenAddress
	own          net.Listener // at addr; nil: it has none
}

// open prepares the gateways that are on. If none is on, it creates and changes nothing.
func (f gatewayFlags) open(
	ctx context.Context, folder string, r *relay.Relay, log *slog.Logger,
) (g gateways, err error) {
	if f.first() == "" {
		return gateways{}, nil
	}
	if g.core, err = f.newCore(ctx, folder, r, log); err != nil {
		return gateways{}, err
	}
	if f.Hub {
		h, err := hub.New(ctx, g.core,
			hub.Options{Name: string(f.HubName), MaxAgents: f.HubAgents, Retention: f.HubRetention})
		if err != nil {
			return gateways{}, err
		}
		mounts := func(prefix string) []httpapi.Mount { return []httpapi.Mount{h.Mount(prefix)} }
		g.all = append(g.all, servedGateway{name: "hub", url: h.URL(), api: hub.API, mounts: mounts,
			root: []httpapi.Mount{h.Document()}, run: h.Run,
			remove: h.Remove, removeSender: h.RemoveSender, addr: f.HubAddr})
	}
	if f.Channel {
		c, err := channel.New(ctx, g.core)
		if err != nil {
			return gateways{}, err
		}
		g.all = append(g.all, servedGateway{name: "channel", url: c.URL(), api: channel.API, mounts: c.Mounts, run: c.Run,
			remove: c.Remove, removeSender: c.RemoveSender, addr: f.ChannelAddr})
	}
	if f.Jobs {
		j, err := jobs.New(ctx, g.core, jobs.Options{Initial: credits.Amount(f.JobsInitial),
			Supply: credits.Amount(f.JobsSupply), Timeout: f.JobsTimeout, Daily: f.JobsDaily})
		if err != nil {
			return gateways{}, err
		}
		g.all = append(g.all, servedGateway{name: "jobs", url: j.URL(), api: jobs.API, mounts: j.Mounts, run: j.Run,
			remove: j.Remove, removeSender: j.RemoveSender, addr: f.JobsAddr})
	}
	return g, nil
}

// standby returns the gateways that are on, without opening them. Only their mounts and their listeners may be used,
// and the handlers of the mounts must be replaced.
func (f gatewayFlags) standby(folder string, r *relay.Relay, log *slog.Logger) (g gateways, err error) {
	if f.first() == "" {
		return gateways{}, nil
	}
	key, err := didkey.Load(filepath.Join(folder, gatewayKeyName))
	if err != nil {
		return gateways{}, err
	}
	g.core = &gateway.Core{Relay: r, Key: key, Build: build(), Log: log}
	add := func(name string, api apidocs.Part, addr cli.ListenAddress, mounts func(string) []httpapi.Mount, root ...httpapi.Mount) {
		g.all = append(g.all, servedGateway{name: name, url: r.Origin() + "/" + name, api: api, mounts: mounts, root: root,
			addr: addr})
	}
	if f.Hub {
		h := &hub.Hub{Core: g.core}
		add("hub", hub.API, f.HubAddr, func(prefix string) []httpapi.Mount { return []httpapi.Mount{h.Mount(prefix)} }, h.Document())
	}
	if f.Channel {
		add("channel", channel.API, f.ChannelAddr, (&channel.Gateway{Core: g.core}).Mounts)
	}
	if f.Jobs {
		add("jobs", jobs.API, f.JobsAddr, (&jobs.Gateway{Core: g.core}).Mounts)
	}
	return g, nil
}

// listen opens the own listeners of gateways.
func (g gateways) listen() (_ gateways, err error) {
	for i, s := range g.all {
		if s.addr == "" {
			continue
		}
		if g.all[i].own, err = s.addr.Listen("--" + s.name + "-addr"); err != nil {
			return gateways{}, errors.Join(err, g.close())
		}
	}
	return g, nil
}

// newCore returns what the gateways share. It creates their keys if they do not exist.
func (f gatewayFlags) newCore(
	ctx context.Context, folder string, r *relay.Relay, log *slog.Logger,
) (*gateway.Core, error) {
	key, err := loadOrCreateGatewayKey(ctx, folder, r)
	if err != nil {
		return nil, err
	}
	operator, err := loadOrCreateOperatorKey(folder)
	if err != nil {
		return nil, err
	}
	var exceptions []gateway.Exception
	for _, e := range f.OutboundAllow {
		exception, err := gateway.ParseException(string(e))
		if err != nil {
			return nil, err
		}
		exceptions = append(exceptions, exception)
	}
	return gateway.NewCore(ctx, gateway.CoreOptions{Relay: r, Key: key, Operator: operator,
		Outgoing: gateway.OutgoingOptions{Destinations: gateway.Destinations{Exceptions: exceptions}},
		Build:    build(), Log: log})
}

// mounts returns what the gateways add to the main listener.
func (g gateways) mounts() (all []httpapi.Mount) {
	for _, s := range g.all {
		all = append(append(all, s.mounts("/"+s.name)...), s.root...)
	}
	return all
}

// listeners returns the own listeners of gateways. config is that of TLS; nil: they have no TLS.
func (g gateways) listeners(config *tls.Config) (all []httpapi.Listener) {
	for _, s := range g.all {
		if s.own != nil {
			all = append(all, httpapi.Listener{Listener: s.own, Mounts: s.mounts(""), TLS: config})
		}
	}
	return all
}

// close closes the own listeners of gateways. It is for a relay that does not start to serve them.
func (g gateways) close() (err error) {
	for _, s := range g.all {
		if s.own != nil {
			err = errors.Join(err, s.own.Close())
		}
	}
	return err
}

// document returns the member "gateways" of the well-known document; nil: no gateway is on.
func (g gateways) document() any {
	if g.core == nil {
		return nil
	}
	members := map[string]any{"did": g.core.Key.DID()}
	for _, s := range g.all {
		members[s.name] = map[string]any{"url": s.url}
	}
	return members
}

// apis returns the parts of the OpenAPI document that describe the gateways.
func (g gateways) apis() (all []apidocs.Part) {
	if g.core == nil {
		return nil
	}
	all = append(all, gateway.API)
	for _, s := range g.all {
		all = append(all, s.api)
	}
	return all
}

// lines returns the lines that serve prints about the gateways.
func (g gateways) lines() (text string) {
	for _, s := range g.all {
		text += fmt.Sprintf("%s at %s\n", s.name, s.url)
		if s.own != nil {
			text += fmt.Sprintf("%s listening on %s\n", s.name, listenerURL(s.own.Addr(), g.secured))
		}
	}
	return text
}

// tasks returns the functions that must run while the relay runs.
func (g gateways) tasks() (all []func(context.Context)) {
	if g.core != nil {
		all = append(all, g.core.Run)
	}
	for _, s := range g.all {
		all = append(all, s.run)
	}
	return all
}

// loadOrCreateGatewayKey loads the key of the gateways. If the file is missing, it creates a key, unless the database
// was used with one.
func loadOrCreateGatewayKey(ctx context.Context, folder string, r *relay.Relay) (didkey.Key, error) {
	path := filepath.Join(folder, gatewayKeyName)
	key, err := didkey.Load(path)
	if err == nil {
		return key, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return didkey.Key{}, fmt.Errorf("the key of the gateways: %w. Restore the file from a backup; only this key can "+
			"decrypt the secrets in the database", err)
	}
	var recorded didkey.DID
	err = r.View(ctx, relay.Peer{Local: true}, func(q relay.Querier) (err error) {
		recorded, err = gateway.RecordedDID(q)
		return err
	})
	if err != nil {
		return didkey.Key{}, err
	}
	if recorded != "" {
		return didkey.Key{}, fmt.Errorf("%s is missing, and the database in this folder has secrets that only this key can "+
			"decrypt; restore the file from a backup, or start without gateways", path)
	}
	return didkey.LoadOrCreate(path)
}

// loadOrCreateOperatorKey reads the key with which the operator calls the gateways. If the file is missing, it creates
// a key; the one before, if there was one, is then no longer valid.
func loadOrCreateOperatorKey(folder string) (string, error) {
	path := filepath.Join(folder, operatorKeyName)
	key, err := cli.ReadOperatorKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	key = gateway.NewKey(gateway.Operator)
	return key, fsync.Create(path, []byte(key+"\n"))
}

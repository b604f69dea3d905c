package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/datafolder"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/internal/fsync"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admin"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/relay/httpapi/apidocs"
	"github.com/agora-relay/agora/relay/mirror"
	"github.com/agora-relay/agora/relay/witness"
)

// gatewayFlags are the flags of serve for gateways. A further gateway is a struct like hubFlags, in another file, and
// a line here.
type gatewayFlags struct {
	Hub           hubFlags        `embed:""`
	Channel       channelFlags    `embed:""`
	Jobs          jobsFlags       `embed:""`
	A2A           a2aFlags        `embed:""`
	OutboundAllow []exceptionText `placeholder:"CIDR|HOST" sep:"none" help:"Let gateways call URLs in this network or on this host, also over http. By default they call only public addresses, and only over https. May be repeated."`
}

// each returns the flags of each gateway: all fields that are structs.
func (f gatewayFlags) each() (all []servable) {
	for _, field := range reflect.ValueOf(f).Fields() {
		if field.Kind() == reflect.Struct {
			all = append(all, field.Interface().(servable))
		}
	}
	return all
}

// servable are the flags of one gateway, and what serve does with it.
type servable interface {
	choice() choice
	check() error // refuses wrong values of flags
	extension() relay.Extension
	// open prepares the gateway and may use the database.
	open(ctx context.Context, core *gateway.Core) (servedGateway, error)
	// standby returns the gateway for a node that does not lead: its mounts, whose handlers must be replaced.
	standby(core *gateway.Core) servedGateway
}

// choice is what the flags of each gateway say.
type choice struct {
	name string // of the gateway: in its flags, its path and the well-known document
	on   bool
	addr cli.ListenAddress // empty: it has no listener
}

// Extensions returns the extensions of every relay. A relay has the tables of all gateways, so turning a gateway on or
// off does not change the schema.
func Extensions() []relay.Extension {
	all := []relay.Extension{admin.Extension, gateway.Extension, witness.Extension, mirror.Extension}
	for _, g := range (gatewayFlags{}).each() {
		all = append(all, g.extension())
	}
	return all
}

func (f gatewayFlags) Validate() error {
	for _, g := range f.each() {
		if c := g.choice(); c.addr != "" && !c.on {
			return fmt.Errorf("--%[1]s-addr has no effect without --%[1]s; give both, or none", c.name)
		}
		if err := g.check(); err != nil {
			return err
		}
	}
	return nil
}

// first returns the name of a gateway that is on; empty: none is.
func (f gatewayFlags) first() string {
	for _, g := range f.each() {
		if c := g.choice(); c.on {
			return c.name
		}
	}
	return ""
}

// missing returns the flag without which the setting with this name has no effect; empty: it has one.
func (f gatewayFlags) missing(setting string) string {
	var names []string
	for _, g := range f.each() {
		c := g.choice()
		if strings.HasPrefix(setting, c.name+"-") && !c.on {
			return "--" + c.name
		}
		names = append(names, "--"+c.name)
	}
	if setting == "outbound-allow" && f.first() == "" {
		last := len(names) - 1
		return "a gateway: " + strings.Join(names[:last], ", ") + " or " + names[last]
	}
	return ""
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
	name         string // see choice
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

// Open prepares the gateways that are on. If none is on, it creates and changes nothing.
func (f gatewayFlags) Open(
	ctx context.Context, folder string, r *relay.Relay, log *slog.Logger,
) (g gateways, err error) {
	if f.first() == "" {
		return gateways{}, nil
	}
	if g.core, err = f.newCore(ctx, folder, r, log); err != nil {
		return gateways{}, err
	}
	for _, flags := range f.each() {
		if c := flags.choice(); c.on {
			one, err := flags.open(ctx, g.core)
			if err != nil {
				return gateways{}, err
			}
			one.name, one.addr = c.name, c.addr
			g.all = append(g.all, one)
		}
	}
	return g, nil
}

// standby returns the gateways that are on, without opening them. Only their mounts and their listeners may be used,
// and the handlers of the mounts must be replaced.
func (f gatewayFlags) standby(folder string, r *relay.Relay, log *slog.Logger) (g gateways, err error) {
	if f.first() == "" {
		return gateways{}, nil
	}
	key, err := didkey.Load(filepath.Join(folder, datafolder.GatewayKey))
	if err != nil {
		return gateways{}, err
	}
	g.core = &gateway.Core{Relay: r, Key: key, Build: cli.Build(), Log: log}
	for _, flags := range f.each() {
		if c := flags.choice(); c.on {
			one := flags.standby(g.core)
			one.name, one.addr, one.url = c.name, c.addr, r.Origin()+"/"+c.name
			g.all = append(g.all, one)
		}
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
		Build:    cli.Build(), Log: log})
}

// Mounts returns what the gateways add to the main listener.
func (g gateways) Mounts() (all []httpapi.Mount) {
	for _, s := range g.all {
		all = append(append(all, s.mounts("/"+s.name)...), s.root...)
	}
	return all
}

// listeners returns the separate listeners of gateways. config is for TLS; nil: they have no TLS.
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

// Document returns the member "gateways" of the well-known document; nil: no gateway is on.
func (g gateways) Document() any {
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

// Tasks returns the functions that must run while the relay runs.
func (g gateways) Tasks() (all []func(context.Context)) {
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
	path := filepath.Join(folder, datafolder.GatewayKey)
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
	path := filepath.Join(folder, datafolder.OperatorKey)
	key, err := cli.ReadOperatorKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	key = gateway.NewKey(gateway.Operator)
	return key, fsync.Create(path, []byte(key+"\n"))
}

// Package serve runs a relay: it is the command agora serve. It has the flags of the relay and of its gateways, opens the
// store, the relay, the gateways and the listeners, and runs all of them until it is told to stop. serve.go reads the
// flags, and server.go follows the start. Extensions is for the commands that read a database without a relay.
package serve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/datafolder"
	"github.com/agora-relay/agora/cmd/agora/internal/settings"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/witness"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/thread"
	"github.com/alecthomas/kong"
)

type Cmd struct {
	Addr                  cli.ListenAddress `placeholder:"HOST:PORT" help:"The address to listen on, or unix:PATH (default: 127.0.0.1:8789, or :443 with --domain)."`
	Data                  string            `default:"./agora-data" placeholder:"FOLDER" help:"The folder of the database and of the relay's key (default: ${default})."`
	Demo                  bool              `help:"Try it: run two agents beside the relay, echo (free) and text.count (0.001 USD), with keys in --data. Also accept POST /seed, which creates demonstration data, from everybody, not only from this machine."`
	PublicURL             string            `placeholder:"URL" help:"The URL at which others reach this relay, for example that of a proxy (default: https:// and the first --domain). Messages whose meta.relay names only other relays are refused."`
	Reads                 relay.Visibility  `default:"open" enum:"open,parties" placeholder:"open|parties" help:"Who may read a message that has a recipient: everybody (open, the default), or its sender and its recipient, who sign their reads (parties)."`
	Transparency          string            `default:"auto" enum:"auto,on,off" placeholder:"auto|on|off" help:"Keep a log of all accepted messages, and prove to each sender that its message is there (on), or not (off). The log shows everybody how many messages there are, and when, so auto, the default, is on only with --reads open. See docs/PROOFS.md."`
	TransparencyRetention time.Duration     `default:"30d" placeholder:"DURATION" help:"How long the log keeps what later proofs of a message need, never less than --max-ttl (default: ${default})."`
	WitnessPolicy         string            `placeholder:"FILE" help:"Ask the witnesses in this file (C2SP tlog-policy, lines with a URL) to sign the checkpoints of the log, so that the relay cannot show two histories. See docs/PROOFS.md."`
	Peer                  []witness.Peer    `sep:"none" placeholder:"DID@URL" help:"Another relay: sign the checkpoints of its log, and ask it to sign those of this one. Its operator names this relay in the same way. May be repeated."`
	Mirror                []witness.Peer    `sep:"none" placeholder:"DID@URL" help:"Copy broadcasts from this relay: the MANIFESTs of agents that name their relays, and the open REQUESTs that it decides. See docs/OPERATING.md. May be repeated."`
	MaxBody               int               `type:"bytes" default:"128KiB" placeholder:"SIZE" help:"Maximum size of a posted message (default: ${default})."`
	MaxTTL                time.Duration     `default:"30d" placeholder:"DURATION" help:"Maximum time that a message is kept, even if its ttl is longer (default: ${default})."`
	PendingTimeout        time.Duration     `default:"5m" placeholder:"DURATION" help:"How long a thread waits for an ACCEPT after its REQUEST or last OFFER (default: ${default})."`
	ActiveTimeout         time.Duration     `default:"1h" placeholder:"DURATION" help:"How long a thread waits for its RESULT (default: ${default})."`
	ThreadRetention       time.Duration     `default:"24h" placeholder:"DURATION" help:"How long a thread's record is kept after its messages have expired (default: ${default})."`
	MaxDisk               int64             `type:"bytes" default:"64GiB" placeholder:"SIZE" help:"Maximum size of the database. At this size, messages are refused until others have expired (default: ${default})."`
	AcceptLoss            bool              `configure:"no" help:"Start even if acknowledged messages are missing from the database. Without this flag the relay then refuses to start. All readers have to start again from the oldest message."`
	NewEpoch              bool              `configure:"no" help:"Give the database a new epoch at this start, and so begin a new log. Use it once if the clock was wrong and the log cannot continue. All readers have to start again from the oldest message."`
	NewIdentity           bool              `configure:"no" help:"Create a new identity if the file relay.key of a used database is missing. Without this flag the relay then refuses to start. Clients that know the relay by its did will not recognize it."`
	Page                  bool              `default:"true" negatable:"" help:"Serve a web page that shows the relay at its address (on by default; --page=false or --no-page turns it off)."`
	Configuration         settings.Flags    `embed:"" group:"Configuration"`
	TLS                   tlsFlags          `embed:"" group:"TLS"`
	Limits                limitFlags        `embed:"" group:"Limits and access"`
	Observe               observeFlags      `embed:"" group:"Logs and metrics"`
	Govern                governFlags       `embed:"" group:"Policy, backups and retention"`
	Gateways              gatewayFlags      `embed:"" group:"Gateways"`
	Nodes                 storeFlags        `embed:"" group:"Several nodes"`

	Sources settings.Sources `kong:"-"` // of the settings
}

func (Cmd) Help() string {
	return "Runs a relay until it is interrupted. Then it answers the waiting polls and closes its database. It logs to " +
		"standard error. Each flag can also be given as an environment variable (--max-body as AGORA_MAX_BODY) or in the " +
		"file of --config (as max-body). A flag comes before a variable, and a variable before the file. SIGHUP reloads " +
		"limits, bans, trusted proxies, the log level and certificates.\n\n" +
		"Examples:\n  agora serve\n  agora serve --demo   (with two agents to hire)\n  agora serve --addr :8789 --data /var/lib/agora --public-url https://relay.example\n" +
		"  agora serve --domain relay.example.org --acme-email admin@example.org   (HTTPS with its own certificate)\n" +
		"  agora serve --config agora.toml --check-config\n" +
		"  agora serve --public-url https://relay.example --trusted-proxy 127.0.0.1   (behind a proxy on this machine)\n" +
		"  agora serve --cors-origin https://app.example --post-rate-ip 10 --polls-per-ip 4\n" +
		"  agora serve --metrics-addr 127.0.0.1:9464   (with metrics for Prometheus)\n" +
		"  agora serve --public-url https://relay.example --reads parties   (messages are shown to sender and recipient only)\n" +
		"  agora serve --public-url https://relay.example --hub --hub-addr 127.0.0.1:8790   (with a hub for Chorus agents)\n" +
		"  agora serve --public-url https://relay.example --channel   (with chat channels and agent inboxes)\n" +
		"  agora serve --mirror did:key:z6Mk…@https://other.example   (with the agents and open requests of another " +
		"relay)\n" +
		"  agora serve --store postgres://agora@db1,db2,db3/agora --key-secret key-secret   (one of several nodes)\n" +
		"  agora serve --public-url https://relay.example --jobs   (with a registry of agents and credits)"
}

// BeforeResolve reads the settings that are not on the command line. kong calls it.
func (c *Cmd) BeforeResolve(ctx *kong.Context) (err error) {
	c.Sources, err = settings.Read(ctx)
	return err
}

// AfterApply sets the defaults that depend on other settings. Then it checks the settings that have such defaults. kong
// calls it after Validate.
func (c *Cmd) AfterApply() error {
	secured := len(c.TLS.Domain) > 0
	if c.Addr == "" {
		if c.Addr = "127.0.0.1:8789"; secured {
			c.Addr = ":443"
		}
	}
	if c.TLS.HTTPAddr == "" {
		if c.TLS.HTTPAddr = "off"; secured {
			c.TLS.HTTPAddr = ":80"
		}
	}
	if c.PublicURL == "" {
		c.PublicURL = c.TLS.defaultOrigin()
	}
	switch {
	case c.TLS.HTTPAddr.isOn() && c.PublicURL == "":
		return errors.New("--http-addr must know where to redirect to; give the relay's public URL with --public-url")
	case c.Reads == relay.ToParties && c.PublicURL == "" && !c.Addr.IsLoopback():
		return errors.New("--reads parties needs the relay's public URL, because signed reads contain it; " +
			"give it with --public-url")
	}
	return c.checkAddresses()
}

// checkAddresses refuses to listen twice on the same address.
func (c *Cmd) checkAddresses() error {
	type named struct {
		flag    string
		address cli.ListenAddress
	}
	all := []named{
		{"--addr", c.Addr}, {"--http-addr", cli.ListenAddress(c.TLS.HTTPAddr)}, {"--metrics-addr", c.Observe.MetricsAddr},
	}
	for _, g := range c.Gateways.each() {
		all = append(all, named{"--" + g.choice().name + "-addr", g.choice().addr})
	}
	for i, a := range all {
		for _, b := range all[:i] {
			if a.address.Equals(b.address) {
				return fmt.Errorf("%s must be another address than %s", a.flag, b.flag)
			}
		}
	}
	return nil
}

func (c Cmd) Validate() error {
	for name, d := range map[string]time.Duration{"--max-ttl": c.MaxTTL, "--pending-timeout": c.PendingTimeout,
		"--active-timeout": c.ActiveTimeout, "--thread-retention": c.ThreadRetention} {
		if d < time.Second {
			return fmt.Errorf("%s must be at least 1s", name)
		}
		if d > replay.MaxSpan {
			return fmt.Errorf("%s must be at most %v", name, replay.MaxSpan)
		}
	}
	if c.Data == "" {
		return fmt.Errorf("--data must name a folder")
	}
	if c.Nodes.Store != "" && c.Govern.BackupDir != "" {
		return errors.New("--backup-dir does not work with --store; copy PostgreSQL with pg_dump or pgBackRest")
	}
	if c.Nodes.AcceptAsync && c.Transparency == "on" {
		return errors.New("--transparency on does not work with --accept-async: a failover could lose what was proved")
	}
	if c.MaxBody < 1024 {
		return fmt.Errorf("--max-body must be at least 1KiB")
	}
	if c.MaxDisk < 1<<20 {
		return fmt.Errorf("--max-disk must be at least 1MiB")
	}
	if c.PublicURL != "" {
		if _, err := relay.ParseOrigin(c.PublicURL); err != nil {
			return fmt.Errorf("--public-url: %w", err)
		}
	}
	if len(c.TLS.Domain) > 0 && strings.HasPrefix(strings.ToLower(c.PublicURL), "http:") {
		return errors.New("--domain serves HTTPS, but --public-url begins with http:; write it with https:, or leave it out")
	}
	return nil
}

// keepsLog reports whether the relay keeps a log (LOG L-6).
func (c Cmd) keepsLog() bool {
	return c.Transparency == "on" || c.Transparency == "auto" && c.Reads != relay.ToParties && !c.Nodes.AcceptAsync
}

// policy returns the policy for opening the store. The relay gets the policy from the store.
func (c Cmd) policy() relay.Policy {
	p := relay.Policy{
		Window:          replay.Window{MaxTTL: c.MaxTTL},
		Retention:       c.Govern.retention(),
		Rules:           thread.Rules{PendingTimeout: c.PendingTimeout, ActiveTimeout: c.ActiveTimeout},
		ThreadRetention: c.ThreadRetention,
		Inbox:           c.Limits.inbox(),
	}
	if c.TransparencyRetention != relay.DefaultLogRetention { // nodes of earlier versions know only the default
		p.LogRetention = c.TransparencyRetention
	}
	return p
}

// shutdownTime is how long running requests may take after the relay was told to stop.
const shutdownTime = 4 * time.Second

func (c *Cmd) Run(env cli.Environment, parsed *kong.Context, parse Parser) error {
	switch {
	case c.Configuration.PrintConfig:
		return settings.Print(env.Stdout, c.Sources.Of(parsed))
	case c.Configuration.CheckConfig:
		return c.check(env, parsed)
	}
	err := c.serve(env, parsed, parse)
	if errors.Is(err, relay.ErrLogLost) && c.AcceptLoss && !c.NewEpoch {
		env.Say("the loss is accepted; the database gets a new epoch, and a new log begins: %v", err)
		c.NewEpoch = true
		err = c.serve(env, parsed, parse)
	}
	return err
}

// serve runs the relay until it is told to stop.
func (c *Cmd) serve(env cli.Environment, parsed *kong.Context, parse Parser) (err error) {
	level := new(slog.LevelVar)
	level.Set(slog.Level(c.Observe.LogLevel))
	log := c.Observe.newLog(env, level)
	for _, warning := range settings.Misspelled(parsed) {
		log.Warn(warning)
	}
	if err := errors.Join(c.Govern.checkPolicy(), datafolder.Make(c.Data)); err != nil {
		return err
	}
	watched := c.Observe.open()
	// The database is opened before everything else in the folder, because its lock keeps other processes out of it.
	store, err := c.openStore(env.Ctx, watched.observer(), log)
	if err != nil {
		return ignoreStop(env.Ctx, err, log)
	}
	defer func() { err = errors.Join(err, store.close()) }()
	if err := c.shareKeys(env.Ctx, store); err != nil {
		return ignoreStop(env.Ctx, err, log)
	}
	key, err := c.loadOrCreateKey(env.Ctx, store)
	if err != nil {
		return ignoreStop(env.Ctx, err, log)
	}
	s := &server{Cmd: c, env: env, parse: parse, settings: c.Sources.Of(parsed), log: log, level: level, watched: watched}
	if s.certificates, err = c.TLS.openCertificates(c.Data, log); err != nil {
		return err
	}
	if s.sockets, err = c.listen(); err != nil {
		return err
	}
	if err := s.open(store, key); err != nil {
		return errors.Join(ignoreStop(env.Ctx, err, log), s.sockets.close(), s.gateways.close(), s.governed.close())
	}
	err = s.run()
	log.Info("stopped")
	return err
}

// check checks what can be checked without starting: the settings, and the files that they name. It prints warnings
// about settings that are allowed and may be a mistake.
func (c *Cmd) check(env cli.Environment, parsed *kong.Context) error {
	if _, err := c.TLS.openCertificates(c.Data, cli.NewLog(env)); err != nil {
		return err
	}
	if err := c.Govern.checkPolicy(); err != nil {
		return err
	}
	for _, warning := range append(settings.Misspelled(parsed), c.warnings(c.Addr.IsLoopback())...) {
		env.Say("warning: %s", warning)
	}
	_, err := fmt.Fprintln(env.Stdout, "the configuration is valid")
	return err
}

// ignoreStop returns the error that ended the start of the relay. If the only reason is that the relay was told to
// stop, it logs that and returns nil.
func ignoreStop(ctx context.Context, err error, log *slog.Logger) error {
	if ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
		return err
	}
	log.Info("stopping", "err", err)
	return nil
}

// warnings returns warnings about settings that the operator may have forgotten. loopbackOnly means that only this
// machine can connect.
func (c Cmd) warnings(loopbackOnly bool) (all []string) {
	switch proxied := len(c.Limits.TrustedProxy) > 0; {
	case c.TLS.isOn():
	case c.PublicURL != "" && !proxied:
		all = append(all, "--public-url is given and --trusted-proxy is not: if a proxy forwards requests to this "+
			"relay, all its clients share the limits of one address; name the proxy with --trusted-proxy")
	case c.PublicURL == "" && proxied && loopbackOnly:
		all = append(all, "--trusted-proxy is given and --public-url is not: requests to the proxy's own name are refused, "+
			"because a relay on a loopback address accepts only loopback names; give the public name with --public-url")
	}
	for _, network := range c.Limits.proxies().Networks {
		if network.Bits() == 0 {
			all = append(all, "--trusted-proxy "+network.String()+" trusts everybody: each client can invent an address with "+
				"X-Forwarded-For; give only the addresses of your proxies")
		}
	}
	for _, network := range c.Limits.bans().Networks {
		if IsHuge(network) {
			all = append(all, "--ban "+network.String()+" refuses very many clients that have done nothing")
		}
	}
	if c.Limits.proxies().UnixSockets && !c.Addr.IsUnix() {
		all = append(all, "--trusted-proxy unix has no effect, because --addr is not a Unix socket")
	}
	if !c.keepsLog() && (c.WitnessPolicy != "" || len(c.Peer) > 0) {
		all = append(all, "the relay keeps no log (--transparency "+c.Transparency+", --reads "+string(c.Reads)+"), so no witness watches it; "+
			"turn the log on with --transparency on")
	}
	if c.NewEpoch {
		all = append(all, "--new-epoch begins a new log at each start; leave it out next time")
	}
	if name := c.Gateways.first(); name != "" && c.PublicURL == "" && !loopbackOnly {
		all = append(all, "--"+name+" is given and --public-url is not: the URLs that the gateway hands out have the address "+
			"of --addr, which other machines may not be able to reach; give the URL at which they reach this relay with --public-url")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Sources)) {
		if needed := c.Gateways.missing(name); needed != "" {
			all = append(all, "--"+name+" has no effect without "+needed)
		}
	}
	return all
}

// shareKeys copies the keys that all nodes share into the data folder. It does nothing for a relay with a single node.
func (c Cmd) shareKeys(ctx context.Context, store openedStore) (err error) {
	if store.nodes == nil {
		return nil
	}
	k := SharedKeys{Store: store.nodes, Folder: c.Data, renew: c.NewIdentity}
	if c.Nodes.KeySecret != "" {
		if k.Secret, err = ReadKeySecret(c.Nodes.KeySecret); err != nil {
			return err
		}
	}
	return k.Sync(ctx, c.Gateways.first() != "")
}

// loadOrCreateKey loads the relay's own key. If the file is missing, it creates a key for a database that was never
// used. For a used database it does so only with --new-identity, because a key that was lost by mistake should be
// restored.
func (c Cmd) loadOrCreateKey(ctx context.Context, store openedStore) (didkey.Key, error) {
	path := filepath.Join(c.Data, datafolder.Key)
	moved, err := store.MovedTo(ctx)
	if err != nil {
		return didkey.Key{}, err
	}
	to, owner, _ := strings.Cut(moved, "\n") // owner may use what is left here
	key, err := didkey.Load(path)
	if err == nil && moved != "" && string(key.DID()) != owner {
		return key, fmt.Errorf("this database was moved to %s with agora migrate, so the relay continues there. To start another "+
			"relay with what is here, move %s to another folder and start with --new-identity", to, path)
	}
	if err == nil {
		return key, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return didkey.Key{}, fmt.Errorf("the relay's key: %w. Restore the file from a backup; with a new key this would be "+
			"another relay", err)
	}
	page, err := store.Read(ctx, relay.Query{})
	if err != nil {
		return didkey.Key{}, err
	}
	if page.Cursor.Seq > 0 && !c.NewIdentity {
		return didkey.Key{}, fmt.Errorf("%s is missing, and the database in this folder was used with it; restore the file "+
			"from a backup, or start with --new-identity to give the relay a new identity", path)
	}
	if key, err = didkey.Generate(); err == nil && moved != "" {
		err = store.MarkMoved(ctx, to+"\n"+string(key.DID()))
	}
	if err != nil {
		return didkey.Key{}, err
	}
	return key, didkey.Save(path, key)
}

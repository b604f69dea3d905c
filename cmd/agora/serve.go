package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/thread"
)

type serveCmd struct {
	Addr            listenAddress    `default:"127.0.0.1:8789" placeholder:"HOST:PORT" help:"The address to listen on (default: ${default})."`
	Data            string           `default:"./agora-data" placeholder:"FOLDER" help:"The folder of the database and of the relay's key (default: ${default})."`
	Demo            bool             `help:"Accept POST /seed, which creates demonstration data, from everybody, not only from this machine."`
	PublicURL       string           `placeholder:"URL" help:"The URL at which others reach this relay, for example that of a proxy. Messages whose meta.relay names only other relays are refused."`
	Reads           relay.Visibility `default:"open" enum:"open,parties" placeholder:"open|parties" help:"Who may read a message that has a recipient: everybody (open, the default), or its sender and its recipient, who sign their reads (parties)."`
	MaxBody         int              `type:"bytes" default:"128KiB" placeholder:"SIZE" help:"Maximum size of a posted message (default: ${default})."`
	MaxTTL          time.Duration    `default:"30d" placeholder:"DURATION" help:"Maximum time that a message is kept, even if its ttl is longer (default: ${default})."`
	PendingTimeout  time.Duration    `default:"5m" placeholder:"DURATION" help:"How long a thread waits for an ACCEPT after its REQUEST or last OFFER (default: ${default})."`
	ActiveTimeout   time.Duration    `default:"1h" placeholder:"DURATION" help:"How long a thread waits for its RESULT (default: ${default})."`
	ThreadRetention time.Duration    `default:"24h" placeholder:"DURATION" help:"How long a thread's record is kept after its messages have expired (default: ${default})."`
	MaxDisk         int64            `type:"bytes" default:"64GiB" placeholder:"SIZE" help:"Maximum size of the database. At this size, messages are refused until others have expired (default: ${default})."`
	AcceptLoss      bool             `help:"Start even if acknowledged messages are missing from the database. Without this flag the relay then refuses to start. All readers have to start again from the oldest message."`
	NewIdentity     bool             `help:"Create a new identity if the file relay.key of a used database is missing. Without this flag the relay then refuses to start. Clients that know the relay by its did will not recognize it."`
	Page            bool             `default:"true" negatable:"" help:"Serve a web page that shows the relay at its address (on by default; --page=false or --no-page turns it off)."`
	Limits          limitFlags       `embed:"" group:"Limits and access"`
	Gateways        gatewayFlags     `embed:"" group:"Gateways"`
	LogLevel        slog.Level       `default:"info" placeholder:"LEVEL" help:"debug, info, warn or error (default: ${default})."`
}

func (serveCmd) Help() string {
	return "Runs a relay until it is interrupted. Then it answers the waiting polls and closes its database. It logs to " +
		"standard error as JSON.\n\n" +
		"Examples:\n  agora serve\n  agora serve --addr :8789 --data /var/lib/agora --public-url https://relay.example\n" +
		"  agora serve --public-url https://relay.example --trusted-proxy 127.0.0.1   (behind a proxy on this machine)\n" +
		"  agora serve --cors-origin https://app.example --post-rate-ip 10 --polls-per-ip 4\n" +
		"  agora serve --public-url https://relay.example --reads parties   (messages are shown to sender and recipient only)\n" +
		"  agora serve --public-url https://relay.example --hub --hub-addr 127.0.0.1:8790   (with a hub for Chorus agents)\n" +
		"  agora serve --public-url https://relay.example --channel   (with chat channels and agent inboxes)"
}

func (c serveCmd) Validate() error {
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
	if c.Reads == relay.ToParties && c.PublicURL == "" && !c.Addr.isLoopback() {
		return errors.New("--reads parties needs the relay's public URL, because signed reads contain it; " +
			"give it with --public-url")
	}
	return nil
}

// policy returns the policy for opening the store. The relay gets the policy from the store.
func (c serveCmd) policy() relay.Policy {
	return relay.Policy{
		Window:          replay.Window{MaxTTL: c.MaxTTL},
		Rules:           thread.Rules{PendingTimeout: c.PendingTimeout, ActiveTimeout: c.ActiveTimeout},
		ThreadRetention: c.ThreadRetention,
		Inbox:           c.Limits.inbox(),
	}
}

// shutdownTime is how long running requests may take after the relay was told to stop.
const shutdownTime = 4 * time.Second

func (c serveCmd) Run(env environment) (err error) {
	log := slog.New(slog.NewJSONHandler(env.stderr, &slog.HandlerOptions{Level: c.LogLevel}))
	if err := makeFolder(c.Data); err != nil {
		return err
	}
	// The database is opened first, because its lock keeps other processes out of the whole folder.
	store, err := sqlite.Open(env.ctx, filepath.Join(c.Data, databaseName), sqlite.Options{
		Policy: c.policy(), MaxBytes: c.MaxDisk, AcceptLoss: c.AcceptLoss, Log: log, Extensions: extensions(),
	})
	if err != nil {
		return ignoreStop(env.ctx, err, log)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	key, err := c.loadOrCreateKey(env.ctx, store)
	if err != nil {
		return ignoreStop(env.ctx, err, log)
	}
	listener, err := net.Listen("tcp", string(c.Addr))
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w; choose another address with --addr, or stop the program that "+
			"listens there", c.Addr, err)
	}
	origin, public := "http://"+listener.Addr().String(), ""
	if c.PublicURL != "" {
		if public, err = relay.ParseOrigin(c.PublicURL); err != nil {
			return errors.Join(err, listener.Close())
		}
		origin = public
	}
	r, err := relay.New(env.ctx, relay.Config{Store: store, Key: key, Origin: origin, Reads: c.Reads, MaxBody: c.MaxBody,
		Log: log, Limits: c.Limits.limits()})
	if err != nil {
		return errors.Join(ignoreStop(env.ctx, err, log), listener.Close())
	}
	g, err := c.Gateways.open(env.ctx, c.Data, r, log)
	if err != nil {
		return errors.Join(ignoreStop(env.ctx, err, log), listener.Close())
	}
	options := httpapi.Options{Build: build(), Demo: c.Demo, PublicURL: public, Log: log, Grace: shutdownTime,
		LimitLocal: c.Limits.LimitLocal, TrustedProxies: c.Limits.proxies(), Origins: c.Limits.origins(),
		Mounts: g.mounts(), Gateways: g.document(), Redact: gateway.Redact}
	pageLine, err := c.addPage(&options, listener.Addr())
	if err != nil {
		return errors.Join(err, listener.Close(), g.close())
	}
	if _, err := fmt.Fprintf(env.stdout, "Agora relay %s\n%s%slistening on %s\n",
		key.DID(), pageLine, g.lines(), "http://"+listener.Addr().String()); err != nil {
		return errors.Join(err, listener.Close(), g.close())
	}
	log.Info("listening", "addr", listener.Addr().String(), "origin", origin, "reads", c.Reads, "did", key.DID(),
		"data", c.Data, "build", build())
	for _, warning := range c.warnings(onLoopback(listener.Addr())) {
		log.Warn(warning)
	}
	err = serve(env.ctx, r, httpapi.New(r, options), g.tasks(), append(g.listeners(), httpapi.Listener{Listener: listener})...)
	log.Info("stopped")
	return err
}

// makeFolder creates the data folder if it does not exist. It refuses a folder that other users can enter: each file in
// it is private, but users who can write to the folder could replace the files. It does not change the mode of an
// existing folder, because the folder may contain other things.
func makeFolder(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 && runtime.GOOS != "windows" {
		return fmt.Errorf("other users can enter the data folder %s (mode %#o); run: chmod 700 %s",
			path, mode, shellQuoted(path))
	}
	return nil
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

// onLoopback reports whether only this machine can connect to a listener.
func onLoopback(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// serve runs the relay, its front and further tasks until ctx ends or the relay or the front fails. It returns when all
// of them have ended.
func serve(
	ctx context.Context, r *relay.Relay, front *httpapi.Front, tasks []func(context.Context),
	listeners ...httpapi.Listener,
) error {
	// The relay and the tasks must run until the front has ended, because the front still answers requests.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var background sync.WaitGroup
	for _, task := range tasks {
		background.Go(func() { task(running) })
	}
	var failed error
	background.Go(func() {
		failed = r.Run(running)
		cancel()
	})
	err := front.Run(ctx, listeners...)
	stop()
	background.Wait()
	return errors.Join(err, failed)
}

// warnings returns warnings about settings that the operator may have forgotten. loopbackOnly means that only this
// machine can connect.
func (c serveCmd) warnings(loopbackOnly bool) (all []string) {
	switch proxied := len(c.Limits.TrustedProxy) > 0; {
	case c.PublicURL != "" && !proxied:
		all = append(all, "--public-url is given and --trusted-proxy is not: if a proxy forwards requests to this "+
			"relay, all its clients share the limits of one address; name the proxy with --trusted-proxy")
	case c.PublicURL == "" && proxied && loopbackOnly:
		all = append(all, "--trusted-proxy is given and --public-url is not: requests to the proxy's own name are refused, "+
			"because a relay on a loopback address accepts only loopback names; give the public name with --public-url")
	case c.PublicURL == "" && loopbackOnly && !c.Limits.LimitLocal:
		all = append(all, "requests over loopback are not limited; if a proxy on this machine forwards requests to this "+
			"relay, give --public-url and --trusted-proxy, or limit all requests with --limit-local")
	}
	if name := c.Gateways.first(); name != "" && c.PublicURL == "" && !loopbackOnly {
		all = append(all, "--"+name+" is given and --public-url is not: the URLs that the gateway hands out have the address "+
			"of --addr, which other machines may not be able to reach; give the URL at which they reach this relay with --public-url")
	}
	return all
}

// loadOrCreateKey loads the relay's own key. If the file is missing, it creates a key for a database that was never
// used. For a used database it does so only with --new-identity, because a key that was lost by mistake should be
// restored.
func (c serveCmd) loadOrCreateKey(ctx context.Context, store relay.Store) (didkey.Key, error) {
	path := filepath.Join(c.Data, keyName)
	key, err := didkey.Load(path)
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
	if key, err = didkey.Generate(); err != nil {
		return didkey.Key{}, err
	}
	return key, didkey.Save(path, key)
}

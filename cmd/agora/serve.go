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
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/thread"
)

type serveCmd struct {
	Addr            listenAddress    `default:"127.0.0.1:8789" placeholder:"HOST:PORT" help:"Where to listen (default: ${default})."`
	Data            string           `default:"./agora-data" placeholder:"FOLDER" help:"Where the database and the relay's key live (default: ${default})."`
	Demo            bool             `help:"Open POST /seed to everybody, not to this machine only."`
	PublicURL       string           `placeholder:"URL" help:"The address others reach this relay at, behind a proxy say. Messages bound to a relay by meta.relay are checked against it."`
	Reads           relay.Visibility `default:"open" enum:"open,parties" placeholder:"open|parties" help:"Who may read a message that has a recipient: everybody (open, the default), or its sender and its recipient, who sign their reads (parties)."`
	MaxBody         int              `type:"bytes" default:"128KiB" placeholder:"SIZE" help:"Largest body taken (default: ${default})."`
	MaxTTL          time.Duration    `default:"30d" placeholder:"DURATION" help:"Longest time a message is kept, whatever its ttl says (default: ${default})."`
	PendingTimeout  time.Duration    `default:"5m" placeholder:"DURATION" help:"How long a thread waits for an ACCEPT after its REQUEST or last OFFER (default: ${default})."`
	ActiveTimeout   time.Duration    `default:"1h" placeholder:"DURATION" help:"How long a thread waits for its RESULT (default: ${default})."`
	ThreadRetention time.Duration    `default:"24h" placeholder:"DURATION" help:"How long a thread's record outlives its messages (default: ${default})."`
	MaxDisk         int64            `type:"bytes" default:"64GiB" placeholder:"SIZE" help:"Largest size of the database; then messages are refused until some have expired (default: ${default})."`
	AcceptLoss      bool             `help:"Start although acknowledged messages are missing from the database, which a start refuses otherwise. Readers have to start again."`
	NewIdentity     bool             `help:"Make a new identity for a database whose relay.key is missing, which a start refuses otherwise. Clients that know the relay by its did will not know it any more."`
	Limits          limitFlags       `embed:"" group:"Limits and who may ask"`
	LogLevel        slog.Level       `default:"info" placeholder:"LEVEL" help:"debug, info, warn or error (default: ${default})."`
}

func (serveCmd) Help() string {
	return "Runs until interrupted, then answers the waiting polls and closes its database. Logs go to standard error as JSON.\n\n" +
		"Examples:\n  agora serve\n  agora serve --addr :8789 --data /var/lib/agora --public-url https://relay.example\n" +
		"  agora serve --public-url https://relay.example --trusted-proxy 127.0.0.1   (behind a proxy on this machine)\n" +
		"  agora serve --cors-origin https://app.example --post-rate-ip 10 --polls-per-ip 4\n" +
		"  agora serve --public-url https://relay.example --reads parties   (messages are shown to sender and recipient only)"
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
		return fmt.Errorf("--reads parties: signed reads name the relay's address, which others cannot know from --addr %s; give it with --public-url", c.Addr)
	}
	return nil
}

// policy is what the store is opened with. The relay asks the store for it.
func (c serveCmd) policy() relay.Policy {
	return relay.Policy{
		Window:          replay.Window{MaxTTL: c.MaxTTL},
		Rules:           thread.Rules{PendingTimeout: c.PendingTimeout, ActiveTimeout: c.ActiveTimeout},
		ThreadRetention: c.ThreadRetention,
		Inbox:           c.Limits.inbox(),
	}
}

// shutdownTime is how long requests under way may take once the relay was told to stop.
const shutdownTime = 4 * time.Second

func (c serveCmd) Run(env environment) (err error) {
	log := slog.New(slog.NewJSONHandler(env.stderr, &slog.HandlerOptions{Level: c.LogLevel}))
	if err := makeFolder(c.Data); err != nil {
		return err
	}
	// The database comes first: its lock makes the whole folder this process's.
	store, err := sqlite.Open(env.ctx, filepath.Join(c.Data, databaseName), sqlite.Options{
		Policy: c.policy(), MaxBytes: c.MaxDisk, AcceptLoss: c.AcceptLoss, Log: log,
	})
	if err != nil {
		return unlessStopped(env.ctx, err, log)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	key, err := c.key(env.ctx, store)
	if err != nil {
		return unlessStopped(env.ctx, err, log)
	}
	listener, err := net.Listen("tcp", string(c.Addr))
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w; choose another with --addr, or stop what listens there", c.Addr, err)
	}
	origin, public := "http://"+listener.Addr().String(), ""
	if c.PublicURL != "" {
		if public, err = relay.ParseOrigin(c.PublicURL); err != nil {
			return errors.Join(err, listener.Close())
		}
		origin = public
	}
	r, err := relay.New(env.ctx, relay.Config{Store: store, Key: key, Origin: origin, Reads: c.Reads, MaxBody: c.MaxBody, Log: log,
		Limits: c.Limits.limits()})
	if err != nil {
		return errors.Join(unlessStopped(env.ctx, err, log), listener.Close())
	}
	front := httpapi.New(r, httpapi.Options{Build: build(), Demo: c.Demo, PublicURL: public, Log: log, Grace: shutdownTime,
		LimitLocal: c.Limits.LimitLocal, TrustedProxies: c.Limits.proxies(), Origins: c.Limits.origins()})
	if _, err := fmt.Fprintf(env.stdout, "Agora relay %s\nlistening on %s\n", key.DID(), "http://"+listener.Addr().String()); err != nil {
		return errors.Join(err, listener.Close())
	}
	log.Info("listening", "addr", listener.Addr().String(), "origin", origin, "reads", c.Reads, "did", key.DID(), "data", c.Data, "build", build())
	for _, warning := range c.warnings(onLoopback(listener.Addr())) {
		log.Warn(warning)
	}
	err = serve(env.ctx, r, front, httpapi.Listener{Listener: listener})
	log.Info("stopped")
	return err
}

// makeFolder makes the data folder, or refuses one that other users can enter: its files are private one by one, but who
// may write to the folder can exchange them. The mode of a folder that is there is for its owner to change, as it may
// hold other things.
func makeFolder(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 && runtime.GOOS != "windows" {
		return fmt.Errorf("other users can enter the data folder %s (mode %#o); run: chmod 700 %s", path, mode, quoted(path))
	}
	return nil
}

// unlessStopped returns the error that ended a start, nil if that is only that the relay was told to stop meanwhile.
func unlessStopped(ctx context.Context, err error, log *slog.Logger) error {
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

// serve runs the relay and its front until ctx ends or one of them fails, and returns when both have ended.
func serve(ctx context.Context, r *relay.Relay, front *httpapi.Front, listeners ...httpapi.Listener) error {
	// The relay outlives the front, which answers the waiting polls before it ends.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- r.Run(running)
		cancel()
	}()
	err := front.Run(ctx, listeners...)
	stop()
	return errors.Join(err, <-ended)
}

// warnings returns what an operator may have forgotten. home: only this machine can connect.
func (c serveCmd) warnings(home bool) (all []string) {
	switch proxied := len(c.Limits.TrustedProxy) > 0; {
	case c.PublicURL != "" && !proxied:
		all = append(all, "--public-url is given and --trusted-proxy is not: if a proxy passes requests on to this relay, all who come "+
			"through it share the limits of one address; name the proxy with --trusted-proxy")
	case c.PublicURL == "" && proxied && home:
		all = append(all, "--trusted-proxy is given and --public-url is not: requests to the proxy's own name are refused, because "+
			"a relay on a loopback address answers to loopback names only; give it the name with --public-url")
	case c.PublicURL == "" && home && !c.Limits.LimitLocal:
		all = append(all, "requests over loopback are not limited; if a proxy on this machine passes requests on to this relay, "+
			"say so with --public-url and --trusted-proxy, or limit all alike with --limit-local")
	}
	return all
}

// key loads the relay's own key. It makes one for a database that has never held anything, and for another one only if
// a new identity was asked for: a key that was lost by mistake is to be put back instead.
func (c serveCmd) key(ctx context.Context, store relay.Store) (didkey.Key, error) {
	path := filepath.Join(c.Data, keyName)
	key, err := didkey.Load(path)
	if err == nil {
		return key, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return didkey.Key{}, fmt.Errorf("the relay's key: %w. Do not make a new one, which would make this another relay: "+
			"put the file back from a backup", err)
	}
	page, err := store.Read(ctx, relay.Query{})
	if err != nil {
		return didkey.Key{}, err
	}
	if page.Cursor.Seq > 0 && !c.NewIdentity {
		return didkey.Key{}, fmt.Errorf("%s is missing, and the database beside it was used with it; put it back from a copy, "+
			"or start with --new-identity to give the relay another identity", path)
	}
	if key, err = didkey.Generate(); err != nil {
		return didkey.Key{}, err
	}
	return key, didkey.Save(path, key)
}

package serve

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/settings"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/relay/mirror"
	"github.com/coreos/go-systemd/v22/daemon"
)

// This file opens and runs the relay of agora serve, after serve.go has read its settings.

// server is a relay that is being started, or that runs.
type server struct {
	*Cmd
	env          cli.Environment
	parse        Parser
	settings     []settings.Setting // in force; only reloadAt changes them
	log          *slog.Logger
	level        *slog.LevelVar
	watched      *watched
	certificates certificates // nil: no TLS
	sockets      sockets

	relay    *relay.Relay
	governed governed
	gateways gateways
	leased   *leasedGateways // in place of gateways, if the relay has several nodes; nil: it has one
	mirror   func(context.Context)
	demo     demo
	front    *httpapi.Front
}

// open makes the relay, its gateways and its front, and prints where they are.
func (s *server) open(store openedStore, key didkey.Key) (err error) {
	at, secured := s.sockets.main[0].Addr(), s.certificates != nil
	origin, public := listenerURL(at, secured), ""
	if at.Network() == "unix" {
		origin = s.TLS.scheme() + "://localhost"
	}
	if s.PublicURL != "" {
		if public, err = relay.ParseOrigin(s.PublicURL); err != nil {
			return err
		}
		origin = public
	}
	if err := s.openRelay(store, key, origin); err != nil {
		return err
	}
	s.gateways.secured = secured
	options := httpapi.Options{Build: cli.Build(), Demo: s.Demo, PublicURL: public, Hosts: s.TLS.hosts(), Log: s.log, Grace: shutdownTime,
		LimitLocal: s.Limits.LimitLocal, Proxies: s.Limits.proxies(), Origins: s.Limits.origins(),
		Mounts: s.mounts(), Gateways: s.gateways.Document(), APIs: s.gateways.apis(), Redact: gateway.Redact,
		AccessLog: s.Observe.AccessLog}
	if options.Witness, err = s.witness(key); err != nil {
		return err
	}
	if store.nodes != nil {
		options.Durability, options.Node = store.nodes.Durability(), func() any { return store.nodes.Health() }
	}
	pageLine, err := s.addPage(&options, at, secured)
	if err != nil {
		return err
	}
	s.front = httpapi.New(s.relay, options)
	s.watched.addRelay(s.relay, s.MaxDisk, s.certificates, s.ready)
	s.watched.addStore(store, s.governed.backups, s.log)
	return s.sayWhere(key.DID(), origin, pageLine, secured)
}

// openRelay makes the relay, with what governs it, its gateways and its mirrors.
func (s *server) openRelay(store openedStore, key didkey.Key, origin string) (err error) {
	config := store.config(relay.Config{Key: key, Origin: origin, Reads: s.Reads,
		MaxBody: s.MaxBody, Log: s.log, Limits: s.Limits.limits(), Observer: s.watched.observer(),
		Transparency: s.keepsLog()})
	if config.Witnesses, err = s.witnesses(); err != nil {
		return err
	}
	if s.governed.policy = s.Govern.policy(s.log); s.governed.policy != nil {
		config.Screen = s.governed.policy
	}
	if s.relay, err = relay.New(s.env.Ctx, config); err != nil {
		return err
	}
	if err := s.openGoverned(store); err != nil { // it sets the bans
		return err
	}
	if err := s.openGateways(store); err != nil {
		return err
	}
	if s.demo, err = s.openDemo(); err != nil {
		return err
	}
	return s.openMirror(store, key)
}

// sayWhere prints and logs where the relay is. pageLine is the line about its page.
func (s *server) sayWhere(did didkey.DID, origin, pageLine string, secured bool) error {
	text := fmt.Sprintf("Agora relay %s\n%s%s", did, pageLine, s.gateways.lines())
	if s.sockets.metrics != nil {
		text += fmt.Sprintf("metrics at %s/metrics\n", listenerURL(s.sockets.metrics.Addr(), false))
	}
	if s.sockets.http != nil {
		text += fmt.Sprintf("redirecting %s\n", listenerURL(s.sockets.http.Addr(), false))
	}
	for _, l := range s.sockets.main {
		text += fmt.Sprintf("listening on %s\n", listenerURL(l.Addr(), secured))
	}
	text += s.demo.lines(origin)
	if _, err := fmt.Fprint(s.env.Stdout, text); err != nil { // before the log: people begin to read at the top
		return err
	}
	for _, l := range s.sockets.main {
		s.log.Info("listening", "addr", l.Addr().String(), "tls", secured, "origin", origin, "reads", s.Reads,
			"did", did, "data", s.Data, "build", cli.Build(), "log", s.logOrigin())
	}
	for _, warning := range s.warnings(onLoopback(s.sockets.main[0].Addr())) {
		s.log.Warn(warning)
	}
	return nil
}

// openGateways opens the gateways that are on, or prepares them if this is one of several nodes.
func (s *server) openGateways(store openedStore) (err error) {
	open := func(ctx context.Context) (gateways, error) { return s.Gateways.Open(ctx, s.Data, s.relay, s.log) }
	if store.nodes == nil {
		s.gateways, err = open(s.env.Ctx)
	} else {
		s.gateways, err = s.Gateways.standby(s.Data, s.relay, s.log)
	}
	if err == nil {
		s.gateways, err = s.gateways.listen()
	}
	if err == nil && store.nodes != nil && s.gateways.core != nil {
		s.leased = &leasedGateways{flags: s.Gateways, lease: store.nodes.Lease, open: open, standby: s.gateways, log: s.log}
	}
	return err
}

// openMirror prepares the copying of other relays' broadcasts. Of several nodes, the one with the lease copies.
func (s *server) openMirror(store openedStore, key didkey.Key) error {
	m, err := mirror.New(mirror.Options{Relay: s.relay, Key: key, Peers: s.Mirror, Log: s.log})
	if err != nil {
		return fmt.Errorf("--mirror: %w", err)
	}
	s.mirror = m.Run
	if store.nodes != nil {
		s.mirror = func(ctx context.Context) { whileLeading(ctx, store.nodes.Lease, m.Run) }
	}
	return nil
}

func (s *server) mounts() []httpapi.Mount {
	if s.leased != nil {
		return s.leased.mounts()
	}
	return s.gateways.Mounts()
}

func (s *server) gatewayTasks() []func(context.Context) {
	if s.leased != nil {
		return []func(context.Context){s.leased.run}
	}
	return s.gateways.Tasks()
}

func (s *server) gatewayListeners(config *tls.Config) []httpapi.Listener {
	if s.leased != nil {
		return s.leased.listeners(config)
	}
	return s.gateways.listeners(config)
}

// run serves until the relay is told to stop.
func (s *server) run() error {
	var config *tls.Config
	signals, stop := hangups()
	defer stop()
	tasks := append(append(s.gatewayTasks(), s.governed.tasks()...), func(ctx context.Context) { s.reloadAt(ctx, signals) }, s.announceStop,
		s.feedWatchdog, s.mirror, s.runDemo)
	if s.certificates != nil {
		config = tlsConfig(s.certificates)
		tasks = append(tasks, s.certificates.run)
	}
	if s.sockets.metrics != nil {
		tasks = append(tasks, func(ctx context.Context) {
			pages := s.watched.metrics.Server(s.ready, s.log)
			pages.Handler = s.front.GuardHost(s.sockets.metrics, pages.Handler)
			if err := RunServer(ctx, pages, s.sockets.metrics); err != nil {
				s.log.Error("the metrics are not served any more", "err", err)
			}
		})
	}
	listeners := s.gatewayListeners(config)
	for _, l := range s.sockets.main {
		listeners = append(listeners, httpapi.Listener{Listener: l, TLS: config})
	}
	if s.sockets.http != nil {
		listeners = append(listeners, httpapi.Listener{Listener: s.sockets.http,
			Mounts: []httpapi.Mount{plainHTTP(s.certificates, s.relay.Origin())}})
	}
	notifySystemd(s.log, daemon.SdNotifyReady)
	return Serve(s.env.Ctx, s.relay, s.front, tasks, listeners...)
}

// ready returns nil if the relay accepts messages.
func (s *server) ready() error { return cmp.Or(s.relay.Health(), s.governed.policyHealth()) }

// Serve runs the relay, its front and further tasks until ctx ends or the relay or the front fails. It returns when all
// of them have ended.
func Serve(
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

// onLoopback reports whether only this machine can connect to a listener.
func onLoopback(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

package serve

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/alecthomas/kong"
)

// Parser parses a command line of serve, with the environment and the file as they are now.
type Parser func(args []string) (*Cmd, *kong.Context, error)

// hangups returns a channel that gets each SIGHUP, until stop is called.
func hangups() (signals chan os.Signal, stop func()) {
	signals = make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	return signals, func() { signal.Stop(signals) }
}

// reloadAt reloads the settings at each signal, until ctx ends.
func (s *server) reloadAt(ctx context.Context, signals <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
		done := announceReload(s.log)
		err := s.reload(ctx)
		done()
		if s.watched.metrics != nil {
			s.watched.metrics.Reloaded(err)
		}
		if err != nil {
			s.log.Error("the settings were not reloaded; those before stay in force", "err", err)
		}
	}
}

// reload reads the settings again and applies those with the tag reload. Nothing is applied if a setting is wrong, or
// if a certificate cannot be used. Requests and polls continue.
func (s *server) reload(ctx context.Context) error {
	fresh, parsed, err := s.parse(s.env.Args)
	if err != nil {
		return err
	}
	settings := fresh.Sources.Of(parsed)
	if s.certificates != nil {
		if err := s.certificates.reload(); err != nil {
			return err
		}
	}
	if err := s.relay.SetInbox(ctx, fresh.Limits.inbox()); err != nil {
		return err
	}
	var applied []string
	for i, old := range s.settings {
		now := settings[i]
		switch {
		case old.Value == now.Value:
		case now.Flag.Tag.Has("reload"):
			applied = append(applied, now.Flag.Name)
			s.settings[i] = now
		default:
			s.log.Warn("a changed setting takes effect only after a restart", "setting", now.Flag.Name)
		}
	}
	s.relay.Gate().SetLimits(fresh.Limits.limits())
	s.governed.bans.SetSettings(fresh.Limits.bans())
	s.front.SetProxies(fresh.Limits.proxies())
	s.level.Set(slog.Level(fresh.Observe.LogLevel))
	slices.Sort(applied)
	s.log.Info("reloaded", "changed", applied)
	return nil
}

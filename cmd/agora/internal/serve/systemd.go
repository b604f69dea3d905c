package serve

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// This file tells systemd about the relay, see sd_notify(3). Without systemd it does nothing.

// announceStop tells systemd that the relay stops, as soon as it was told to stop. Requests that have begun may still be
// answered then. ctx ends when the relay has stopped for another reason.
func (s *server) announceStop(ctx context.Context) {
	select {
	case <-s.env.Ctx.Done():
	case <-ctx.Done():
	}
	notifySystemd(s.log, daemon.SdNotifyStopping)
}

// notifySystemd tells systemd about the state of the relay, if systemd has started it with Type=notify.
func notifySystemd(log *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("cannot tell systemd about the state of the relay", "state", state, "err", err)
	}
}

// announceReload tells systemd that the settings are being read again. The caller must call done afterwards.
func announceReload(log *slog.Logger) (done func()) {
	notifySystemd(log, reloadingState(monotonic()))
	return func() { notifySystemd(log, daemon.SdNotifyReady) }
}

// reloadingState is what systemd wants to know at the beginning of a reload: the time by the machine's monotonic clock
// too, if the system has one.
func reloadingState(now time.Duration, known bool) string {
	if !known {
		return daemon.SdNotifyReloading
	}
	return daemon.SdNotifyReloading + "\nMONOTONIC_USEC=" + strconv.FormatInt(now.Microseconds(), 10)
}

// feedWatchdog tells systemd that the relay is alive, as often as the unit's WatchdogSec asks for. If the relay hangs, it
// does not, and systemd starts it again. A relay that refuses messages, because its disk is full, is alive.
func (s *server) feedWatchdog(ctx context.Context) {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		s.log.Warn("the watchdog of systemd is off", "err", err)
	}
	if err != nil || interval == 0 {
		return
	}
	tick := time.NewTicker(interval / 3)
	defer tick.Stop()
	for {
		s.relay.Waiters(0) // it waits for the locks that every poll and every stream needs
		_ = s.relay.Health()
		notifySystemd(s.log, daemon.SdNotifyWatchdog)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

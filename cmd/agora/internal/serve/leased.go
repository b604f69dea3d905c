package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// lease reports whether this node has the lease, and returns a channel that is closed when this changes.
type lease func() (held bool, changed <-chan struct{})

// whileLeading calls f whenever this node has the lease, until ctx ends. The context of f ends with the lease. Then
// whileLeading waits until f returns.
func whileLeading(ctx context.Context, lease lease, f func(context.Context)) {
	for ctx.Err() == nil {
		held, changed := lease()
		if held {
			leading, cancel := context.WithCancel(ctx)
			var task sync.WaitGroup
			task.Go(func() { f(leading) })
			select {
			case <-ctx.Done():
			case <-changed:
			}
			cancel()
			task.Wait()
			continue
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

// errNotServing is the answer of a node that does not serve the gateways now.
var errNotServing = envelope.NotStored("another node of this relay serves the gateways; send the request there, or try "+
	"again in a moment", 2*time.Second)

// leasedGateways are the gateways of a relay of several nodes. The node with the lease serves them. The others answer
// their paths with 503, so that a proxy tries the next node. A gateway keeps things in memory, so a node that gets the
// lease opens its gateways anew.
type leasedGateways struct {
	flags   gatewayFlags
	lease   lease
	open    func(context.Context) (gateways, error)
	standby gateways // has the mounts and the listeners, and is never run
	log     *slog.Logger

	current atomic.Pointer[servingGateways] // nil: another node serves
}

// servingGateways are the gateways while this node has the lease.
type servingGateways struct {
	gateways
	ctx  context.Context // ends with the lease
	main []httpapi.Mount
	own  [][]httpapi.Mount // for each gateway, those of its own listener
}

// mounts returns the mounts of the main listener.
func (l *leasedGateways) mounts() []httpapi.Mount {
	return l.leased(l.standby.Mounts(), func(s *servingGateways) []httpapi.Mount { return s.main })
}

// listeners returns the own listeners of gateways.
func (l *leasedGateways) listeners(config *tls.Config) (all []httpapi.Listener) {
	for i, s := range l.standby.all {
		if s.own != nil {
			all = append(all, httpapi.Listener{Listener: s.own, TLS: config,
				Mounts: l.leased(s.mounts(""), func(s *servingGateways) []httpapi.Mount { return s.own[i] })})
		}
	}
	return all
}

// leased returns mounts that pass requests to those of the gateways that are served now.
func (l *leasedGateways) leased(mounts []httpapi.Mount, of func(*servingGateways) []httpapi.Mount) []httpapi.Mount {
	for i := range mounts {
		mounts[i].Handler = func(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
			serving := l.current.Load()
			if serving == nil || serving.ctx.Err() != nil {
				return errNotServing
			}
			// Streams end with the lease, so that their clients come to the next node.
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			defer context.AfterFunc(serving.ctx, cancel)()
			return of(serving)[i].Handler(w, r.WithContext(ctx), from)
		}
	}
	return mounts
}

// run serves the gateways whenever this node has the lease, until ctx ends.
func (l *leasedGateways) run(ctx context.Context) {
	whileLeading(ctx, l.lease, func(ctx context.Context) {
		for ctx.Err() == nil {
			if err := l.serve(ctx); err != nil && ctx.Err() == nil {
				l.log.Error("the gateways cannot be opened; trying again", "err", err)
				select {
				case <-ctx.Done():
				case <-time.After(5 * time.Second):
				}
			}
		}
	})
}

// serve opens the gateways and serves them until ctx ends.
func (l *leasedGateways) serve(ctx context.Context) error {
	g, err := l.open(ctx)
	if err != nil {
		return errors.Join(err, g.close())
	}
	s := &servingGateways{gateways: g, ctx: ctx, main: g.Mounts()}
	for _, one := range g.all {
		s.own = append(s.own, one.mounts(""))
	}
	var tasks sync.WaitGroup
	for _, task := range g.Tasks() {
		tasks.Go(func() { task(ctx) })
	}
	l.current.Store(s)
	<-ctx.Done()
	l.current.Store(nil)
	tasks.Wait()
	return nil
}

package trade

import (
	"context"
	"iter"
	"net/url"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// market is where agora ask asks: one relay or several.
type market interface {
	cli.Relays
	request(ctx context.Context, opts client.RequestOptions) (job, error)
	resume(ctx context.Context, known client.Known) (job, error)
}

// job is what client.Call and client.NetworkCall have in common.
type job interface {
	Offers(ctx context.Context) iter.Seq2[client.Offer, error]
	Acceptance(offer client.Offer) (envelope.Draft, error)
	Accept(ctx context.Context, offer client.Offer) error
	Result(ctx context.Context) (*client.Result, error)
	Record(ctx context.Context) (*client.Thread, error)
	State(ctx context.Context) (client.CallState, error)
	Limit(limits *envelope.Constraints)
}

// market returns a client of the relay or relays. moved is called when a job was continued at another relay.
func (c AskCmd) market(env cli.Environment, key didkey.Key, moved func(client.Move)) (market, error) {
	if !c.Many() {
		relay, err := c.One().Connect(env, key)
		return oneRelay{relay}, err
	}
	n, err := c.AskingNetwork(env, key, client.NetworkOptions{Silence: c.Silence, Moved: moved})
	return manyRelays{n}, err
}

type oneRelay struct{ *client.Client }

func (r oneRelay) request(ctx context.Context, opts client.RequestOptions) (job, error) {
	return r.Request(ctx, opts)
}

func (r oneRelay) resume(ctx context.Context, known client.Known) (job, error) {
	return r.ResumeKnown(ctx, known)
}

type manyRelays struct{ *client.Network }

func (r manyRelays) request(ctx context.Context, opts client.RequestOptions) (job, error) {
	return r.Request(ctx, opts)
}

func (r manyRelays) resume(ctx context.Context, known client.Known) (job, error) {
	return r.ResumeKnown(ctx, known)
}

// moved says that the job was continued at another relay.
func (a *asking) moved(m client.Move) {
	a.note("%s %s; continued at %s", hostOf(m.From.URL), m.Reason, hostOf(m.To.URL))
}

// hostOf returns the host of a relay's origin, and its port if it has one.
func hostOf(origin string) string {
	if u, err := url.Parse(origin); err == nil && u.Host != "" {
		return u.Host
	}
	return origin
}

// threadID returns the id of the thread in which the job is now.
func (a *asking) threadID() string {
	if call, ok := a.call.(*client.NetworkCall); ok {
		id, _ := call.Thread()
		return id
	}
	return a.thread
}

package a2a

import (
	"context"
	_ "embed"
	"net/http"
	"sync"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
	"github.com/agora-relay/agora/relay/httpapi"
)

// Limits and times of endpoints and tasks (docs/A2A.md).
const (
	maxKeys       = 200 // of one endpoint
	maxUnfinished = 1000
	// maxAnonymous is how many unfinished tasks of anonymous callers an endpoint has; maxOfSource, of one network of them;
	// maxOfCaller, of one key or DID.
	maxAnonymous = maxUnfinished / 2
	maxOfSource  = 20
	maxOfCaller  = 200

	maxSentOfOne  = 5      // turns of one caller that wait for an OFFER
	maxEnded      = 10_000 // terminal tasks of an endpoint
	maxBytes      = 256 << 20
	fullRetry     = time.Minute // Retry-After of an endpoint or a caller with too many unfinished tasks
	maxPushes     = 10          // of one task
	maxPosts      = 512         // at a time; maxOwnPosts: for one caller
	maxOwnPosts   = 16
	maxHooks      = 20                  // of one DID
	maxNotices    = 1000                // of one hook in a day that its owner has not answered
	maxNotice     = 64 << 10            // bytes of an event for a hook
	noticeLife    = 7 * 24 * time.Hour  // how long a repeated event is recognized
	unheard       = 90 * 24 * time.Hour // after that an endpoint is deleted
	historyLength = 50                  // if the caller does not say how many messages it wants
)

// Rates.
var (
	endpointRate = relay.Rate{PerSecond: 20.0 / 3600, Burst: 20} // new endpoints from one address
	taskRate     = relay.Rate{PerSecond: 10.0 / 60, Burst: 20}   // new tasks of anonymous callers from one address
	hookRate     = relay.Rate{PerSecond: 20.0 / 3600, Burst: 20} // new hooks from one address
	noticeRate   = relay.Rate{PerSecond: 5, Burst: 50}           // events for one hook from one network
	postRate     = relay.Rate{PerSecond: 50.0 / 60, Burst: 10}   // pushes of anonymous callers to one host: 60 a minute
)

// The names of the limits in answers with status 429, beside envelope.LimitRequests.
const (
	limitEndpoints  = "endpoints"
	limitKeys       = "keys"
	limitPushes     = "pushes"
	limitHooks      = "hooks"
	limitNewTasks   = "newTasks"
	limitUnfinished = "unfinishedTasks"
)

//go:embed 0001_initial.sql
var initialSchema string

// Extension has the tables of the gateway.
var Extension = relay.Extension{Name: "a2a", Migrations: []string{initialSchema}, Check: check}

// self is the gateway as a peer of the relay.
var self = relay.Peer{Local: true}

// Options are the settings of a Gateway.
type Options struct {
	Endpoints int           // how many endpoints there may be
	Retention time.Duration // how long a task is kept after its last change
	Wait      time.Duration // how long a blocking call waits at most
}

// Gateway is the A2A gateway of a relay. Run must be running while its handlers are used.
type Gateway struct {
	*gateway.Core
	options    Options
	url        string
	answers    *gateway.Answers
	deliveries *deliver.Deliveries
	news       *gateway.News // by the number of the task
	closed     *gateway.News // by the number of the endpoint: callers must be checked again

	pushes    *gateway.Outbox       // a lane is a push configuration
	pushPosts *admission.CallerRate // of anonymous callers, by host

	keys      int   // how many keys an endpoint may have
	taskBytes int64 // how many bytes a task may have

	newEndpoints *admission.AddressRate
	newTasks     *admission.AddressRate
	newHooks     *admission.AddressRate
	noticed      *admission.CallerRate // events for hooks, by the hook and the network
	notices      int                   // how many a hook may have that its owner has not answered

	kick chan struct{} // makes the sweep run now; has room for one
}

// New returns the A2A gateway of a relay.
func New(ctx context.Context, c *gateway.Core, o Options) (*Gateway, error) {
	g := &Gateway{Core: c, options: o, url: c.Relay.Origin() + "/a2a", answers: gateway.NewAnswers(c),
		news: gateway.NewNews(), closed: gateway.NewNews(), keys: maxKeys, taskBytes: wire.MaxTask,
		newEndpoints: admission.NewAddressRate(limitEndpoints, "creates endpoints", endpointRate),
		newTasks:     admission.NewAddressRate(limitNewTasks, "creates tasks", taskRate),
		newHooks:     admission.NewAddressRate(limitHooks, "creates hooks", hookRate),
		noticed:      admission.NewCallerRate("notices", "the events for this hook come", noticeRate), notices: maxNotices,
		pushPosts: admission.NewCallerRate(limitPushes, "pushes to this host come", postRate),
		kick:      make(chan struct{}, 1)}
	courier := courier{g, new(sync.Map)}
	g.pushes = gateway.NewOutbox(c, "a2a", gateway.NewOutgoing(c.Outgoing), courier)
	g.pushes.Own = g.ownHook
	g.pushes.Share(maxPosts, maxOwnPosts, courier.payer)
	var err error
	g.deliveries, err = deliver.New(ctx, c, "a2a", g, g)
	return g, err
}

// URL returns the base URL of the gateway: the relay's URL, with /a2a.
func (g *Gateway) URL() string { return g.url }

// Run sends turns to agents, follows their answers, pushes events to callers, and removes what has expired, until ctx ends.
func (g *Gateway) Run(ctx context.Context) {
	var tasks sync.WaitGroup
	tasks.Go(func() { g.deliveries.Run(ctx) })
	tasks.Go(func() { g.pushes.Run(ctx) })
	tasks.Go(func() { g.sweep(ctx) })
	tasks.Wait()
}

type methods = map[string]httpapi.Handler

const (
	get  = http.MethodGet
	post = http.MethodPost
	put  = http.MethodPut
	del  = http.MethodDelete
)

// Mounts returns the gateway's routes under a prefix: "/a2a" on the main listener, "" on its own listener.
func (g *Gateway) Mounts(prefix string) []httpapi.Mount {
	main := prefix != ""
	const help = "docs/A2A.md lists the paths of this gateway"
	cors := httpapi.Mount{Methods: []string{put, del},
		Headers: []string{wire.VersionName, wire.ExtensionName, "Idempotency-Key"}}
	agents, work, hooks, hook := cors, cors, cors, cors
	cors.Prefix, cors.Errors = prefix, answerTo
	cors.Handler = gateway.NoReferrer(httpapi.Routes(help, g.routes(main)...))
	agents.Prefix, agents.Errors = prefix+"/agents", gateway.RelayForm
	agents.Handler = gateway.NoReferrer(httpapi.Routes(help,
		httpapi.Route{Path: "/", Methods: methods{get: g.getAgents}}))
	work.Prefix, work.Errors = prefix+"/work", gateway.RelayForm
	work.Handler = gateway.NoReferrer(httpapi.Routes(help, slashed(
		httpapi.Route{Path: "/{turn}", Methods: methods{get: g.getWork(main)}},
		httpapi.Route{Path: "/{turn}/events", Methods: methods{post: g.postProgress(main)}})...))
	hooks.Prefix, hooks.Errors = prefix+"/hooks", gateway.RelayForm
	hooks.Handler = gateway.NoReferrer(httpapi.Routes(help, slashed(
		httpapi.Route{Path: "", Methods: methods{get: g.getHooks(main), post: g.postHook(main)}},
		httpapi.Route{Path: "/{hook}", Methods: methods{del: g.deleteHook(main)}})...))
	hook.Prefix, hook.Errors = prefix+"/hook", hookAnswerTo
	hook.Handler = gateway.NoReferrer(httpapi.Routes(help, slashed(
		httpapi.Route{Path: "/{key}", Methods: methods{post: g.postNotice}})...))
	return []httpapi.Mount{cors, agents, work, hooks, hook}
}

// routes returns the routes below the URL of the gateway.
func (g *Gateway) routes(main bool) []httpapi.Route {
	const of = "/{agent}"
	routes := []httpapi.Route{
		{Path: of, Methods: methods{get: g.getCard, post: g.postRPC(main)}},
		{Path: of + wire.CardPath, Methods: methods{get: g.getCard}},
		{Path: of + "/jwks.json", Methods: methods{get: g.getKeySet}},
		{Path: of + "/rpc", Methods: methods{post: g.postRPC(main)}},
		{Path: of + "/endpoint", Methods: methods{get: g.owned(main, g.getEndpoint), put: g.owned(main, g.putEndpoint),
			del: g.owned(main, g.deleteEndpoint)}},
		{Path: of + "/keys", Methods: methods{get: g.owned(main, g.getKeys), post: g.owned(main, g.postKey)}},
		{Path: of + "/keys/{name}", Methods: methods{del: g.owned(main, g.deleteKey)}},
	}
	return slashed(append(routes, g.restRoutes(of, main)...)...)
}

// slashed returns the routes, each with and without one slash at the end of its path.
func slashed(routes ...httpapi.Route) (all []httpapi.Route) {
	for _, r := range routes {
		all = append(all, r, httpapi.Route{Path: r.Path + "/", Methods: r.Methods})
	}
	return all
}

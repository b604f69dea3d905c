package channel

import (
	"context"
	_ "embed"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
	"github.com/agora-relay/agora/relay/httpapi"
)

// Limits and times of channels and inboxes (docs/CHANNEL.md, "Limits").
const (
	maxChannels    = 1000
	maxMembers     = 200 // of one channel
	maxConnections = 50  // of one channel
	maxName        = 80
	maxContext     = 2000
	maxContent     = 32_768
	maxDepth       = 4  // a message of an agent with a larger depth is not delivered
	maxSaid        = 60 // messages of the agents of a channel in a minute; further ones are not delivered
	maxKept        = 10_000
	eventLife      = 30 * 24 * time.Hour

	tokenIdle = time.Hour          // how long a token is valid after its attempt or its last event
	tokenLife = 24 * time.Hour     // how long it is valid at most
	tokenKept = 7 * 24 * time.Hour // how long it is remembered after that

	maxInboxes = 20 // of one DID
	maxOpen    = 1000
	repeatTime = 7 * 24 * time.Hour // how long a repeated delivery is recognized
	answerTime = deliver.Life       // how long the agent can answer
	// How many events are being sent to services at a time, in all and for one owner. A gateway makes 512 calls at a time,
	// so services that never answer do not delay the deliveries of this relay's own channels.
	maxForwarding    = 256
	maxOwnForwarding = 8
	fullInboxRetry   = time.Minute // Retry-After of an inbox with too many open deliveries
)

// Rates.
var (
	eventRate    = relay.Rate{PerSecond: 600.0 / 3600, Burst: 600} // of one delivery
	deliveryRate = relay.Rate{PerSecond: 5, Burst: 50}             // to one inbox from one network
	inboxRate    = relay.Rate{PerSecond: 20.0 / 3600, Burst: 20}   // new inboxes from one address
)

//go:embed 0001_initial.sql
var initialSchema string

//go:embed 0002_sources.sql
var sourcesSchema string

// Extension has the tables of the gateway.
var Extension = relay.Extension{Name: "channel", Migrations: []string{initialSchema, sourcesSchema}, Check: check}

// self is the gateway as a peer of the relay.
var self = relay.Peer{Local: true}

// Gateway is the channel gateway of a relay. Run must be running while its handlers are used.
type Gateway struct {
	*gateway.Core
	url       string
	service   string // the service's name in deliveries
	answers   *gateway.Answers
	outbox    *gateway.Outbox // deliveries; a lane is a connection
	callbacks *gateway.Outbox // events for other services; a lane is a request
	news      *gateway.News   // by the number of the channel
	keep      int64           // how many events of a channel are kept
	open      int64           // how many unfinished deliveries an inbox may have
	rooms     int64           // how many channels there may be

	toolHandler http.Handler // of the MCP server

	events     *admission.CallerRate  // of a delivery of this service
	forwarded  *admission.CallerRate  // events of a delivery to an inbox
	deliveries *admission.CallerRate  // to an inbox
	newInboxes *admission.AddressRate // from an address

	owners *deliver.Deliveries // from inboxes to their owners

	kick chan struct{} // makes the sweep run now; has room for one
}

// New returns the channel gateway of a relay.
func New(ctx context.Context, c *gateway.Core) (*Gateway, error) {
	origin, err := url.Parse(c.Relay.Origin())
	if err != nil {
		return nil, err
	}
	g := &Gateway{Core: c, url: c.Relay.Origin() + "/channel", service: "Agora relay " + origin.Host,
		answers:    gateway.NewAnswers(c),
		keep:       maxKept,
		open:       maxOpen,
		rooms:      maxChannels,
		news:       gateway.NewNews(),
		events:     admission.NewCallerRate(limitEvents, "the events of this delivery come", eventRate),
		forwarded:  admission.NewCallerRate(limitEvents, "the events of this delivery come", eventRate),
		deliveries: admission.NewCallerRate("deliveries", "the deliveries to this inbox come", deliveryRate),
		newInboxes: admission.NewAddressRate(limitInboxes, "creates inboxes", inboxRate),
		kick:       make(chan struct{}, 1)}
	out := gateway.NewOutgoing(c.Outgoing)
	g.outbox = gateway.NewOutbox(c, "channel", out, newCourier(g))
	forwarder := newForwarder(g)
	g.callbacks = gateway.NewOutbox(c, "callback", out, forwarder)
	g.callbacks.Share(maxForwarding, maxOwnForwarding, forwarder.payer)
	g.outbox.Own, g.callbacks.Own = g.ownInbox, g.ownCallback
	g.outbox.Gone = revoked
	g.toolHandler = g.newToolHandler()
	g.owners, err = deliver.New(ctx, c, "channel", g, nil)
	return g, err
}

// URL returns the base URL of the gateway: the relay's URL, with /channel.
func (g *Gateway) URL() string { return g.url }

// Run delivers messages and events, follows the threads of inboxes, and removes what has expired, until ctx ends.
func (g *Gateway) Run(ctx context.Context) {
	var tasks sync.WaitGroup
	tasks.Go(func() { g.outbox.Run(ctx) })
	tasks.Go(func() { g.callbacks.Run(ctx) })
	tasks.Go(func() { g.owners.Run(ctx) })
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

// Mounts returns the gateway's routes under a prefix: "/channel" on the main listener, "" on its own listener.
func (g *Gateway) Mounts(prefix string) []httpapi.Mount {
	main := prefix != ""
	const help = "docs/CHANNEL.md lists the paths of this gateway"
	const channel, inbox = "/channels/{channel}", "/inboxes/{inbox}"
	mount := httpapi.Mount{Prefix: prefix, Errors: answerTo,
		Methods: []string{put, http.MethodPatch, del},
		Headers: []string{"Idempotency-Key", "Last-Event-ID", "Mcp-Protocol-Version", "Mcp-Session-Id"},
		Handler: gateway.NoReferrer(httpapi.Routes(help,
			httpapi.Route{Path: "/channels", Methods: methods{post: g.postChannel}},
			httpapi.Route{Path: channel, Methods: methods{get: g.getChannel, http.MethodPatch: g.patchChannel,
				del: g.deleteChannel}},
			httpapi.Route{Path: channel + "/members", Methods: methods{get: g.getMembers, post: g.postMember}},
			httpapi.Route{Path: channel + "/members/{name}", Methods: methods{del: g.deleteMember}},
			httpapi.Route{Path: channel + "/connections", Methods: methods{get: g.getConnections, post: g.postConnection}},
			httpapi.Route{Path: channel + "/connections/{name}",
				Methods: methods{put: g.putConnection, del: g.deleteConnection}},
			httpapi.Route{Path: channel + "/messages", Methods: methods{post: g.postMessage}},
			httpapi.Route{Path: channel + "/events", Methods: methods{get: g.getEvents}},
			httpapi.Route{Path: channel + "/inbox/{token}", Methods: methods{post: g.postCallback}},
			httpapi.Route{Path: "/mcp/{channel}", Methods: methods{post: g.postTools}},
			httpapi.Route{Path: "/inboxes", Methods: methods{get: g.getInboxes(main), post: g.postInbox(main)}},
			httpapi.Route{Path: inbox, Methods: methods{del: g.deleteInbox(main)}},
			httpapi.Route{Path: inbox + "/rotate", Methods: methods{post: g.rotateInbox(main)}},
			httpapi.Route{Path: "/out/{token}", Methods: methods{post: g.postOut}},
		)),
	}
	deliveries := httpapi.Mount{Prefix: prefix + "/inbox", Errors: inboxAnswerTo,
		Handler: gateway.NoReferrer(httpapi.Routes(help,
			httpapi.Route{Path: "/{key}", Methods: methods{post: g.postDelivery}})),
	}
	return []httpapi.Mount{mount, deliveries}
}

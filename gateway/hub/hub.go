package hub

import (
	"context"
	_ "embed"
	"errors"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
	"github.com/agora-relay/agora/relay/httpapi"
)

// Limits and times of the hub (docs/HUB.md, "Limits" and "Registration and keys").
const (
	defaultAgents    = 10_000
	defaultRetention = 720 * time.Hour

	maxQueued           = 1000 // messages to one agent; strangers may fill half, as with maxQueuedBytes
	maxQueuedBytes      = 16 << 20
	maxQueuedFromSender = 100    // to one agent from all senders of one source
	maxKept             = 10_000 // messages in one history
	maxKeptBytes        = 64 << 20

	unusedAfter   = 90 * 24 * time.Hour // a registration that was not used for so long is deleted
	idleAfter     = 3 * 24 * time.Hour  // the same for an agent that never sent or received a message
	roomAfter     = time.Hour           // such an agent makes room for a new one if the registry is full
	reservedFor   = 30 * 24 * time.Hour // how long the address of a deleted agent is reserved
	rotationTime  = 10 * time.Minute    // how long the old key can repeat a rotation
	sessionTime   = 5 * time.Minute     // how long a session token is valid
	maxSessions   = 16                  // unused session tokens of one agent
	sendWait      = 15 * time.Second    // how long the answer to a sender waits for the delivery
	webhookWait   = 120 * time.Second   // how long a call of a webhook may take
	onlineAfter   = 5 * time.Minute     // how long an agent counts as online after a reply of its webhook
	usedPrecision = time.Hour           // how exactly the time of an agent's last use is recorded

	changeBatch = 50 // messages that one operation hands out or confirms, because posts wait for it
)

// The names of the limits in answers with status 429. The limit of the relay on changing requests is
// envelope.LimitRequests.
const (
	limitRegistrations    = "registrations"
	limitAgents           = "agents"
	limitQueued           = "queuedMessages"
	limitQueuedBytes      = "queuedBytes"
	limitQueuedFromSender = "queuedFromSender"
)

// registrationRate is how many new agents one address may register: 20 an hour.
var registrationRate = relay.Rate{PerSecond: 20.0 / 3600, Burst: 20}

//go:embed 0001_initial.sql
var initialSchema string

//go:embed 0002_senders.sql
var sendersSchema string

//go:embed 0003_requests.sql
var requestsSchema string

// Extension has the tables of the hub.
var Extension = relay.Extension{Name: "hub", Migrations: []string{initialSchema, sendersSchema, requestsSchema},
	Check: check}

// Options are the settings of a hub. The zero value works.
type Options struct {
	// Name is the host of short addresses. Empty: the host of the relay's URL, or localhost if that is an IPv6 address.
	Name      string
	MaxAgents int           // how many agents may be registered; 0: 10000
	Retention time.Duration // how long messages are kept; 0: 720 hours
}

// Hub is a Chorus hub in a relay. Run must be running while its handlers are used.
type Hub struct {
	*gateway.Core
	options       Options
	url           string
	answers       *gateway.Answers
	outbox        *gateway.Outbox
	requests      *deliver.Deliveries // to agents with a DID
	registrations *admission.AddressRate
	streams       *streams
	sessions      *sessions
	waits         *waits
	directory     *directory
	started       time.Time

	agents, stored, queued, failed atomic.Int64 // for /health
}

// New returns the hub of a relay.
func New(ctx context.Context, c *gateway.Core, o Options) (*Hub, error) {
	origin, err := url.Parse(c.Relay.Origin())
	if err != nil {
		return nil, err
	}
	if o.Name == "" {
		if o.Name = origin.Hostname(); !isAddress("a@" + o.Name) { // for example an IPv6 address
			o.Name = "localhost"
		}
	}
	if o.MaxAgents == 0 {
		o.MaxAgents = defaultAgents
	}
	if o.Retention == 0 {
		o.Retention = defaultRetention
	}
	h := &Hub{Core: c, options: o, url: c.Relay.Origin() + "/hub", answers: gateway.NewAnswers(c),
		registrations: admission.NewAddressRate(limitRegistrations, "registers new agents", registrationRate),
		streams:       &streams{open: map[int64]*stream{}}, sessions: &sessions{byHash: map[[32]byte]session{}},
		waits: &waits{byMessage: map[int64]*wait{}}, directory: newDirectory(), started: c.Relay.Now()}
	h.outbox = gateway.NewOutbox(c, "hub", gateway.NewOutgoing(c.Outgoing), courier{h, new(sync.Map)})
	if h.requests, err = deliver.New(ctx, c, "hub", h, h); err != nil {
		return nil, err
	}
	return h, errors.Join(h.count(ctx), h.load(ctx))
}

// count reads the numbers of agents and messages that /health shows.
func (h *Hub) count(ctx context.Context) error {
	return h.Relay.View(ctx, self, func(q relay.Querier) error {
		for text, number := range map[string]*atomic.Int64{
			"SELECT COUNT(*) FROM hub_agent WHERE deleted = 0":  &h.agents,
			"SELECT COUNT(*) FROM hub_message":                  &h.stored,
			"SELECT COUNT(*) FROM hub_delivery WHERE state = 0": &h.queued,
			"SELECT COUNT(*) FROM hub_delivery WHERE state = 3": &h.failed,
		} {
			if err := q.Query(func(scan gateway.Scanner) error {
				var n int64
				err := scan(&n)
				number.Store(n)
				return err
			}, text); err != nil {
				return err
			}
		}
		return nil
	})
}

// self is the hub as a peer of the relay.
var self = relay.Peer{Local: true}

// URL returns the base URL of the hub: the relay's URL, with /hub.
func (h *Hub) URL() string { return h.url }

func (h *Hub) now() time.Time { return h.Relay.Now() }

// Run calls webhooks, and removes what has expired, until ctx ends.
func (h *Hub) Run(ctx context.Context) {
	var tasks sync.WaitGroup
	tasks.Go(func() { h.outbox.Run(ctx) })
	tasks.Go(func() { h.requests.Run(ctx) })
	tasks.Go(func() { h.sweep(ctx) })
	tasks.Wait()
}

// Mount returns the hub's routes under a prefix: "/hub" on the main listener, "" on its own listener.
func (h *Hub) Mount(prefix string) httpapi.Mount {
	type methods = map[string]httpapi.Handler
	const get, post = http.MethodGet, http.MethodPost
	return httpapi.Mount{
		Prefix: prefix, Errors: h.errors,
		Methods: []string{http.MethodPut, http.MethodPatch, http.MethodDelete},
		Headers: []string{"Idempotency-Key", "Last-Event-ID"},
		Unlimited: func(r *http.Request) bool {
			return r.URL.Path == "/health" && (r.Method == http.MethodGet || r.Method == http.MethodHead)
		},
		Handler: gateway.NoReferrer(h.identified(prefix != "", httpapi.Routes("The hub's paths are listed in /.well-known/chorus.json",
			httpapi.Route{Path: "/register", Methods: methods{post: h.postRegister}},
			httpapi.Route{Path: "/agents", Methods: methods{get: h.getAgents, post: h.postAgent}},
			httpapi.Route{Path: "/agents/{id}", Methods: methods{get: h.getAgent, http.MethodDelete: h.deleteAgent}},
			httpapi.Route{Path: "/discover", Methods: methods{get: h.getDirectory}},
			httpapi.Route{Path: "/agent/session", Methods: methods{post: h.postSession}},
			httpapi.Route{Path: "/agent/inbox", Methods: methods{get: h.getInbox}},
			httpapi.Route{Path: "/agent/messages", Methods: methods{get: h.getHistory}},
			httpapi.Route{Path: "/agent/ack", Methods: methods{post: h.postAck}},
			httpapi.Route{Path: "/messages", Methods: methods{post: h.postMessage}},
			httpapi.Route{Path: "/invite/{id:.*}", Methods: methods{get: h.getInvite}},
			httpapi.Route{Path: "/health", Methods: methods{get: h.getHealth, http.MethodHead: h.getHealth}},
			httpapi.Route{Path: "/skill", Methods: methods{get: h.getSkill}},
			httpapi.Route{Path: "/.well-known/chorus.json", Methods: methods{get: h.document("")}},
		))),
	}
}

// Document returns the mount of /.well-known/chorus.json at the root of the main listener.
func (h *Hub) Document() httpapi.Mount {
	return httpapi.Mount{Prefix: "/.well-known/chorus.json", Errors: h.errors,
		Handler: httpapi.Routes("The hub's document is at /.well-known/chorus.json", httpapi.Route{Path: "/",
			Methods: map[string]httpapi.Handler{http.MethodGet: h.document("/hub")}})}
}

// op is one operation of the hub.
type op struct {
	*gateway.Op
	hub *Hub
	// By how much the numbers of /health change.
	agents, stored, queued, failed int64
}

// newOp returns an operation of the hub. When it is on disk, it updates the numbers of /health.
func (h *Hub) newOp(g *gateway.Op) *op {
	o := &op{Op: g, hub: h}
	o.Then(func() {
		h.agents.Add(o.agents)
		h.stored.Add(o.stored)
		h.queued.Add(o.queued)
		h.failed.Add(o.failed)
	})
	return o
}

// update runs an operation in one Update of the relay. f may be run twice.
func (h *Hub) update(ctx context.Context, from relay.Peer, f func(*op) error) error {
	return h.Update(ctx, from, func(g *gateway.Op) error { return f(h.newOp(g)) })
}

// change stores d, whose state was before. If the message leaves the queue, change also corrects the numbers of queued
// messages and removes the message from the outbox. It wakes the sender if the sender waits. A final state stays.
func (o *op) change(before state, d delivery) error {
	if before.final() {
		return nil
	}
	if err := updateDelivery(o.ExtTx, d); err != nil {
		return err
	}
	if before == queued && d.state != queued {
		o.queued--
		if err := changeUsage(o.ExtTx, d.receiver, func(u *usage) {
			u.queued--
			u.queueBytes -= d.size
			if d.via == viaStream && d.state == sent {
				u.framed = d.handed
			}
		}); err != nil {
			return err
		}
		if err := o.dequeued(d); err != nil {
			return err
		}
		if err := o.hub.outbox.Remove(o.ExtTx, d.message); err != nil {
			return err
		}
	}
	if d.state.final() || d.state == sent && d.via != viaRequest {
		if err := o.dropRequest(d.message); err != nil {
			return err
		}
	}
	if d.state == failed {
		o.failed++
	}
	o.Then(func() { o.hub.waits.changed(d) })
	return nil
}

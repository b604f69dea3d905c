package jobs

import (
	"cmp"
	"context"
	_ "embed"
	"net/http"
	"sync"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
	"github.com/agora-relay/agora/relay/httpapi"
)

// Limits and times of the gateway (docs/JOBS.md, "Limits").
const (
	maxOwners      = 16        // of one principal
	maxAgents      = 100       // of one principal
	maxDeleted     = 1000      // agents of one principal that were deleted; their ids remain taken
	maxSkills      = 64        // of one agent
	maxFound       = 500       // agents in an answer of GET /discover
	maxExamined    = 5000      // agents that GET /discover examines
	maxFoundBytes  = 256 << 10 // when the skills in an answer have that many bytes, further agents are shown in short
	maxHirerJobs   = 1000      // unfinished jobs of one principal
	maxAgentJobs   = 100       // unfinished jobs of one agent
	maxCountedJobs = 20        // jobs in 24 hours for one hirer and one agent that change its score

	heartbeatLife = 90 * time.Second // how long an agent is online after a heartbeat
	quietLife     = 24 * time.Hour   // how long an agent without heartbeats is online
	dispatchTime  = 5 * time.Minute  // a job that its agent has not got after this time fails
	answerTime    = 300 * time.Second
	// How long an attempt to send a job can take: to connect, to send, and to wait for the answer.
	attemptTime = answerTime + 20*time.Second
	handTime    = 300 * time.Second // after that, an unfinished job is handed out again
	countTime   = 24 * time.Hour
	repeatTime  = 24 * time.Hour      // in which a transfer without an id is recognized as a repeat
	contentLife = 30 * 24 * time.Hour // how long the input and the output of an ended job are kept
	tokenKept   = 7 * 24 * time.Hour  // how long the callback of an ended job is known

	callsToHost = 16
	// How many jobs are being sent at a time, in all and to the agents of one principal. An endpoint may take five minutes,
	// so with endpoints that never answer, fifty principals are needed to delay the jobs of others.
	maxSending, maxOwnSending = 400, 8
	// The same for the callbacks of hirers. The gateway makes 512 calls at a time, so endpoints that do not answer do not
	// delay callbacks.
	maxTelling, maxOwnTelling = 100, 8
)

// networkShare is how many accounts' daily numbers the accounts of one address have together.
const networkShare = 2

var principalRate = relay.Rate{PerSecond: 10.0 / 86_400, Burst: 10} // new principals from one address

var (
	//go:embed 0001_initial.sql
	initialSchema string
	//go:embed 0002_counters.sql
	countersSchema string
	//go:embed 0003_requests.sql
	requestsSchema string
)

// Extension has the tables of the gateway.
var Extension = relay.Extension{Name: "jobs", Migrations: []string{initialSchema, countersSchema, requestsSchema},
	Check: check}

// self is the gateway as a peer of the relay.
var self = relay.Peer{Local: true}

// Options are the settings of a Gateway.
type Options struct {
	Initial credits.Amount // initial credits of a principal, in all of its accounts
	Supply  credits.Amount // credits that are ever issued
	Timeout time.Duration  // longest run of a job
	Daily   int            // transfers and jobs that one account may pay in 24 hours; 0: the default
}

// Defaults has the default of each setting.
var Defaults = Options{Initial: 100 * credits.One, Supply: 1_000_000 * credits.One, Timeout: time.Hour, Daily: 5000}

// Gateway is the jobs gateway of a relay. Run must be running while its handlers are used.
type Gateway struct {
	*gateway.Core
	options       Options
	url           string
	issue, escrow int64               // the accounts of the relay
	sending       *gateway.Outbox     // jobs to endpoints; a lane is a job
	telling       *gateway.Outbox     // results to the callbacks of hirers; a lane is a job
	ended         *gateway.News       // by the number of the job
	offered       *gateway.News       // by the number of the agent: it has a new job to pull
	agents        *deliver.Deliveries // jobs to agents whose endpoint is a DID
	started       time.Time
	principals    *admission.AddressRate
	payments      *admission.CallerRate  // transfers and jobs that an account pays
	payers        *admission.AddressRate // the same for all accounts of an address
}

// New returns the jobs gateway of a relay.
func New(ctx context.Context, c *gateway.Core, o Options) (*Gateway, error) {
	g := &Gateway{Core: c, options: o, url: c.Relay.Origin() + "/jobs",
		ended: gateway.NewNews(), offered: gateway.NewNews(), started: c.Relay.Now(),
		principals: admission.NewAddressRate(limitPrincipals, "creates principals", principalRate)}
	day := func(n int) relay.Rate { return relay.Rate{PerSecond: float64(n) / 86_400, Burst: n} }
	daily := cmp.Or(o.Daily, Defaults.Daily)
	g.payments = admission.NewCallerRate(limitPayments, "this account pays transfers and jobs", day(daily))
	g.payers = admission.NewAddressRate(limitPayments, "pays transfers and jobs", day(networkShare*daily))
	calls := c.Outgoing
	calls.PerHost = callsToHost
	out := gateway.NewOutgoing(calls)
	sender, teller := &sender{g}, &teller{g}
	g.sending = gateway.NewOutbox(c, "jobs", out, sender)
	g.sending.Share(maxSending, maxOwnSending, payer)
	g.telling = gateway.NewOutbox(c, "jobresult", out, teller)
	g.telling.Share(maxTelling, maxOwnTelling, payer)
	var err error
	if g.agents, err = deliver.New(ctx, c, "jobs", g, g); err != nil {
		return nil, err
	}
	return g, g.Update(ctx, self, g.openBooks)
}

// URL returns the base URL of the gateway: the relay's URL, with /jobs.
func (g *Gateway) URL() string { return g.url }

// Run sends jobs and results, ends the jobs that take too long, and forgets old contents, until ctx ends.
func (g *Gateway) Run(ctx context.Context) {
	var tasks sync.WaitGroup
	tasks.Go(func() { g.sending.Run(ctx) })
	tasks.Go(func() { g.telling.Run(ctx) })
	tasks.Go(func() { g.agents.Run(ctx) })
	tasks.Go(func() { g.sweep(ctx) })
	tasks.Wait()
}

// Mounts returns the gateway's routes under a prefix: "/jobs" on the main listener, "" on its own listener.
func (g *Gateway) Mounts(prefix string) []httpapi.Mount {
	get := func(h func(*request) error) map[string]httpapi.Handler {
		return map[string]httpapi.Handler{http.MethodGet: handle(h)}
	}
	post := func(h func(*request) error) map[string]httpapi.Handler {
		return map[string]httpapi.Handler{http.MethodPost: handle(h)}
	}
	routes := httpapi.Routes("docs/JOBS.md lists the paths of this gateway",
		httpapi.Route{Path: "/accounts", Methods: post(g.postAccount)},
		httpapi.Route{Path: "/accounts/{id}", Methods: get(g.getAccount)},
		httpapi.Route{Path: "/register", Methods: post(g.postAgent)},
		httpapi.Route{Path: "/discover", Methods: get(g.getDiscover)},
		httpapi.Route{Path: "/heartbeat", Methods: post(g.postHeartbeat)},
		httpapi.Route{Path: "/agents/{id}", Methods: map[string]httpapi.Handler{http.MethodGet: handle(g.getAgent),
			http.MethodDelete: handle(g.deleteAgent)}},
		httpapi.Route{Path: "/agents/{id}/jobs", Methods: get(g.getJobs)},
		httpapi.Route{Path: "/agents/{id}/results", Methods: post(g.postResult)},
		httpapi.Route{Path: "/skills", Methods: get(g.getSkills)},
		httpapi.Route{Path: "/reputation/{id}", Methods: get(g.getReputation)},
		httpapi.Route{Path: "/reputation/{id}/success", Methods: post(postReputation)},
		httpapi.Route{Path: "/reputation/{id}/failure", Methods: post(postReputation)},
		httpapi.Route{Path: "/a/{id}", Methods: post(g.postJob)},
		httpapi.Route{Path: "/a/{id}/jobs", Methods: post(g.postJob)},
		httpapi.Route{Path: "/jobs/{id}", Methods: get(g.getJob)},
		httpapi.Route{Path: "/cb/{token}", Methods: post(g.postCallback)},
		httpapi.Route{Path: "/transfer", Methods: post(g.postTransfer)},
		httpapi.Route{Path: "/audit", Methods: get(g.getAudit)},
		httpapi.Route{Path: "/economy", Methods: get(g.getEconomy)},
		httpapi.Route{Path: "/operator/grants", Methods: post(g.postGrant)},
		httpapi.Route{Path: "/health", Methods: get(g.getHealth)},
	)
	return []httpapi.Mount{{Prefix: prefix, Errors: answerTo, Methods: []string{http.MethodDelete},
		Handler: gateway.NoReferrer(g.identified(prefix != "", routes))}}
}

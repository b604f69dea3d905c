package conformance

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
)

// HubOptions selects the checks of a run at a hub, and gives them what they need. The zero value selects all checks. A
// check whose options are not given is reported as not tested.
type HubOptions struct {
	Only     []string      // names of checks; empty: all checks
	Timeout  time.Duration // for the whole run; checks that have not ended by then are skipped. 0: DefaultHubTimeout
	Progress func(Result)  // called with each result when its check has ended, one call at a time; may be nil

	// OperatorKey is the key of the hub's operator.
	OperatorKey string
	// WebhookListen is an address such as 127.0.0.1:0. The run listens there for the hub's webhooks.
	WebhookListen string
	// WebhookURL is the URL at which the hub reaches WebhookListen. Empty: http:// and that address.
	WebhookURL string
	// Thorough also selects the checks that take more than a minute, fill queues with thousands of messages, or use up
	// the registrations that the hub allows to one address in an hour.
	Thorough bool
	// Agent is the key of an agent with a DID. The checks of the theme Agora register the agent and answer for it, so no
	// program must serve it during the run.
	Agent didkey.Key
	// NeedAgent makes the checks of the theme Agora fail without Agent, if the hub is that of a relay. CI sets it.
	NeedAgent bool
}

// DefaultHubTimeout is the time limit of a run if HubOptions.Timeout is 0. A hub that follows the protocol and does not
// limit the rate of requests needs less than a minute, or little more than a minute with HubOptions.Thorough.
const DefaultHubTimeout = 3 * time.Minute

// hubCheck is a check of a hub.
type hubCheck = gatewayCheck[*hubProbe]

// hubTheme is a table of related checks of a hub.
type hubTheme = gatewayTheme[*hubProbe]

// hubThemes returns all tables of checks of a hub, in the order of the documentation.
func hubThemes() []hubTheme {
	return []hubTheme{
		{"Documents", hubDocumentChecks},
		{"HTTP", hubHTTPChecks},
		{"Bodies", hubBodyChecks},
		{"Keys", hubKeyChecks},
		{"Addresses and cards", hubAddressChecks},
		{"Registration", hubRegisterChecks},
		{"Deletion", hubDeleteChecks},
		{"Endpoints", hubEndpointChecks},
		{"Envelopes", hubEnvelopeChecks},
		{"Sending", hubSendChecks},
		{"Idempotency", hubIdempotencyChecks},
		{"Stream", hubStreamChecks},
		{"Replay on the stream", hubReplayChecks},
		{"States", hubStateChecks},
		{"Acknowledgement", hubAckChecks},
		{"History", hubHistoryChecks},
		{"Directory", hubDirectoryChecks},
		{"Invite", hubInviteChecks},
		{"Webhooks", hubWebhookChecks},
		{"Webhook order", hubLaneChecks},
		{"Limits", hubLimitChecks},
		{"Operator", hubOperatorChecks},
		{agoraTheme, hubAgoraChecks},
	}
}

// HubChecks returns all checks of a hub, in the order of the documentation.
func HubChecks() []Check { return bindChecks(hubThemes(), (*hubRun)(nil).check) }

// RunHub checks the hub at baseURL, which may have a path. It returns an error if the options are invalid, if baseURL
// is not a usable address, or if no hub answers there. A hub that violates the protocol is not an error: see
// Report.Holds. At the end RunHub deletes the agents that it has registered. If ctx ends, the checks that have not
// ended are reported as skipped.
func RunHub(ctx context.Context, baseURL string, o HubOptions) (Report, error) {
	if err := o.Check(baseURL); err != nil {
		return Report{}, err
	}
	client, err := newRelayClient(baseURL)
	if err != nil {
		return Report{}, err
	}
	defer client.close()
	run := newHubRun(client, o)
	return gatewayRun{level: Hub, checks: bindChecks(hubThemes(), run.check), like: hubLike, only: o.Only,
		timeout: o.Timeout, usual: DefaultHubTimeout, progress: o.Progress, listen: o.WebhookListen,
		listenURL: o.WebhookURL, connect: run.connect, hooks: &run.hooks}.run(ctx, client, func(report *Report) {
		run.deleteAgents(ctx)
		report.Requests = run.agora.root.requests.Load()
	})
}

// hubLike shows what the numbers of checks of a hub look like.
const hubLike = "hub.register.rotate"

// Check returns the error that RunHub would return for invalid options or an invalid baseURL. It sends no request.
func (o HubOptions) Check(baseURL string) error {
	return checkGatewayOptions(baseURL, HubChecks(), o.Only, hubLike, o.WebhookListen, o.WebhookURL)
}

// hubRun is what the checks of one run share.
type hubRun struct {
	HubOptions
	client  *relayClient // its targets are relative to the hub's address
	agora   *agoraPart
	name    string // the hub's name, which is the host of the short form of an address
	agents  agentPool
	workers hubWorkers
	hooks   *hookServer // nil: the run does not listen for webhooks
	pace    pace
}

func newHubRun(client *relayClient, o HubOptions) *hubRun {
	run := &hubRun{HubOptions: o, client: client, pace: pace{isLimit: isHubRateLimit, free: isFreeAtHub},
		agora: newAgoraPart(client, o.Agent, o.NeedAgent)}
	run.agents.run = strings.ToLower(rand.Text()[:8])
	return run
}

// connect checks that a hub answers, and learns its name.
func (run *hubRun) connect(ctx context.Context) error {
	document := run.client.do(ctx, http.MethodGet, "/.well-known/chorus.json", nil, nil)
	if document.err != nil {
		return fmt.Errorf("no hub answers at %s: %w", run.client.baseURL, document.err)
	}
	if document.text("chorus_version") == "" {
		// A hub with a broken document is still a hub.
		health := run.client.do(ctx, http.MethodGet, "/health", nil, nil)
		if health.object("data").text("status") == "" {
			return fmt.Errorf("the server at %s is not a Chorus hub: GET /.well-known/chorus.json returned %s",
				run.client.baseURL, document)
		}
	}
	run.name = document.text("server_name")
	run.agora.connect(ctx)
	return nil
}

// check runs one check. It reports the check as not tested if its options are not given.
func (run *hubRun) check(p *probe, c hubCheck) {
	missing := map[string]bool{
		needsOperator: run.OperatorKey == "",
		needsWebhook:  run.hooks == nil,
		needsThorough: !run.Thorough,
		needsPrefix:   run.agora.prefix == "",
	}
	if missing[c.needs] {
		p.end(NotTested, "%s", c.needs)
	}
	run.agora.need(p, c.needs)
	h := &hubProbe{gatewayProbe: gatewayProbe{probe: p, pace: &run.pace, hold: holdOfHub, agora: run.agora}, hub: run}
	defer h.release()
	c.run(h)
}

// Package hub checks over HTTP whether a hub follows the Chorus protocol and HUB.md.
package hub

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
	"github.com/agora-relay/agora/didkey"
)

// Options selects the checks of a run at a hub, and gives them what they need. The zero value selects all checks. A
// check whose options are not given is reported as not tested.
type Options struct {
	Only     []string         // names of checks; empty: all checks
	Timeout  time.Duration    // for the whole run; checks that have not ended by then are skipped. 0: DefaultTimeout
	Progress func(kit.Result) // called with each result when its check has ended, one call at a time; may be nil

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

// DefaultTimeout is the time limit of a run if Options.Timeout is 0. A hub that follows the protocol and does not
// limit the rate of requests needs less than a minute, or little more than a minute with Options.Thorough.
const DefaultTimeout = 3 * time.Minute

// hubCheck is a check of a hub.
type hubCheck = kit.GatewayCheck[*hubProbe]

// hubTheme is a table of related checks of a hub.
type hubTheme = kit.GatewayTheme[*hubProbe]

// hubThemes returns all tables of checks of a hub, in the order of the documentation.
func hubThemes() []hubTheme {
	return []hubTheme{
		{Name: "Documents", Checks: hubDocumentChecks},
		{Name: "HTTP", Checks: hubHTTPChecks},
		{Name: "Bodies", Checks: hubBodyChecks},
		{Name: "Keys", Checks: hubKeyChecks},
		{Name: "Addresses and cards", Checks: hubAddressChecks},
		{Name: "Registration", Checks: hubRegisterChecks},
		{Name: "Deletion", Checks: hubDeleteChecks},
		{Name: "Endpoints", Checks: hubEndpointChecks},
		{Name: "Envelopes", Checks: hubEnvelopeChecks},
		{Name: "Sending", Checks: hubSendChecks},
		{Name: "Idempotency", Checks: hubIdempotencyChecks},
		{Name: "Stream", Checks: hubStreamChecks},
		{Name: "Replay on the stream", Checks: hubReplayChecks},
		{Name: "States", Checks: hubStateChecks},
		{Name: "Acknowledgement", Checks: hubAckChecks},
		{Name: "History", Checks: hubHistoryChecks},
		{Name: "Directory", Checks: hubDirectoryChecks},
		{Name: "Invite", Checks: hubInviteChecks},
		{Name: "Webhooks", Checks: hubWebhookChecks},
		{Name: "Webhook order", Checks: hubLaneChecks},
		{Name: "Limits", Checks: hubLimitChecks},
		{Name: "Operator", Checks: hubOperatorChecks},
		{Name: kit.AgoraTheme, Checks: hubAgoraChecks},
	}
}

// Checks returns all checks of a hub, in the order of the documentation.
func Checks() []kit.Check { return kit.BindChecks(hubThemes(), (*hubRun)(nil).check) }

// Run checks the hub at baseURL, which may have a path. It returns an error if the options are invalid, if baseURL
// is not a usable address, or if no hub answers there. A hub that violates the protocol is not an error: see
// Report.Holds. At the end Run deletes the agents that it has registered. If ctx ends, the checks that have not
// ended are reported as skipped.
func Run(ctx context.Context, baseURL string, o Options) (kit.Report, error) {
	if err := o.Check(baseURL); err != nil {
		return kit.Report{}, err
	}
	client, err := kit.NewRelayClient(baseURL)
	if err != nil {
		return kit.Report{}, err
	}
	defer client.Close()
	run := newHubRun(client, o)
	return kit.GatewayRun{Level: kit.Hub, Checks: kit.BindChecks(hubThemes(), run.check), Like: hubLike, Only: o.Only,
		Timeout: o.Timeout, Usual: DefaultTimeout, Progress: o.Progress, Listen: o.WebhookListen,
		ListenURL: o.WebhookURL, Connect: run.connect, Hooks: &run.hooks}.Run(ctx, client, func(report *kit.Report) {
		run.deleteAgents(ctx)
		report.Requests = run.agora.Root.Requests.Load()
	})
}

// hubLike shows what the numbers of checks of a hub look like.
const hubLike = "hub.register.rotate"

// Check returns the error that Run would return for invalid options or an invalid baseURL. It sends no request.
func (o Options) Check(baseURL string) error {
	return kit.CheckGatewayOptions(baseURL, Checks(), o.Only, hubLike, o.WebhookListen, o.WebhookURL)
}

// hubRun is what the checks of one run share.
type hubRun struct {
	Options
	client  *kit.RelayClient // its targets are relative to the hub's address
	agora   *kit.AgoraPart
	name    string // the hub's name, which is the host of the short form of an address
	agents  agentPool
	workers hubWorkers
	hooks   *kit.HookServer // nil: the run does not listen for webhooks
	pace    kit.Pace
}

func newHubRun(client *kit.RelayClient, o Options) *hubRun {
	run := &hubRun{Options: o, client: client, pace: kit.Pace{IsLimit: isHubRateLimit, Free: isFreeAtHub},
		agora: kit.NewAgoraPart(client, o.Agent, o.NeedAgent)}
	run.agents.run = strings.ToLower(rand.Text()[:8])
	return run
}

// connect checks that a hub answers, and learns its name.
func (run *hubRun) connect(ctx context.Context) error {
	document := run.client.Do(ctx, http.MethodGet, "/.well-known/chorus.json", nil, nil)
	if document.Err != nil {
		return fmt.Errorf("no hub answers at %s: %w", run.client.BaseURL, document.Err)
	}
	if document.Text("chorus_version") == "" {
		// A hub with a broken document is still a hub.
		health := run.client.Do(ctx, http.MethodGet, "/health", nil, nil)
		if health.Object("data").Text("status") == "" {
			return fmt.Errorf("the server at %s is not a Chorus hub: GET /.well-known/chorus.json returned %s",
				run.client.BaseURL, document)
		}
	}
	run.name = document.Text("server_name")
	run.agora.Connect(ctx)
	return nil
}

// check runs one check. It reports the check as not tested if its options are not given.
func (run *hubRun) check(p *kit.Probe, c hubCheck) {
	missing := map[string]bool{
		kit.NeedsOperator: run.OperatorKey == "",
		kit.NeedsWebhook:  run.hooks == nil,
		kit.NeedsThorough: !run.Thorough,
		kit.NeedsPrefix:   run.agora.Prefix == "",
	}
	if missing[c.Needs] {
		p.End(kit.NotTested, "%s", c.Needs)
	}
	run.agora.Need(p, c.Needs)
	h := &hubProbe{GatewayProbe: kit.GatewayProbe{Probe: p, Pace: &run.pace, Hold: holdOfHub, Agora: run.agora}, hub: run}
	defer h.release()
	c.Run(h)
}

// Package jobs checks over HTTP whether a registry of jobs follows the Chorus registry's protocol and JOBS.md.
package jobs

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
	"github.com/agora-relay/agora/didkey"
)

// Options selects the checks of a run at a registry of jobs, and gives them what they need. The zero value selects
// all checks. A check whose options are not given is reported as not tested.
type Options struct {
	Only     []string         // names of checks; empty: all checks
	Timeout  time.Duration    // for the whole run; checks that have not ended by then are skipped. 0: DefaultTimeout
	Progress func(kit.Result) // called with each result when its check has ended, one call at a time; may be nil

	// OperatorKey is the key of the registry's operator.
	OperatorKey string
	// Listen is an address such as 127.0.0.1:0. The run listens there for jobs and results, as agents and hirers do.
	Listen string
	// ListenURL is the URL at which the registry reaches Listen. Empty: http:// and that address.
	ListenURL string
	// Thorough also selects the checks that take more than a minute, or that use up the principals that the registry
	// allows to one address in a day.
	Thorough bool
	// Agent is the key of an agent with a DID. The checks of the theme Agora register the agent and answer for it, so no
	// program must serve it during the run.
	Agent didkey.Key
	// NeedAgent makes the checks of the theme Agora fail without Agent, if the registry is that of a relay. CI sets it.
	NeedAgent bool
}

// DefaultTimeout is the time limit of a run if Options.Timeout is 0. A registry that follows the protocol and
// does not limit the rate of requests needs less than a minute, or two minutes with Options.Thorough.
const DefaultTimeout = 3 * time.Minute

// Reasons why a check of a registry is not tested.
const (
	needsEndpoint = "this needs a server for jobs that the registry can call (--webhook-listen)"
	needsSigned   = "this needs the main listener of a relay, which has /.well-known/agora.json at its root"
)

// jobsCheck is a check of a registry of jobs.
type jobsCheck = kit.GatewayCheck[*jobsProbe]

// jobsThemes returns all tables of checks of a registry, in the order of the documentation.
func jobsThemes() []kit.GatewayTheme[*jobsProbe] {
	return []kit.GatewayTheme[*jobsProbe]{
		{Name: "HTTP", Checks: jobsHTTPChecks},
		{Name: "Bodies", Checks: jobsBodyChecks},
		{Name: "Accounts", Checks: jobsAccountChecks},
		{Name: "Amounts", Checks: jobsAmountChecks},
		{Name: "Keys", Checks: jobsKeyChecks},
		{Name: "The key in the base", Checks: jobsBaseChecks},
		{Name: "Signed calls", Checks: jobsSignedChecks},
		{Name: "Registration", Checks: jobsRegisterChecks},
		{Name: "Discovery", Checks: jobsDiscoverChecks},
		{Name: "Hiring", Checks: jobsHireChecks},
		{Name: "Failures", Checks: jobsFailureChecks},
		{Name: "Agents without an endpoint", Checks: jobsPullChecks},
		{Name: "Results", Checks: jobsResultChecks},
		{Name: "Payment", Checks: jobsPaymentChecks},
		{Name: "Transfers", Checks: jobsTransferChecks},
		{Name: "Audit and economy", Checks: jobsAuditChecks},
		{Name: "Operator", Checks: jobsOperatorChecks},
		{Name: "Reputation", Checks: jobsReputationChecks},
		{Name: "Endpoints", Checks: jobsEndpointChecks},
		{Name: "Limits", Checks: jobsLimitChecks},
		{Name: kit.AgoraTheme, Checks: jobsAgoraChecks},
	}
}

// jobsLike shows what the numbers of checks of a registry look like.
const jobsLike = "jobs.transfer.repeat"

// Checks returns all checks of a registry of jobs, in the order of the documentation.
func Checks() []kit.Check { return kit.BindChecks(jobsThemes(), (*jobsRun)(nil).check) }

// Run checks the registry of jobs at baseURL, which may have a path. It returns an error if the options are invalid,
// if baseURL is not a usable address, or if no registry answers there. A registry that violates the protocol is not an
// error: see Report.Holds. Each check deletes the agents that it has registered. Accounts stay, because nobody can
// delete them. If ctx ends, the checks that have not ended are reported as skipped.
func Run(ctx context.Context, baseURL string, o Options) (kit.Report, error) {
	if err := o.Check(baseURL); err != nil {
		return kit.Report{}, err
	}
	client, err := kit.NewRelayClient(baseURL)
	if err != nil {
		return kit.Report{}, err
	}
	defer client.Close()
	run := newJobsRun(client, o)
	return kit.GatewayRun{Level: kit.JobsRegistry, Checks: kit.BindChecks(jobsThemes(), run.check), Like: jobsLike,
		Only:    o.Only,
		Timeout: o.Timeout, Usual: DefaultTimeout, Progress: o.Progress, Listen: o.Listen, ListenURL: o.ListenURL,
		Connect: run.connect, Hooks: &run.hooks}.Run(ctx, client, func(report *kit.Report) {
		report.Requests = run.agora.Root.Requests.Load()
	})
}

// Check returns the error that Run would return for invalid options or an invalid baseURL. It sends no request.
func (o Options) Check(baseURL string) error {
	return kit.CheckGatewayOptions(baseURL, Checks(), o.Only, jobsLike, o.Listen, o.ListenURL)
}

// jobsRun is what the checks of one run share.
type jobsRun struct {
	Options
	client     *kit.RelayClient // its targets are relative to the registry's address
	agora      *kit.AgoraPart
	hooks      *kit.HookServer // nil: the run does not listen
	pace       kit.Pace
	principals kit.Pool[*principal]
}

func newJobsRun(client *kit.RelayClient, o Options) *jobsRun {
	return &jobsRun{Options: o, client: client, pace: kit.Pace{IsLimit: isJobsRateLimit, Free: isFreeAtJobs},
		agora: kit.NewAgoraPart(client, o.Agent, o.NeedAgent)}
}

// connect checks that a registry answers, and learns who it is in signed calls.
func (run *jobsRun) connect(ctx context.Context) error {
	a := run.client.Do(ctx, http.MethodGet, "/health", nil, nil)
	if a.Err != nil {
		return fmt.Errorf("no registry of jobs answers at %s: %w", run.client.BaseURL, a.Err)
	}
	if a.Text("service") != registryName {
		// A registry with a broken health check is still a registry.
		found := run.client.Do(ctx, http.MethodGet, "/discover?skill=conformance", nil, nil)
		if _, ok := found.List("agents"); !ok {
			return fmt.Errorf("the server at %s is not a registry of jobs: GET /health returned %s", run.client.BaseURL, a)
		}
	}
	run.agora.Connect(ctx)
	return nil
}

// registryName is the service that GET /health names.
const registryName = "chorus-registry"

// check runs one check. It reports the check as not tested if its options are not given.
func (run *jobsRun) check(p *kit.Probe, c jobsCheck) {
	missing := map[string]bool{
		kit.NeedsOperator: run.OperatorKey == "",
		needsEndpoint:     run.hooks == nil,
		kit.NeedsThorough: !run.Thorough,
		needsSigned:       run.agora.Audience == "",
	}
	if missing[c.Needs] {
		p.End(kit.NotTested, "%s", c.Needs)
	}
	run.agora.Need(p, c.Needs)
	h := &jobsProbe{GatewayProbe: kit.GatewayProbe{Probe: p, Pace: &run.pace, Hold: kit.HoldOfWait, Agora: run.agora},
		registry: run}
	passed := false
	defer func() { h.release(passed) }()
	c.Run(h)
	passed = true
}

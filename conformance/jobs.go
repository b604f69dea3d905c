package conformance

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/agora-relay/agora/didkey"
)

// JobsOptions selects the checks of a run at a registry of jobs, and gives them what they need. The zero value selects
// all checks. A check whose options are not given is reported as not tested.
type JobsOptions struct {
	Only     []string      // names of checks; empty: all checks
	Timeout  time.Duration // for the whole run; checks that have not ended by then are skipped. 0: DefaultJobsTimeout
	Progress func(Result)  // called with each result when its check has ended, one call at a time; may be nil

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

// DefaultJobsTimeout is the time limit of a run if JobsOptions.Timeout is 0. A registry that follows the protocol and
// does not limit the rate of requests needs less than a minute, or two minutes with JobsOptions.Thorough.
const DefaultJobsTimeout = 3 * time.Minute

// Reasons why a check of a registry is not tested.
const (
	needsEndpoint = "this needs a server for jobs that the registry can call (--webhook-listen)"
	needsSigned   = "this needs the main listener of a relay, which has /.well-known/agora.json at its root"
)

// jobsCheck is a check of a registry of jobs.
type jobsCheck = gatewayCheck[*jobsProbe]

// jobsThemes returns all tables of checks of a registry, in the order of the documentation.
func jobsThemes() []gatewayTheme[*jobsProbe] {
	return []gatewayTheme[*jobsProbe]{
		{"HTTP", jobsHTTPChecks},
		{"Bodies", jobsBodyChecks},
		{"Accounts", jobsAccountChecks},
		{"Amounts", jobsAmountChecks},
		{"Keys", jobsKeyChecks},
		{"The key in the base", jobsBaseChecks},
		{"Signed calls", jobsSignedChecks},
		{"Registration", jobsRegisterChecks},
		{"Discovery", jobsDiscoverChecks},
		{"Hiring", jobsHireChecks},
		{"Failures", jobsFailureChecks},
		{"Agents without an endpoint", jobsPullChecks},
		{"Results", jobsResultChecks},
		{"Payment", jobsPaymentChecks},
		{"Transfers", jobsTransferChecks},
		{"Audit and economy", jobsAuditChecks},
		{"Operator", jobsOperatorChecks},
		{"Reputation", jobsReputationChecks},
		{"Endpoints", jobsEndpointChecks},
		{"Limits", jobsLimitChecks},
		{agoraTheme, jobsAgoraChecks},
	}
}

// jobsLike shows what the numbers of checks of a registry look like.
const jobsLike = "jobs.transfer.repeat"

// JobsChecks returns all checks of a registry of jobs, in the order of the documentation.
func JobsChecks() []Check { return bindChecks(jobsThemes(), (*jobsRun)(nil).check) }

// RunJobs checks the registry of jobs at baseURL, which may have a path. It returns an error if the options are invalid,
// if baseURL is not a usable address, or if no registry answers there. A registry that violates the protocol is not an
// error: see Report.Holds. Each check deletes the agents that it has registered. Accounts stay, because nobody can
// delete them. If ctx ends, the checks that have not ended are reported as skipped.
func RunJobs(ctx context.Context, baseURL string, o JobsOptions) (Report, error) {
	if err := o.Check(baseURL); err != nil {
		return Report{}, err
	}
	client, err := newRelayClient(baseURL)
	if err != nil {
		return Report{}, err
	}
	defer client.close()
	run := newJobsRun(client, o)
	return gatewayRun{level: JobsRegistry, checks: bindChecks(jobsThemes(), run.check), like: jobsLike, only: o.Only,
		timeout: o.Timeout, usual: DefaultJobsTimeout, progress: o.Progress, listen: o.Listen, listenURL: o.ListenURL,
		connect: run.connect, hooks: &run.hooks}.run(ctx, client, func(report *Report) {
		report.Requests = run.agora.root.requests.Load()
	})
}

// Check returns the error that RunJobs would return for invalid options or an invalid baseURL. It sends no request.
func (o JobsOptions) Check(baseURL string) error {
	return checkGatewayOptions(baseURL, JobsChecks(), o.Only, jobsLike, o.Listen, o.ListenURL)
}

// jobsRun is what the checks of one run share.
type jobsRun struct {
	JobsOptions
	client     *relayClient // its targets are relative to the registry's address
	agora      *agoraPart
	hooks      *hookServer // nil: the run does not listen
	pace       pace
	principals pool[*principal]
}

func newJobsRun(client *relayClient, o JobsOptions) *jobsRun {
	return &jobsRun{JobsOptions: o, client: client, pace: pace{isLimit: isJobsRateLimit, free: isFreeAtJobs},
		agora: newAgoraPart(client, o.Agent, o.NeedAgent)}
}

// connect checks that a registry answers, and learns who it is in signed calls.
func (run *jobsRun) connect(ctx context.Context) error {
	a := run.client.do(ctx, http.MethodGet, "/health", nil, nil)
	if a.err != nil {
		return fmt.Errorf("no registry of jobs answers at %s: %w", run.client.baseURL, a.err)
	}
	if a.text("service") != registryName {
		// A registry with a broken health check is still a registry.
		found := run.client.do(ctx, http.MethodGet, "/discover?skill=conformance", nil, nil)
		if _, ok := found.list("agents"); !ok {
			return fmt.Errorf("the server at %s is not a registry of jobs: GET /health returned %s", run.client.baseURL, a)
		}
	}
	run.agora.connect(ctx)
	return nil
}

// registryName is the service that GET /health names.
const registryName = "chorus-registry"

// check runs one check. It reports the check as not tested if its options are not given.
func (run *jobsRun) check(p *probe, c jobsCheck) {
	missing := map[string]bool{
		needsOperator: run.OperatorKey == "",
		needsEndpoint: run.hooks == nil,
		needsThorough: !run.Thorough,
		needsSigned:   run.agora.audience == "",
	}
	if missing[c.needs] {
		p.end(NotTested, "%s", c.needs)
	}
	run.agora.need(p, c.needs)
	h := &jobsProbe{gatewayProbe: gatewayProbe{probe: p, pace: &run.pace, hold: holdOfWait, agora: run.agora}, registry: run}
	passed := false
	defer func() { h.release(passed) }()
	c.run(h)
	passed = true
}

// Package channel checks over HTTP whether a channel service follows the Chorus Channel Protocol and CHANNEL.md.
package channel

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// Options selects the checks of a run at a channel service, and gives them what they need. The zero value
// selects all checks. A check whose options are not given is reported as not tested.
type Options struct {
	Only     []string         // numbers of checks; empty: all checks
	Timeout  time.Duration    // for the whole run; checks not ended by then are skipped. 0: DefaultTimeout
	Progress func(kit.Result) // called with each result when its check has ended, one call at a time; may be nil

	// OperatorKey is the key of the service's operator. Only the operator can create channels, so almost all checks
	// need it.
	OperatorKey string
	// Listen is an address such as 127.0.0.1:0. The run listens there for deliveries, as agents do.
	Listen string
	// ListenURL is the URL at which the service reaches Listen. Empty: http:// and that address.
	ListenURL string
	// Thorough also selects the checks that send hundreds of requests to reach a limit.
	Thorough bool
}

// DefaultTimeout is the time limit of a run if Options.Timeout is 0. A service that follows the protocol
// and does not limit the rate of requests needs less than a minute.
const DefaultTimeout = 3 * time.Minute

// needsAgent is the reason why a check without Listen is not tested.
const needsAgent = "this needs a server for deliveries that the service can call (--webhook-listen)"

// channelCheck is a check of a channel service.
type channelCheck = kit.GatewayCheck[*channelProbe]

// channelThemes returns all tables of checks of a channel service, in the order of the documentation.
func channelThemes() []kit.GatewayTheme[*channelProbe] {
	return []kit.GatewayTheme[*channelProbe]{
		{Name: "HTTP", Checks: channelHTTPChecks},
		{Name: "Bodies", Checks: channelBodyChecks},
		{Name: "Channels", Checks: channelChecks},
		{Name: "Members", Checks: channelMemberChecks},
		{Name: "Connections", Checks: channelConnectionChecks},
		{Name: "Keys", Checks: channelKeyChecks},
		{Name: "Messages", Checks: channelMessageChecks},
		{Name: "Events", Checks: channelEventChecks},
		{Name: "Deliveries", Checks: channelDeliveryChecks},
		{Name: "Order and failures", Checks: channelLaneChecks},
		{Name: "Callback", Checks: channelCallbackChecks},
		{Name: "Loop guard", Checks: channelLoopChecks},
		{Name: "MCP", Checks: channelMCPChecks},
		{Name: "Limits", Checks: channelLimitChecks},
	}
}

// channelLike shows what the numbers of checks of a channel service look like.
const channelLike = "N-1"

// Checks returns all checks of a channel service, in the order of the documentation.
func Checks() []kit.Check { return kit.BindChecks(channelThemes(), (*channelRun)(nil).check) }

// Run checks the channel service at baseURL, which may have a path. It returns an error if the options are
// invalid, if baseURL is not a usable address, or if no channel service answers there. A service that violates the
// protocol is not an error: see Report.Holds. Each check deletes the channels that it has made. If ctx ends, the checks
// that have not ended are reported as skipped.
func Run(ctx context.Context, baseURL string, o Options) (kit.Report, error) {
	if err := o.Check(baseURL); err != nil {
		return kit.Report{}, err
	}
	client, err := kit.NewRelayClient(baseURL)
	if err != nil {
		return kit.Report{}, err
	}
	defer client.Close()
	run := &channelRun{Options: o, client: client, slow: make(chan struct{}, maxSlowAgents),
		pace: kit.Pace{IsLimit: isChannelRateLimit, Free: isFreeAtChannel}}
	return kit.GatewayRun{Level: kit.ChannelService, Checks: kit.BindChecks(channelThemes(), run.check), Like: channelLike,
		Only: o.Only, Timeout: o.Timeout, Usual: DefaultTimeout, Progress: o.Progress, Listen: o.Listen,
		ListenURL: o.ListenURL, Connect: run.connect, Hooks: &run.hooks}.Run(ctx, client, func(*kit.Report) {})
}

// Check returns the error that Run would return for invalid options or an invalid baseURL. It sends no request.
func (o Options) Check(baseURL string) error {
	return kit.CheckGatewayOptions(baseURL, Checks(), o.Only, channelLike, o.Listen, o.ListenURL)
}

// channelRun is what the checks of one run share.
type channelRun struct {
	Options
	client *kit.RelayClient // its targets are relative to the service's address
	hooks  *kit.HookServer  // nil: the run does not listen for deliveries
	pace   kit.Pace
	slow   chan struct{} // has an element for each check with a slow agent
	names  atomic.Int64  // so that each channel has another name
}

// maxSlowAgents is how many checks with a slow agent run at the same time. A service sends 4 requests to one host at a
// time, and all agents of a run are on one host. So the other checks have at least two of them.
const maxSlowAgents = 2

// connect checks that a channel service answers. Without a key, nobody can create a channel.
func (run *channelRun) connect(ctx context.Context) error {
	a := run.client.Do(ctx, http.MethodPost, "/channels", nil, []byte("{}"))
	if a.Err != nil {
		return fmt.Errorf("no channel service answers at %s: %w", run.client.BaseURL, a.Err)
	}
	if ok, present := a.OK(); ok || !present || a.Status == http.StatusNotFound {
		return fmt.Errorf("the server at %s is not a channel service: POST /channels without a key returned %s",
			run.client.BaseURL, a)
	}
	return nil
}

// check runs one check. It reports the check as not tested if its options are not given.
func (run *channelRun) check(p *kit.Probe, c channelCheck) {
	missing := map[string]bool{
		kit.NeedsOperator: run.OperatorKey == "",
		needsAgent:        run.OperatorKey == "" || run.hooks == nil,
		kit.NeedsThorough: run.OperatorKey == "" || !run.Thorough,
	}
	if missing[c.Needs] {
		if run.OperatorKey == "" {
			p.End(kit.NotTested, "%s", kit.NeedsOperator)
		}
		p.End(kit.NotTested, "%s", c.Needs)
	}
	h := &channelProbe{GatewayProbe: kit.GatewayProbe{Probe: p, Pace: &run.pace, Hold: kit.HoldOfWait}, service: run}
	defer h.release()
	c.Run(h)
}

// origin returns the origin of a URL, or the empty string.
func origin(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

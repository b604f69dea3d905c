package conformance

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"
)

// ChannelOptions selects the checks of a run at a channel service, and gives them what they need. The zero value
// selects all checks. A check whose options are not given is reported as not tested.
type ChannelOptions struct {
	Only     []string      // numbers of checks; empty: all checks
	Timeout  time.Duration // for the whole run; checks not ended by then are skipped. 0: DefaultChannelTimeout
	Progress func(Result)  // called with each result when its check has ended, one call at a time; may be nil

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

// DefaultChannelTimeout is the time limit of a run if ChannelOptions.Timeout is 0. A service that follows the protocol
// and does not limit the rate of requests needs less than a minute.
const DefaultChannelTimeout = 3 * time.Minute

// needsAgent is the reason why a check without Listen is not tested.
const needsAgent = "this needs a server for deliveries that the service can call (--webhook-listen)"

// channelCheck is a check of a channel service.
type channelCheck = gatewayCheck[*channelProbe]

// channelThemes returns all tables of checks of a channel service, in the order of the documentation.
func channelThemes() []gatewayTheme[*channelProbe] {
	return []gatewayTheme[*channelProbe]{
		{"HTTP", channelHTTPChecks},
		{"Bodies", channelBodyChecks},
		{"Channels", channelChecks},
		{"Members", channelMemberChecks},
		{"Connections", channelConnectionChecks},
		{"Keys", channelKeyChecks},
		{"Messages", channelMessageChecks},
		{"Events", channelEventChecks},
		{"Deliveries", channelDeliveryChecks},
		{"Order and failures", channelLaneChecks},
		{"Callback", channelCallbackChecks},
		{"Loop guard", channelLoopChecks},
		{"MCP", channelMCPChecks},
		{"Limits", channelLimitChecks},
	}
}

// channelLike shows what the numbers of checks of a channel service look like.
const channelLike = "N-1"

// ChannelChecks returns all checks of a channel service, in the order of the documentation.
func ChannelChecks() []Check { return bindChecks(channelThemes(), (*channelRun)(nil).check) }

// RunChannel checks the channel service at baseURL, which may have a path. It returns an error if the options are
// invalid, if baseURL is not a usable address, or if no channel service answers there. A service that violates the
// protocol is not an error: see Report.Holds. Each check deletes the channels that it has made. If ctx ends, the checks
// that have not ended are reported as skipped.
func RunChannel(ctx context.Context, baseURL string, o ChannelOptions) (Report, error) {
	if err := o.Check(baseURL); err != nil {
		return Report{}, err
	}
	client, err := newRelayClient(baseURL)
	if err != nil {
		return Report{}, err
	}
	defer client.close()
	run := &channelRun{ChannelOptions: o, client: client, slow: make(chan struct{}, maxSlowAgents),
		pace: pace{isLimit: isChannelRateLimit, free: isFreeAtChannel}}
	return gatewayRun{level: ChannelService, checks: bindChecks(channelThemes(), run.check), like: channelLike,
		only: o.Only, timeout: o.Timeout, usual: DefaultChannelTimeout, progress: o.Progress, listen: o.Listen,
		listenURL: o.ListenURL, connect: run.connect, hooks: &run.hooks}.run(ctx, client, func(*Report) {})
}

// Check returns the error that RunChannel would return for invalid options or an invalid baseURL. It sends no request.
func (o ChannelOptions) Check(baseURL string) error {
	return checkGatewayOptions(baseURL, ChannelChecks(), o.Only, channelLike, o.Listen, o.ListenURL)
}

// channelRun is what the checks of one run share.
type channelRun struct {
	ChannelOptions
	client *relayClient // its targets are relative to the service's address
	hooks  *hookServer  // nil: the run does not listen for deliveries
	pace   pace
	slow   chan struct{} // has an element for each check with a slow agent
	names  atomic.Int64  // so that each channel has another name
}

// maxSlowAgents is how many checks with a slow agent run at the same time. A service sends 4 requests to one host at a
// time, and all agents of a run are on one host. So the other checks have at least two of them.
const maxSlowAgents = 2

// connect checks that a channel service answers. Without a key, nobody can create a channel.
func (run *channelRun) connect(ctx context.Context) error {
	a := run.client.do(ctx, http.MethodPost, "/channels", nil, []byte("{}"))
	if a.err != nil {
		return fmt.Errorf("no channel service answers at %s: %w", run.client.baseURL, a.err)
	}
	if ok, present := a.ok(); ok || !present || a.status == http.StatusNotFound {
		return fmt.Errorf("the server at %s is not a channel service: POST /channels without a key returned %s",
			run.client.baseURL, a)
	}
	return nil
}

// check runs one check. It reports the check as not tested if its options are not given.
func (run *channelRun) check(p *probe, c channelCheck) {
	missing := map[string]bool{
		needsOperator: run.OperatorKey == "",
		needsAgent:    run.OperatorKey == "" || run.hooks == nil,
		needsThorough: run.OperatorKey == "" || !run.Thorough,
	}
	if missing[c.needs] {
		if run.OperatorKey == "" {
			p.end(NotTested, "%s", needsOperator)
		}
		p.end(NotTested, "%s", c.needs)
	}
	h := &channelProbe{gatewayProbe: gatewayProbe{probe: p, pace: &run.pace, hold: holdOfWait}, service: run}
	defer h.release()
	c.run(h)
}

// origin returns the origin of a URL, or the empty string.
func origin(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

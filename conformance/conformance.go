// Package conformance checks over HTTP whether a relay follows the Agora protocol, a hub the Chorus protocol, a channel
// service the Chorus Channel Protocol, a registry of jobs the Chorus registry's protocol, or an agent's server A2A 1.0.
//
// It needs only the address of the server, which may be written in any language. Each check uses new keys and new
// threads, so a relay with other traffic can be checked too. Checks of time limits use short lifetimes and timestamps
// in the past or the future. So they test a rule about five minutes within seconds. The result of a check contains what
// was sent, what was expected and what the server answered.
//
// For relays there are three levels. Each level includes the levels before it:
//   - Core is the original specification.
//   - Strict adds the rules of PROTOCOL.md for questions that the specification leaves open.
//   - Extensions adds the features that PROTOCOL.md defines beyond the specification.
//
// The messages that a run posts to a relay expire within minutes or, in checks of old timestamps, within hours. One
// message requests the longest lifetime.
//
// This package joins the suites: Run and Checks for relays, RunHub and HubChecks for hubs, RunChannel and ChannelChecks
// for channel services, RunJobs and JobsChecks for registries of jobs, and RunA2A and A2AChecks for A2A servers.
package conformance

import (
	"context"

	"github.com/agora-relay/agora/conformance/a2a"
	"github.com/agora-relay/agora/conformance/channel"
	"github.com/agora-relay/agora/conformance/hub"
	"github.com/agora-relay/agora/conformance/jobs"
	"github.com/agora-relay/agora/conformance/kit"
	"github.com/agora-relay/agora/conformance/relay"
)

// What all suites share. See the package kit.
type (
	Level  = kit.Level
	Check  = kit.Check
	Status = kit.Status
	Result = kit.Result
	Report = kit.Report
)

// The levels of checks, and the outcomes of a check. See the package kit.
const (
	Core           = kit.Core
	Strict         = kit.Strict
	Extensions     = kit.Extensions
	Hub            = kit.Hub
	ChannelService = kit.ChannelService
	JobsRegistry   = kit.JobsRegistry
	A2AServer      = kit.A2AServer

	Passed    = kit.Passed
	Failed    = kit.Failed
	Skipped   = kit.Skipped
	NotTested = kit.NotTested
)

// Levels returns all levels of relays. Each level includes the levels before it.
func Levels() []Level { return kit.Levels() }

// HubOptions selects the checks of a run at a hub. See the package hub.
type HubOptions = hub.Options

// DefaultHubTimeout is the time limit of a run at a hub if HubOptions.Timeout is 0.
const DefaultHubTimeout = hub.DefaultTimeout

// RunHub checks the hub at baseURL. See the package hub.
func RunHub(ctx context.Context, baseURL string, o HubOptions) (Report, error) {
	return hub.Run(ctx, baseURL, o)
}

// HubChecks returns all checks of a hub, in the order of the documentation.
func HubChecks() []Check { return hub.Checks() }

// ChannelOptions selects the checks of a run at a channel service. See the package channel.
type ChannelOptions = channel.Options

// DefaultChannelTimeout is the time limit of a run at a channel service if ChannelOptions.Timeout is 0.
const DefaultChannelTimeout = channel.DefaultTimeout

// RunChannel checks the channel service at baseURL. See the package channel.
func RunChannel(ctx context.Context, baseURL string, o ChannelOptions) (Report, error) {
	return channel.Run(ctx, baseURL, o)
}

// ChannelChecks returns all checks of a channel service, in the order of the documentation.
func ChannelChecks() []Check { return channel.Checks() }

// JobsOptions selects the checks of a run at a registry of jobs. See the package jobs.
type JobsOptions = jobs.Options

// DefaultJobsTimeout is the time limit of a run at a registry of jobs if JobsOptions.Timeout is 0.
const DefaultJobsTimeout = jobs.DefaultTimeout

// RunJobs checks the registry of jobs at baseURL. See the package jobs.
func RunJobs(ctx context.Context, baseURL string, o JobsOptions) (Report, error) {
	return jobs.Run(ctx, baseURL, o)
}

// JobsChecks returns all checks of a registry of jobs, in the order of the documentation.
func JobsChecks() []Check { return jobs.Checks() }

// A2AOptions selects the checks of a run at an A2A server. See the package a2a.
type A2AOptions = a2a.Options

// DefaultA2ATimeout is the time limit of a run at an A2A server if A2AOptions.Timeout is 0.
const DefaultA2ATimeout = a2a.DefaultTimeout

// RunA2A checks the A2A server at baseURL. See the package a2a.
func RunA2A(ctx context.Context, baseURL string, o A2AOptions) (Report, error) {
	return a2a.Run(ctx, baseURL, o)
}

// A2AChecks returns all checks of an A2A server, in the order of the documentation.
func A2AChecks() []Check { return a2a.Checks() }

// Options selects the checks of a run at a relay. See the package relay.
type Options = relay.Options

// DefaultTimeout is the time limit of a run at a relay if Options.Timeout is 0.
const DefaultTimeout = relay.DefaultTimeout

// Run checks the relay at baseURL. See the package relay.
func Run(ctx context.Context, baseURL string, o Options) (Report, error) {
	return relay.Run(ctx, baseURL, o)
}

// Checks returns all checks of a relay, in the order of the documentation.
func Checks() []Check { return relay.Checks() }

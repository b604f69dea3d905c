// Package kit has what the suites for relays, hubs, channel services, registries of jobs and A2A servers share: checks
// and their results, the runner, the report, the HTTP client, and the steps and values of checks.
//
// Each suite is a package beside this one. No suite imports another one. A suite is tables of checks, with one table
// for each theme. A check gets a Probe, which sends requests. It ends the check at the first answer that is not the
// expected one. A run has a time limit and sends a limited number of requests.
package kit

import (
	"slices"
	"strings"
	"time"
)

// Level is a set of rules that a relay is checked against.
type Level string

const (
	Core       Level = "core"       // the original specification
	Strict     Level = "strict"     // Core, and the rules of PROTOCOL.md for what the specification leaves open
	Extensions Level = "extensions" // Strict, and the features that PROTOCOL.md adds

	// No other level includes these.
	Hub            Level = "hub"     // the rules of HUB.md for a Chorus hub
	ChannelService Level = "channel" // the rules of CHANNEL.md for a channel service
	JobsRegistry   Level = "jobs"    // the rules of JOBS.md for a registry of jobs
	A2AServer      Level = "a2a"     // the rules of A2A 1.0, and of A2A.md for what it leaves open
)

// Levels returns all levels of relays. Each level includes the levels before it.
func Levels() []Level { return []Level{Core, Strict, Extensions} }

// Includes reports whether a relay of level l must pass the checks of level other.
func (l Level) Includes(other Level) bool {
	return slices.Index(Levels(), other) <= slices.Index(Levels(), l) && slices.Contains(Levels(), other)
}

// Check tests one requirement that a relay must meet.
type Check struct {
	// Number is C-1, C-2, … for Core, S-1, … for Strict, X-1, … for Extensions and N-1, … for ChannelService. For Hub,
	// JobsRegistry and A2AServer it is a name such as hub.register.rotate. It is never given to another check.
	Number string `json:"number"`
	Title  string `json:"title"` // the requirement, in one sentence
	Cites  string `json:"cites"` // the section of the specification or of PROTOCOL.md that contains the requirement
	Theme  string `json:"theme"`
	// Vectors is the file in testvectors/ that tests the same requirement without a relay. It is empty if there is
	// none.
	Vectors string `json:"vectors,omitempty"`

	// wait is about how long the check sleeps or waits for held polls. At most maxWaitingChecks checks with a wait run
	// at the same time, and at most maxBusyChecks checks without one.
	wait time.Duration
	last bool // see GatewayCheck
	run  func(*Probe)
}

// Level returns the lowest level that includes the check.
func (c Check) Level() Level {
	switch {
	case strings.HasPrefix(c.Number, "C-"):
		return Core
	case strings.HasPrefix(c.Number, "S-"):
		return Strict
	case strings.HasPrefix(c.Number, "N-"):
		return ChannelService
	case strings.HasPrefix(c.Number, "hub."):
		return Hub
	case strings.HasPrefix(c.Number, "jobs."):
		return JobsRegistry
	case strings.HasPrefix(c.Number, "a2a."):
		return A2AServer
	}
	return Extensions
}

// Status is the outcome of a check.
type Status string

const (
	Passed  Status = "passed"
	Failed  Status = "failed"
	Skipped Status = "skipped" // the check did not run to its end; Result.Got has the reason
	// NotTested means that the check needs something that the run does not have, such as the operator's key.
	// Result.Got says what.
	NotTested Status = "not tested"
)

// Result is the outcome of one check.
type Result struct {
	Number   string        `json:"number"`
	Level    Level         `json:"level"`
	Theme    string        `json:"theme"`
	Title    string        `json:"title"`
	Cites    string        `json:"cites"`
	Status   Status        `json:"status"`
	Sent     string        `json:"sent,omitempty"`     // the last step of the check: the request, or what the check did
	Expected string        `json:"expected,omitempty"` // what the rule requires at that step
	Got      string        `json:"got,omitempty"`      // what the relay answered, or why the check was skipped
	Took     time.Duration `json:"tookNanoseconds"`
}

// Report contains the results of a run.
type Report struct {
	URL      string        `json:"url"`
	Level    Level         `json:"level"`
	Started  time.Time     `json:"started"`
	Took     time.Duration `json:"tookNanoseconds"`
	Requests int64         `json:"requests"`
	// Clock is how far the relay's clock is ahead of the local clock, by the relay's Date header. It is 0 if the
	// difference is at most 1.5 seconds. Messages are dated by the relay's clock.
	Clock   time.Duration `json:"clockNanoseconds"`
	Results []Result      `json:"results"` // in the order of Checks
}

// Count returns how many results have the status s.
func (r Report) Count(s Status) (n int) {
	for _, result := range r.Results {
		if result.Status == s {
			n++
		}
	}
	return n
}

// Holds reports whether all selected checks passed, apart from those that were not tested. It returns false if a check
// was skipped or if no check passed.
func (r Report) Holds() bool {
	passed := r.Count(Passed)
	return passed > 0 && passed+r.Count(NotTested) == len(r.Results)
}

// BindCheck returns a check with what a run needs: how long it waits, and what it does.
func BindCheck(c Check, wait time.Duration, run func(*Probe)) Check {
	c.wait, c.run = wait, run
	return c
}

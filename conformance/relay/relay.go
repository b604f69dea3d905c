// Package relay checks over HTTP whether a relay follows the Agora protocol.
//
// There are three levels. Each level includes the levels before it: the checks of kit.Core are in files whose names begin
// with core, those of kit.Strict in files whose names begin with strict, and those of kit.Extensions in files whose names
// begin with ext. The messages that a run posts expire within minutes or, in checks of old timestamps, within hours. One
// message requests the longest lifetime.
package relay

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// Options selects the checks of a run. The zero value selects all checks.
type Options struct {
	Level    kit.Level        // empty: Extensions, which includes all checks
	Only     []string         // numbers of checks, whatever their level; empty: all checks of Level
	Timeout  time.Duration    // for the whole run; checks that have not ended by then are skipped. 0: DefaultTimeout
	Progress func(kit.Result) // called with each result when its check has ended, one call at a time; may be nil
}

// DefaultTimeout is the time limit of a run if Options.Timeout is 0. A relay that follows the protocol needs little
// more than a minute, because one check waits for a minute (C-43).
const DefaultTimeout = 90 * time.Second

// Run checks the relay at baseURL. It returns an error if the options are invalid, if baseURL is not a usable address,
// or if no relay answers there. A relay that violates the protocol is not an error: see Report.Holds. If ctx ends, the
// checks that have not ended are reported as skipped.
func Run(ctx context.Context, baseURL string, o Options) (kit.Report, error) {
	if o.Level == "" {
		o.Level = kit.Extensions
	}
	chosen, err := choose(o)
	if err != nil {
		return kit.Report{}, err
	}
	relay, err := kit.NewRelayClient(baseURL)
	if err != nil {
		return kit.Report{}, err
	}
	defer relay.Close()
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	report := kit.Report{URL: relay.BaseURL, Level: o.Level, Started: time.Now()}
	ctx, cancel := context.WithTimeoutCause(ctx, o.Timeout,
		fmt.Errorf("the time limit of the run, %v, has passed", o.Timeout))
	defer cancel()
	if err := relay.Connect(ctx); err != nil {
		return kit.Report{}, err
	}
	report.Results = kit.RunAll(ctx, relay, chosen, o.Progress)
	report.Took, report.Requests, report.Clock = time.Since(report.Started), relay.Requests.Load(), relay.ClockOffset
	return report, nil
}

// Check returns the error that Run would return for invalid options or an invalid baseURL. It sends no request.
func (o Options) Check(baseURL string) error {
	if o.Level == "" {
		o.Level = kit.Extensions
	}
	if _, err := choose(o); err != nil {
		return err
	}
	_, err := kit.ParseBase(baseURL)
	return err
}

// choose returns the checks that o selects.
func choose(o Options) ([]kit.Check, error) {
	if !slices.Contains(kit.Levels(), o.Level) {
		return nil, fmt.Errorf("level must be core, strict or extensions, not %q", o.Level)
	}
	all := Checks()
	if len(o.Only) == 0 {
		all = slices.DeleteFunc(all, func(c kit.Check) bool { return !o.Level.Includes(c.Level()) })
	}
	return kit.Pick(all, o.Only, "C-1, S-1 and X-1")
}

// theme is a table of related checks.
type theme struct {
	name    string
	vectors string
	checks  []relayCheck
}

// themes returns all tables, in the order of the documentation.
func themes() []theme {
	return []theme{
		{"Health", "", healthChecks},
		{"Submit and signatures", "verify.json", submitChecks},
		{"Replay", "window.json", replayChecks},
		{"Threads", "threads.json", coreThreadChecks()},
		{"Long polling", "", pollChecks},
		{"Lifetimes", "", lifetimeChecks},
		{"JSON", "verify.json", jsonChecks},
		{"Fields", "verify.json", fieldChecks},
		{"Signatures (strict)", "verify.json", signatureChecks},
		{"Identities", "didkey.json", identityChecks},
		{"Duplicates", "", duplicateChecks},
		{"Races and limits", "", raceChecks},
		{"Threads (strict)", "threads.json", strictThreadChecks()},
		{"HTTP", "", httpChecks},
		{"Parameters", "", parameterChecks},
		{"Delivery", "", deliveryChecks},
		{"Receipts", "", receiptChecks},
		{"Cursor", "", cursorChecks},
		{"Thread records", "", recordChecks},
		{"Directory", "", directoryChecks},
		{"Existing clients", "", clientChecks},
		{"Private reads", "reads.json", privateChecks},
		{"Reading backwards", "", backwardChecks},
		{"Server-sent events", "", streamChecks},
		{"Posting many messages", "", bulkChecks},
		{"Proofs", "log.json", proofChecks},
		{"Homes", "", homeChecks},
	}
}

// Checks returns all checks, in the order of the documentation.
func Checks() []kit.Check {
	var all []kit.Check
	for _, t := range themes() {
		for _, c := range t.checks {
			vectors := c.Vectors
			if vectors == "" {
				vectors = t.vectors
			}
			all = append(all, kit.BindCheck(kit.Check{Number: c.Number, Title: c.Title, Cites: c.Cites, Theme: t.name,
				Vectors: vectors}, c.wait, func(p *kit.Probe) { c.run(&relayProbe{p}) }))
		}
	}
	return all
}

// relayCheck is a check of a relay. See Check.
type relayCheck struct {
	Number, Title, Cites, Vectors string
	wait                          time.Duration
	run                           func(*relayProbe)
}

// relayProbe is the context of one running check of a relay.
type relayProbe struct{ *kit.Probe }

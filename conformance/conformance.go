// Package conformance asks any relay, over HTTP alone, whether it keeps the protocol.
//
// It needs nothing from the relay but an address. Every check brings fresh keys and threads, so a relay with other
// traffic can be asked, and its own clock tricks (short lifetimes, timestamps set back or ahead), so that a rule about
// five minutes is seen in seconds. A check says what it sent, what it expected and what it got.
//
// The rules come in three levels, each including the one before: Core is the protocol as its authors wrote it, Strict
// closes what that leaves open (PROTOCOL.md), Extensions are what this project adds. Checks are tables, one file a
// theme; a run is bounded in time, in requests and in what it leaves behind (messages that expire within minutes).
package conformance

import (
	"slices"
	"strings"
	"time"
)

// Level is how much is asked of a relay.
type Level string

const (
	Core       Level = "core"       // the original specification
	Strict     Level = "strict"     // and PROTOCOL.md's answers to what it leaves open
	Extensions Level = "extensions" // and what PROTOCOL.md adds
)

// Levels returns every Level, each including those before it.
func Levels() []Level { return []Level{Core, Strict, Extensions} }

// Includes reports whether a relay of level l must pass checks of level other.
func (l Level) Includes(other Level) bool {
	return slices.Index(Levels(), other) <= slices.Index(Levels(), l) && slices.Contains(Levels(), other)
}

// Check is one thing a relay must do.
type Check struct {
	Number  string `json:"number"` // C-1 for Core, S-1 for Strict, X-1 for Extensions; never given to another check
	Title   string `json:"title"`  // the rule, in a sentence
	Cites   string `json:"cites"`  // where the rule is written
	Theme   string `json:"theme"`
	Vectors string `json:"vectors,omitempty"` // the file of testvectors/ that holds the same rule offline; empty if none does

	// wait is how long the check mostly sleeps; such checks overlap, the others take turns.
	wait time.Duration
	run  func(*probe)
}

// Level says from which level on the check counts.
func (c Check) Level() Level {
	switch {
	case strings.HasPrefix(c.Number, "C-"):
		return Core
	case strings.HasPrefix(c.Number, "S-"):
		return Strict
	}
	return Extensions
}

// theme is a table of checks that belong together.
type theme struct {
	name    string
	vectors string
	checks  []Check
}

// themes returns all tables in the order of the documentation.
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
		{"Signatures, strictly", "verify.json", signatureChecks},
		{"Identities", "didkey.json", identityChecks},
		{"Duplicates", "", duplicateChecks},
		{"Races and bounds", "", raceChecks},
		{"Threads, strictly", "threads.json", strictThreadChecks()},
		{"HTTP", "", httpChecks},
		{"Parameters", "", parameterChecks},
		{"Delivery", "", deliveryChecks},
		{"Receipts", "", receiptChecks},
		{"Cursor", "", cursorChecks},
		{"Thread records", "", recordChecks},
		{"Directory", "", directoryChecks},
		{"Existing clients", "", clientChecks},
		{"Private reads", "reads.json", privateChecks},
	}
}

// Checks returns all checks, in the order of the documentation.
func Checks() []Check {
	var all []Check
	for _, t := range themes() {
		for _, c := range t.checks {
			c.Theme = t.name
			if c.Vectors == "" {
				c.Vectors = t.vectors
			}
			all = append(all, c)
		}
	}
	return all
}

// Status is how a check ended.
type Status string

const (
	Passed  Status = "passed"
	Failed  Status = "failed"
	Skipped Status = "skipped" // it could not be asked; Result.Got says why
)

// Result is what one check found.
type Result struct {
	Number   string        `json:"number"`
	Level    Level         `json:"level"`
	Theme    string        `json:"theme"`
	Title    string        `json:"title"`
	Cites    string        `json:"cites"`
	Status   Status        `json:"status"`
	Sent     string        `json:"sent,omitempty"`     // the step it ended at: what was asked of the relay
	Expected string        `json:"expected,omitempty"` // what the rule wants in answer
	Got      string        `json:"got,omitempty"`      // what came
	Took     time.Duration `json:"tookNanoseconds"`
}

// Report is what a run found.
type Report struct {
	URL      string        `json:"url"`
	Level    Level         `json:"level"`
	Started  time.Time     `json:"started"`
	Took     time.Duration `json:"tookNanoseconds"`
	Requests int64         `json:"requests"`
	// Clock is how far the relay's clock is ahead of ours, by its Date header; checks are dated by the relay's clock.
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

// Holds reports whether every check that was chosen passed. What was skipped is not shown to hold.
func (r Report) Holds() bool { return len(r.Results) > 0 && r.Count(Passed) == len(r.Results) }

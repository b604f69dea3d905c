// Package storetest is the one suite that every relay.Store passes. It holds a store to the words of relay.Store's
// contract through its eight methods alone, so it says nothing about tables, files or processes.
//
// Time is an argument of those methods, and here a clock that only the test moves: nothing sleeps, and an hour of the
// store's life takes no time. What Append promises about a crash of the machine cannot be seen from inside a process;
// each engine has tests of its own for that.
package storetest

import (
	"context"
	"testing"

	"github.com/agora-relay/agora/relay"
)

// Opener opens the store whose data is kept at place, a folder that belongs to the test and is empty the first time.
// What is there is there again when the place is opened anew. If the store is an io.Closer, the suite closes it before
// it opens its place again and when the test ends.
type Opener func(ctx context.Context, place string, policy relay.Policy) (relay.Store, error)

// Test runs the suite, each part with stores of its own.
func Test(t *testing.T, open Opener) {
	for _, part := range []struct {
		name string
		run  func(*testing.T, Opener)
	}{
		{"Policy", testPolicy},
		{"Append", testAppend},
		{"Refusals", testRefusals},
		{"Duplicates", testDuplicates},
		{"Races", testRaces},
		{"Histories", testHistories},
		{"Read", testRead},
		{"ReadModel", testReadModel},
		{"Threads", testThreads},
		{"Removal", testRemoval},
		{"Timeouts", testTimeouts},
		{"Watch", testWatch},
		{"Quota", testQuota},
		{"Agents", testAgents},
		{"Durability", testDurability},
		{"LifeModel", testLifeModel},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(t, open) })
	}
}

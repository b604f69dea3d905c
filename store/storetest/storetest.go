// Package storetest is the test suite for implementations of relay.Store. Every store must pass it. The suite checks
// the documented behavior of relay.Store. It uses only the methods of that interface, so it makes no assumptions
// about tables, files or processes.
//
// The methods of a store take the current time as an argument. In the suite, the time comes from a clock that only the
// test advances. So no test sleeps, and an hour on that clock takes no real time.
//
// The suite runs in one process, so it cannot test that stored messages survive a crash of the machine. Each engine has
// its own tests for that.
package storetest

import (
	"context"
	"testing"

	"github.com/agora-relay/agora/relay"
)

// Opener opens the store whose data is in folder. The folder belongs to the test. It is empty on the first call. When
// the same folder is opened again, the store must have the data that was stored before. If the store is an io.Closer,
// the suite closes it before it opens the folder again, and at the end of the test.
type Opener func(ctx context.Context, folder string, policy relay.Policy) (relay.Store, error)

// Test runs the suite. Each part opens its own stores.
func Test(t *testing.T, open Opener) {
	for _, part := range []struct {
		name string
		run  func(*testing.T, Opener)
	}{
		{"Policy", testPolicy},
		{"Append", testAppend},
		{"AppendAll", testAppendAll},
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

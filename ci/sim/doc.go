// Package sim has a simulated disk for tests of a relay: SQLite's files lose what was not synced, and single operations
// fail. Its own test runs a whole relay over such a disk, in synthetic time, and checks that nothing is lost.
package sim

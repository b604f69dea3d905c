// Package sim has a simulated disk for tests of a relay: SQLite's files lose what was not synced, and single operations
// fail. Its tests run over such disks, in synthetic time.
//
// TestSimulations runs one relay over a disk that fails, and checks that nothing is lost.
//
// TestSystems runs a whole system in one process: 3 relays with their stores, which mirror each other, and clients and
// agents (client.Network) over a network in memory. A seed decides the jobs and the faults. First many things fail:
// connections are cut, requests are late or come twice, answers are lost, relays, clients and agents crash, relays are
// restored from a backup, disks and state files lose what was not synced, clocks are set and drift. Then nothing fails,
// and at the end one thing: then each job must be done. A stranger posts what relays must refuse all the time.
//
// What the seed does not decide. Goroutines that can run at the same synthetic time run in the order of the
// scheduler. Go draws the order of maps, the choice of a select, and the pauses between attempts (math/rand/v2) anew
// in each run. SQLite and the state files use real system calls. So a seed gives the same jobs, faults and keys
// again, but not always the same order of messages. Run a failing seed several times, with -count.
package sim

// Package faults contains only tests. They start the relay's own program, cause faults, and check over HTTP that the
// relay still keeps its promises (PROTOCOL §5, §7). The tests kill the relay, fill its disk, make its system calls
// fail, start very many readers, and cut its connections.
//
// An answer with status 200 is a promise. The tests check for each message with such an answer whether it is stored and
// delivered. They do not rely on other statements of the relay.
//
// make test runs the tests that need only Go. The tests that need strace, or the right to mount file systems, have the
// build tag faults. make faults runs them on Linux. They fail, and are not skipped, if strace or that right is missing.
// The test with the build tag witness needs programs of others. It builds them from ci/torchwood. make witness runs it.
package faults

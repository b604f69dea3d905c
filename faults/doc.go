// Package faults holds no code: its tests start the relay's own binary, harm it, and look from outside, over HTTP, at
// what it still keeps of its promises (PROTOCOL §5, §7). They kill it, fill its disk, fail its system calls, crowd it
// with readers and cut its connections.
//
// The rule: a 200 is a promise. What a test got one for it looks for afterwards; nothing else of the relay is believed.
//
// make test runs what needs nothing but Go. Tests that need strace, or the right to mount, have the build tag faults
// and are run by make faults, on Linux; where these are missing they fail, they do not skip.
package faults

//go:build !linux

package postgres

import "syscall"

// limitUnanswered does nothing on this operating system. Its own limit holds.
func limitUnanswered(string, string, syscall.RawConn) error { return nil }

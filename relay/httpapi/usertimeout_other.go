//go:build !linux

package httpapi

import "net"

// limitUnacknowledged does nothing, because only Linux has TCP_USER_TIMEOUT.
func limitUnacknowledged(net.Conn) error { return nil }

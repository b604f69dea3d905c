//go:build unix && !linux

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// dropTyped drops what was typed at a terminal and is not read yet: tcflush of POSIX.
func dropTyped(f *os.File) error {
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.TIOCFLUSH, unix.TCIFLUSH)
}

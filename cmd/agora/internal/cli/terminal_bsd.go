//go:build unix && !linux

package cli

import (
	"os"

	"golang.org/x/sys/unix"
)

// DropTyped drops what was typed at a terminal and is not read yet: tcflush of POSIX.
func DropTyped(f *os.File) error {
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.TIOCFLUSH, unix.TCIFLUSH)
}

package cli

import (
	"os"

	"golang.org/x/sys/unix"
)

// DropTyped drops what was typed at a terminal and is not read yet: tcflush of POSIX.
func DropTyped(f *os.File) error { return unix.IoctlSetInt(int(f.Fd()), unix.TCFLSH, unix.TCIFLUSH) }

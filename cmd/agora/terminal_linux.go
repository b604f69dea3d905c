package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// dropTyped drops what was typed at a terminal and is not read yet: tcflush of POSIX.
func dropTyped(f *os.File) error { return unix.IoctlSetInt(int(f.Fd()), unix.TCFLSH, unix.TCIFLUSH) }

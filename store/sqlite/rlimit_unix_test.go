//go:build unix

package sqlite

import (
	"os/signal"
	"syscall"
)

// limitFileSize limits the size of the files that this process writes, in bytes. A write beyond it fails with EFBIG.
func limitFileSize(n uint64) error {
	signal.Ignore(syscall.SIGXFSZ)
	return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: n, Max: n})
}

// limitDescriptors limits how many files this process may have open.
func limitDescriptors(n uint64) error {
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n})
}

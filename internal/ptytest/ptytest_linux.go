// Package ptytest opens pseudo-terminals for tests of programs that people use at a terminal.
package ptytest

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Open returns both sides of a new pseudo-terminal with 80 columns: the person's side, and the program's side. It shows
// nothing of what is typed, so that what it prints is what programs print. When the test ends, both sides are closed.
func Open(t testing.TB) (keyboard, screen *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = keyboard.Close() }) // the test may have closed it
	// Fd would make the file block, and then Close would wait until somebody has read from it.
	raw, err := keyboard.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var number int
	var failed error
	err = raw.Control(func(fd uintptr) { number, failed = setUp(int(fd)) })
	if err := errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	screen, err = os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = screen.Close() }) // the test may have closed it
	return keyboard, screen
}

// setUp unlocks the other side of a pseudo-terminal, and sets its size and modes. It returns its number.
func setUp(fd int) (number int, err error) {
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return 0, err
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		return 0, err
	}
	modes, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return 0, err
	}
	modes.Lflag &^= unix.ECHO
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, modes); err != nil {
		return 0, err
	}
	return unix.IoctlGetInt(fd, unix.TIOCGPTN)
}

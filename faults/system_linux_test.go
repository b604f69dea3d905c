package faults

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// tether puts a command into a process group of its own and lets it die with the tests.
func tether(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// killAll ends a command that was tethered, and what it has started.
func killAll(cmd *exec.Cmd) error {
	err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	if err == syscall.ESRCH {
		return nil // it has ended
	}
	return err
}

// residentBytes returns how much memory a process has in use; ok is false where that cannot be asked.
func residentBytes(t testing.TB, pid int) (bytes int, ok bool) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	var kilobytes int
	if _, err := fmt.Sscan(rest, &kilobytes); err != nil {
		t.Fatalf("no VmRSS of process %d: %v", pid, err)
	}
	return kilobytes << 10, true
}

// openFiles returns how many descriptors a process has; ok is false where that cannot be asked.
func openFiles(t testing.TB, pid int) (count int, ok bool) {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	must(t, err)
	return len(entries), true
}

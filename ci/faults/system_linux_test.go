package faults

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// useProcessGroup makes a command run in its own process group, and makes it end with the tests.
func useProcessGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// killGroup kills the process group of a command, which includes the processes that the command has started.
func killGroup(cmd *exec.Cmd) error {
	err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	if err == syscall.ESRCH {
		return nil // the process has already ended
	}
	return err
}

// residentBytes returns the resident memory of a process. ok is false on systems where it is not available.
func residentBytes(t testing.TB, pid int) (bytes int, ok bool) {
	t.Helper()
	return statusBytes(t, pid, "VmRSS:"), true
}

// peakBytes returns the largest resident memory of a process since resetPeak. It is 0 on systems where it is not
// available.
func peakBytes(t testing.TB, pid int) int {
	t.Helper()
	return statusBytes(t, pid, "VmHWM:")
}

func resetPeak(t testing.TB, pid int) {
	t.Helper()
	must(t, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)) // see proc(5)
}

func statusBytes(t testing.TB, pid int, name string) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	_, rest, _ := strings.Cut(string(status), name)
	var kilobytes int
	if _, err := fmt.Sscan(rest, &kilobytes); err != nil {
		t.Fatalf("no %s of process %d: %v", name, pid, err)
	}
	return kilobytes << 10
}

// openFiles returns the number of open file descriptors of a process. ok is false on systems where it is not available.
func openFiles(t testing.TB, pid int) (count int, ok bool) {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	must(t, err)
	return len(entries), true
}

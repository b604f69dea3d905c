//go:build unix

package program

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// OwnGroup makes a program start in its own process group. So the group can be killed, and an interrupt from the
// terminal reaches only this process.
func OwnGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

// KillGroup kills a program that was started after OwnGroup, and the processes in its group. Call it before Wait: after
// that, the numbers may belong to others.
func KillGroup(cmd *exec.Cmd) error { return signalGroup(cmd, syscall.SIGKILL) }

// terminateGroup asks the processes of the group to end.
func terminateGroup(cmd *exec.Cmd) error { return signalGroup(cmd, syscall.SIGTERM) }

// signalGroup also sends the signal to the program itself, which may have left its group.
func signalGroup(cmd *exec.Cmd, signal syscall.Signal) error {
	err := syscall.Kill(-cmd.Process.Pid, signal)
	if errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.EPERM) { // macOS: EPERM for a group of zombies
		err = nil
	}
	if one := cmd.Process.Signal(signal); !errors.Is(one, os.ErrProcessDone) {
		err = errors.Join(err, one)
	}
	return err
}

// signalName returns the name of the signal that has ended a process; empty: none has.
func signalName(state *os.ProcessState) string {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return status.Signal().String()
	}
	return ""
}

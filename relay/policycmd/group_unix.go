//go:build unix

package policycmd

import (
	"errors"
	"os/exec"
	"syscall"
)

// ownGroup makes a program start in a process group of its own. So the group can be killed, and an interrupt from the
// terminal reaches only the relay.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killGroup kills the process group of a program that was not waited for.
func killGroup(cmd *exec.Cmd) error {
	err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.EPERM) { // macOS: EPERM for a group of zombies
		return nil
	}
	return err
}

//go:build !unix

package program

import (
	"errors"
	"os"
	"os/exec"
)

// OwnGroup does nothing: this system has no process groups.
func OwnGroup(*exec.Cmd) {}

// KillGroup kills the program. Programs that it has started may continue.
func KillGroup(cmd *exec.Cmd) error {
	if err := cmd.Process.Kill(); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// terminateGroup kills the program: on this system it cannot be asked to end.
func terminateGroup(cmd *exec.Cmd) error { return KillGroup(cmd) }

func signalName(*os.ProcessState) string { return "" }

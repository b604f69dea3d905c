//go:build !linux

package faults

import (
	"errors"
	"os"
	"os/exec"
	"testing"
)

func useProcessGroup(*exec.Cmd) {}

func killGroup(cmd *exec.Cmd) error {
	if err := cmd.Process.Kill(); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

func residentBytes(testing.TB, int) (int, bool) { return 0, false }

func openFiles(testing.TB, int) (int, bool) { return 0, false }

func peakBytes(testing.TB, int) int { return 0 }

func resetPeak(testing.TB, int) {}

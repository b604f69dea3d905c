//go:build !linux

package program

import (
	"os"
	"os/exec"
)

// endWithParent does nothing: this system cannot do it.
func endWithParent(*exec.Cmd) {}

// awaitExit waits until the process has ended. The number of its group can be used again only when the group is empty,
// and is not used again at once.
func awaitExit(p *os.Process) exit {
	state, err := p.Wait()
	return exit{state, err}
}

package program

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// endWithParent makes the system kill the program when the thread that starts it ends, for example because somebody has
// killed this process.
func endWithParent(cmd *exec.Cmd) { cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL }

// awaitExit waits until the process has ended. It leaves the process waitable. So no other process can get its number,
// which is also the number of its group.
func awaitExit(p *os.Process) exit {
	const byPID = 1 // P_PID of waitid(2)
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, byPID, uintptr(p.Pid), 0, syscall.WEXITED|syscall.WNOWAIT, 0, 0)
		if errno == 0 {
			return exit{}
		}
		if !errors.Is(errno, syscall.EINTR) {
			state, err := p.Wait()
			return exit{state, err}
		}
	}
}

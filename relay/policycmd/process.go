package policycmd

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/agora-relay/agora/internal/program"
	"github.com/agora-relay/agora/internal/safetext"
)

// process is a running program.
type process struct {
	cmd         *exec.Cmd
	in          io.WriteCloser
	out, errors io.ReadCloser
}

// startProcess starts a program in its own process group. It gets no variable of agora: AGORA_STORE may have the
// password of the database.
func startProcess(argv []string) (*process, error) {
	p := &process{cmd: exec.Command(argv[0], argv[1:]...)}
	p.cmd.Env = program.Environment(os.Environ())
	program.OwnGroup(p.cmd)
	var errs [3]error
	p.in, errs[0] = p.cmd.StdinPipe()
	p.out, errs[1] = p.cmd.StdoutPipe()
	p.errors, errs[2] = p.cmd.StderrPipe()
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	return p, p.cmd.Start()
}

// stop asks the program to end, and waits for up to patience until ended is closed.
func (p *process) stop(ended <-chan struct{}, patience time.Duration) {
	_ = p.in.Close() // this tells the program; an error means that it has ended
	select {
	case <-ended:
	case <-time.After(patience):
	}
}

// kill kills the process group and frees what it has used. A program that has ended by itself is no error.
func (p *process) kill() error {
	// The group is killed before Wait, because its number may be used again after that.
	killed := program.KillGroup(p.cmd)
	// If a process has left the group, it may still hold the other ends.
	_, _, _ = p.in.Close(), p.out.Close(), p.errors.Close() // the program has ended, so nothing is lost
	err := p.cmd.Wait()
	if _, status := errors.AsType[*exec.ExitError](err); status {
		err = nil
	}
	return errors.Join(killed, err)
}

// logLine logs what a program writes to its standard error. It is a program.LogFunc.
func (c *Command) logLine(line []byte, leftOut int) {
	if leftOut > 0 {
		c.log.Warn("the policy command says too much; some lines are not logged", "lines", leftOut)
		return
	}
	c.log.Info("the policy command says", "line", string(safetext.Escape(line, "")))
}

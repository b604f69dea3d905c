// Package program runs programs of the user as child processes. They are not trusted to end, to be quiet, or to read
// what they get.
//
// A program starts in its own process group. The group is killed when the program has ended, or must end. So the
// processes that it has started end too, except those that have left the group (setsid, setpgid). Windows has no
// process groups. There only the program itself is ended, and at once: it cannot be asked to end.
package program

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// Options of Run. Argv is required.
type Options struct {
	Argv      []string        // the program and its arguments; there is no shell
	Env       []string        // the environment, as NAME=value; nil: what Environment returns for that of this process
	Input     []byte          // what the program gets on its standard input
	MaxOutput int             // bytes of standard output; a program that writes more is killed
	Timeout   time.Duration   // how long the program may run; 0: as long as it wants
	Grace     time.Duration   // how long a program that must end may take after SIGTERM, before it is killed
	Kill      <-chan struct{} // when it is closed, a program that must end is killed without Grace; nil: never
	Log       LogFunc         // gets standard error; nil: nobody does
	// Line gets each line of standard output while the program runs, with its line break. A line of more than MaxLine
	// bytes comes in pieces, which end between characters of UTF-8. The bytes are valid only during the call. After an
	// error the program is killed, and Run returns the error. nil: standard output is Result.Output.
	Line func(line []byte) error
}

// Environment returns the environment that a program of the user gets: own without the variables of agora. They may have
// keys, tokens and the passwords of databases.
func Environment(own []string) []string {
	return slices.DeleteFunc(slices.Clone(own), func(pair string) bool {
		return strings.HasPrefix(strings.ToUpper(pair), "AGORA_")
	})
}

// MaxLine is how many bytes Options.Line gets at once, and a few.
const MaxLine = 32 << 10

// Result is what a program has written.
type Result struct {
	Output   []byte // standard output
	LastLine []byte // the last line of standard error that is not empty, cut to 1 KiB; not escaped
}

var (
	// ErrTimeout is the error of a program that has run for longer than Options.Timeout.
	ErrTimeout = errors.New("the program did not end in time")
	// ErrTooMuchOutput is the error of a program that has written more than Options.MaxOutput.
	ErrTooMuchOutput = errors.New("the program has written too much")
)

// StartError is the error of a program that cannot be started.
type StartError struct{ Err error }

func (e *StartError) Error() string { return e.Err.Error() }

// Unwrap returns the system's error.
func (e *StartError) Unwrap() error { return e.Err }

// ExitError is the error of a program that has failed.
type ExitError struct {
	Code   int    // its exit code; -1: a signal has ended it
	Signal string // the signal, such as "killed"; empty: it has exited
}

func (e *ExitError) Error() string {
	if e.Signal != "" {
		return fmt.Sprintf("the program was ended by a signal (%s)", e.Signal)
	}
	return fmt.Sprintf("the program exited with the code %d", e.Code)
}

// drainTime is how long Run reads on after the group was killed. Only a process that has left the group can still hold
// the pipes then.
const drainTime = time.Second

// Run runs a program and returns what it has written to standard output. It returns when the program has ended and its
// process group was killed. A process that the program leaves in the background is killed then, even if it still
// writes.
//
// If ctx ends, or the time is over, the group gets SIGTERM, and SIGKILL after Options.Grace. On Linux the program is
// also killed when this process dies; processes that it has started are not.
//
// Errors: *StartError; *ExitError; ErrTimeout; ErrTooMuchOutput; that of Options.Line; the cause of ctx's end. The result is also returned
// with an error, as far as it was read.
func Run(ctx context.Context, o Options) (result Result, err error) {
	if ctx.Err() != nil {
		return Result{}, context.Cause(ctx)
	}
	// The system kills the program when the thread that has started it ends. So the thread must not end before.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r, err := start(o)
	if err != nil {
		return Result{}, &StartError{err}
	}
	var writing, reading sync.WaitGroup
	writing.Go(func() {
		_, _ = r.stdin.Write(o.Input) // it may end without reading
		_ = r.stdin.Close()
	})
	reading.Go(func() {
		if o.Line != nil {
			r.readLines(o.MaxOutput, o.Line)
		} else {
			result.Output = r.readOutput(o.MaxOutput)
		}
	})
	reading.Go(func() { result.LastLine = EachLine(r.stderr, o.Log) })
	exited := make(chan exit, 1)
	go func() { exited <- awaitExit(r.cmd.Process) }()
	done, why := r.supervise(ctx, o, exited)
	killErr := KillGroup(r.cmd)
	if done.state == nil && done.err == nil {
		done.state, done.err = r.cmd.Process.Wait()
	}
	drained := make(chan struct{})
	go func() { reading.Wait(); close(drained) }()
	for again := true; again; {
		select {
		case <-drained:
			again = false
		case <-time.After(drainTime):
			again = r.passing.Load() // what is in the pipe comes after it
		}
	}
	for _, pipe := range []*os.File{r.stdin, r.stdout, r.stderr} {
		_ = pipe.Close() // ends what still reads and writes
	}
	<-drained
	writing.Wait()
	switch {
	case why == nil && r.isHalted():
		why = r.haltedBy
	case why == nil && done.err == nil:
		why = failure(done.state)
	}
	return result, errors.Join(why, done.err, killErr)
}

// exit is how a program has ended. state is nil if nobody has waited for the process yet.
type exit struct {
	state *os.ProcessState
	err   error
}

// failure returns the *ExitError of a program; nil: it has ended with 0.
func failure(state *os.ProcessState) error {
	if state.Success() {
		return nil
	}
	return &ExitError{Code: state.ExitCode(), Signal: signalName(state)}
}

// running is a program that runs. The files are this process's ends of its pipes.
type running struct {
	cmd                   *exec.Cmd
	stdin, stdout, stderr *os.File
	halted                chan struct{} // closed when its output was refused
	haltedBy              error         // why; read after halted
	passing               atomic.Bool   // Options.Line is running
}

// start starts a program.
func start(o Options) (r *running, err error) {
	r = &running{cmd: exec.Command(o.Argv[0], o.Argv[1:]...), halted: make(chan struct{})}
	var theirs, ours []*os.File
	defer func() {
		close := theirs
		if err != nil {
			close = append(close, ours...)
		}
		for _, f := range close {
			_ = f.Close() // nothing was written
		}
	}()
	pipe := func() (read, write *os.File) {
		if err == nil {
			read, write, err = os.Pipe()
		}
		return read, write
	}
	inRead, inWrite := pipe()
	outRead, outWrite := pipe()
	errRead, errWrite := pipe()
	theirs, ours = []*os.File{inRead, outWrite, errWrite}, []*os.File{inWrite, outRead, errRead}
	if err != nil {
		return nil, err
	}
	// Files need no goroutines of exec. Those would wait for the end of the pipes, which a background process may hold.
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = inRead, outWrite, errWrite
	r.stdin, r.stdout, r.stderr = inWrite, outRead, errRead
	if r.cmd.Env = o.Env; o.Env == nil {
		r.cmd.Env = Environment(os.Environ())
	}
	OwnGroup(r.cmd)
	endWithParent(r.cmd)
	return r, r.cmd.Start()
}

// readOutput reads standard output, up to limit bytes.
func (r *running) readOutput(limit int) []byte {
	output, _ := io.ReadAll(io.LimitReader(r.stdout, int64(limit)+1)) // an error means that the pipe was closed
	if len(output) > limit {
		r.halt(ErrTooMuchOutput)
		return output[:limit]
	}
	return output
}

// readLines passes standard output on, up to limit bytes.
func (r *running) readLines(limit int, pass func(line []byte) error) {
	lines := bufio.NewReaderSize(io.LimitReader(r.stdout, int64(limit)+1), MaxLine)
	var rest []byte // of a character that was cut
	for {
		line, err := lines.ReadSlice('\n')
		line = append(rest, line...)
		rest = nil
		if errors.Is(err, bufio.ErrBufferFull) {
			cut := lastCharacter(line)
			line, rest = line[:cut], slices.Clone(line[cut:])
		}
		if limit -= len(line); limit < 0 {
			r.halt(ErrTooMuchOutput)
			return
		}
		if len(line) > 0 {
			r.passing.Store(true)
			refused := pass(line)
			if r.passing.Store(false); refused != nil {
				r.halt(refused)
				return
			}
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return // the end, or the pipe was closed
		}
	}
}

// lastCharacter returns where the last character of text begins if it is cut, else the length of text.
func lastCharacter(text []byte) int {
	for i := len(text) - 1; i >= max(0, len(text)-utf8.UTFMax); i-- {
		if utf8.RuneStart(text[i]) {
			if !utf8.FullRune(text[i:]) {
				return i
			}
			break
		}
	}
	return len(text)
}

// halt makes supervise kill the program. It is called once.
func (r *running) halt(why error) {
	r.haltedBy = why
	close(r.halted)
}

func (r *running) isHalted() bool {
	select {
	case <-r.halted:
		return true
	default:
		return false
	}
}

// supervise returns when the program has ended. If it had to be ended, why says why.
func (r *running) supervise(ctx context.Context, o Options, exited <-chan exit) (done exit, why error) {
	var timeout <-chan time.Time
	if o.Timeout > 0 {
		timer := time.NewTimer(o.Timeout)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case done := <-exited:
		return done, nil
	case <-r.halted:
		why = errors.Join(r.haltedBy, KillGroup(r.cmd))
		return <-exited, why
	case <-timeout:
		why = ErrTimeout
	case <-ctx.Done():
		why = context.Cause(ctx)
	}
	why = errors.Join(why, terminateGroup(r.cmd))
	grace := time.NewTimer(o.Grace)
	defer grace.Stop()
	select {
	case done := <-exited:
		return done, why
	case <-grace.C:
	case <-o.Kill:
	}
	why = errors.Join(why, KillGroup(r.cmd))
	return <-exited, why
}

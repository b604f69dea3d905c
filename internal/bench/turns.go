package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// A run with a floor is split into turns. The relay is loaded for one turn, then the floor for the same time. A turn
// lasts one second. In a run of less than eight seconds it lasts an eighth of the run, so that there are enough ratios
// for a median. The last turn may be up to half as long again.
const (
	longestTurn = time.Second
	fewestTurns = 8
)

// floor is the floor's process and the load on it. The goroutine of run.do owns it. A nil *floor means that the run has
// no floor.
type floor struct {
	command *exec.Cmd
	stdin   io.Closer // closing it ends the process
	stderr  *bytes.Buffer
	client  *run // posts to the floor
	posts   []template
	ended   bool

	// The following fields belong to the current phase.
	posters  []*conn
	duration time.Duration // of a turn
	count    int           // posts per turn
	stats    *stats
	turns    []Turn
}

// startFloor starts the floor's process. It checks that the floor accepts a valid envelope and refuses one with a wrong
// signature.
func (r *run) startFloor(ctx, uninterrupted context.Context) (*floor, error) {
	command := exec.Command(r.Floor[0], r.Floor[1:]...)
	f := &floor{command: command, stderr: new(bytes.Buffer), stats: newStats()}
	command.Stderr = f.stderr
	stdin, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("the floor does not start: %w", err)
	}
	f.stdin = stdin
	url, err := f.address(ctx, stdout)
	if err == nil {
		err = f.target(r, url)
	}
	if err == nil {
		err = f.check(uninterrupted)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the floor does not start: %w", err), f.stop())
	}
	return f, nil
}

// address reads the first line of the floor's output and returns the URL in it.
func (f *floor) address(ctx context.Context, stdout io.Reader) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, f.kill)()
	line, err := bufio.NewReader(io.LimitReader(stdout, 1000)).ReadString('\n')
	if err != nil {
		return "", errors.Join(fmt.Errorf("it did not print the address where it listens: %w", err), ctx.Err())
	}
	url, ok := strings.CutPrefix(strings.TrimSpace(line), floorLine)
	if !ok {
		return "", fmt.Errorf("it printed %q instead of the address where it listens", line)
	}
	return url, nil
}

// target creates the client that posts r's envelopes to url. The floor gets them in their canonical form.
func (f *floor) target(r *run, url string) error {
	to, err := parseTarget(url)
	if err != nil {
		return err
	}
	f.client = &run{Options: r.Options, to: to, began: r.began, stock: r.stock,
		process: findProcess(f.command.Process.Pid, to)}
	f.posts = []template{newTemplate(to.request("POST", "/events", r.stock.canonical.bytes))}
	return nil
}

// check posts one envelope, and then the same envelope with another id, which makes its signature wrong. The floor must
// answer 200 and 401.
func (f *floor) check(ctx context.Context) error {
	c := f.client.connect(ctx, 4096)
	defer c.close()
	v := f.client.stock.values(0, new(values))
	for _, want := range []int{200, 401} {
		if err := c.send(f.posts[0].fill(nil, v), 0, time.Now()); err != nil {
			return err
		}
		a, err := c.receive()
		if err != nil {
			return err
		}
		if a.status != want {
			return fmt.Errorf("it answered a test post with status %d, not %d", a.status, want)
		}
		v[partID] = f.client.stock.ids.append(nil, 1, f.client.stock.record(0).ms)
	}
	return nil
}

// stop ends the process. It returns an error, with the process's error output, if the process failed.
func (f *floor) stop() error {
	if f == nil || f.ended {
		return nil
	}
	f.ended = true
	err := f.stdin.Close()
	late := time.AfterFunc(answerTimeout, f.kill)
	defer late.Stop()
	if err = errors.Join(err, f.command.Wait()); err != nil {
		err = fmt.Errorf("%w %.300s", err, f.stderr)
	}
	return err
}

func (f *floor) kill() { _ = f.command.Process.Kill() } // an error means that the process has already ended

// begin prepares for a phase with this duration and count. It returns a function that closes the connections.
func (f *floor) begin(ctx context.Context, duration time.Duration, count int) (disconnect func()) {
	if f == nil {
		return func() {}
	}
	f.duration = max(min(longestTurn, duration/fewestTurns), 1)
	f.count = (count + fewestTurns - 1) / fewestTurns
	f.stats, f.turns = newStats(), nil
	f.posters, disconnect = f.client.posters(ctx)
	return disconnect
}

// nextTurn returns the duration and the count of the relay's next round. The arguments are the rest of the phase's
// duration and count. The result is one turn, or the whole rest if the rest is less than one and a half turns. Without
// a floor the result is always the whole rest.
func (f *floor) nextTurn(duration time.Duration, count int) (time.Duration, int) {
	if f == nil {
		return duration, count
	}
	if duration >= f.duration+f.duration/2 {
		duration = f.duration
	}
	if count >= f.count+f.count/2 {
		count = f.count
	}
	return duration, count
}

// turn loads the floor with the envelopes of the relay's round, for the duration of that round. posted is the number of
// envelopes that were posted to the relay, and accepted is how many of them the relay accepted.
func (f *floor) turn(ctx context.Context, relay *round, posted int, took time.Duration, accepted int64) {
	if posted == 0 || took == 0 {
		return
	}
	p := round{first: relay.first, limit: relay.first + posted, again: true, next: new(atomic.Int64), posts: f.posts,
		duration: took}
	p.next.Store(int64(p.first))
	before := f.stats.accepted.Load()
	tookFloor := f.client.round(ctx, f.posters, &p, f.stats)
	if ctx.Err() != nil {
		return // the turn was interrupted, so its rate would be wrong
	}
	t := Turn{
		Relay: float64(accepted) / took.Seconds(),
		Floor: float64(f.stats.accepted.Load()-before) / tookFloor.Seconds(),
	}
	if t.Floor > 0 {
		t.Ratio = t.Relay / t.Floor
		f.turns = append(f.turns, t)
	}
}

// mismatches returns the errors in the floor's answers.
func (f *floor) mismatches(interrupted bool) (list []Mismatch) {
	for _, m := range f.client.mismatches.all() {
		list = append(list, Mismatch{What: "the floor: " + m.What, Count: m.Count, Examples: m.Examples})
	}
	if n := f.client.broken.Load(); n > 0 {
		list = append(list, Mismatch{What: "the floor: connections broke off", Count: int(n)})
	}
	if len(f.turns) == 0 && !interrupted {
		list = append(list, Mismatch{What: "the floor: no turn could be measured", Count: 1})
	}
	return list
}

// report returns the floor's part of the report.
func (f *floor) report(std Std, sameMachine bool) *Floor {
	s := f.stats
	report := &Floor{
		URL: f.client.to.url, PID: f.command.Process.Pid, SameMachine: sameMachine,
		Accepted: s.accepted.Load(), Seconds: s.posting.Seconds(), Ack: s.ack.latency(),
		Turns: append([]Turn{}, f.turns...),
	}
	report.Rate = ratio(float64(report.Accepted), report.Seconds)
	report.RateRatio = ratio(report.Rate, std.Mean)
	report.CPUPerEvent = ratio(float64(s.relayCPU.Nanoseconds())/1e3, float64(report.Accepted))
	report.Verifications = ratio(report.CPUPerEvent, std.CPU)
	return report
}

// ratio returns the median of the turns' ratios, or 0 if there are no turns.
func (f *Floor) ratio() float64 {
	ratios := f.ratios()
	if len(ratios) == 0 {
		return 0
	}
	return (ratios[(len(ratios)-1)/2] + ratios[len(ratios)/2]) / 2
}

// ratios returns the turns' ratios in ascending order.
func (f *Floor) ratios() (sorted []float64) {
	for _, t := range f.Turns {
		sorted = append(sorted, t.Ratio)
	}
	slices.Sort(sorted)
	return sorted
}

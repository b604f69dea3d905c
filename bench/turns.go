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

// A run with a floor is cut into turns. The relay posts for one turn, then the floor for as long. A turn lasts a second
// at most. It is at most an eighth of the run, so that even a short run has some ratios to take the median of.
const (
	longestTurn = time.Second
	fewestTurns = 8
)

// floor is the floor's process and the load on it. The goroutine of run.do owns it. A nil floor is not there.
type floor struct {
	command *exec.Cmd
	stdin   io.Closer // its end ends the process
	stderr  *bytes.Buffer
	client  *run // loads the floor as the relay's run loads the relay
	posts   []text
	ended   bool

	// What follows is of one phase.
	posters  []*conn
	duration time.Duration // of a turn
	count    int           // posts of a turn
	stats    *stats
	turns    []Turn
}

// startFloor starts the floor's process and makes sure that it takes a right envelope and refuses a wrong one.
func (r *run) startFloor(ctx, linger context.Context) (*floor, error) {
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
		err = f.check(linger)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the floor does not start: %w", err), f.stop())
	}
	return f, nil
}

// address reads the floor's first line and returns the URL in it.
func (f *floor) address(ctx context.Context, stdout io.Reader) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	defer context.AfterFunc(ctx, f.kill)()
	line, err := bufio.NewReader(io.LimitReader(stdout, 1000)).ReadString('\n')
	if err != nil {
		return "", errors.Join(fmt.Errorf("it does not say where it listens: %w", err), ctx.Err())
	}
	url, ok := strings.CutPrefix(strings.TrimSpace(line), floorLine)
	if !ok {
		return "", fmt.Errorf("it says %q, not where it listens", line)
	}
	return url, nil
}

// target makes the client that posts the envelopes of r at url. They go there in their canonical form.
func (f *floor) target(r *run, url string) error {
	to, err := parseTarget(url)
	if err != nil {
		return err
	}
	f.client = &run{Options: r.Options, to: to, began: r.began, stock: r.stock,
		process: findProcess(f.command.Process.Pid, to)}
	f.posts = []text{newText(to.request("POST", "/events", r.stock.canonical.bytes))}
	return nil
}

// check posts one envelope as it is, and then with another id, which its signature does not cover.
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
			return fmt.Errorf("it answers a post with status %d, not %d", a.status, want)
		}
		v[partID] = f.client.stock.names.append(nil, 1, f.client.stock.at(0).ms)
	}
	return nil
}

// stop ends the process and returns what was wrong with its end.
func (f *floor) stop() error {
	if f == nil || f.ended {
		return nil
	}
	f.ended = true
	err := f.stdin.Close()
	late := time.AfterFunc(patience, f.kill)
	defer late.Stop()
	if err = errors.Join(err, f.command.Wait()); err != nil {
		err = fmt.Errorf("%w %.300s", err, f.stderr)
	}
	return err
}

func (f *floor) kill() { _ = f.command.Process.Kill() } // it fails if the process has ended already

// begin prepares for a phase of this duration and count. It returns what closes the connections.
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

// turnOf takes what is left of the duration and the count. It returns how much of it the relay's next round takes: one
// turn, or all that is left if that is not much more than a turn. Without a floor there are no turns.
func (f *floor) turnOf(duration time.Duration, count int) (time.Duration, int) {
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

// turn loads the floor for as long as the relay was loaded, with the same envelopes. accepted is how many of them the
// relay has accepted.
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
		return // the turn was cut short
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

// faults returns what was wrong with the floor's answers.
func (f *floor) faults(interrupted bool) (list []Mismatch) {
	for _, m := range f.client.faults.all() {
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

// report says what the floor reached.
func (f *floor) report(std Std, sameMachine bool) *Floor {
	s := f.stats
	report := &Floor{
		URL: f.client.to.url, PID: f.command.Process.Pid, SameMachine: sameMachine,
		Accepted: s.accepted.Load(), Seconds: s.posting.Seconds(), Ack: s.ack.latency(), Turns: append([]Turn{}, f.turns...),
	}
	report.Rate = ratio(float64(report.Accepted), report.Seconds)
	report.RateRatio = ratio(report.Rate, std.Mean)
	report.CPUPerEvent = ratio(float64(s.relayCPU.Nanoseconds())/1e3, float64(report.Accepted))
	report.Verifications = ratio(report.CPUPerEvent, std.CPU)
	return report
}

// ratio returns the median of the turns' ratios; 0 if there is no turn.
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

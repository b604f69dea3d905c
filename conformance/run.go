package conformance

import (
	"context"
	"fmt"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// Options choose what is asked. The zero value asks everything.
type Options struct {
	Level    Level         // empty: Extensions, which is everything
	Only     []string      // numbers of checks; empty: all of the level
	Timeout  time.Duration // for the whole run; what has not ended by then is skipped. 0: DefaultTimeout
	Progress func(Result)  // called with every result as it comes, one at a time; nil: nobody is told
}

// DefaultTimeout bounds a run that names no bound. A relay that keeps the protocol needs little more than a minute,
// because one rule is about a minute.
const DefaultTimeout = 90 * time.Second

const (
	busyAtOnce    = 4  // checks that ask one thing after the other
	waitingAtOnce = 32 // checks that mostly wait
)

// Run asks the relay at baseURL. The error says why nothing could be asked: misused options, or no relay at that
// address. A relay that breaks the protocol is no error: see Report.Holds. If ctx ends, the checks that have not ended
// are reported as skipped.
func Run(ctx context.Context, baseURL string, o Options) (Report, error) {
	if o.Level == "" {
		o.Level = Extensions
	}
	chosen, err := choose(o)
	if err != nil {
		return Report{}, err
	}
	relay, err := newWire(baseURL)
	if err != nil {
		return Report{}, err
	}
	defer relay.close()
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	report := Report{URL: relay.base, Level: o.Level, Started: time.Now()}
	ctx, cancel := context.WithTimeoutCause(ctx, o.Timeout, fmt.Errorf("the run's %v were over", o.Timeout))
	defer cancel()
	if err := relay.find(ctx); err != nil {
		return Report{}, err
	}
	report.Results = runAll(ctx, relay, chosen, o.Progress)
	report.Took, report.Requests, report.Clock = time.Since(report.Started), relay.requests.Load(), relay.ahead
	return report, nil
}

// Check says what is wrong with o or baseURL as Run would, without asking anybody.
func (o Options) Check(baseURL string) error {
	if o.Level == "" {
		o.Level = Extensions
	}
	if _, err := choose(o); err != nil {
		return err
	}
	_, err := parseBase(baseURL)
	return err
}

// choose returns the checks that o asks for.
func choose(o Options) ([]Check, error) {
	if !slices.Contains(Levels(), o.Level) {
		return nil, fmt.Errorf("level must be core, strict or extensions, not %q", o.Level)
	}
	all := Checks()
	if len(o.Only) == 0 {
		return slices.DeleteFunc(all, func(c Check) bool { return !o.Level.Includes(c.Level()) }), nil
	}
	for _, number := range o.Only {
		if !slices.ContainsFunc(all, func(c Check) bool { return c.Number == number }) {
			return nil, fmt.Errorf("there is no check %q; they are C-1…, S-1… and X-1…", number)
		}
	}
	return slices.DeleteFunc(all, func(c Check) bool { return !slices.Contains(o.Only, c.Number) }), nil
}

// runAll runs checks, the longest waits first, and returns their results in the order of checks.
func runAll(ctx context.Context, relay *wire, checks []Check, progress func(Result)) []Result {
	results := make([]Result, len(checks))
	order := make([]int, len(checks))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(checks[b].wait - checks[a].wait) })

	busy, waiting := make(chan struct{}, busyAtOnce), make(chan struct{}, waitingAtOnce)
	var tasks sync.WaitGroup
	var telling sync.Mutex
	for _, i := range order {
		slots := busy
		if checks[i].wait > 0 {
			slots = waiting
		}
		tasks.Go(func() {
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
			case <-ctx.Done(): // and runOne says so
			}
			results[i] = runOne(ctx, relay, checks[i])
			if progress != nil {
				telling.Lock()
				defer telling.Unlock()
				progress(results[i])
			}
		})
	}
	tasks.Wait()
	return results
}

// runOne runs a check in a goroutine of its own, which a failing step ends (see probe.end).
func runOne(ctx context.Context, relay *wire, c Check) Result {
	ctx, cancel := context.WithCancel(ctx)
	p := &probe{ctx: ctx, relay: relay, step: step{status: Passed}}
	started := time.Now()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if ctx.Err() != nil {
			p.stopped()
		}
		c.run(p)
	}()
	<-ended
	cancel()
	p.tasks.Wait()
	return Result{Number: c.Number, Level: c.Level(), Theme: c.Theme, Title: c.Title, Cites: c.Cites, Took: time.Since(started),
		Status: p.status, Sent: p.sent, Expected: p.expected, Got: p.got}
}

// step is what a check is at: what it sent last, what it waits for, what came.
type step struct {
	status              Status
	sent, expected, got string
}

// probe is one check at work. Its methods are called by the check's own goroutine only, except for post, poll and
// call, which may also be called from goroutines that have ended before the check goes on.
type probe struct {
	ctx   context.Context
	relay *wire
	tasks sync.WaitGroup // what the check runs beside itself; its ctx ends with the check
	mu    sync.Mutex     // guards sent
	step
}

// end ends the check here, as testing.T.FailNow ends a test.
func (p *probe) end(status Status, format string, args ...any) {
	p.status, p.got = status, fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// failf ends the check: the relay breaks the rule, and this is what it did.
func (p *probe) failf(format string, args ...any) {
	if p.ctx.Err() != nil {
		p.stopped() // the answer, or its absence, is our own doing
	}
	p.end(Failed, format, args...)
}

// stopped ends a check that was not let finish.
func (p *probe) stopped() { p.end(Skipped, "not finished: %v", context.Cause(p.ctx)) }

// expect says what the next answer must be.
func (p *probe) expect(format string, args ...any) { p.expected = fmt.Sprintf(format, args...) }

// sending says what the check does now, where no single request tells it.
func (p *probe) sending(format string, args ...any) { p.noteSent(fmt.Sprintf(format, args...)) }

func (p *probe) noteSent(text string) {
	p.mu.Lock()
	p.sent = text
	p.mu.Unlock()
}

// note says what came, for a check that passes.
func (p *probe) note(format string, args ...any) { p.got = fmt.Sprintf(format, args...) }

// sleep waits, and ends the check if the run ends first.
func (p *probe) sleep(d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.ctx.Done():
		p.stopped()
	}
}

// now is the time by the relay's clock, as far as it can be known.
func (p *probe) now() time.Time { return p.relay.now() }

// parseBase checks the address of a relay: a URL that paths can be appended to.
func parseBase(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("the relay's address must be a URL such as https://relay.example, not %q", text)
	}
	return strings.TrimRight(u.String(), "/"), nil
}

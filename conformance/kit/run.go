package kit

import (
	"context"
	"fmt"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	maxBusyChecks    = 4  // concurrent checks without a wait: they send one request after the other
	maxWaitingChecks = 32 // concurrent checks with a wait: they mostly sleep or wait for held polls
)

// Pick returns the checks of all with these numbers. If there are no numbers, it returns all. The text like shows what
// the numbers look like.
func Pick(all []Check, only []string, like string) ([]Check, error) {
	if len(only) == 0 {
		return all, nil
	}
	for _, number := range only {
		if !slices.ContainsFunc(all, func(c Check) bool { return c.Number == number }) {
			return nil, fmt.Errorf(
				"there is no check %q; the numbers look like %s, and --list shows them", number, like)
		}
	}
	return slices.DeleteFunc(all, func(c Check) bool { return !slices.Contains(only, c.Number) }), nil
}

// RunAll runs the checks and returns their results in the same order. It starts the checks with the longest wait first.
func RunAll(ctx context.Context, relay *RelayClient, checks []Check, progress func(Result)) []Result {
	results := make([]Result, len(checks))
	order := make([]int, len(checks))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(checks[b].wait - checks[a].wait) })

	busy, waiting := make(chan struct{}, maxBusyChecks), make(chan struct{}, maxWaitingChecks)
	var tasks sync.WaitGroup
	var progressMu sync.Mutex
	for _, i := range order {
		slots := busy
		if checks[i].wait > 0 {
			slots = waiting
		}
		tasks.Go(func() {
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
			case <-ctx.Done(): // runOne then reports the check as skipped
			}
			results[i] = runOne(ctx, relay, checks[i])
			if progress != nil {
				progressMu.Lock()
				defer progressMu.Unlock()
				progress(results[i])
			}
		})
	}
	tasks.Wait()
	return results
}

// runOne runs a check in its own goroutine, so that a failing step can end it (see probe.end).
func runOne(ctx context.Context, relay *RelayClient, c Check) Result {
	ctx, cancel := context.WithCancel(ctx)
	p := &Probe{Ctx: ctx, Relay: relay, step: step{status: Passed}}
	started := time.Now()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if ctx.Err() != nil {
			p.Stopped()
		}
		c.run(p)
	}()
	<-ended
	cancel()
	p.Tasks.Wait()
	return Result{
		Number:   c.Number,
		Level:    c.Level(),
		Theme:    c.Theme,
		Title:    c.Title,
		Cites:    c.Cites,
		Took:     time.Since(started),
		Status:   p.status,
		Sent:     printable(p.sent),
		Expected: printable(p.expected),
		Got:      printable(p.got),
	}
}

// printable replaces control characters except line ends, and invalid UTF-8, because the text may contain anything that
// the relay has sent.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' {
			return utf8.RuneError
		}
		return r
	}, text)
}

// step is the current step of a check: what it sent last, what it expects, and what the relay answered.
type step struct {
	status              Status
	sent, expected, got string
}

// Probe is the context of one running check. Its methods may be called only by the goroutine of the check, except for
// post, poll and call.
type Probe struct {
	Ctx   context.Context
	Relay *RelayClient
	Tasks sync.WaitGroup // background goroutines of the check; when it ends, runOne cancels ctx and waits for them
	mu    sync.Mutex     // guards sent
	step
}

// End ends the check immediately, as testing.T.FailNow ends a test.
func (p *Probe) End(status Status, format string, args ...any) {
	p.status, p.got = status, fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// Failf ends the check as failed: the relay violates the rule. The text says what the relay did.
func (p *Probe) Failf(format string, args ...any) {
	if p.Ctx.Err() != nil {
		p.Stopped() // the answer, or its absence, may be caused by the cancelled context
	}
	p.End(Failed, format, args...)
}

// Stopped ends the check as skipped, because the context of the run has ended.
func (p *Probe) Stopped() { p.End(Skipped, "not finished: %v", context.Cause(p.Ctx)) }

// Expect records what the next answer must be.
func (p *Probe) Expect(format string, args ...any) { p.expected = fmt.Sprintf(format, args...) }

// Describe records what the check does now, where no single request shows it.
func (p *Probe) Describe(format string, args ...any) { p.NoteSent(fmt.Sprintf(format, args...)) }

func (p *Probe) NoteSent(text string) {
	p.mu.Lock()
	p.sent = text
	p.mu.Unlock()
}

// Note records what the relay answered, for a check that passes.
func (p *Probe) Note(format string, args ...any) { p.got = fmt.Sprintf(format, args...) }

// Sleep waits for d. It ends the check if the run ends first.
func (p *Probe) Sleep(d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.Ctx.Done():
		p.Stopped()
	}
}

// Now returns the time by the relay's clock, as far as it is known.
func (p *Probe) Now() time.Time { return p.Relay.Now() }

// ParseBase checks the address of a relay or a hub and returns it without trailing slashes. The address must be an http
// or https URL without a query and a fragment, so that paths can be appended to it.
func ParseBase(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("the address must be a URL such as https://relay.example, not %q", text)
	}
	return strings.TrimRight(u.String(), "/"), nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	clockOffset     = 10 * time.Minute  // how far the clocks of the parties are off: half of them are ahead, half behind
	restartEvery    = 5 * time.Second   // how often the relay is killed and started again
	troubledAtOnce  = 9                 // conversations at the same time
	troubledTimeout = 100 * time.Second // for one conversation
	proxySeed       = 19                // so that two runs make about the same trouble
)

// troubled has each kind of client talk with each kind of agent again, in plaintext and sealed, while everything goes
// wrong. The relay is behind a flaky proxy and is killed again and again. All clocks are wrong. At the end each client
// must have its result, and each agent must have worked once for each conversation. The stand-in for the SDK does not
// take part, because it repeats nothing.
func (t *table) troubled(
	ctx context.Context, binary, data, reads string, languages []language, logs *os.File,
) (err error) {
	proxy, setTarget := newFlakyProxy(proxySeed, logs)
	defer proxy.Close()
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer func() { stop(); running.Wait() }()
	relay := restarting{binary: binary, data: data, logs: logs, setTarget: setTarget, flags: []string{
		"--public-url", proxy.URL, "--reads", reads, // all parties come from one address, so its rates have no limits:
		"--post-rate-ip", "0", "--read-rate-ip", "0", "--broadcast-rate-ip", "0", "--connection-rate-ip", "0"}}
	if err := relay.start(ctx); err != nil {
		return err
	}
	work := worklog{times: map[string]int{}}
	var pairs []pair
	clocks := map[string]time.Duration{}
	all := parties(languages)
	for i, agent := range all {
		clocks[agent.name] = clockOffset
		if i%2 == 1 {
			clocks[agent.name] = -clockOffset
		}
		if !agent.canName {
			continue
		}
		at := place{relay: proxy.URL, clock: clocks[agent.name], worked: work.add}
		did, err := agent.serve(ctx, &running, logs, at, "interop."+agent.name)
		if err != nil {
			return fmt.Errorf("the %s agent: %w", agent.name, err)
		}
		for _, client := range all {
			if !client.canName {
				continue
			}
			pairs = append(pairs, pair{client: client, agent: agent, did: did},
				pair{client: client, agent: agent, did: did, named: true},
				pair{client: client, agent: agent, did: did, named: true, sealed: true})
		}
	}
	fmt.Printf("relay with --reads %s, killed every %v, behind a flaky proxy; clocks %v off\n",
		reads, restartEvery, clockOffset)
	killed := make(chan error, 1)
	running.Go(func() { killed <- relay.killAgainAndAgain(ctx) })
	err = t.converse(ctx, pairs, troubledAtOnce, troubledTimeout, func(p pair) place {
		return place{relay: proxy.URL, clock: -clocks[p.client.name]} // not the clock of the agent in the same language
	})
	stop()
	err = errors.Join(err, <-killed)
	t.add(newWriter(), work.check(len(pairs)), "each agent has worked once for each conversation")
	fmt.Println()
	return err
}

// worklog counts how often agents have worked for each thread.
type worklog struct {
	mu    sync.Mutex
	times map[string]int
}

func (w *worklog) add(thread string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.times[thread]++
}

// threads returns for how many threads there was work.
func (w *worklog) threads() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.times)
}

// check returns an error unless there was work for so many threads, once for each.
func (w *worklog) check(threads int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	for thread, times := range w.times {
		if times != 1 {
			errs = append(errs, fmt.Errorf("thread %s: worked %d times", thread, times))
		}
	}
	if len(w.times) != threads {
		errs = append(errs, fmt.Errorf("there was work for %d threads, not %d", len(w.times), threads))
	}
	return errors.Join(errs...)
}

// restarting is a relay that is killed and started again with the same data, each time at another port.
type restarting struct {
	binary, data string
	flags        []string
	logs         *os.File
	setTarget    func(relay string)
	process      *relayProcess
}

func (r *restarting) start(ctx context.Context) error {
	process, err := startRelay(ctx, r.binary, r.data, r.logs, r.flags...)
	if err != nil {
		return err // ctx has ended, or the relay cannot start
	}
	r.process = process
	r.setTarget(process.url)
	return nil
}

// killAgainAndAgain kills the relay and starts it again, until ctx ends. Then it ends the relay.
func (r *restarting) killAgainAndAgain(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			_ = r.process.cmd.Wait() // ctx ends it with SIGTERM
			return nil
		case <-time.After(restartEvery):
		}
		if err := r.process.cmd.Process.Signal(syscall.SIGKILL); err != nil {
			return err
		}
		_ = r.process.cmd.Wait() // it was killed, so the error is expected
		if err := r.start(ctx); ctx.Err() != nil {
			continue
		} else if err != nil {
			return err
		}
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
)

const (
	silence      = 8 * time.Second // how long a home may be silent before a job continues at another relay
	movedTimeout = 60 * time.Second
)

// moved has each kind of client hire each kind of agent at two relays. The first one is the home of all jobs. It is
// killed while the agents work. Each job continues at the second relay, there is one RESULT of it, and the agent has
// worked once (RELAYS ). The stand-in for the SDK does not take part, because it knows one relay.
func (t *table) moved(ctx context.Context, binary, folder string, languages []language, logs *os.File) (err error) {
	var relays [2]*relayProcess
	for i := range relays {
		data := filepath.Join(folder, fmt.Sprint(i))
		if relays[i], err = startRelay(ctx, binary, data, logs, "--post-rate-ip", "0", "--read-rate-ip", "0"); err != nil {
			return err
		}
	}
	home, other := relays[0], relays[1]
	defer func() { err = errors.Join(err, other.stop()) }()
	ctx, stop := context.WithCancel(ctx) // of the parties
	var running sync.WaitGroup
	defer func() { stop(); running.Wait() }()
	work := worklog{times: map[string]int{}}
	at := place{relay: home.url + " " + other.url, worked: work.add, hold: filepath.Join(folder, "go")}
	pairs, err := pairsOf(ctx, &running, languages, at, logs)
	if err != nil {
		return err
	}
	reader, err := client.New(other.url, nil, client.Options{})
	if err != nil {
		return err
	}
	announced := func() bool {
		page, err := reader.Agents(ctx, client.AgentQuery{})
		return err == nil && len(page.Agents) >= len(languages)+1
	}
	killed := make(chan error, 1)
	running.Go(func() {
		all := func() bool { return work.threads() == len(pairs) }
		if err := until(ctx, all); err != nil {
			killed <- err
			return
		}
		err := home.cmd.Process.Kill()
		_ = home.cmd.Wait() // it was killed, so the error is expected
		killed <- errors.Join(err, os.WriteFile(at.hold, nil, 0o600))
	})
	if err := until(ctx, announced); err != nil {
		return fmt.Errorf("not all agents have announced themselves: %w", err)
	}
	fmt.Println("two relays; the home of all jobs is killed while the agents work")
	if err := t.converse(ctx, pairs, len(pairs), movedTimeout, func(pair) place { return at }); err != nil {
		return err
	}
	results, _, failed := reader.Stored(ctx, client.Filter{Type: envelope.TypeResult})
	if failed == nil && len(results) != len(pairs) {
		failed = fmt.Errorf("the second relay has %d RESULTs, not %d", len(results), len(pairs))
	}
	stop()
	failed = errors.Join(failed, <-killed, work.check(len(pairs)))
	t.add(newWriter(), failed, "each agent has worked once for each job, and there is one RESULT of each")
	fmt.Println()
	return nil
}

// pairsOf starts the agents, and returns each kind of client with each of them.
func pairsOf(
	ctx context.Context, running *sync.WaitGroup, languages []language, at place, logs *os.File,
) (pairs []pair, err error) {
	all := parties(languages)
	for _, agent := range all {
		if !agent.canName {
			continue
		}
		did, err := agent.serve(ctx, running, logs, at, "interop."+agent.name)
		if err != nil {
			return nil, fmt.Errorf("the %s agent: %w", agent.name, err)
		}
		for _, client := range all {
			if client.canName {
				pairs = append(pairs, pair{client: client, agent: agent, did: did})
			}
		}
	}
	return pairs, nil
}

// until waits until done returns true, or ctx ends.
func until(ctx context.Context, done func() bool) error {
	ticks := time.NewTicker(50 * time.Millisecond)
	defer ticks.Stop()
	for !done() {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

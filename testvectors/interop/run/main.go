// Command run proves that implementations which share no code understand each other: small clients in Node and Python
// run this project's vectors, and converse with each other, with the Go client, and with a stand-in for the
// ecosystem's SDK, each as client and as agent, through a relay that it starts and removes again.
//
// The rule: what cannot run is a failure under CI=true and an instruction elsewhere, never silence. It needs loopback
// only, and works from the root of the module:
//
//	go run ./testvectors/interop/run
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

const (
	folder   = "testvectors/interop"
	atOnce   = 4                // conversations under way; the SDK's polls see each other's
	patience = 20 * time.Second // for one conversation
)

func main() {
	timeout := flag.Duration("timeout", 2*time.Minute, "for everything")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	if _, err := os.Stat(folder); err != nil {
		return fmt.Errorf("run it from the root of the module: %w", err)
	}
	languages, missing := findLanguages(ctx)
	if len(missing) > 0 && os.Getenv("CI") == "true" {
		return errors.Join(missing...)
	}
	temp, err := os.MkdirTemp("", "agora-interop-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()

	said, err := os.Create(filepath.Join(temp, "said")) // by the relay and the agents, when something is wrong
	if err != nil {
		return err
	}
	defer func() {
		text, failed := os.ReadFile(said.Name())
		if err = errors.Join(err, failed, said.Close()); err != nil && len(text) > 0 {
			err = fmt.Errorf("the relay and the agents say:\n%s\n%w", bytes.TrimSpace(text), err)
		}
	}()

	t := &table{}
	t.vectors(ctx, languages)
	relay, err := startRelay(ctx, temp, said)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, relay.stop()) }()
	if err := t.conversations(ctx, relay.url, languages, said); err != nil {
		return err
	}
	for _, err := range missing {
		fmt.Println("not run:", err)
	}
	if len(t.failed) > 0 {
		// Once more and last: of a long log people see the end.
		return fmt.Errorf("%d of %d failed:\n%s", len(t.failed), len(t.failed)+t.passed, strings.Join(t.failed, "\n"))
	}
	fmt.Printf("all %d agree\n", t.passed)
	return nil
}

// table prints outcomes and keeps those that are bad. Its methods are for one goroutine.
type table struct {
	passed int
	failed []string
}

// add writes one row; why an outcome is bad comes on lines of its own.
func (t *table) add(w *tabwriter.Writer, err error, columns ...any) {
	for _, column := range columns {
		fmt.Fprintf(w, "%v\t", column)
	}
	if err == nil {
		t.passed++
		fmt.Fprintln(w, "ok")
		return
	}
	why := "  " + strings.ReplaceAll(err.Error(), "\n", "\n  ")
	fmt.Fprintf(w, "FAILED\n%s\n", why)
	t.failed = append(t.failed, fmt.Sprintln(columns...)+why)
}

func newWriter() *tabwriter.Writer { return tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0) }

// vectors lets each language run all vector files.
func (t *table) vectors(ctx context.Context, languages []language) {
	w := newWriter()
	defer w.Flush()
	fmt.Fprintln(w, "vectors\tfile\tpassed\tfailed\t")
	outputs := inParallel(len(languages), len(languages), func(i int) output {
		return languages[i].run(ctx, "vectors", filepath.Dir(folder))
	})
	for i, out := range outputs {
		rows := 0
		for line := range strings.Lines(out.text) {
			var file string
			var passed, failed int
			if _, err := fmt.Sscan(line, &file, &passed, &failed); err != nil {
				out.err = errors.Join(out.err, fmt.Errorf("unexpected output %q", line))
				continue
			}
			var err error
			if failed > 0 || passed == 0 {
				err = errors.New("disagreement, see below")
			}
			t.add(w, err, languages[i].name, file, passed, failed)
			rows++
		}
		if out.err == nil && rows == 0 {
			out.err = errors.New("no vectors were run")
		}
		if out.err != nil {
			t.add(w, out.err, languages[i].name, "", "", "")
		}
	}
	fmt.Fprintln(w)
}

// pair is one conversation to be held.
type pair struct {
	client party
	agent  party
	did    string // of the agent
	named  bool   // whether the REQUEST names the agent
}

// conversations starts one agent of each kind and lets each kind of client talk to each.
func (t *table) conversations(ctx context.Context, relay string, languages []language, said *os.File) error {
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer func() { stop(); running.Wait() }()

	var pairs []pair
	clients := parties(languages)
	for _, agent := range clients {
		if agent.serve == nil {
			continue
		}
		did, err := agent.serve(ctx, &running, said, relay, "interop."+agent.name)
		if err != nil {
			return fmt.Errorf("the %s agent: %w", agent.name, err)
		}
		for _, client := range clients {
			if client.sees(agent) {
				pairs = append(pairs, pair{client, agent, did, false})
			}
			if client.names {
				pairs = append(pairs, pair{client, agent, did, true})
			}
		}
	}
	type outcome struct {
		err  error
		took time.Duration
	}
	outcomes := inParallel(len(pairs), atOnce, func(i int) outcome {
		start := time.Now()
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return outcome{pairs[i].converse(ctx, relay), time.Since(start)}
	})
	w := newWriter()
	fmt.Fprintln(w, "client\tagent\tREQUEST to\ttook\t")
	for i, o := range outcomes {
		to := "all"
		if pairs[i].named {
			to = "the agent"
		}
		t.add(w, o.err, pairs[i].client.name, pairs[i].agent.name, to, o.took.Round(time.Millisecond))
	}
	fmt.Fprintln(w)
	return w.Flush()
}

// inParallel calls f for 0…n-1, a few at once, and returns what it gave in that order.
func inParallel[T any](n, limit int, f func(int) T) []T {
	results := make([]T, n)
	slots := make(chan struct{}, max(limit, 1))
	var calls sync.WaitGroup
	for i := range n {
		calls.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			results[i] = f(i)
		})
	}
	calls.Wait()
	return results
}

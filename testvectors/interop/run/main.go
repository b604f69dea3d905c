// Command run checks that implementations which share no code understand each other. Small clients in Node and Python
// run this project's vectors. Then Node, Python, the Go client and a stand-in for the ecosystem's SDK exchange
// messages, each as client and as agent, through a relay that the command starts and removes again.
//
// If an implementation cannot run, the command never skips it silently: under CI=true it fails, otherwise it says what
// to install. It needs the loopback network only. Run it in the root of the module:
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
	folder              = "testvectors/interop"
	maxConversations    = 4                // at the same time; the SDK's polls return messages of all of them
	conversationTimeout = 20 * time.Second // for one conversation
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
		return fmt.Errorf("run this command in the root of the module: %w", err)
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

	logs, err := os.Create(filepath.Join(temp, "logs")) // of the relay and the agents; printed on errors
	if err != nil {
		return err
	}
	defer func() {
		text, failed := os.ReadFile(logs.Name())
		if err = errors.Join(err, failed, logs.Close()); err != nil && len(text) > 0 {
			err = fmt.Errorf("the relay and the agents logged:\n%s\n%w", bytes.TrimSpace(text), err)
		}
	}()

	t := &table{}
	t.vectors(ctx, languages)
	binary, err := buildRelay(ctx, temp)
	if err != nil {
		return err
	}
	relay, err := startRelay(ctx, binary, filepath.Join(temp, "data"), logs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, relay.stop()) }()
	if err := t.conversations(ctx, place{relay: relay.url}, languages, logs); err != nil {
		return err
	}
	for _, reads := range []string{"open", "parties"} {
		if err := t.troubled(ctx, binary, filepath.Join(temp, reads), reads, languages, logs); err != nil {
			return err
		}
	}
	if err := t.moved(ctx, binary, filepath.Join(temp, "moved"), languages, logs); err != nil {
		return err
	}
	for _, err := range missing {
		fmt.Println("not run:", err)
	}
	if len(t.failed) > 0 {
		// Print the failures again at the end, because people read the end of a long log.
		return fmt.Errorf("%d of %d failed:\n%s", len(t.failed), len(t.failed)+t.passed, strings.Join(t.failed, "\n"))
	}
	fmt.Printf("all %d passed\n", t.passed)
	return nil
}

// table prints the results and keeps the failures. It is not safe for concurrent use.
type table struct {
	passed int
	failed []string
}

// add prints one row. If err is not nil, it prints the error on lines of its own.
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

// vectors runs all vector files in each language.
func (t *table) vectors(ctx context.Context, languages []language) {
	w := newWriter()
	defer w.Flush()
	fmt.Fprintln(w, "vectors\tfile\tpassed\tfailed\t")
	outputs := inParallel(len(languages), len(languages), func(i int) output {
		return languages[i].run(ctx, nil, "vectors", filepath.Dir(folder))
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
				err = errors.New("some vectors failed, see below")
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

// pair is a client and an agent that have one conversation.
type pair struct {
	client party
	agent  party
	did    string // the agent's DID
	named  bool   // whether the REQUEST names the agent
	sealed bool
}

// conversations starts one agent of each kind. Each kind of client has a conversation with each agent.
func (t *table) conversations(ctx context.Context, at place, languages []language, logs *os.File) error {
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer func() { stop(); running.Wait() }()

	var pairs []pair
	clients := parties(languages)
	for _, agent := range clients {
		if agent.serve == nil {
			continue
		}
		did, err := agent.serve(ctx, &running, logs, at, "interop."+agent.name)
		if err != nil {
			return fmt.Errorf("the %s agent: %w", agent.name, err)
		}
		for _, client := range clients {
			if client.canSeeOffers(agent) {
				pairs = append(pairs, pair{client: client, agent: agent, did: did})
			}
			if client.canName {
				pairs = append(pairs, pair{client: client, agent: agent, did: did, named: true})
			}
		}
	}
	return t.converse(ctx, pairs, maxConversations, conversationTimeout, func(pair) place { return at })
}

// converse runs the conversations, atOnce at a time, and prints a row for each. timeout is for one conversation. at says
// where the client of a pair is.
func (t *table) converse(
	ctx context.Context, pairs []pair, atOnce int, timeout time.Duration, at func(pair) place,
) error {
	type outcome struct {
		err  error
		took time.Duration
	}
	outcomes := inParallel(len(pairs), atOnce, func(i int) outcome {
		start := time.Now()
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return outcome{pairs[i].converse(ctx, at(pairs[i])), time.Since(start)}
	})
	w := newWriter()
	fmt.Fprintln(w, "client\tagent\tREQUEST to\ttook\t")
	for i, o := range outcomes {
		to := "all"
		switch {
		case pairs[i].sealed:
			to = "the agent, sealed"
		case pairs[i].named:
			to = "the agent"
		}
		t.add(w, o.err, pairs[i].client.name, pairs[i].agent.name, to, o.took.Round(time.Millisecond))
	}
	fmt.Fprintln(w)
	return w.Flush()
}

// inParallel calls f for 0…n-1, at most limit calls at the same time. It returns the results in the order of the
// arguments.
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

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/a2a/a2aclient"
	"github.com/agora-relay/agora/internal/bench"
	"github.com/agora-relay/agora/internal/jsontext"
)

// The load of the measurement a2a.
const (
	a2aAgents  = 20
	a2aStreams = 1000 // each of a task that waits for an agent that is offline
	a2aCallers = 64   // that wait for the answers to their messages, one after the other
	a2aRate    = 20   // messages a second, while all is idle
)

// a2aLoad is a load of agents with A2A endpoints.
type a2aLoad struct {
	agents []*a2aAgent
	worked atomic.Int64 // turns
}

type a2aAgent struct {
	relay  *client.Client
	caller *a2aclient.Client // of the endpoint
}

// a2a measures the A2A gateway: the memory of an open stream, how long agents that were offline take for the tasks that
// have waited, how many tasks a second are done, and how long it takes until a caller sees that its agent works.
func (p *perf) a2a(ctx context.Context) error {
	return p.withNode(ctx, func(n *node) error {
		reference, err := p.load(ctx, n, bench.Options{Connections: 1, Rate: 20, Duration: time.Second})
		if err != nil {
			return err
		}
		std := reference.Std.Mean
		l := new(a2aLoad)
		for range a2aAgents {
			if err := l.publish(ctx, n.url); err != nil {
				return err
			}
		}
		serving, stop := context.WithCancel(ctx)
		var agents sync.WaitGroup
		defer agents.Wait()
		defer stop()
		memory, drained, err := l.drain(ctx, n.pid(), func() { l.serve(serving, &agents) })
		if err != nil {
			return err
		}
		p.results.add("a2aRSS", std, []float64{memory / 1e3})
		p.results.add("a2aDrain", std, []float64{drained.Seconds()})
		rate, err := l.tasks(ctx, 4*p.duration)
		if err != nil {
			return err
		}
		p.results.add("a2aTasks", std, []float64{rate})
		took, err := l.latency(ctx, 4*p.duration)
		if err != nil {
			return err
		}
		p.results.add("a2aWork99", std, []float64{took.Seconds() * 1e3})
		return nil
	}, "--a2a")
}

// publish makes an agent with an endpoint that everybody may call.
func (l *a2aLoad) publish(ctx context.Context, relay string) error {
	key, err := didkey.Generate()
	if err != nil {
		return err
	}
	c, err := client.New(relay, key, client.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	gateway, err := c.A2AGateway(ctx)
	if err != nil {
		return err
	}
	at := wire.NewEndpoint(gateway, key.DID())
	card, err := at.Sign(at.FromManifest(envelope.Manifest{Name: "echo", Version: "1",
		Intents: []envelope.Intent{{ID: wire.MessageIntent}}}, wire.Public), wire.Public, key)
	if err != nil {
		return err
	}
	body := fmt.Appendf(nil, `{"card":%s,"access":"public","mode":"message","listed":false}`, card)
	if err := c.CallA2A(ctx, client.GatewayCall{Method: http.MethodPut, Path: "/" + key.DID().Multibase() + "/endpoint",
		Body: body}); err != nil {
		return err
	}
	base, err := a2aclient.CheckURL(at.Base())
	if err != nil {
		return err
	}
	caller, err := a2aclient.Open(ctx, base, a2aclient.Options{})
	l.agents = append(l.agents, &a2aAgent{c, caller})
	return err
}

// serve starts the agents, which answer each message at once.
func (l *a2aLoad) serve(ctx context.Context, running *sync.WaitGroup) {
	for _, a := range l.agents {
		running.Go(func() {
			_ = a.relay.Serve(ctx, client.ServeOptions{Intents: []string{wire.MessageIntent}}, client.Handler{
				Work: func(context.Context, client.Job) (envelope.Result, error) {
					l.worked.Add(1)
					return envelope.Result{Output: jsontext.Compact("done")}, nil
				}}) // it ends with ctx
		})
	}
}

func helloA2A(atOnce bool) wire.Send {
	return wire.Send{Message: wire.Message{MessageID: envelope.NewNonce(), Role: wire.User,
		Parts: []wire.Part{wire.TextPart("hello")}}, Configuration: wire.Configuration{ReturnImmediately: atOnce}}
}

// drain opens the streams of tasks that wait for their agents, and calls serve, which starts the agents. It returns the
// bytes of memory of a stream, and how long it took until each stream had its result.
func (l *a2aLoad) drain(ctx context.Context, pid int, serve func()) (memory float64, took time.Duration, err error) {
	var ids [a2aStreams]string
	for i := range ids {
		answer, err := l.of(i).Send(ctx, helloA2A(true))
		if err == nil && answer.Task == nil {
			err = errors.New("a message begins no task")
		}
		if err != nil {
			return 0, 0, err
		}
		ids[i] = answer.Task.ID
	}
	before, err := rssOf(pid)
	if err != nil {
		return 0, 0, err
	}
	var errs [a2aStreams]error
	var streams sync.WaitGroup
	for i, id := range ids {
		opened := make(chan struct{})
		streams.Go(func() { errs[i] = l.watch(ctx, i, id, func() { close(opened) }) })
		<-opened
	}
	time.Sleep(time.Second) // until the connections are idle
	after, err := rssOf(pid)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	serve()
	streams.Wait()
	took = time.Since(began)
	if err = errors.Join(errs[:]...); err == nil && l.worked.Load() != a2aStreams {
		err = fmt.Errorf("%d tasks were worked on %d times", a2aStreams, l.worked.Load())
	}
	return float64(after-before) / a2aStreams, took, err
}

func (l *a2aLoad) of(i int) *a2aclient.Client { return l.agents[i%len(l.agents)].caller }

// watch reads the stream of a task until its end. It calls opened after the first event, or if there is none.
func (l *a2aLoad) watch(ctx context.Context, i int, id string, opened func()) error {
	opened = sync.OnceFunc(opened)
	defer opened()
	completed := 0
	err := l.of(i).Subscribe(ctx, id, func(e wire.Stream) error {
		opened()
		if e.StatusUpdate != nil && e.StatusUpdate.Status.State == wire.Completed {
			completed++
		}
		return nil
	})
	if err == nil && completed != 1 {
		err = fmt.Errorf("the task %s has completed %d times", id, completed)
	}
	return err
}

// tasks sends messages on several connections, each after the result of the one before. It returns the tasks a second.
func (l *a2aLoad) tasks(ctx context.Context, duration time.Duration) (rate float64, err error) {
	began := time.Now()
	var done atomic.Int64
	var errs [a2aCallers]error
	var callers sync.WaitGroup
	for i := range errs {
		callers.Go(func() {
			for errs[i] == nil && time.Since(began) < duration {
				answer, err := l.of(i).Send(ctx, helloA2A(false))
				if err == nil && (answer.Task == nil || answer.Task.Status.State != wire.Completed) {
					err = errors.New("a task did not complete")
				}
				errs[i] = err
				done.Add(1)
			}
		})
	}
	callers.Wait()
	return float64(done.Load()) / time.Since(began).Seconds(), errors.Join(errs[:]...)
}

// latency sends messages to agents that are idle. It returns how long 99 % of the callers wait at most until their
// streams say that the agent works.
func (l *a2aLoad) latency(ctx context.Context, duration time.Duration) (time.Duration, error) {
	count := int(duration.Seconds() * a2aRate)
	waited, errs := make([]time.Duration, count), make([]error, count)
	var sending sync.WaitGroup
	tick := time.NewTicker(time.Second / a2aRate)
	defer tick.Stop()
	for i := range count {
		<-tick.C
		sending.Go(func() {
			began := time.Now()
			errs[i] = l.of(i).Stream(ctx, helloA2A(false), func(e wire.Stream) error {
				if e.StatusUpdate != nil && e.StatusUpdate.Status.State == wire.Working {
					waited[i] = time.Since(began)
				}
				return nil
			})
			if waited[i] == 0 {
				errs[i] = cmp.Or(errs[i], errors.New("a stream has not said that the agent works"))
			}
		})
	}
	sending.Wait()
	slices.Sort(waited)
	return waited[count*99/100], errors.Join(errs...)
}

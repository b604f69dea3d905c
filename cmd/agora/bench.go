package main

import (
	"fmt"
	"os"
	"time"

	"github.com/agora-relay/agora/bench"
)

type benchCmd struct {
	URL         string        `arg:"" help:"The relay's address."`
	Mode        bench.Mode    `default:"post" enum:"post,deliver,mixed,catchup" placeholder:"MODE" help:"post: how many events a second are accepted; deliver: how soon they arrive at waiting polls; mixed: both, flat out; catchup: how fast a reader gets what was posted before (default: ${default})."`
	Connections int           `default:"32" placeholder:"N" help:"Connections that post (default: ${default})."`
	Senders     int           `default:"256" placeholder:"N" help:"Keys that sign (default: ${default})."`
	Pollers     int           `placeholder:"N" help:"Polls that wait in deliver and mixed, each on an inbox of its own (default: 100)."`
	Idle        int           `placeholder:"N" help:"Further polls that wait all the time for what never comes (default: 0)."`
	Body        int           `type:"bytes" default:"730" placeholder:"SIZE" help:"Size of an envelope (default: ${default})."`
	Pretty      bool          `help:"Post bodies that are not canonical: pretty-printed, members in any order."`
	Rate        float64       `placeholder:"N" help:"Posts a second; 0: flat out, but 200 in deliver. Latencies then count from when a post was due."`
	Duration    time.Duration `placeholder:"DURATION" help:"How long to measure (default: 10s, or with --count as long as it takes, 10m at most)."`
	Count       int           `placeholder:"N" help:"Stop after so many posts (catchup: 100000)."`
	WarmUp      time.Duration `name:"warmup" default:"2s" placeholder:"DURATION" help:"Post so long before measuring (default: ${default})."`
	Floor       bool          `help:"Also load a bare net/http server that only verifies and answers, in turns with the relay, and give the ratio of both rates. It is started on this machine for the run, which then takes twice as long. For the mode post without --rate."`
	ServeFloor  bool          `hidden:"" help:"Be that server, at the address URL, until standard input ends."`
	PID         int           `name:"pid" placeholder:"PID" help:"The relay's process on this machine, for its CPU time and memory (default: whichever listens there; Linux only)."`
	JSON        bool          `help:"The report as one line of JSON."`
	Yes         bool          `help:"Burden a relay that is not on this machine."`
}

func (benchCmd) Help() string {
	return "Measures a relay under load: real signed envelopes from many keys, each verified to be stored and delivered once, byte for " +
		"byte. Rates are also given as a ratio to std, the signatures that crypto/ed25519 verifies a second on this machine, measured " +
		"before and after. With --floor the rate is also given as a ratio to the least that any relay on net/http must do: " +
		"read a post, verify one signature, answer. Both take turns of a second or less, and the median of the turns' " +
		"ratios counts. Envelopes are signed beforehand and live for an hour in the relay. Ends with 0 only if everything it counted " +
		"holds. Interrupted, it reports what it has.\n\n" +
		"Examples:\n  agora bench http://127.0.0.1:8789\n  agora bench http://127.0.0.1:8789 --connections 256 --senders 10000 --pretty\n" +
		"  agora bench http://127.0.0.1:8789 --floor --count 40000   (the relay's rate as a share of a bare server's)\n" +
		"  agora bench http://127.0.0.1:8789 --mode deliver --pollers 1000 --rate 200\n  agora bench http://127.0.0.1:8789 --idle 5000 --json\n" +
		"  agora bench http://127.0.0.1:8789 --mode catchup --count 100000"
}

func (c benchCmd) Validate() error {
	options, err := c.options()
	if err != nil {
		return err
	}
	return options.Check(c.URL)
}

func (c benchCmd) options() (bench.Options, error) {
	o := bench.Options{Mode: c.Mode, Connections: c.Connections, Senders: c.Senders, Pollers: c.Pollers, Idle: c.Idle, Body: c.Body,
		Pretty: c.Pretty, Rate: c.Rate, Duration: c.Duration, Count: c.Count, WarmUp: c.WarmUp, Foreign: c.Yes, PID: c.PID}
	if c.Floor {
		agora, err := os.Executable()
		if err != nil {
			return o, fmt.Errorf("--floor starts this program again, whose file is not known: %w", err)
		}
		o.Floor = bench.FloorCommand(agora)
	}
	return o, nil
}

func (c benchCmd) Run(env environment) error {
	if c.ServeFloor {
		return bench.ServeFloor(c.URL, env.stdin, env.stdout)
	}
	options, err := c.options()
	if err != nil {
		return err
	}
	options.Progress = func(p bench.Progress) {
		fmt.Fprintf(env.stderr, "%-13s %9d  %9.0f/s\n", p.Doing, p.Events, p.Rate)
	}
	report, err := bench.Run(env.ctx, c.URL, options)
	if err != nil {
		return err
	}
	if c.JSON {
		err = env.printJSON(report)
	} else {
		err = report.WriteText(env.stdout)
	}
	if err == nil && !report.Holds() {
		err = errSaid
	}
	return err
}

package main

import (
	"fmt"
	"os"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/internal/bench"
)

type benchCmd struct {
	URL         string        `arg:"" help:"The relay's URL."`
	Mode        bench.Mode    `default:"post" enum:"post,deliver,mixed,catchup" placeholder:"MODE" help:"What to measure. post: how many events are accepted per second; deliver: how soon they arrive at waiting polls; mixed: both, at full speed; catchup: how fast a reader gets events that were posted before (default: ${default})."`
	Connections int           `default:"32" placeholder:"N" help:"Number of connections that post (default: ${default})."`
	Senders     int           `default:"256" placeholder:"N" help:"Number of keys that sign (default: ${default})."`
	Pollers     int           `placeholder:"N" help:"Number of polls that wait in the modes deliver and mixed, each on its own inbox (default: 100)."`
	Idle        int           `placeholder:"N" help:"Number of additional polls that wait all the time and never get an event (default: 0)."`
	Body        int           `type:"bytes" default:"730" placeholder:"SIZE" help:"Size of an envelope (default: ${default})."`
	Pretty      bool          `help:"Post bodies that are not in canonical form: pretty-printed, with members in any order."`
	Bulk        int           `placeholder:"N" help:"Post bulk requests of N envelopes (POST /events/bulk). The latency is then that of a request."`
	Rate        float64       `placeholder:"N" help:"Posts per second; 0: full speed, but 200 in the mode deliver. With a rate, a latency is measured from the time at which the post was due."`
	Duration    time.Duration `placeholder:"DURATION" help:"How long to measure (default: 10s; with --count as long as the posts take, at most 10m)."`
	Count       int           `placeholder:"N" help:"Stop after N posts (default in the mode catchup: 100000)."`
	WarmUp      time.Duration `name:"warmup" default:"2s" placeholder:"DURATION" help:"How long to post before the measurement (default: ${default})."`
	Floor       bool          `help:"Also measure a minimal net/http server (the floor) that only verifies signatures and answers, in turns with the relay, and print the ratio of both rates. The server is started on this machine for the run. The run takes twice as long. Only for the mode post without --rate."`
	ServeFloor  bool          `hidden:"" help:"Run the server of --floor at the address URL until standard input ends."`
	Nodes       []string      `placeholder:"HOST:PORT" help:"Addresses of the relay's nodes. Each connection goes to the next one, and none to the host of the URL."`
	PID         int           `name:"pid" placeholder:"PID" help:"Process id of the relay on this machine, to report its CPU time and memory (default: the process that listens at URL, without --nodes; Linux only)."`
	JSON        bool          `help:"Print the report as one line of JSON."`
	Yes         bool          `help:"Allow a relay that is not on this machine. A bench puts load on it and fills its database."`
}

func (benchCmd) Help() string {
	return "Measures a relay under load. It posts real signed envelopes from many keys, and verifies that each is " +
		"stored and delivered once, byte for byte. The envelopes are signed before the measurement and stay in the relay " +
		"for an hour.\n\n" +
		"Each rate is also printed as a ratio to std: the number of signatures per second that crypto/ed25519 verifies on " +
		"this machine, measured before and after the run. With --floor the rate is also printed as a ratio to the rate " +
		"of a server that does only what every relay on net/http must do: read a post, verify one signature, answer. The " +
		"relay and that server are loaded in turns of at most one second, and the median of the turns' ratios is " +
		"printed.\n\n" +
		"Exits with 0 only if every accepted event was verified and no post failed. If it is interrupted, it reports what " +
		"it has measured.\n\n" +
		"Examples:\n  agora bench http://127.0.0.1:8789\n" +
		"  agora bench http://127.0.0.1:8789 --connections 256 --senders 10000 --pretty\n" +
		"  agora bench http://127.0.0.1:8789 --floor --count 40000   (the relay's rate as a share of a minimal server's)\n" +
		"  agora bench http://127.0.0.1:8789 --mode deliver --pollers 1000 --rate 200\n" +
		"  agora bench http://127.0.0.1:8789 --bulk 1000 --connections 1\n" +
		"  agora bench http://127.0.0.1:8789 --idle 5000 --json\n" +
		"  agora bench http://relay.example --nodes 10.0.0.11:8789,10.0.0.12:8789 --yes\n" +
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
	o := bench.Options{Mode: c.Mode, Connections: c.Connections, Senders: c.Senders, Pollers: c.Pollers, Idle: c.Idle,
		Body: c.Body, Pretty: c.Pretty, Bulk: c.Bulk, Rate: c.Rate, Duration: c.Duration, Count: c.Count, WarmUp: c.WarmUp,
		Nodes: c.Nodes, Foreign: c.Yes, PID: c.PID}
	if c.Floor {
		agora, err := os.Executable()
		if err != nil {
			return o, fmt.Errorf("--floor must start this program again, but the path of its file is unknown: %w", err)
		}
		o.Floor = bench.FloorCommand(agora)
	}
	return o, nil
}

func (c benchCmd) Run(env cli.Environment) error {
	if c.ServeFloor {
		return bench.ServeFloor(c.URL, env.Stdin, env.Stdout)
	}
	options, err := c.options()
	if err != nil {
		return err
	}
	options.Progress = func(p bench.Progress) {
		fmt.Fprintf(env.Stderr, "%-13s %9d  %9.0f/s\n", p.Doing, p.Events, p.Rate)
	}
	report, err := bench.Run(env.Ctx, c.URL, options)
	if err != nil {
		return err
	}
	if c.JSON {
		err = env.PrintJSON(report)
	} else {
		err = report.WriteText(env.Stdout)
	}
	if err == nil && !report.Holds() {
		err = cli.ErrReported
	}
	return err
}

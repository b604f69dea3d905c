// Package agentprobe acts as a service of the Chorus Channel Protocol for any agent, and says what the agent does
// wrong. It sends deliveries to the agent's connection string, takes the events that the agent posts to the callbacks,
// and offers tools by MCP. It sees only what goes over HTTP, so the agent can be written in any language.
package agentprobe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Status is the outcome of a check.
type Status string

// The outcomes. A warning is about something that the protocol does not require, or only newer versions of it.
const (
	Pass      Status = "pass"
	Fail      Status = "fail"
	Warn      Status = "warn"
	NotTested Status = "not tested"
)

// Result is the outcome of one check.
type Result struct {
	Name   string `json:"name"`
	Title  string `json:"title"`
	Status Status `json:"status"`
	Why    string `json:"why,omitempty"` // what the agent did; empty: nothing remarkable
}

// String returns the result as one line.
func (r Result) String() string {
	line := fmt.Sprintf("%-10s  %-18s  %s", r.Status, r.Name, r.Title)
	if r.Why != "" {
		line += ": " + r.Why
	}
	return line
}

// Report has the results of all checks, in their order.
type Report struct {
	Results []Result      `json:"results"`
	Took    time.Duration `json:"tookNanoseconds"`
}

// Count returns how many results have the status s.
func (r Report) Count(s Status) (n int) {
	for _, result := range r.Results {
		if result.Status == s {
			n++
		}
	}
	return n
}

// Holds reports whether no check failed.
func (r Report) Holds() bool { return len(r.Results) > 0 && r.Count(Fail) == 0 }

// Summary returns how many checks had which outcome, as one line.
func (r Report) Summary() string {
	return fmt.Sprintf("%d passed, %d failed, %d warnings, %d not tested, in %v", r.Count(Pass), r.Count(Fail),
		r.Count(Warn), r.Count(NotTested), r.Took.Round(time.Second/10))
}

// Options of a run. The zero value works for an agent on this machine.
type Options struct {
	Listen  string // the address for callbacks and MCP; empty: 127.0.0.1:0
	URL     string // where the agent reaches that address; empty: http:// and the address
	MCP     string // the usual form of mcp in deliveries: object, array or none; empty: object
	Content string // what the deliveries say; empty: a text that asks for a short answer
	OldURL  string // a connection string that the agent has replaced by another one; empty: this is not tested

	AnswerWithin time.Duration // how long the agent may take to acknowledge a delivery; 0: 10 s
	Wait         time.Duration // how long the agent may take to say something; 0: 30 s
	Quiet        time.Duration // how long nothing happens after the last event of an answer; 0: 2 s

	Progress func(Result) // called after each check; nil: not called

	listen    func(address string) (net.Listener, error) // nil: net.Listen for TCP; tests have a network of their own
	transport *http.Transport                            // nil: one with Go's defaults
}

const defaultContent = "This is a test of your connection. Please answer with one short sentence."

func (o Options) withDefaults() Options {
	for _, d := range []struct {
		value *string
		usual string
	}{{&o.Listen, "127.0.0.1:0"}, {&o.MCP, "object"}, {&o.Content, defaultContent}} {
		if *d.value == "" {
			*d.value = d.usual
		}
	}
	for _, d := range []struct {
		value *time.Duration
		usual time.Duration
	}{{&o.AnswerWithin, 10 * time.Second}, {&o.Wait, 30 * time.Second}, {&o.Quiet, 2 * time.Second}} {
		if *d.value == 0 {
			*d.value = d.usual
		}
	}
	o.URL = strings.TrimRight(o.URL, "/")
	return o
}

// Check returns an error if the options or the connection string cannot be used.
func (o Options) Check(connection string) error {
	for _, text := range []string{connection, o.OldURL} {
		if u, err := url.Parse(text); text != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
			return errors.New("want a connection string such as https://agent.example/inbox/SECRET")
		}
	}
	u, err := url.Parse(o.URL)
	switch {
	case connection == "":
		return errors.New("the connection string is empty")
	case o.URL != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == ""):
		return errors.New("want the URL at which the agent reaches the probe, such as https://probe.example")
	case !slices.Contains([]string{"", "object", "array", "none"}, o.MCP):
		return errors.New("the form of mcp must be object, array or none")
	}
	return nil
}

// probe is one run.
type probe struct {
	Options
	connection string
	http       *http.Client
	service    *service
	next       int         // the number of the next message
	first      *delivery   // the first delivery
	sent       []*delivery // all deliveries
	redirects  []string    // the requests that the agent answered with a redirect
}

// Run runs all checks against the agent with this connection string. An error means that no check could be run.
func Run(ctx context.Context, connection string, o Options) (Report, error) {
	if err := o.Check(connection); err != nil {
		return Report{}, err
	}
	began := time.Now()
	p := &probe{Options: o.withDefaults(), connection: connection}
	if p.listen == nil {
		p.listen = func(address string) (net.Listener, error) { return net.Listen("tcp", address) }
	}
	listener, err := p.listen(p.Listen)
	if err != nil {
		return Report{}, err
	}
	if p.URL == "" {
		p.URL = "http://" + listener.Addr().String()
	}
	if p.transport == nil {
		p.transport = http.DefaultTransport.(*http.Transport).Clone()
	}
	defer p.transport.CloseIdleConnections()
	p.http = &http.Client{Transport: p.transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	p.service = newService(p.URL)
	stop := p.service.serve(listener)
	defer stop()
	var report Report
	for _, c := range checks {
		if err := ctx.Err(); err != nil {
			return report, err
		}
		found := c.run(ctx, p)
		result := Result{Name: c.name, Title: c.title, Status: found.status, Why: found.why}
		report.Results = append(report.Results, result)
		if p.Progress != nil {
			p.Progress(result)
		}
	}
	report.Took = time.Since(began)
	return report, ctx.Err()
}

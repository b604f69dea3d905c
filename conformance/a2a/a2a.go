// Package a2a checks over HTTP whether an agent's server follows A2A 1.0, and A2A.md for what that leaves open.
package a2a

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// Options selects the checks of a run at a server of A2A 1.0 (Agent2Agent), and gives them what they need. The zero
// value selects all checks. A check that needs something that the server or the options lack is reported as not tested.
type Options struct {
	Only     []string         // names of checks; empty: all checks
	Timeout  time.Duration    // for the whole run; checks that have not ended by then are skipped. 0: DefaultTimeout
	Progress func(kit.Result) // called with each result when its check has ended, one call at a time; may be nil

	// Bearer is the key of a caller, which is sent as Authorization: Bearer. Empty: nothing is sent.
	Bearer string
	// Other is the key of another caller. Empty: the checks that need two callers are not tested.
	Other string
}

// DefaultTimeout is the time limit of a run if Options.Timeout is 0. Most of it is for the agent behind the
// server.
const DefaultTimeout = 3 * time.Minute

// What a server may lack. They are the reasons why a check is not tested.
const (
	needsBothBindings = "the card does not name both JSONRPC and HTTP+JSON of version 1.0"
	needsJSONRPC      = "the card names no JSONRPC of version 1.0"
	needsSignatures   = "the card has no signatures"
	needsCallerKeys   = "the card demands no key, so everybody may call"
	needsOtherKey     = "this needs the keys of two callers (--bearer twice)"
	needsStreaming    = "the card says that the agent has no streaming"
)

// a2aCheck is a check of an A2A server.
type a2aCheck = kit.GatewayCheck[*a2aProbe]

// a2aThemes returns all tables of checks of an A2A server, in the order of the documentation.
func a2aThemes() []kit.GatewayTheme[*a2aProbe] {
	return []kit.GatewayTheme[*a2aProbe]{
		{Name: "Card", Checks: a2aCardChecks},
		{Name: "Bindings", Checks: a2aBindingChecks},
		{Name: "Tasks", Checks: a2aTaskChecks},
		{Name: "Lists", Checks: a2aListChecks},
		{Name: "Streams", Checks: a2aStreamChecks},
		{Name: "Callers", Checks: a2aCallerChecks},
		{Name: "Limits", Checks: a2aLimitChecks},
	}
}

// a2aLike shows what the numbers of checks of an A2A server look like.
const a2aLike = "a2a.stream.resume"

// Checks returns all checks of an A2A server, in the order of the documentation.
func Checks() []kit.Check { return kit.BindChecks(a2aThemes(), (*a2aRun)(nil).check) }

// Run checks the A2A server at baseURL: its card is at /.well-known/agent-card.json below that address. It returns
// an error if the options are invalid, if baseURL is not a usable address, or if there is no card of A2A 1.0. A server
// that violates the protocol is not an error: see Report.Holds. The run sends the agent about twenty short texts. The
// tasks stay, because nobody can delete them. If ctx ends, the checks that have not ended are reported as skipped.
func Run(ctx context.Context, baseURL string, o Options) (kit.Report, error) {
	if err := o.Check(baseURL); err != nil {
		return kit.Report{}, err
	}
	client, err := kit.NewRelayClient(baseURL)
	if err != nil {
		return kit.Report{}, err
	}
	defer client.Close()
	run := &a2aRun{Options: o, client: client}
	run.pace.IsLimit, run.pace.Free = kit.IsRateLimit, func(_, _ string) bool { return false }
	return kit.GatewayRun{Level: kit.A2AServer, Checks: kit.BindChecks(a2aThemes(), run.check), Like: a2aLike,
		Only:    o.Only,
		Timeout: o.Timeout, Usual: DefaultTimeout, Progress: o.Progress, Connect: run.connect,
		Hooks: new(*kit.HookServer)}.Run(ctx, client, func(report *kit.Report) {
		for _, b := range run.bindings {
			report.Requests += b.client.Requests.Load()
		}
	})
}

// Check returns the error that Run would return for invalid options or an invalid baseURL. It sends no request.
func (o Options) Check(baseURL string) error {
	return kit.CheckGatewayOptions(baseURL, Checks(), o.Only, a2aLike, "", "")
}

// a2aRun is what the checks of one run share.
type a2aRun struct {
	Options
	client   *kit.RelayClient // its targets are relative to the server's address
	card     kit.Answer
	bindings []*a2aBinding // those of version 1.0 that the card names, in its order; at least one
	pace     kit.Pace
}

// a2aBinding is an address at which the server speaks A2A 1.0.
type a2aBinding struct {
	name   string // JSONRPC or HTTP+JSON
	client *kit.RelayClient

	mu     sync.Mutex
	record *a2aRecord // see observe; nil: no check has needed it
}

const (
	bindingRPC  = "JSONRPC"
	bindingHTTP = "HTTP+JSON"
	cardTarget  = "/.well-known/agent-card.json"
)

// connect reads the card, and learns where the server speaks A2A 1.0.
func (run *a2aRun) connect(ctx context.Context) error {
	run.card = run.client.Do(ctx, http.MethodGet, cardTarget, run.header(run.Bearer), nil)
	if run.card.Err != nil {
		return fmt.Errorf("no A2A server answers at %s: %w", run.client.BaseURL, run.card.Err)
	}
	interfaces, _ := run.card.List("supportedInterfaces")
	for _, raw := range interfaces {
		i := kit.ParseRow(raw)
		name, at := i.Text("protocolBinding"), i.Text("url")
		if i.Text("protocolVersion") != "1.0" || name != bindingRPC && name != bindingHTTP || run.binding(name) != nil {
			continue
		}
		if _, err := kit.ParseBase(at); err != nil {
			return fmt.Errorf("the card names an interface that cannot be called: %w", err)
		}
		if name == bindingHTTP {
			at = strings.TrimRight(at, "/")
		}
		b := &a2aBinding{name: name, client: &kit.RelayClient{BaseURL: at, Client: run.client.Client}}
		run.bindings = append(run.bindings, b)
	}
	if len(run.bindings) == 0 {
		return fmt.Errorf("the server at %s has no card of A2A 1.0 with JSONRPC or HTTP+JSON: GET %s returned %s",
			run.client.BaseURL, cardTarget, run.card)
	}
	return nil
}

// binding returns the binding with this name; nil: the card does not name it.
func (run *a2aRun) binding(name string) *a2aBinding {
	for _, b := range run.bindings {
		if b.name == name {
			return b
		}
	}
	return nil
}

// header returns the header of a caller's requests.
func (run *a2aRun) header(key string) http.Header {
	h := http.Header{"A2a-Version": {"1.0"}}
	if key != "" {
		h.Set("Authorization", "Bearer "+key)
	}
	return h
}

// check runs one check. It reports the check as not tested if the server or the options lack what it needs.
func (run *a2aRun) check(p *kit.Probe, c a2aCheck) {
	requirements, _ := run.card.List("securityRequirements")
	signatures, _ := run.card.List("signatures")
	streaming, _ := run.card.Object("capabilities").Flag("streaming")
	missing := map[string]bool{
		needsBothBindings: len(run.bindings) < 2,
		needsJSONRPC:      run.binding(bindingRPC) == nil,
		needsSignatures:   len(signatures) == 0,
		needsCallerKeys:   len(requirements) == 0,
		needsOtherKey:     run.Bearer == "" || run.Other == "",
		needsStreaming:    !streaming,
	}
	if missing[c.Needs] {
		p.End(kit.NotTested, "%s", c.Needs)
	}
	c.Run(&a2aProbe{GatewayProbe: kit.GatewayProbe{Probe: p, Pace: &run.pace, Hold: kit.HoldOfWait}, server: run})
}

// taskOf returns the task in the answer to a message; an answer without members: it is not a task.
func taskOf(a a2aAnswer) kit.Answer {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(a.result.Members["task"], &members) // on an error it stays nil
	return kit.Answer{Members: members, Body: a.result.Members["task"]}
}

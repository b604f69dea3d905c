package kit

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// This file has what the kits for hubs, for channel services, for registries of jobs and for A2A servers share.

// Reasons why a check of a gateway is not tested.
const (
	NeedsOperator = "this needs the operator's key (--operator-key)"
	NeedsWebhook  = "this needs a server for webhooks that the hub can call (--webhook-listen)"
	NeedsThorough = "this takes long or uses up a limit (--thorough)"
	NeedsPrefix   = "this needs a hub whose address has a path, such as https://relay.example/hub"
)

// GatewayCheck is a check of a gateway. P is the context of the running check.
type GatewayCheck[P any] struct {
	Number, Title, Cites string
	Wait                 time.Duration // see Check
	Needs                string        // empty, or the reason why the check may be not tested
	Last                 bool          // it runs after all others, because it uses up a limit
	Run                  func(P)
}

// GatewayTheme is a table of related checks of a gateway.
type GatewayTheme[P any] struct {
	Name   string
	Checks []GatewayCheck[P]
}

// BindChecks returns all checks of the themes. run runs a check.
func BindChecks[P any](themes []GatewayTheme[P], run func(*Probe, GatewayCheck[P])) (all []Check) {
	for _, theme := range themes {
		for _, c := range theme.Checks {
			all = append(all, Check{Number: c.Number, Title: c.Title, Cites: c.Cites, Theme: theme.Name, wait: c.Wait,
				last: c.Last, run: func(p *Probe) { run(p, c) }})
		}
	}
	return all
}

// GatewayRun is a run at a gateway: what its kit is, and what its options say.
type GatewayRun struct {
	Level             Level
	Checks            []Check
	Like              string // what the numbers of the checks look like
	Only              []string
	Timeout           time.Duration // 0: usual
	Usual             time.Duration
	Progress          func(Result)
	Listen, ListenURL string
	Connect           func(context.Context) error // checks that a gateway of this kind answers
	Hooks             **HookServer                // gets the server for the gateway's requests; nil: there is none
}

// Run runs the selected checks. end runs after them, before the number of requests is known.
func (g GatewayRun) Run(ctx context.Context, client *RelayClient, end func(*Report)) (Report, error) {
	chosen, err := Pick(g.Checks, g.Only, g.Like)
	if err != nil {
		return Report{}, err
	}
	if g.Timeout == 0 {
		g.Timeout = g.Usual
	}
	report := Report{URL: client.BaseURL, Level: g.Level, Started: time.Now()}
	bounded, cancel := context.WithTimeoutCause(ctx, g.Timeout,
		fmt.Errorf("the time limit of the run, %v, has passed", g.Timeout))
	defer cancel()
	first, answered := context.WithTimeoutCause(bounded, ConnectTimeout, fmt.Errorf("no answer within %v", ConnectTimeout))
	err = g.Connect(first)
	answered()
	if err != nil {
		return Report{}, err
	}
	if *g.Hooks, err = listenForWebhooks(g.Listen, g.ListenURL); err != nil {
		return Report{}, err
	}
	defer (*g.Hooks).close()
	report.Results = runInTurn(bounded, client, chosen, g.Progress)
	end(&report)
	report.Took, report.Requests = time.Since(report.Started), report.Requests+client.Requests.Load()
	return report, nil
}

// CheckGatewayOptions returns an error if a run with these options cannot begin. It sends no request.
func CheckGatewayOptions(baseURL string, checks []Check, only []string, like, listen, listenURL string) error {
	if _, err := Pick(checks, only, like); err != nil {
		return err
	}
	if err := checkWebhookOptions(listen, listenURL); err != nil {
		return err
	}
	_, err := ParseBase(baseURL)
	return err
}

// runInTurn runs the checks, and those that must be last after the others. It returns the results in the order of
// checks.
func runInTurn(ctx context.Context, client *RelayClient, checks []Check, progress func(Result)) []Result {
	place := map[string]int{}
	var early, late []Check
	for i, c := range checks {
		place[c.Number] = i
		if c.last {
			late = append(late, c)
		} else {
			early = append(early, c)
		}
	}
	results := make([]Result, len(checks))
	for _, list := range [][]Check{early, late} {
		for _, r := range RunAll(ctx, client, list, progress) {
			results[place[r.Number]] = r
		}
	}
	return results
}

// checkWebhookOptions returns an error if the run cannot receive webhooks as its options say.
func checkWebhookOptions(listen, url string) error {
	if url == "" {
		return nil
	}
	if listen == "" {
		return fmt.Errorf("a URL for webhooks needs an address to listen on")
	}
	_, err := ParseBase(url)
	return err
}

// Pace slows down a run at a gateway that limits the rate of requests. Before the first refusal it does nothing.
type Pace struct {
	IsLimit func(Answer) bool // whether the gateway limits the rate of requests, and not the number of something
	Free    func(method, target string) bool

	mu      sync.Mutex
	limited bool
	next    time.Time // when the next request may be sent
}

// paceInterval is the time between two requests. The usual limit is 50 in a second.
const paceInterval = time.Second / 40

// Wait waits until a request may be sent. Requests for which free is true need not wait.
func (p *Pace) Wait(ctx context.Context, method, target string) {
	if p.Free(method, target) {
		return
	}
	Wait(ctx, p.turn())
}

// turn returns how long the next request must wait.
func (p *Pace) turn() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if !p.limited {
		return 0
	}
	if p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(paceInterval)
	return p.next.Sub(now)
}

// Refused reports the same as IsLimit. After it has reported true, there is a pause of paceInterval between requests.
func (p *Pace) Refused(a Answer) bool {
	limited := p.IsLimit(a)
	if limited {
		p.mu.Lock()
		p.limited = true
		p.mu.Unlock()
	}
	return limited
}

// GatewayProbe is the context of one running check of a gateway.
type GatewayProbe struct {
	*Probe
	Pace  *Pace
	Hold  func(target string) time.Duration // how long an answer may take in addition
	Agora *AgoraPart                        // nil: the kit of the gateway signs no calls
}

// Ask sends a request with the key as Authorization. If key is empty, there is no Authorization. body may be nil, bytes
// that are sent as they are, or a value that is sent as compact JSON. ask waits and repeats the request if the gateway
// limits the rate of requests.
func (p *GatewayProbe) Ask(what, method, target, key string, header http.Header, body any) Answer {
	all := http.Header{}
	for name, values := range header {
		all[name] = values
	}
	if key != "" {
		all.Set("Authorization", "Bearer "+key)
	}
	p.Pace.Wait(p.Ctx, method, target)
	return p.callRetrying(p.Pace.Refused, what, method, target, all, EncodeBody(body), p.Hold(target))
}

// HoldOfWait returns how long a request asks to be held with the parameter wait, in seconds. No gateway takes more than
// 120.
func HoldOfWait(target string) time.Duration {
	_, query, _ := strings.Cut(target, "?")
	values, _ := url.ParseQuery(query) // a check may send a malformed query
	seconds, err := strconv.Atoi(values.Get("wait"))
	if err != nil || seconds < 0 || seconds > 120 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// Read sends GET.
func (p *GatewayProbe) Read(key, target string) Answer {
	return p.Ask("", http.MethodGet, target, key, nil, nil)
}

// Write sends POST.
func (p *GatewayProbe) Write(key, target string, body any) Answer {
	return p.Ask("", http.MethodPost, target, key, nil, body)
}

// Remove sends DELETE.
func (p *GatewayProbe) Remove(key, target string) Answer {
	return p.Ask("", http.MethodDelete, target, key, nil, nil)
}

func EncodeBody(body any) []byte {
	switch body := body.(type) {
	case nil:
		return nil
	case []byte:
		return body
	}
	return Canonical(body)
}

// Want ends the check as failed unless holds is true. The other arguments say what was expected instead of a.
func (p *Probe) Want(holds bool, a Answer, format string, args ...any) {
	p.Expect(format, args...)
	if !holds {
		p.Failf("%s", a)
	}
}

// WantChallenge ends the check unless a says how to authorize.
func (p *Probe) WantChallenge(a Answer) {
	challenge, _, _ := strings.Cut(a.Header.Get("WWW-Authenticate"), " ")
	p.Want(strings.EqualFold(challenge, "Bearer"), a, "WWW-Authenticate: Bearer, instead of %q",
		a.Header.Get("WWW-Authenticate"))
}

// WaitsForSeconds reports whether a says when to try again, as a whole number of seconds.
func WaitsForSeconds(a Answer) bool {
	seconds, err := strconv.Atoi(a.Header.Get("Retry-After"))
	return err == nil && seconds >= 1
}

// WantNoText ends the check if the answer contains one of the texts.
func (p *Probe) WantNoText(a Answer, what string, texts ...string) {
	p.Expect("the answer has %s", what)
	if a.Err != nil {
		p.Failf("%s", a)
	}
	for _, text := range texts {
		if i := strings.Index(string(a.Body), text); i >= 0 {
			p.Failf("status %d with …%s…", a.Status, Excerpt(a.Body[max(0, i-60):], 200))
		}
	}
}

// WantAllow ends the check unless the header Allow of a has the method allowed, and not the method that was asked.
func (p *Probe) WantAllow(a Answer, asked, allowed string) {
	allow := a.Header.Get("Allow")
	methods := strings.FieldsFunc(allow, func(r rune) bool { return r == ',' || r == ' ' })
	p.Want(slices.Contains(methods, allowed) && !slices.Contains(methods, asked), a,
		"an Allow header that has %s and not %s, instead of %q", allowed, asked, allow)
}

// InParallel runs f n times at the same time and returns the answers.
func (p *Probe) InParallel(n int, f func(i int) Answer) []Answer {
	answers := make([]Answer, n)
	done := make(chan struct{})
	for i := range n {
		p.Tasks.Go(func() {
			answers[i] = f(i)
			done <- struct{}{}
		})
	}
	for range n {
		<-done
	}
	return answers
}

// Pool lends things to checks, such as registered agents. At any time only one check has a thing.
type Pool[T any] struct {
	mu       sync.Mutex
	idle     []T
	size     int           // all things of the pool, idle or not
	returned chan struct{} // is closed and removed when a thing has become idle or is lost
}

// Take takes n things at once, so that no two checks wait for each other. The pool may have limit things. take returns
// those that exist. The caller must make the others, or lose them. It reports false if ctx ends first.
func (l *Pool[T]) Take(ctx context.Context, n, limit int) (taken []T, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.idle)+limit-l.size < n {
		if l.returned == nil {
			l.returned = make(chan struct{})
		}
		returned := l.returned
		l.mu.Unlock()
		select {
		case <-returned:
			l.mu.Lock()
		case <-ctx.Done():
			l.mu.Lock()
			return nil, false
		}
	}
	ready := min(n, len(l.idle))
	taken = slices.Clone(l.idle[len(l.idle)-ready:])
	l.idle = l.idle[:len(l.idle)-ready]
	l.size += n - ready
	return taken, true
}

// Give returns a thing to the pool.
func (l *Pool[T]) Give(thing T) { l.change(0, thing) }

// Add gives the pool a thing that it did not have.
func (l *Pool[T]) Add(thing T) { l.change(1, thing) }

// Lose tells the pool that a thing that a check has taken does not come back.
func (l *Pool[T]) Lose() { l.change(-1) }

func (l *Pool[T]) change(more int, given ...T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idle, l.size = append(l.idle, given...), l.size+more
	if l.returned != nil {
		close(l.returned)
		l.returned = nil
	}
}

package conformance

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
	needsOperator = "this needs the operator's key (--operator-key)"
	needsWebhook  = "this needs a server for webhooks that the hub can call (--webhook-listen)"
	needsThorough = "this takes long or uses up a limit (--thorough)"
	needsPrefix   = "this needs a hub whose address has a path, such as https://relay.example/hub"
)

// gatewayCheck is a check of a gateway. P is the context of the running check.
type gatewayCheck[P any] struct {
	number, title, cites string
	wait                 time.Duration // see Check
	needs                string        // empty, or the reason why the check may be not tested
	last                 bool          // it runs after all others, because it uses up a limit
	run                  func(P)
}

// gatewayTheme is a table of related checks of a gateway.
type gatewayTheme[P any] struct {
	name   string
	checks []gatewayCheck[P]
}

// bindChecks returns all checks of the themes. run runs a check.
func bindChecks[P any](themes []gatewayTheme[P], run func(*probe, gatewayCheck[P])) (all []Check) {
	for _, theme := range themes {
		for _, c := range theme.checks {
			all = append(all, Check{Number: c.number, Title: c.title, Cites: c.cites, Theme: theme.name, wait: c.wait,
				last: c.last, run: func(p *probe) { run(p, c) }})
		}
	}
	return all
}

// gatewayRun is a run at a gateway: what its kit is, and what its options say.
type gatewayRun struct {
	level             Level
	checks            []Check
	like              string // what the numbers of the checks look like
	only              []string
	timeout           time.Duration // 0: usual
	usual             time.Duration
	progress          func(Result)
	listen, listenURL string
	connect           func(context.Context) error // checks that a gateway of this kind answers
	hooks             **hookServer                // gets the server for the gateway's requests; nil: there is none
}

// run runs the selected checks. end runs after them, before the number of requests is known.
func (g gatewayRun) run(ctx context.Context, client *relayClient, end func(*Report)) (Report, error) {
	chosen, err := pick(g.checks, g.only, g.like)
	if err != nil {
		return Report{}, err
	}
	if g.timeout == 0 {
		g.timeout = g.usual
	}
	report := Report{URL: client.baseURL, Level: g.level, Started: time.Now()}
	bounded, cancel := context.WithTimeoutCause(ctx, g.timeout,
		fmt.Errorf("the time limit of the run, %v, has passed", g.timeout))
	defer cancel()
	first, answered := context.WithTimeoutCause(bounded, connectTimeout, fmt.Errorf("no answer within %v", connectTimeout))
	err = g.connect(first)
	answered()
	if err != nil {
		return Report{}, err
	}
	if *g.hooks, err = listenForWebhooks(g.listen, g.listenURL); err != nil {
		return Report{}, err
	}
	defer (*g.hooks).close()
	report.Results = runInTurn(bounded, client, chosen, g.progress)
	end(&report)
	report.Took, report.Requests = time.Since(report.Started), report.Requests+client.requests.Load()
	return report, nil
}

// checkGatewayOptions returns an error if a run with these options cannot begin. It sends no request.
func checkGatewayOptions(baseURL string, checks []Check, only []string, like, listen, listenURL string) error {
	if _, err := pick(checks, only, like); err != nil {
		return err
	}
	if err := checkWebhookOptions(listen, listenURL); err != nil {
		return err
	}
	_, err := parseBase(baseURL)
	return err
}

// runInTurn runs the checks, and those that must be last after the others. It returns the results in the order of
// checks.
func runInTurn(ctx context.Context, client *relayClient, checks []Check, progress func(Result)) []Result {
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
		for _, r := range runAll(ctx, client, list, progress) {
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
	_, err := parseBase(url)
	return err
}

// pace slows down a run at a gateway that limits the rate of requests. Before the first refusal it does nothing.
type pace struct {
	isLimit func(answer) bool // whether the gateway limits the rate of requests, and not the number of something
	free    func(method, target string) bool

	mu      sync.Mutex
	limited bool
	next    time.Time // when the next request may be sent
}

// paceInterval is the time between two requests. The usual limit is 50 in a second.
const paceInterval = time.Second / 40

// wait waits until a request may be sent. Requests for which free is true need not wait.
func (p *pace) wait(ctx context.Context, method, target string) {
	if p.free(method, target) {
		return
	}
	wait(ctx, p.turn())
}

// turn returns how long the next request must wait.
func (p *pace) turn() time.Duration {
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

// refused is isLimit that remembers that there is a limit.
func (p *pace) refused(a answer) bool {
	limited := p.isLimit(a)
	if limited {
		p.mu.Lock()
		p.limited = true
		p.mu.Unlock()
	}
	return limited
}

// gatewayProbe is the context of one running check of a gateway.
type gatewayProbe struct {
	*probe
	pace  *pace
	hold  func(target string) time.Duration // how long an answer may take in addition
	agora *agoraPart                        // nil: the kit of the gateway signs no calls
}

// ask sends a request with the key as Authorization. If key is empty, there is no Authorization. body may be nil, bytes
// that are sent as they are, or a value that is sent as compact JSON. ask waits and repeats the request if the gateway
// limits the rate of requests.
func (p *gatewayProbe) ask(what, method, target, key string, header http.Header, body any) answer {
	all := http.Header{}
	for name, values := range header {
		all[name] = values
	}
	if key != "" {
		all.Set("Authorization", "Bearer "+key)
	}
	p.pace.wait(p.ctx, method, target)
	return p.callRetrying(p.pace.refused, what, method, target, all, encodeBody(body), p.hold(target))
}

// holdOfWait returns how long a request asks to be held with the parameter wait, in seconds. No gateway takes more than
// 120.
func holdOfWait(target string) time.Duration {
	_, query, _ := strings.Cut(target, "?")
	values, _ := url.ParseQuery(query) // a check may send a malformed query
	seconds, err := strconv.Atoi(values.Get("wait"))
	if err != nil || seconds < 0 || seconds > 120 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// read sends GET.
func (p *gatewayProbe) read(key, target string) answer {
	return p.ask("", http.MethodGet, target, key, nil, nil)
}

// write sends POST.
func (p *gatewayProbe) write(key, target string, body any) answer {
	return p.ask("", http.MethodPost, target, key, nil, body)
}

// remove sends DELETE.
func (p *gatewayProbe) remove(key, target string) answer {
	return p.ask("", http.MethodDelete, target, key, nil, nil)
}

func encodeBody(body any) []byte {
	switch body := body.(type) {
	case nil:
		return nil
	case []byte:
		return body
	}
	return canonical(body)
}

// want ends the check as failed unless holds is true. The other arguments say what was expected instead of a.
func (p *probe) want(holds bool, a answer, format string, args ...any) {
	p.expect(format, args...)
	if !holds {
		p.failf("%s", a)
	}
}

// wantChallenge ends the check unless a says how to authorize.
func (p *probe) wantChallenge(a answer) {
	challenge, _, _ := strings.Cut(a.header.Get("WWW-Authenticate"), " ")
	p.want(strings.EqualFold(challenge, "Bearer"), a, "WWW-Authenticate: Bearer, instead of %q",
		a.header.Get("WWW-Authenticate"))
}

// waitsForSeconds reports whether a says when to try again, as a whole number of seconds.
func waitsForSeconds(a answer) bool {
	seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
	return err == nil && seconds >= 1
}

// wantNoText ends the check if the answer contains one of the texts.
func (p *probe) wantNoText(a answer, what string, texts ...string) {
	p.expect("the answer has %s", what)
	if a.err != nil {
		p.failf("%s", a)
	}
	for _, text := range texts {
		if i := strings.Index(string(a.body), text); i >= 0 {
			p.failf("status %d with …%s…", a.status, excerpt(a.body[max(0, i-60):], 200))
		}
	}
}

// wantAllow ends the check unless the header Allow of a has the method allowed, and not the method that was asked.
func (p *probe) wantAllow(a answer, asked, allowed string) {
	allow := a.header.Get("Allow")
	methods := strings.FieldsFunc(allow, func(r rune) bool { return r == ',' || r == ' ' })
	p.want(slices.Contains(methods, allowed) && !slices.Contains(methods, asked), a,
		"an Allow header that has %s and not %s, instead of %q", allowed, asked, allow)
}

// inParallel runs f n times at the same time and returns the answers.
func (p *probe) inParallel(n int, f func(i int) answer) []answer {
	answers := make([]answer, n)
	done := make(chan struct{})
	for i := range n {
		p.tasks.Go(func() {
			answers[i] = f(i)
			done <- struct{}{}
		})
	}
	for range n {
		<-done
	}
	return answers
}

// pool lends things to checks, such as registered agents. At any time only one check has a thing.
type pool[T any] struct {
	mu       sync.Mutex
	idle     []T
	size     int           // all things of the pool, idle or not
	returned chan struct{} // is closed and removed when a thing has become idle or is lost
}

// take takes n things at once, so that no two checks wait for each other. The pool may have limit things. take returns
// those that exist. The caller must make the others, or lose them. It reports false if ctx ends first.
func (l *pool[T]) take(ctx context.Context, n, limit int) (taken []T, ok bool) {
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

// give returns a thing to the pool.
func (l *pool[T]) give(thing T) { l.change(0, thing) }

// add gives the pool a thing that it did not have.
func (l *pool[T]) add(thing T) { l.change(1, thing) }

// lose tells the pool that a thing that a check has taken does not come back.
func (l *pool[T]) lose() { l.change(-1) }

func (l *pool[T]) change(more int, given ...T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idle, l.size = append(l.idle, given...), l.size+more
	if l.returned != nil {
		close(l.returned)
		l.returned = nil
	}
}

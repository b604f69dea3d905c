package agentprobe

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// check is one check. Checks run in the order of the list, each with the state that those before have left.
type check struct {
	name, title string
	run         func(context.Context, *probe) found
}

// found is what a check has found.
type found struct {
	status Status
	why    string
}

func fail(format string, args ...any) found { return found{Fail, fmt.Sprintf(format, args...)} }
func notTested(format string, args ...any) found {
	return found{NotTested, fmt.Sprintf(format, args...)}
}

var pass = found{status: Pass}

// passIf returns pass, or a failure with the reason if there is one.
func passIf(problem string) found {
	if problem != "" {
		return fail("%s", problem)
	}
	return pass
}

// checks are all checks, in their order. The later ones look at everything that has happened before.
var checks = []check{
	{"delivery", "acknowledges a delivery with 2xx in time", checkDelivery},
	{"answers-first", "acknowledges a delivery before it works", checkAnswersFirst},
	{"answers", "says something in the channel", checkAnswers},
	{"own-callback", "posts to the callback of each delivery", checkOwnCallback},
	{"unknown-members", "ignores unknown members", checkUnknownMembers},
	{"no-mcp", "takes a delivery without mcp", checkNoMCP},
	{"no-names", "takes a delivery without the name, service and context of the channel", checkNoNames},
	{"mcp-object", "takes mcp as an object", checkForm("object")},
	{"mcp-array", "takes mcp as a list", checkForm("array")},
	{"mcp-empty", "takes mcp as an empty list", checkForm("empty")},
	{"repeat", "says nothing when a delivery is repeated", checkRepeat},
	{"lifecycle-refused", "continues when lifecycle events are refused with 400", checkLifecycleRefused},
	{"callback-fails", "survives a callback that answers 503", checkCallbackFails},
	{"two-channels", "works in two channels at a time", checkTwoChannels},
	{"wrong-secret", "answers a wrong secret with 401, 403 or 404", checkWrongSecret},
	{"not-json", "answers a body that is not JSON with 4xx", checkBody("this is not JSON")},
	{"no-content", "answers a delivery without message.content with 4xx", checkNoContent},
	{"list-body", "answers a body that is a list with 4xx", checkBody(`[{"message":"hello"}]`)},
	{"old-url", "answers at an old connection string with 401, 403, 404 or 410", checkOldURL},
	{"no-redirect", "redirects no request", checkNoRedirect},
	{"still-works", "still works after all this", checkStillWorks},
	{"single-objects", "posts each event as one JSON object", checkObjects},
	{"known-types", "posts only events of known types", checkTypes},
	{"members", "posts events with the right members", checkMembers},
	{"order", "posts the events of an answer in order, one after the other", checkOrder},
	{"content-type", "posts events as application/json", checkContentType},
	{"no-strays", "posts to no other path than the callbacks", checkStrays},
	{"mcp-authorization", "sends the Authorization of mcp.headers to the server of tools", checkAuthorization},
}

// firstHold is how long the events of the first delivery wait for their answers. In this time an agent that posts events
// at the same time posts the next one.
func (p *probe) firstHold() time.Duration { return p.Quiet / 4 }

func checkDelivery(ctx context.Context, p *probe) found {
	p.first = p.deliver(ctx, want{hold: p.firstHold()})
	return passIf(p.first.acknowledged())
}

func checkAnswersFirst(ctx context.Context, p *probe) found {
	p.settle(ctx, p.first)
	p.service.mu.Lock()
	defer p.service.mu.Unlock()
	if p.first.err != nil {
		return notTested("the delivery got no answer")
	}
	// An event may be faster than the acknowledgement. But its answer takes long.
	if len(p.first.events) > 0 && !p.first.events[0].ended.After(p.first.answered) {
		return fail("it acknowledged the delivery only after it had posted an event; services may give up before that")
	}
	if took := p.first.answered.Sub(p.first.sent); took > p.AnswerWithin/4 {
		return found{Warn, fmt.Sprintf("it took %v; services may wait only a few seconds", took.Round(time.Millisecond))}
	}
	return pass
}

func checkAnswers(_ context.Context, p *probe) found {
	p.service.mu.Lock()
	defer p.service.mu.Unlock()
	if p.first.messages() > 0 {
		return pass
	}
	for _, e := range p.first.events {
		if e.kind == "error" {
			text, _ := e.members["message"].(string)
			return fail("it reported an error: %s", shorten(text))
		}
	}
	return fail("no event of the type message came within %v", p.Wait)
}

// mute returns whether the agent has said nothing on the first delivery.
func (p *probe) mute() bool {
	p.service.mu.Lock()
	defer p.service.mu.Unlock()
	return p.first.messages() == 0
}

// expectAnswer waits until the agent has said something on a delivery.
func (p *probe) expectAnswer(ctx context.Context, d *delivery) found {
	if problem := d.acknowledged(); problem != "" {
		return fail("%s", problem)
	}
	if p.mute() {
		return notTested("it acknowledges the delivery, but it says nothing on other deliveries either")
	}
	p.settle(ctx, d)
	p.service.mu.Lock()
	defer p.service.mu.Unlock()
	if d.messages() == 0 {
		return fail("it acknowledged the delivery, but said nothing within %v", p.Wait)
	}
	return pass
}

func checkOwnCallback(ctx context.Context, p *probe) found {
	if p.mute() {
		return notTested("the agent says nothing")
	}
	p.service.mu.Lock()
	before := len(p.first.events)
	p.service.mu.Unlock()
	result := p.expectAnswer(ctx, p.deliver(ctx, want{}))
	p.service.mu.Lock()
	defer p.service.mu.Unlock()
	if n := len(p.first.events) - before; n > 0 {
		return fail("%d events of the second delivery went to the callback of the first", n)
	}
	return result
}

func checkUnknownMembers(ctx context.Context, p *probe) found {
	return p.expectAnswer(ctx, p.deliver(ctx, want{change: func(body map[string]any) {
		body["x-probe"] = map[string]any{"n": 1}
		for _, name := range []string{"channel", "message", "mcp"} {
			if inner, ok := body[name].(map[string]any); ok {
				inner["x-probe"] = []any{1, "two", nil}
			}
		}
	}}))
}

func checkNoMCP(ctx context.Context, p *probe) found {
	return p.expectAnswer(ctx, p.deliver(ctx, want{mcp: "none"}))
}

func checkNoNames(ctx context.Context, p *probe) found {
	return p.expectAnswer(ctx, p.deliver(ctx, want{change: func(body map[string]any) {
		body["channel"] = map[string]any{"id": usualChannel}
	}}))
}

// checkForm checks a form of mcp. It is only a warning if the agent refuses a form that is not its usual one: services
// can be told which form it needs.
func checkForm(form string) func(context.Context, *probe) found {
	return func(ctx context.Context, p *probe) found {
		if p.MCP == "none" {
			return notTested("the agent is tested without mcp")
		}
		result := p.expectAnswer(ctx, p.deliver(ctx, want{mcp: form}))
		usual := form == p.MCP || form == "empty" && p.MCP == "array"
		if result.status == Fail && !usual {
			result.status = Warn
			result.why += "; connect it with --mcp " + p.MCP
		}
		return result
	}
}

func checkRepeat(ctx context.Context, p *probe) found {
	if p.mute() {
		return notTested("the agent says nothing")
	}
	p.service.mu.Lock()
	before := p.first.messages()
	patience := 2*p.first.events[len(p.first.events)-1].began.Sub(p.first.sent) + p.Quiet
	p.service.mu.Unlock()
	d := p.deliver(ctx, want{message: p.first.message})
	if problem := d.acknowledged(); problem != "" {
		return fail("%s; services repeat a delivery whose answer they did not get", problem)
	}
	timer := time.NewTimer(min(patience, p.Wait))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	p.service.mu.Lock()
	defer p.service.mu.Unlock()
	if n := d.messages() + p.first.messages() - before; n > 0 {
		return fail("it said %d more messages when the delivery was repeated with the same message.id", n)
	}
	return pass
}

func checkLifecycleRefused(ctx context.Context, p *probe) found {
	if p.mute() {
		return notTested("the agent says nothing")
	}
	refused := 0
	d := p.deliver(ctx, want{answer: func(e *event, _ int) int {
		if e.kind == "lifecycle" {
			refused++
			return http.StatusBadRequest
		}
		return http.StatusOK
	}})
	result := p.expectAnswer(ctx, d)
	p.service.mu.Lock()
	defer p.service.mu.Unlock()
	if refused == 0 && result.status == Pass {
		return notTested("the agent posts no lifecycle events")
	}
	return result
}

func checkCallbackFails(ctx context.Context, p *probe) found {
	if p.mute() {
		return notTested("the agent says nothing")
	}
	failed := 0
	d := p.deliver(ctx, want{answer: func(_ *event, n int) int {
		if n <= 2 {
			failed++
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	}})
	if problem := d.acknowledged(); problem != "" {
		return fail("%s", problem)
	}
	p.settle(ctx, d)
	next := p.expectAnswer(ctx, p.deliver(ctx, want{}))
	if next.status == Fail {
		return fail("after that, %s", next.why)
	}
	p.service.mu.Lock()
	defer p.service.mu.Unlock()
	switch {
	case failed == 0:
		return notTested("the agent posted nothing to the callback")
	case d.messages() == 0:
		return found{Pass, "the message did not come again while the probe waited"}
	}
	return found{Pass, "the message came all the same"}
}

func checkTwoChannels(ctx context.Context, p *probe) found {
	if p.mute() {
		return notTested("the agent says nothing")
	}
	var both [2]*delivery
	var sending sync.WaitGroup
	for i := range both {
		d, body := p.newDelivery(want{channel: fmt.Sprintf("%s_%d", usualChannel, i+1)})
		both[i] = d
		sending.Go(func() { p.send(ctx, d, body) })
	}
	sending.Wait()
	for i, d := range both {
		if result := p.expectAnswer(ctx, d); result.status != Pass {
			return found{result.status, fmt.Sprintf("channel %d of 2: %s", i+1, result.why)}
		}
	}
	return pass
}

func checkStillWorks(ctx context.Context, p *probe) found {
	return p.expectAnswer(ctx, p.deliver(ctx, want{}))
}

func checkNoRedirect(_ context.Context, p *probe) found {
	p.service.mu.Lock()
	defer p.service.mu.Unlock()
	if len(p.redirects) > 0 {
		return fail("%s; a redirect makes a GET of the delivery, and hands the message on", p.redirects[0])
	}
	return pass
}

// refusals are the statuses of an answer to a wrong secret.
var refusals = []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound}

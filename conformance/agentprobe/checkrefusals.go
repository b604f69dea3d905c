package agentprobe

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// The checks of what the agent refuses.

// wrongSecret returns a connection string with another secret: the last character of its path, or of its query, is
// changed.
func wrongSecret(connection string) string {
	u, err := url.Parse(connection)
	if err != nil {
		return connection
	}
	if u.RawQuery != "" {
		u.RawQuery = otherEnd(u.RawQuery)
		return u.String()
	}
	path := strings.TrimRight(u.Path, "/")
	u.Path, u.RawPath = otherEnd(path)+u.Path[len(path):], ""
	return u.String()
}

// otherEnd changes the last character of a text.
func otherEnd(text string) string {
	if text == "" {
		return "/wrong"
	}
	last := "a"
	if strings.HasSuffix(text, last) {
		last = "b"
	}
	return text[:len(text)-1] + last
}

// refuses sends a delivery to another URL, which must be answered with one of these statuses.
func (p *probe) refuses(ctx context.Context, to string, allowed []int) found {
	d, body := p.newDelivery(want{})
	status, _, err := p.post(ctx, to, body)
	p.service.mu.Lock()
	defer p.service.mu.Unlock()
	switch {
	case err != nil:
		return fail("the request got no answer: %s", shorten(err.Error()))
	case slices.Contains(allowed, status) && len(d.events) == 0:
		return pass
	case status >= 200 && status < 300 || len(d.events) > 0:
		return fail("it took the delivery (status %d): everybody can talk to this agent", status)
	}
	return fail("it answered with %d", status)
}

func checkWrongSecret(ctx context.Context, p *probe) found {
	return p.refuses(ctx, wrongSecret(p.connection), refusals)
}

func checkOldURL(ctx context.Context, p *probe) found {
	if p.OldURL == "" {
		return notTested("no old connection string is given")
	}
	return p.refuses(ctx, p.OldURL, append(slices.Clone(refusals), http.StatusGone))
}

// refusesBody sends a body that the agent must refuse.
func (p *probe) refusesBody(ctx context.Context, body []byte) found {
	status, _, err := p.post(ctx, p.connection, body)
	switch {
	case err != nil:
		return fail("the request got no answer: %s", shorten(err.Error()))
	case status >= 400 && status < 500:
		return pass
	case status >= 500:
		return fail("it answered with %d; services may then repeat the request", status)
	}
	return fail("it answered with %d", status)
}

func checkBody(body string) func(context.Context, *probe) found {
	return func(ctx context.Context, p *probe) found { return p.refusesBody(ctx, []byte(body)) }
}

func checkNoContent(ctx context.Context, p *probe) found {
	_, text := p.newDelivery(want{change: func(body map[string]any) {
		delete(body["message"].(map[string]any), "content")
	}})
	return p.refusesBody(ctx, text)
}

// The checks of all events that the agent has posted.

// events calls f for each event of each delivery, until f returns a problem. It returns that, or how many events there
// were.
func (p *probe) events(f func(d *delivery, n int, e *event) string) (problem string, count int) {
	p.service.mu.Lock()
	defer p.service.mu.Unlock()
	for _, d := range p.sent {
		for n, e := range d.events {
			if problem := f(d, n, e); problem != "" {
				return problem, count
			}
			count++
		}
	}
	return "", count
}

// checkEvents returns what events finds, as the result of a check.
func (p *probe) checkEvents(f func(d *delivery, n int, e *event) string) found {
	problem, count := p.events(f)
	if problem == "" && count == 0 {
		return notTested("the agent posted no events")
	}
	return passIf(problem)
}

func checkObjects(_ context.Context, p *probe) found {
	return p.checkEvents(func(_ *delivery, _ int, e *event) string { return e.form })
}

func checkTypes(_ context.Context, p *probe) found {
	return p.checkEvents(func(_ *delivery, _ int, e *event) string {
		if e.members == nil || slices.Contains(knownTypes, e.kind) {
			return ""
		}
		text, err := json.Marshal(e.members["type"])
		if err != nil {
			text = []byte("?")
		}
		return "an event has the type " + shorten(string(text))
	})
}

func checkMembers(_ context.Context, p *probe) found {
	return p.checkEvents(func(_ *delivery, _ int, e *event) string { return e.problem() })
}

func checkContentType(_ context.Context, p *probe) found {
	result := p.checkEvents(func(_ *delivery, _ int, e *event) string {
		if e.contentType != "application/json" {
			return fmt.Sprintf("an event has the Content-Type %q", shorten(e.contentType))
		}
		return ""
	})
	if result.status == Fail {
		result.status = Warn
	}
	return result
}

func checkOrder(_ context.Context, p *probe) found {
	longest := 0
	result := p.checkEvents(func(d *delivery, n int, e *event) string {
		longest = max(longest, n+1)
		switch {
		case d.answer != nil: // events were refused, and may have been repeated
			return ""
		case e.overlaps:
			return "it posts an event before the one before is answered, so their order is left to chance"
		}
		return misplaced(d.events[:n], e, d.events[n+1:])
	})
	if result.status == Pass && longest < 2 {
		return notTested("no answer had two events")
	}
	return result
}

// misplaced returns why an event should not come between these others; empty: it may.
func misplaced(before []*event, e *event, after []*event) string {
	is := func(kind string, id any) func(*event) bool {
		return func(other *event) bool { return other.kind == kind && other.members["id"] == id }
	}
	if e.kind == "tool_result" && !slices.ContainsFunc(before, is("tool_call", e.members["id"])) &&
		slices.ContainsFunc(after, is("tool_call", e.members["id"])) {
		return "a tool_result came before its tool_call"
	}
	idle := func(other *event) bool { return other.kind == "lifecycle" && other.members["status"] == "idle" }
	if slices.ContainsFunc(before, idle) && e.kind == "message" {
		return "a message came after lifecycle idle"
	}
	return ""
}

func checkStrays(_ context.Context, p *probe) found {
	p.service.mu.Lock()
	defer p.service.mu.Unlock()
	if p.service.stray != "" {
		return found{Warn, p.service.stray}
	}
	return pass
}

func checkAuthorization(_ context.Context, p *probe) found {
	p.service.mu.Lock()
	defer p.service.mu.Unlock()
	switch s := p.service; {
	case s.toolCalls == 0:
		return notTested("the agent used no tools")
	case s.badCalls > 0:
		return fail("%d of %d requests: %s", s.badCalls, s.toolCalls, s.badCall)
	}
	return pass
}

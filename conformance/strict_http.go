package conformance

import (
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/envelope"
)

const overHTTP = "PROTOCOL §5"

var notFound = refused(http.StatusNotFound, envelope.CodeNotFound)

// httpChecks are about answers as such.
var httpChecks = []Check{
	{Number: "S-90", Title: "A refusal is {ok:false, error, message, retryable} with the status of its code", Cites: overHTTP + " (error shape)", run: errorShape},
	{Number: "S-91", Title: "An unknown path is 404 NOT_FOUND in JSON", Cites: overHTTP + " (every answer is JSON)", run: func(p *probe) {
		for _, path := range []string{"/", "/nothing-is-here", "/events/1", "/health/x"} {
			p.refused(p.call("", "GET", path, nil, nil, 0), notFound)
		}
	}},
	{Number: "S-92", Title: "A trailing or double slash never redirects: 404, for a POST too", Cites: overHTTP + " (never redirect)", run: neverRedirects},
	{Number: "S-93", Title: "A method a path does not take is 405 METHOD_NOT_ALLOWED with Allow", Cites: overHTTP + " (METHOD_NOT_ALLOWED)", run: func(p *probe) {
		for _, asked := range []struct{ method, path, allowed string }{
			{"PUT", "/events", "POST"}, {"DELETE", "/events", "GET"}, {"PATCH", "/events", "GET"}, {"POST", "/health", "GET"}, {"DELETE", "/health", "GET"},
		} {
			a := p.call("", asked.method, asked.path, nil, []byte("{}"), 0)
			p.refused(a, refused(http.StatusMethodNotAllowed, envelope.CodeMethodNotAllowed))
			p.expect("an Allow header that names %s", asked.allowed)
			if allow := a.header.Get("Allow"); !strings.Contains(allow, asked.allowed) || strings.Contains(allow, asked.method) {
				p.failf("Allow is %q", allow)
			}
		}
	}},
	{Number: "S-94", Title: "A body with any Content-Encoding is 415 UNSUPPORTED_MEDIA_TYPE", Cites: overHTTP + " (UNSUPPORTED_MEDIA_TYPE)", run: func(p *probe) {
		for _, encoding := range []string{"gzip", "br", "identity"} {
			client := p.actor("a client")
			body := p.request(client, actor{}).sign(client).body
			a := p.call("a good REQUEST with Content-Encoding: "+encoding, "POST", "/events", http.Header{"Content-Encoding": {encoding}}, body, 0)
			p.refused(a, refused(http.StatusUnsupportedMediaType, envelope.CodeUnsupportedMedia))
		}
	}},
	{Number: "S-95", Title: "A body beyond the limit is 413 PAYLOAD_TOO_LARGE, whatever is in it", Cites: overHTTP + " (PAYLOAD_TOO_LARGE)", run: func(p *probe) {
		limit := max(envelope.DefaultMaxBytes, int(p.call("", "GET", "/.well-known/agora.json", nil, nil, 0).object("limits").number("bodyBytes")))
		if limit > 2<<20 {
			p.end(Skipped, "the relay takes bodies of %d bytes; more than 2 MiB is not sent by this kit", limit)
		}
		p.refuse(tooLarge, "spaces", []byte(strings.Repeat(" ", limit+1)))
	}},
	{Number: "S-96", Title: "Answers are JSON by their Content-Type too", Cites: overHTTP + " (every answer is JSON)", run: func(p *probe) {
		for _, asked := range [][2]string{{"GET", "/health"}, {"GET", "/nothing-is-here"}, {"POST", "/events"}, {"PUT", "/events"}, {"GET", "/events"}} {
			a := p.call("", asked[0], asked[1], nil, []byte("{}"), 0)
			p.expect("Content-Type: application/json, and an object with ok")
			_, said := a.ok()
			if got := a.header.Get("Content-Type"); !said || !strings.HasPrefix(got, "application/json") {
				p.failf("Content-Type is %q: %s", got, a)
			}
		}
	}},
}

func errorShape(p *probe) {
	client := p.actor("a client")
	good := p.accept(client, p.request(client, actor{}))
	again := p.request(client, actor{})
	again["id"] = good.id
	bad := p.request(client, actor{})
	bad["type"] = "PING"
	for what, a := range map[string]answer{
		"a body that is no JSON":         p.post("", []byte("{")),
		"an unknown type":                p.post("", bad.sign(client).body),
		"an id used twice":               p.post("", again.sign(client).body),
		"an unknown path":                p.call("", "GET", "/nothing-is-here", nil, nil, 0),
		"a method /events does not take": p.call("", "DELETE", "/events", nil, nil, 0),
		"a poll without since":           p.call("", "GET", "/events", nil, nil, 0),
	} {
		p.sending("%s", what)
		p.expect(`{"ok":false,"error":"CODE","message":"…","retryable":false} with a status of 400 or more`)
		ok, said := a.ok()
		retryable, saidRetryable := a.flag("retryable")
		if a.status < 400 || ok || !said || a.code() == "" || a.text("message") == "" || retryable || !saidRetryable {
			p.failf("%s", a)
		}
		if details := a.members["details"]; details != nil && a.object("details").members == nil {
			p.expect("details, if there are any, are an object")
			p.failf("%s", a)
		}
	}
}

func neverRedirects(p *probe) {
	client := p.actor("a client")
	for _, path := range []string{"//events", "/events/", "/v1//messages", "//health", "/health/", "/./events", "/x/../events"} {
		p.refused(p.call("", "GET", path, nil, nil, 0), notFound)
		if strings.Contains(path, "health") {
			continue
		}
		p.refused(p.call("a good REQUEST", "POST", path, nil, p.request(client, actor{}).sign(client).body, 0), notFound)
	}
}

// parameterChecks are about the query of GET /events: what is not understood is refused, not dropped.
var parameterChecks = []Check{
	{Number: "S-97", Title: "timeout=0 is answered at once, and a fraction of a second is taken", Cites: overHTTP + " (timeout)", run: func(p *probe) {
		reader := p.actor("a reader").did()
		for _, timeout := range []string{"0", "0.5", "0.0"} {
			a := p.poll("since", p.hour(), "recipient", reader, "timeout", timeout)
			p.delivers(p.page(a))
			p.expect("the answer comes within the timeout")
			if a.took > promptly {
				p.failf("it came after %v", a.took)
			}
		}
	}},
	{Number: "S-98", Title: "Any other timeout is refused", Cites: overHTTP + " (timeout; anything else → 400)",
		run: refusesPolls("timeout", "-1", "abc", "", "1s", "NaN", "0x10", "1,5")},
	{Number: "S-99", Title: "timeout above 60 means 60", Cites: overHTTP + " (timeout)", run: func(p *probe) {
		client, agent := p.actor("a client"), p.actor("an agent")
		sent := p.accept(client, p.request(client, agent))
		p.delivers(p.page(p.call("", "GET", "/events"+query("since", p.hour(), "recipient", agent.did(), "timeout", "86400"), nil, nil, 0)), sent)
	}},
	{Number: "S-100", Title: "limit is a whole number from 1 to 1000", Cites: overHTTP + " (limit)", run: func(p *probe) {
		refusesPolls("limit", "0", "1001", "-1", "abc", "", "1.5", "99999999999999999999")(p)
		reader := p.actor("a reader").did()
		for _, limit := range []string{"1", "1000"} {
			p.delivers(p.events("since", p.hour(), "recipient", reader, "timeout", "0", "limit", limit))
		}
	}},
	{Number: "S-101", Title: "limit bounds a page, and hasMore says that there is more", Cites: overHTTP + " (limit)", run: limitBounds},
	{Number: "S-102", Title: "An unknown parameter is refused", Cites: overHTTP + " (a silently dropped recipient would return everyone's mail)", run: func(p *probe) {
		for _, name := range []string{"recipent", "Recipient", "foo", "offset"} {
			p.refused(p.poll("since", p.hour(), name, p.actor("a reader").did(), "timeout", "0"), invalid)
		}
	}},
	{Number: "S-103", Title: "A repeated parameter is refused", Cites: overHTTP + " (unknown, repeated or malformed)", run: func(p *probe) {
		for _, name := range []string{"recipient", "since", "timeout"} {
			value := map[string]string{"recipient": p.actor("a reader").did(), "since": p.hour(), "timeout": "0"}
			pairs := []string{name, value[name]}
			for n, v := range value {
				pairs = append(pairs, n, v)
			}
			p.refused(p.poll(pairs...), invalid)
		}
	}},
	{Number: "S-104", Title: "A malformed query or value is refused", Cites: overHTTP + " (unknown, repeated or malformed)", run: func(p *probe) {
		malformed := refused(http.StatusBadRequest, envelope.CodeInvalidRequest, envelope.CodeInvalidDID)
		reader := p.actor("a reader").did()
		for what, tail := range map[string]string{
			"a percent sign without digits": "&recipient=%zz", "a recipient that is no did": "&recipient=nobody", "an empty recipient": "&recipient=",
			"a recipient cut short": "&recipient=" + reader[:55], "a sender that is no did": "&sender=x", "an unknown type": "&type=PING",
			"a type in lower case": "&type=request", "a thread with a space": "&thread=a%20b", "an empty thread": "&thread=",
		} {
			p.refused(p.call(what, "GET", "/events"+query("since", p.hour(), "timeout", "0")+tail, nil, nil, 0), malformed)
		}
	}},
	{Number: "S-105", Title: "since is an RFC 3339 time", Cites: overHTTP + "; §1 ts", run: refusesPolls("since",
		"yesterday", "", "2026-02-02", "1767225600", "2026-02-02T15:30:00", "2026-02-02 15:30:00Z", "2026-13-02T15:30:00Z")},
	{Number: "S-106", Title: "Either since or cursor is required", Cites: overHTTP + " (since or cursor is required)", run: func(p *probe) {
		p.refused(p.call("", "GET", "/events"+query("recipient", p.actor("a reader").did(), "timeout", "0"), nil, nil, 0), invalid)
	}},
	{Number: "S-107", Title: "A filter is exact: ids that differ by case are two threads", Cites: overHTTP + " (filters are exact)", run: func(p *probe) {
		client, agent := p.actor("a client"), p.actor("an agent")
		id := newID("Thread")
		upper := p.accept(client, p.message("REQUEST", client, agent, id, newID("req")))
		lower := p.accept(client, p.message("REQUEST", client, agent, strings.ToLower(id), newID("req")))
		p.delivers(p.events("since", p.hour(), "thread", id, "timeout", "0"), upper)
		p.delivers(p.events("since", p.hour(), "thread", strings.ToLower(id), "timeout", "0"), lower)
		p.delivers(p.events("since", p.hour(), "thread", id[:len(id)-1], "timeout", "0"))
	}},
	{Number: "S-108", Title: "A poll with recipient gets no broadcasts", Cites: overHTTP + " (recipient=X alone does not match broadcasts)", run: func(p *probe) {
		client, agent := p.actor("a client"), p.actor("an agent")
		broadcast := p.accept(client, p.request(client, actor{}))
		direct := p.accept(client, p.request(client, agent))
		p.delivers(p.events("since", p.hour(), "recipient", agent.did(), "timeout", "0"), direct)
		p.delivers(p.events("since", p.hour(), "sender", client.did(), "timeout", "0"), broadcast, direct)
	}},
}

// refusesPolls returns a check that polls with each of the values of a parameter, which must be refused.
func refusesPolls(name string, values ...string) func(*probe) {
	return func(p *probe) {
		reader := p.actor("a reader").did()
		for _, value := range values {
			parameters := map[string]string{"since": p.hour(), "timeout": "0", name: value}
			pairs := []string{"recipient", reader}
			for n, v := range parameters {
				pairs = append(pairs, n, v)
			}
			p.refused(p.poll(pairs...), invalid)
		}
	}
}

func limitBounds(p *probe) {
	client, agent := p.actor("a client"), p.actor("an agent")
	const all = 7
	for i := range all {
		m := p.request(client, agent)
		m["ts"] = stamp(p.now().Add(time.Duration(i) * time.Second)) // no two alike
		p.accept(client, m)
	}
	a := p.poll("since", p.hour(), "recipient", agent.did(), "timeout", "0", "limit", "3")
	events := p.page(a)
	p.expect("3 of 7 events, and hasMore true")
	if more, _ := a.flag("hasMore"); len(events) != 3 || !more {
		p.failf("%d events, hasMore %s", len(events), a.members["hasMore"])
	}
	a = p.poll("since", p.hour(), "recipient", agent.did(), "timeout", "0", "limit", "7")
	events = p.page(a)
	p.expect("7 of 7 events, and hasMore false")
	if more, _ := a.flag("hasMore"); len(events) != all || more {
		p.failf("%d events, hasMore %s", len(events), a.members["hasMore"])
	}
}

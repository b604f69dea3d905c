package relay

import (
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
	"github.com/agora-relay/agora/envelope"
)

const overHTTP = "PROTOCOL §5"

var notFound = kit.Refused(http.StatusNotFound, envelope.CodeNotFound)

// httpChecks test statuses, headers and the form of answers.
var httpChecks = []relayCheck{
	{Number: "S-90",
		Title: "A refusal has an HTTP error status and the members ok (false), error, message and retryable",
		Cites: overHTTP + " (error shape)", run: errorShape},
	{Number: "S-91", Title: "An unknown path is answered with 404 NOT_FOUND in JSON",
		Cites: overHTTP + " (every answer is JSON)", run: func(p *relayProbe) {
			for _, path := range []string{"/nothing-is-here", "/events/1", "/health/x"} {
				p.CheckRefused(p.Call("", "GET", path, nil, nil, 0), notFound)
			}
			// A relay may show a page for people at /. Anything else there must be refused.
			root := p.Call("", "GET", "/", nil, nil, 0)
			if page := strings.HasPrefix(root.Header.Get("Content-Type"), "text/html"); root.Status != http.StatusOK || !page {
				p.CheckRefused(root, notFound)
			}
		}},
	{Number: "S-92",
		Title: "A path with a trailing or double slash is answered with 404 and never redirected, also for POST",
		Cites: overHTTP + " (never redirect)", run: neverRedirects},
	{Number: "S-93",
		Title: "A method that a path does not support is refused with 405 METHOD_NOT_ALLOWED and an Allow header",
		Cites: overHTTP + " (METHOD_NOT_ALLOWED)", run: func(p *relayProbe) {
			for _, asked := range []struct{ method, path, allowed string }{
				{"PUT", "/events", "POST"}, {"DELETE", "/events", "GET"}, {"PATCH", "/events", "GET"},
				{"POST", "/health", "GET"}, {"DELETE", "/health", "GET"},
			} {
				a := p.Call("", asked.method, asked.path, nil, []byte("{}"), 0)
				p.CheckRefused(a, kit.Refused(http.StatusMethodNotAllowed, envelope.CodeMethodNotAllowed))
				p.Expect("an Allow header that has %s and does not have the method of the request", asked.allowed)
				if allow := a.Header.Get("Allow"); !strings.Contains(allow, asked.allowed) ||
					strings.Contains(allow, asked.method) {
					p.Failf("the Allow header is %q", allow)
				}
			}
		}},
	{Number: "S-94", Title: "A body with any Content-Encoding is refused with 415 UNSUPPORTED_MEDIA_TYPE",
		Cites: overHTTP + " (UNSUPPORTED_MEDIA_TYPE)", run: func(p *relayProbe) {
			for _, encoding := range []string{"gzip", "br", "identity"} {
				client := p.Actor("a client")
				body := p.Request(client, kit.Actor{}).Sign(client).Body
				a := p.Call("a good REQUEST with Content-Encoding: "+encoding, "POST", "/events",
					http.Header{"Content-Encoding": {encoding}}, body, 0)
				p.CheckRefused(a, kit.Refused(http.StatusUnsupportedMediaType, envelope.CodeUnsupportedMedia))
			}
		}},
	{Number: "S-95", Title: "A body above the size limit is refused with 413 PAYLOAD_TOO_LARGE, whatever its content",
		Cites: overHTTP + " (PAYLOAD_TOO_LARGE)", run: func(p *relayProbe) {
			limit := max(envelope.DefaultMaxBytes,
				int(p.Document().Object("limits").Number("bodyBytes")))
			if limit > 2<<20 {
				p.End(kit.Skipped, "the relay accepts bodies of %d bytes, and this check sends at most 2 MiB", limit)
			}
			p.PostRefused(tooLarge, "a body of spaces, one byte above the limit", []byte(strings.Repeat(" ", limit+1)))
		}},
	{Number: "S-96", Title: "Every answer is a JSON object and has the Content-Type application/json",
		Cites: overHTTP + " (every answer is JSON)", run: func(p *relayProbe) {
			for _, asked := range [][2]string{{"GET", "/health"}, {"GET", "/nothing-is-here"}, {"POST", "/events"},
				{"PUT", "/events"}, {"GET", "/events"}} {
				a := p.Call("", asked[0], asked[1], nil, []byte("{}"), 0)
				p.Expect("Content-Type: application/json, and a JSON object with the member ok")
				_, present := a.OK()
				if got := a.Header.Get("Content-Type"); !present || !strings.HasPrefix(got, "application/json") {
					p.Failf("the Content-Type is %q: %s", got, a)
				}
			}
		}},
}

func errorShape(p *relayProbe) {
	client := p.Actor("a client")
	good := p.PostAccepted(client, p.Request(client, kit.Actor{}))
	again := p.Request(client, kit.Actor{})
	again["id"] = good.ID
	bad := p.Request(client, kit.Actor{})
	bad["type"] = "PING"
	for what, a := range map[string]kit.Answer{
		"POST /events with a body that is not JSON":               p.Post("", []byte("{")),
		"POST /events with an unknown type":                       p.Post("", bad.Sign(client).Body),
		"POST /events with an id that the sender has used":        p.Post("", again.Sign(client).Body),
		"GET on an unknown path":                                  p.Call("", "GET", "/nothing-is-here", nil, nil, 0),
		"DELETE /events, a method that the path does not support": p.Call("", "DELETE", "/events", nil, nil, 0),
		"GET /events without since":                               p.Call("", "GET", "/events", nil, nil, 0),
	} {
		p.Describe("%s", what)
		p.Expect(`{"ok":false,"error":"CODE","message":"…","retryable":false} with a status of 400 or more`)
		ok, present := a.OK()
		retryable, saidRetryable := a.Flag("retryable")
		if a.Status < 400 || ok || !present || a.Code() == "" || a.Text("message") == "" || retryable ||
			!saidRetryable {
			p.Failf("%s", a)
		}
		if details := a.Members["details"]; details != nil && a.Object("details").Members == nil {
			p.Expect("details, if present, is an object")
			p.Failf("%s", a)
		}
	}
}

func neverRedirects(p *relayProbe) {
	client := p.Actor("a client")
	for _, path := range []string{"//events", "/events/", "/v1//messages", "//health", "/health/", "/./events",
		"/x/../events"} {
		p.CheckRefused(p.Call("", "GET", path, nil, nil, 0), notFound)
		if strings.Contains(path, "health") {
			continue
		}
		p.CheckRefused(p.Call("a good REQUEST", "POST", path, nil, p.Request(client, kit.Actor{}).Sign(client).Body, 0),
			notFound)
	}
}

// parameterChecks test the parameters of GET /events. A relay must refuse parameters that it does not understand, and
// must not ignore them.
var parameterChecks = []relayCheck{
	{Number: "S-97", Title: "A poll with timeout=0 is answered at once, and timeout may be a fraction of a second",
		Cites: overHTTP + " (timeout)", run: func(p *relayProbe) {
			reader := p.Actor("a reader").DID()
			for _, timeout := range []string{"0", "0.5", "0.0"} {
				a := p.Poll("since", p.HourAgo(), "recipient", reader, "timeout", timeout)
				p.CheckEvents(p.CheckPage(a))
				p.Expect("the answer comes at once")
				if a.Took > kit.PromptLimit {
					p.Failf("the answer came after %v", a.Took)
				}
			}
		}},
	{Number: "S-98", Title: "A timeout that is negative or not a decimal number is refused",
		Cites: overHTTP + " (timeout; anything else → 400)",
		run:   refusesPolls("timeout", "-1", "abc", "", "1s", "NaN", "0x10", "1,5")},
	{Number: "S-99", Title: "A timeout above 60 is treated as 60", Cites: overHTTP + " (timeout)",
		run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			sent := p.PostAccepted(client, p.Request(client, agent))
			p.CheckEvents(
				p.CheckPage(
					p.Call("", "GET", "/events"+kit.Query("since", p.HourAgo(), "recipient", agent.DID(), "timeout", "86400"),
						nil, nil, 0),
				),
				sent,
			)
		}},
	{Number: "S-100", Title: "limit must be a whole number from 1 to 1000",
		Cites: overHTTP + " (limit)", run: func(p *relayProbe) {
			refusesPolls("limit", "0", "1001", "-1", "abc", "", "1.5", "99999999999999999999")(p)
			reader := p.Actor("a reader").DID()
			for _, limit := range []string{"1", "1000"} {
				p.CheckEvents(p.Events("since", p.HourAgo(), "recipient", reader, "timeout", "0", "limit", limit))
			}
		}},
	{Number: "S-101", Title: "A page has at most limit events, and hasMore tells whether there are more",
		Cites: overHTTP + " (limit)", run: limitBounds},
	{Number: "S-102", Title: "An unknown parameter is refused",
		Cites: overHTTP + " (a silently dropped recipient would return everyone's mail)", run: func(p *relayProbe) {
			for _, name := range []string{"recipent", "Recipient", "foo", "offset"} {
				p.CheckRefused(p.Poll("since", p.HourAgo(), name, p.Actor("a reader").DID(), "timeout", "0"), invalid)
			}
		}},
	{Number: "S-103", Title: "A repeated parameter is refused",
		Cites: overHTTP + " (unknown, repeated or malformed)", run: func(p *relayProbe) {
			for _, name := range []string{"recipient", "since", "timeout"} {
				value := map[string]string{"recipient": p.Actor("a reader").DID(), "since": p.HourAgo(), "timeout": "0"}
				pairs := []string{name, value[name]}
				for n, v := range value {
					pairs = append(pairs, n, v)
				}
				p.CheckRefused(p.Poll(pairs...), invalid)
			}
		}},
	{Number: "S-104", Title: "A malformed query string or parameter value is refused",
		Cites: overHTTP + " (unknown, repeated or malformed)", run: func(p *relayProbe) {
			malformed := kit.Refused(http.StatusBadRequest, envelope.CodeInvalidRequest, envelope.CodeInvalidDID)
			reader := p.Actor("a reader").DID()
			for what, tail := range map[string]string{
				"a percent sign without digits": "&recipient=%zz", "a recipient that is not a did": "&recipient=nobody",
				"an empty recipient":                     "&recipient=",
				"a recipient without its last character": "&recipient=" + reader[:55],
				"a sender that is not a did":             "&sender=x", "an unknown type": "&type=PING",
				"a type in lower case": "&type=request", "a thread with a space": "&thread=a%20b",
				"an empty thread": "&thread=",
			} {
				p.CheckRefused(
					p.Call(what, "GET", "/events"+kit.Query("since", p.HourAgo(), "timeout", "0")+tail, nil, nil, 0),
					malformed)
			}
		}},
	{Number: "S-105", Title: "A since that is not an RFC 3339 time is refused",
		Cites: overHTTP + "; §1 ts", run: refusesPolls("since", "yesterday", "", "2026-02-02", "1767225600",
			"2026-02-02T15:30:00", "2026-02-02 15:30:00Z", "2026-13-02T15:30:00Z")},
	{Number: "S-106", Title: "A poll without since and cursor is refused",
		Cites: overHTTP + " (since or cursor is required)", run: func(p *relayProbe) {
			p.CheckRefused(
				p.Call("", "GET", "/events"+kit.Query("recipient", p.Actor("a reader").DID(), "timeout", "0"), nil, nil, 0),
				invalid)
		}},
	{Number: "S-107", Title: "Filters match exactly: ids that differ only in case are different threads",
		Cites: overHTTP + " (filters are exact)", run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			id := kit.NewID("Thread")
			upper := p.PostAccepted(client, p.Message("REQUEST", client, agent, id, kit.NewID("req")))
			lower := p.PostAccepted(client, p.Message("REQUEST", client, agent, strings.ToLower(id), kit.NewID("req")))
			p.CheckEvents(p.Events("since", p.HourAgo(), "thread", id, "timeout", "0"), upper)
			p.CheckEvents(p.Events("since", p.HourAgo(), "thread", strings.ToLower(id), "timeout", "0"), lower)
			p.CheckEvents(p.Events("since", p.HourAgo(), "thread", id[:len(id)-1], "timeout", "0"))
		}},
	{Number: "S-108", Title: "A poll with recipient returns no broadcasts",
		Cites: overHTTP + " (recipient=X alone does not match broadcasts)", run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			broadcast := p.PostAccepted(client, p.Request(client, kit.Actor{}))
			direct := p.PostAccepted(client, p.Request(client, agent))
			p.CheckEvents(p.Events("since", p.HourAgo(), "recipient", agent.DID(), "timeout", "0"), direct)
			p.CheckEvents(p.Events("since", p.HourAgo(), "sender", client.DID(), "timeout", "0"), broadcast, direct)
		}},
}

// refusesPolls returns a check that polls once with each value of the parameter. The relay must refuse each poll.
func refusesPolls(name string, values ...string) func(*relayProbe) {
	return func(p *relayProbe) {
		reader := p.Actor("a reader").DID()
		for _, value := range values {
			parameters := map[string]string{"since": p.HourAgo(), "timeout": "0", name: value}
			pairs := []string{"recipient", reader}
			for n, v := range parameters {
				pairs = append(pairs, n, v)
			}
			p.CheckRefused(p.Poll(pairs...), invalid)
		}
	}
}

func limitBounds(p *relayProbe) {
	client, agent := p.Actor("a client"), p.Actor("an agent")
	const all = 7
	for i := range all {
		m := p.Request(client, agent)
		m["ts"] = kit.FormatTime(p.Now().Add(time.Duration(i) * time.Second)) // all different
		p.PostAccepted(client, m)
	}
	a := p.Poll("since", p.HourAgo(), "recipient", agent.DID(), "timeout", "0", "limit", "3")
	events := p.CheckPage(a)
	p.Expect("3 of the 7 events, and hasMore true")
	if more, _ := a.Flag("hasMore"); len(events) != 3 || !more {
		p.Failf("%d events, hasMore %s", len(events), a.Members["hasMore"])
	}
	a = p.Poll("since", p.HourAgo(), "recipient", agent.DID(), "timeout", "0", "limit", "7")
	events = p.CheckPage(a)
	p.Expect("all 7 events, and hasMore false")
	if more, _ := a.Flag("hasMore"); len(events) != all || more {
		p.Failf("%d events, hasMore %s", len(events), a.Members["hasMore"])
	}
}

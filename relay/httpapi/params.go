package httpapi

import (
	"errors"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// params are the query parameters of a request. Each must be known and given once. If an unknown parameter was ignored,
// a reader with a misspelt recipient would get the messages of all recipients.
type params map[string]string

func parseParams(r *http.Request, known ...string) (params, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, invalid("the query string is malformed; separate parameters with & and percent-encode their values")
	}
	p := params{}
	for name, list := range values {
		if !slices.Contains(known, name) {
			if len(known) == 0 {
				return nil, invalid("this path takes no query parameters")
			}
			if !envelope.ValidID(name) {
				name = "(not shown)" // it may contain any characters
			}
			return nil, invalid("query parameter %s is unknown; this path knows %s", name, strings.Join(known, ", "))
		}
		if len(list) != 1 {
			return nil, invalid("query parameter %s is given more than once; give it once", name)
		}
		p[name] = list[0]
	}
	return p, nil
}

func noParams(r *http.Request) error {
	if r.URL.RawQuery == "" {
		return nil
	}
	_, err := parseParams(r)
	return err
}

func invalid(format string, args ...any) error {
	return envelope.Errorf(envelope.CodeInvalidRequest, format, args...)
}

// eventsQuery has the parameters of GET /events.
type eventsQuery struct {
	relay.Poll
	since, before string // the texts of these parameters; empty: absent
}

// eventsParams returns the names of the parameters of GET /events.
func eventsParams() []string {
	names := []string{"since", "cursor", "before", "broadcast", "timeout", "limit"}
	for _, row := range relay.FilterTable() {
		names = append(names, row.Name)
	}
	return names
}

// theEnd is the value of before for the position after the newest stored event. It has no cursor yet.
const theEnd = "end"

// parseEvents reads the parameters of GET /events. For before=end, it leaves the Cursor of the Poll empty.
func (a *api) parseEvents(r *http.Request) (*eventsQuery, error) {
	p, err := parseParams(r, eventsParams()...)
	if err != nil {
		return nil, err
	}
	q := &eventsQuery{since: p["since"], before: p["before"]}
	if err := a.parseStart(p, &q.Poll); err != nil {
		return nil, err
	}
	return q, parseFilter(p, &q.Poll)
}

// parseFilter reads all parameters of GET /events but the position.
func parseFilter(p params, poll *relay.Poll) error {
	for _, row := range relay.FilterTable() {
		if text, given := p[row.Name]; given {
			if err := row.Set(&poll.Filter, text); err != nil {
				return err
			}
		}
	}
	var err error
	if poll.Broadcast, _, err = p.bool("broadcast"); err != nil {
		return err
	}
	return parseTimeoutAndLimit(p, poll)
}

// parseStart reads the position at which the answer begins: since, cursor or before.
func (a *api) parseStart(p params, poll *relay.Poll) (err error) {
	since, hasSince := p["since"]
	cursor, hasCursor := p["cursor"]
	before, hasBefore := p["before"]
	switch {
	case hasBefore:
		return a.parseBefore(p, before, poll)
	case hasSince == hasCursor:
		return invalid("give one of since, an RFC 3339 time; cursor, from an earlier answer (0: everything still stored); " +
			"or before, from an earlier answer (end: the newest events)")
	case hasCursor:
		poll.Cursor, err = a.relay.ParseCursor(cursor)
		return err
	}
	t, ok := envelope.ParseTime(since)
	if !ok {
		hint := ""
		if strings.Contains(since, " ") {
			hint = "; in a query string + means a space, so write %2B for a plus"
		}
		return invalid("since must be an RFC 3339 date-time such as 2026-02-02T15:30:00.000Z%s", hint)
	}
	poll.Since = t
	if t.Before(time.Unix(1, 0)) {
		poll.Since = time.Unix(1, 0) // long before any event; the zero time would mean that since is absent
	}
	return nil
}

// parseBefore reads the parameter before, whose text is given.
func (a *api) parseBefore(p params, before string, poll *relay.Poll) (err error) {
	for _, other := range []string{"since", "cursor", "timeout"} {
		if _, given := p[other]; given {
			return invalid("before returns stored events, the newest first, and never waits; leave out since, cursor and timeout")
		}
	}
	if before == theEnd {
		return nil
	}
	if poll.Cursor, err = a.relay.ParseCursor(before); err != nil && !errors.Is(err, relay.ErrUnknownCursor) {
		return invalid("before must be the cursor of an earlier answer of this relay, or end for the newest events")
	}
	return err
}

func parseTimeoutAndLimit(p params, poll *relay.Poll) (err error) {
	poll.Wait = relay.DefaultWait
	if text, ok := p["timeout"]; ok {
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(seconds) || seconds < 0 || strings.ContainsAny(text, "xXpPiI_") {
			return invalid("timeout must be a number of seconds, at least 0; 0 answers at once, and the longest wait is %v",
				relay.MaxWait.Seconds())
		}
		poll.Wait = time.Duration(min(seconds, relay.MaxWait.Seconds()) * float64(time.Second))
	}
	poll.Limit, err = p.limit(relay.DefaultPage)
	return err
}

func (p params) did(name string) (didkey.DID, error) {
	text, given := p[name]
	if !given {
		return "", nil
	}
	return relay.ParseDID(name, text)
}

func (p params) bool(name string) (value, given bool, err error) {
	text, given := p[name]
	if given && text != "true" && text != "false" {
		return false, true, invalid("%s must be true or false", name)
	}
	return text == "true", given, nil
}

func (p params) limit(fallback int) (int, error) {
	text, ok := p["limit"]
	if !ok {
		return fallback, nil
	}
	n, err := strconv.ParseUint(text, 10, 16) // no sign
	if err != nil || n < 1 || n > relay.MaxPage {
		return 0, invalid("limit must be a whole number from 1 to %d", relay.MaxPage)
	}
	return int(n), nil
}

// maxSearch is the longest q, in bytes. The cost of a search grows with q and with the searched text.
const maxSearch = 256

func (a *api) parseAgentQuery(r *http.Request) (relay.AgentQuery, error) {
	p, err := parseParams(r, "intent", "q", "online", "limit", "cursor")
	if err != nil {
		return relay.AgentQuery{}, err
	}
	q := relay.AgentQuery{Intent: p["intent"], Text: p["q"]}
	if len(q.Text) > maxSearch {
		return q, invalid("q must have at most %d bytes", maxSearch)
	}
	if online, given, err := p.bool("online"); err != nil {
		return q, err
	} else if given {
		q.OnlineSince, q.OfflineOnly = a.relay.Now().Add(-relay.OnlineWithin), !online
	}
	if cursor, ok := p["cursor"]; ok {
		if q.After, err = a.parseAgentCursor(cursor); err != nil {
			return q, err
		}
	}
	q.Limit, err = p.limit(relay.DefaultPage)
	return q, err
}

// formatAgentCursor returns the cursor of a page of the directory. A position in the directory is a number. A relay
// that hides messages from strangers encrypts it, as it does the cursors of events, so that readers cannot count with
// it.
func (a *api) formatAgentCursor(next int64) string {
	if a.relay.Reads() == relay.ToParties {
		return a.relay.FormatCursor(relay.Cursor{Seq: relay.Seq(next)})
	}
	return strconv.FormatInt(next, 10)
}

func (a *api) parseAgentCursor(text string) (int64, error) {
	if a.relay.Reads() == relay.ToParties {
		c, err := a.relay.ParseCursor(text)
		if err == nil && c.Epoch != 0 {
			err = relay.ErrUnknownCursor
		}
		return int64(c.Seq), err
	}
	next, err := strconv.ParseInt(text, 10, 64)
	if err != nil || next < 0 {
		return 0, invalid("cursor must come from an earlier answer")
	}
	return next, nil
}

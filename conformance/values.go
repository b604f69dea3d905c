package conformance

import (
	"crypto/rand"
	"encoding/json"
	"net/http"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Values that the checks of several kinds of servers send and expect.

// astral is a character that has two UTF-16 code units and four bytes.
const astral = "\U0001F600"

// quiet is how long nothing must come where a check expects that nothing comes.
const quiet = 400 * time.Millisecond

// maxFrame is the longest frame that a check reads, and maxFrames the most frames that it has not looked at.
const (
	maxFrame  = 1 << 20
	maxFrames = 4096
)

// second is short for time.Second, the unit of the waits in checks.
const second = time.Second

// nothing is the value of a member that is not there.
const nothing = "\x00nothing"

// notTexts are values that are no texts.
var notTexts = []any{1, true, []any{"text"}, map[string]any{"text": "text"}}

var timeForm = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`)

// unknownToken is the token of a callback that no server knows.
var unknownToken = "tok_" + strings.Repeat("A", 43)

// with returns an event with another value of a member.
func with(event message, name string, value any) message {
	changed := message{}
	for n, v := range event {
		changed[n] = v
	}
	if value == nothing {
		delete(changed, name)
	} else {
		changed[name] = value
	}
	return changed
}

// textsOf returns texts of n bytes of UTF-8.
func textsOf(n int) []string {
	texts := []string{strings.Repeat("a", n)}
	if n >= 4 {
		texts = append(texts, strings.Repeat(astral, n/4)+strings.Repeat("b", n%4))
	}
	return texts
}

// newName returns a new name for an account or a skill.
func newName() string { return "kit-" + strings.ToLower(rand.Text()[:12]) }

// parseRow returns a JSON object as an answer that has only members.
func parseRow(raw json.RawMessage) answer {
	row := answer{body: raw}
	if json.Unmarshal(raw, &row.members) != nil {
		row.members = nil
	}
	return row
}

// describeRows returns rows for the report.
func describeRows(rows []answer) string {
	var list []string
	for _, row := range rows {
		list = append(list, excerpt(row.body, 200))
	}
	if len(list) == 0 {
		return "no rows"
	}
	return strings.Join(list, "\n")
}

// sameJSON reports whether two values are the same JSON.
func sameJSON(raw json.RawMessage, want any) bool {
	var a, b any
	return json.Unmarshal(raw, &a) == nil && json.Unmarshal(canonical(want), &b) == nil && reflect.DeepEqual(a, b)
}

func describeHeader(header http.Header) string {
	if id := header.Get("Last-Event-ID"); id != "" {
		return " with Last-Event-ID: " + strconv.Quote(id)
	}
	return ""
}

// number returns a member that is a number, otherwise 0.
func (a answer) number(name string) (n float64) {
	_ = json.Unmarshal(a.members[name], &n) // on an error n stays 0
	return n
}

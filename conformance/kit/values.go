package kit

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

// Astral is a character that has two UTF-16 code units and four bytes.
const Astral = "\U0001F600"

// Quiet is how long nothing must come where a check expects that nothing comes.
const Quiet = 400 * time.Millisecond

// MaxFrame is the longest frame that a check reads, and MaxFrames the most frames that it has not looked at.
const (
	MaxFrame  = 1 << 20
	MaxFrames = 4096
)

// Nothing is the value of a member that is not there.
const Nothing = "\x00nothing"

// NotTexts are values that are no texts.
var NotTexts = []any{1, true, []any{"text"}, map[string]any{"text": "text"}}

var TimeForm = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`)

// UnknownToken is the token of a callback that no server knows.
var UnknownToken = "tok_" + strings.Repeat("A", 43)

// With returns an event with another value of a member.
func With(event Message, name string, value any) Message {
	changed := Message{}
	for n, v := range event {
		changed[n] = v
	}
	if value == Nothing {
		delete(changed, name)
	} else {
		changed[name] = value
	}
	return changed
}

// TextsOf returns texts of n bytes of UTF-8.
func TextsOf(n int) []string {
	texts := []string{strings.Repeat("a", n)}
	if n >= 4 {
		texts = append(texts, strings.Repeat(Astral, n/4)+strings.Repeat("b", n%4))
	}
	return texts
}

// NewName returns a new name for an account or a skill.
func NewName() string { return "kit-" + strings.ToLower(rand.Text()[:12]) }

// ParseRow returns a JSON object as an answer that has only members.
func ParseRow(raw json.RawMessage) Answer {
	row := Answer{Body: raw}
	if json.Unmarshal(raw, &row.Members) != nil {
		row.Members = nil
	}
	return row
}

// DescribeRows returns rows for the report.
func DescribeRows(rows []Answer) string {
	var list []string
	for _, row := range rows {
		list = append(list, Excerpt(row.Body, 200))
	}
	if len(list) == 0 {
		return "no rows"
	}
	return strings.Join(list, "\n")
}

// SameJSON reports whether two values are the same JSON.
func SameJSON(raw json.RawMessage, want any) bool {
	var a, b any
	return json.Unmarshal(raw, &a) == nil && json.Unmarshal(Canonical(want), &b) == nil && reflect.DeepEqual(a, b)
}

func DescribeHeader(header http.Header) string {
	if id := header.Get("Last-Event-ID"); id != "" {
		return " with Last-Event-ID: " + strconv.Quote(id)
	}
	return ""
}

// Number returns a member that is a number, otherwise 0.
func (a Answer) Number(name string) (n float64) {
	_ = json.Unmarshal(a.Members[name], &n) // on an error n stays 0
	return n
}

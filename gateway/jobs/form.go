package jobs

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/relay"
)

// This file reads the fields of requests. A malformed request is answered with status 422 and a list of the fields that
// are wrong, in the form of upstream's web framework.

// Bounds of fields, in bytes.
const (
	maxName        = 128
	maxDescription = 2000
	maxData        = 49_152 // of input_data, output_data and the schemas of a skill
	maxMessage     = 2000   // of error_message; the rest of a longer one is cut off
)

var (
	uuidForm  = regexp.MustCompile(`^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$`)
	ownerForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$`)
	skillForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)
)

// memoryURL means that there is no URL, as "" does.
const memoryURL = "local://memory"

const currency = "chorus_credits_v1"

// wrongField is a field that is wrong.
type wrongField struct {
	Loc  []any  `json:"loc"` // where the field is: body, query or path, and names and indexes
	Msg  string `json:"msg"`
	Type string `json:"type"`
}

// invalid is the refusal of a request with wrong fields.
type invalid struct{ fields []wrongField }

func (e *invalid) Error() string {
	loc := strings.Trim(fmt.Sprint(e.fields[0].Loc), "[]")
	return strings.ReplaceAll(loc, " ", ".") + ": " + e.fields[0].Msg
}

// invalidField returns the refusal of one field.
func invalidField(message string, loc ...any) error {
	return &invalid{[]wrongField{{loc, message, "value_error"}}}
}

// maxWrong is how many wrong fields one answer names.
const maxWrong = 20

// form is a JSON object of a request, or its query. Its methods remember what is wrong, and return a value without
// meaning then. err returns what they have remembered.
type form struct {
	loc       []any
	sent      map[string]json.RawMessage // as sent: numbers have all of their digits
	canonical map[string]json.RawMessage // in the form of RFC 8785
	wrong     *[]wrongField              // of the whole request
}

// newForm returns the object in a body. sent is the body as sent, and canonical its RFC 8785 form.
func newForm(sent, canonical []byte) (*form, error) {
	f := &form{loc: []any{"body"}, wrong: new([]wrongField)}
	return f, f.decode(sent, canonical)
}

// decode reads an object. The relay has parsed it before, so it is valid.
func (f *form) decode(sent, canonical []byte) error {
	if err := json.Unmarshal(sent, &f.sent); err != nil {
		return err
	}
	return json.Unmarshal(canonical, &f.canonical)
}

// fail remembers that a field is wrong.
func (f *form) fail(field any, format string, args ...any) {
	if len(*f.wrong) < maxWrong {
		loc := append(append([]any{}, f.loc...), field)
		*f.wrong = append(*f.wrong, wrongField{loc, fmt.Sprintf(format, args...), "value_error"})
	}
}

// err returns the refusal of what was wrong so far; nil: nothing.
func (f *form) err() error {
	if len(*f.wrong) == 0 {
		return nil
	}
	return &invalid{*f.wrong}
}

// has reports whether a field is there. null counts as absent.
func (f *form) has(field string) bool {
	raw, ok := f.canonical[field]
	return ok && string(raw) != "null"
}

// text returns a string field of least to most bytes. An absent field is "", and wrong if it is required.
func (f *form) text(field string, required bool, least, most int) string {
	if !f.has(field) {
		if required {
			f.fail(field, "is missing")
		}
		return ""
	}
	var text string
	if raw := f.canonical[field]; raw[0] != '"' || json.Unmarshal(raw, &text) != nil {
		f.fail(field, "must be a string")
	}
	if len(text) < least || len(text) > most {
		f.fail(field, "must have %d to %d bytes of UTF-8, and has %d", least, most, len(text))
	}
	return text
}

// matching returns a required string field that has a form.
func (f *form) matching(field string, form *regexp.Regexp, want string) string {
	text := f.text(field, true, 0, math.MaxInt)
	if _, given := f.canonical[field]; given && !form.MatchString(text) {
		f.fail(field, "%s", want)
	}
	return text
}

func (f *form) ownerID(field string) string {
	return f.matching(field, ownerForm, "must have 1 to 128 letters, digits and ._:@-, and begin with a letter or a digit")
}

func (f *form) skillName(field string) string {
	return f.matching(field, skillForm, "must have 1 to 128 letters, digits and ._:-, and begin with a letter or a digit")
}

// uuid returns a UUID in lower case; empty: it is absent.
func (f *form) uuid(field string) string {
	text := f.text(field, false, 0, math.MaxInt)
	if f.has(field) && !uuidForm.MatchString(text) {
		f.fail(field, "must be a UUID such as a3b8d1b6-0b3b-4b1a-9c1a-1a2b3c4d5e6f")
	}
	return strings.ToLower(text)
}

// requiredUUID does the same as uuid, for a field that must be there.
func (f *form) requiredUUID(field string) string {
	if !f.has(field) {
		f.fail(field, "is missing")
		return ""
	}
	return f.uuid(field)
}

// amount returns an amount of credits. An absent field is 0, and wrong if it is required.
func (f *form) amount(field string, required bool) credits.Amount {
	if !f.has(field) {
		if required {
			f.fail(field, "is missing")
		}
		return 0
	}
	a, err := credits.Parse(string(f.sent[field]))
	if err != nil {
		f.fail(field, "%v", err)
	}
	return a
}

// currency checks the field currency.
func (f *form) currency() {
	if text := f.text("currency", false, 0, math.MaxInt); f.has("currency") && text != currency {
		f.fail("currency", "must be %s, or absent", currency)
	}
}

// data returns a field that is a JSON object, in the form of RFC 8785. An absent field is {}.
func (f *form) data(field string) string {
	raw := f.canonical[field]
	switch {
	case !f.has(field):
		return "{}"
	case raw[0] != '{':
		f.fail(field, "must be an object")
	case len(raw) > maxData:
		f.fail(field, "must have at most %d bytes, and has %d", maxData, len(raw))
	}
	return string(raw)
}

// url returns a URL that the relay will call; empty: there is none.
func (f *form) url(field string, to gateway.Destinations) string {
	text := f.text(field, false, 0, math.MaxInt)
	if text == "" || text == memoryURL {
		return ""
	}
	if _, err := to.Check(text); err != nil {
		f.fail(field, "%v", err)
	}
	return text
}

// endpoint returns where an agent gets its jobs: a URL as url returns it, or deliver.Scheme and a DID.
func (f *form) endpoint(field string, to gateway.Destinations) string {
	var text string
	if json.Unmarshal(f.canonical[field], &text) == nil {
		if _, own, err := deliver.ParseEndpoint(text); own {
			if err != nil {
				f.fail(field, "%v", err)
			}
			return text
		}
	}
	return f.url(field, to)
}

// list returns the objects of a field that is an array. An absent field is an empty array.
func (f *form) list(field string, most int) (all []*form) {
	var sent, canonical []json.RawMessage
	if !f.has(field) {
		return nil
	}
	if f.canonical[field][0] != '[' || json.Unmarshal(f.sent[field], &sent) != nil ||
		json.Unmarshal(f.canonical[field], &canonical) != nil {
		f.fail(field, "must be an array")
		return nil
	}
	if len(canonical) > most {
		f.fail(field, "must have at most %d elements, and has %d", most, len(canonical))
		return nil
	}
	for i := range canonical {
		element := &form{loc: append(append([]any{}, f.loc...), field, i), wrong: f.wrong}
		if canonical[i][0] == '{' && element.decode(sent[i], canonical[i]) == nil {
			all = append(all, element)
			continue
		}
		*f.wrong = append(*f.wrong, wrongField{element.loc, "must be an object", "value_error"})
	}
	return all
}

// query is the query of a request. Like a form, it remembers what is wrong.
type query struct {
	values map[string]string
	form
}

// newQuery returns the known parameters of a request.
func newQuery(r *http.Request, known ...string) (*query, error) {
	q := &query{values: map[string]string{}, form: form{loc: []any{"query"}, wrong: new([]wrongField)}}
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, invalidField("the query string is malformed; separate parameters with & and percent-encode their values",
			"query")
	}
	for _, name := range known {
		switch list := values[name]; len(list) {
		case 0:
		case 1:
			if q.values[name] = list[0]; !utf8.ValidString(list[0]) || strings.Contains(list[0], "\x00") {
				q.fail(name, "must be UTF-8 without U+0000")
			}
		default:
			q.fail(name, "is given more than once; give it once")
		}
	}
	return q, nil
}

// number returns a whole number from least to most; absent: it is not given.
func (q *query) number(name string, least, most, absent int64) int64 {
	text, given := q.values[name]
	if !given {
		return absent
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || int64(n) < least || int64(n) > most {
		q.fail(name, "must be a whole number from %d to %d", least, most)
	}
	return int64(n)
}

// amount returns a number of credits or points, of which most is the largest. given is false if it is absent.
func (q *query) amount(name string, most credits.Amount) (a credits.Amount, given bool) {
	text, given := q.values[name]
	if !given {
		return 0, false
	}
	a, err := credits.Parse(text)
	switch {
	case err != nil:
		q.fail(name, "%v", err)
	case a > most:
		q.fail(name, "must be at most %v", most)
	}
	return a, true
}

// read reads the body of a request, which must be one JSON object. sent is the body as sent.
func (g *Gateway) read(from relay.Peer, sent []byte) (*form, error) {
	canonical, err := g.Relay.Object(from, sent, gateway.MaxBody)
	if err != nil {
		return nil, err
	}
	return newForm(sent, canonical)
}

package gateway

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/agora-relay/agora/envelope"
)

// Object is a JSON object of a request that is being checked. Its methods remember the first error in Err, which has
// CodeInvalidRequest. After an error they may still be called, and what they return has no meaning.
type Object struct {
	Members map[string]json.RawMessage
	Err     error
	name    string // of the object in messages; empty: the body
}

// NewObject returns the object in text, which is in the form of RFC 8785. name is its name in messages; empty: it is the
// body.
func NewObject(name string, text []byte) *Object {
	o := &Object{name: name}
	if len(text) == 0 || text[0] != '{' || json.Unmarshal(text, &o.Members) != nil {
		o.Err = Invalid("%s must be an object", cmp.Or(name, "the body"))
	}
	return o
}

// Path returns the name of a member in messages.
func (o *Object) Path(member string) string {
	if o.name == "" {
		return member
	}
	return o.name + "." + member
}

// Fail remembers what is wrong with a member.
func (o *Object) Fail(member, format string, args ...any) {
	if o.Err == nil {
		o.Err = Invalid(o.Path(member)+": "+format, args...)
	}
}

// Only refuses members that have other names.
func (o *Object) Only(names ...string) {
	for name := range o.Members {
		if slices.Contains(names, name) || o.Err != nil {
			continue
		}
		if !envelope.ValidID(name) {
			name = "(not shown)" // it may contain any characters
		}
		o.Err = Invalid("%s has the unknown member %s; it may have %s", cmp.Or(o.name, "the body"), name,
			strings.Join(names, ", "))
	}
}

// Text returns a string member. If it is absent, it returns false, and remembers an error if it is required.
func (o *Object) Text(member string, required bool) (string, bool) {
	raw, ok := o.Members[member]
	if !ok {
		if required {
			o.Fail(member, "is missing")
		}
		return "", false
	}
	var text string
	if raw[0] != '"' || json.Unmarshal(raw, &text) != nil {
		o.Fail(member, "must be a string")
		return "", false
	}
	return text, true
}

// Sized returns a string member that has from least to most bytes. Otherwise it is the same as Text.
func (o *Object) Sized(member string, required bool, least, most int) (string, bool) {
	text, ok := o.Text(member, required)
	if ok && (len(text) < least || len(text) > most) {
		o.Fail(member, "must have %d to %d bytes of UTF-8, and has %d", least, most, len(text))
	}
	return text, ok
}

// CleanText returns a text as a column can have it: valid UTF-8 without U+0000.
func CleanText(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
}

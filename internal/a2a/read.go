package a2a

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/jsontext"
)

// present reports whether a member is there. A null counts as absent.
func present(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// membersOf returns the members of an object. path is its name in errors.
func membersOf(path string, text []byte) (members map[string]json.RawMessage, err error) {
	if len(text) == 0 || text[0] != '{' || json.Unmarshal(text, &members) != nil {
		return nil, Invalid(path, "must be an object")
	}
	return members, nil
}

// set returns an object with other values of some members. A nil value removes a member.
func set(text []byte, values map[string]any) json.RawMessage {
	members, err := membersOf("", text)
	if err != nil {
		panic("a2a: an object that was read is not an object: " + string(text))
	}
	for name, value := range values {
		if value == nil {
			delete(members, name)
			continue
		}
		members[name] = jsontext.Compact(value)
	}
	canonical, err := envelope.Canonicalize(jsontext.Compact(members))
	if err != nil {
		panic("a2a: an object that was read cannot be written: " + err.Error())
	}
	return canonical
}

// reader reads the members of one object. It remembers the first error. After an error, what its methods return has no
// meaning.
type reader struct {
	members map[string]json.RawMessage
	path    string
	err     error
}

// read returns a reader of the object in text.
func read(path string, text []byte) *reader {
	members, err := membersOf(path, text)
	return &reader{members, path, err}
}

// name returns the path of a member.
func (r *reader) name(member string) string {
	if r.path == "" {
		return member
	}
	return r.path + "." + member
}

func (r *reader) fail(member, format string, args ...any) {
	if r.err == nil {
		r.err = Invalid(r.name(member), format, args...)
	}
}

// value returns a member; nil: it is absent.
func (r *reader) value(member string, required bool) json.RawMessage {
	raw := r.members[member]
	if !present(raw) {
		if required {
			r.fail(member, "is missing")
		}
		return nil
	}
	return raw
}

// text returns a text. A required text must not be empty.
func (r *reader) text(member string, required bool) (text string) {
	raw := r.value(member, required)
	if raw == nil {
		return ""
	}
	if raw[0] != '"' || json.Unmarshal(raw, &text) != nil {
		r.fail(member, "must be a text")
	} else if required && text == "" {
		r.fail(member, "must not be empty")
	}
	return text
}

// optional returns a text, or nil if it is absent.
func (r *reader) optional(member string) *string {
	if r.value(member, false) == nil {
		return nil
	}
	text := r.text(member, false)
	return &text
}

// list returns the elements of an array.
func (r *reader) list(member string, required bool) (elements []json.RawMessage) {
	raw := r.value(member, required)
	if raw == nil {
		return nil
	}
	if raw[0] != '[' || json.Unmarshal(raw, &elements) != nil {
		r.fail(member, "must be an array")
	} else if required && len(elements) == 0 {
		r.fail(member, "must not be empty")
	}
	return elements
}

// texts returns an array of texts that are not empty.
func (r *reader) texts(member string) (texts []string) {
	for i, element := range r.list(member, false) {
		var text string
		if element[0] != '"' || json.Unmarshal(element, &text) != nil || text == "" {
			r.fail(member+index(i), "must be a text that is not empty")
		}
		texts = append(texts, text)
	}
	return texts
}

// object returns an object as it is.
func (r *reader) object(member string) json.RawMessage {
	raw := r.value(member, false)
	if raw != nil && raw[0] != '{' {
		r.fail(member, "must be an object")
	}
	return raw
}

// flag returns a truth value; an absent one is false.
func (r *reader) flag(member string) bool {
	switch string(r.value(member, false)) {
	case "true":
		return true
	case "false", "":
	default:
		r.fail(member, "must be true or false")
	}
	return false
}

// count returns a whole number from least to most, or nil if it is absent.
func (r *reader) count(member string, least, most int) *int {
	raw := r.value(member, false)
	if raw == nil {
		return nil
	}
	n, err := strconv.Atoi(string(raw))
	if err != nil || n < least || n > most {
		r.fail(member, "must be a whole number from %d to %d", least, most)
	}
	return &n
}

// one reads a member with parse, if it is there.
func one[T any](r *reader, member string, parse func(path string, text []byte) (T, error)) (value *T) {
	raw := r.value(member, false)
	if raw == nil || r.err != nil {
		return nil
	}
	read, err := parse(r.name(member), raw)
	if err != nil {
		r.err = err
		return nil
	}
	return &read
}

// all reads the elements of an array with parse.
func all[T any](r *reader, member string, required bool, parse func(path string, text []byte) (T, error)) (values []T) {
	for i, element := range r.list(member, required) {
		if r.err != nil {
			return nil
		}
		value, err := parse(r.name(member+index(i)), element)
		if err != nil {
			r.err = err
			return nil
		}
		values = append(values, value)
	}
	return values
}

func index(i int) string { return fmt.Sprintf("[%d]", i) }

// exactly returns the one member of names that is there.
func (r *reader) exactly(names ...string) (found string) {
	n := 0
	for _, name := range names {
		raw := r.members[name]
		if present(raw) || name == "data" && len(raw) > 0 { // null is a value of data
			n++
			found = name
		}
	}
	if n != 1 && r.err == nil {
		r.err = Invalid(r.path, "must have exactly one of %s", strings.Join(names, ", "))
	}
	return found
}

// oneOf returns a text that must be one of the names.
func oneOf[T ~string](r *reader, member string, names ...T) T {
	text := T(r.text(member, true))
	if r.err == nil && !slices.Contains(names, text) {
		quoted := make([]string, len(names))
		for i, name := range names {
			quoted[i] = string(name)
		}
		r.fail(member, "must be one of %s", strings.Join(quoted, ", "))
	}
	return text
}

// validBase64 reports whether text is base64 of either alphabet, with or without padding, as in protobuf's JSON.
func validBase64(text string) bool {
	plain := strings.TrimRight(strings.NewReplacer("-", "+", "_", "/").Replace(text), "=")
	_, err := base64.RawStdEncoding.DecodeString(plain)
	return err == nil && len(text)-len(plain) <= 2
}

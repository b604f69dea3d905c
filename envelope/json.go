package envelope

import (
	"bytes"
	"encoding/json"
	"errors"
	"iter"
	"unicode/utf8"

	"github.com/gowebpki/jcs"
)

// Canonicalize returns the RFC 8785 form of text. It accepts I-JSON (RFC 7493) only: no duplicate member, no lone
// surrogate, no invalid UTF-8, nothing after the value, and no number beyond a double's range. It also refuses more
// than MaxCostlyNumbers costly numbers, as every implementation does.
// The error is an *Error with CodeInvalidRequest that says what is wrong and, where it can, at which byte.
func Canonicalize(text []byte) ([]byte, error) {
	if len(text) == 0 {
		return nil, Errorf(CodeInvalidRequest, "the body is empty; send one JSON object")
	}
	plain, taken, err := takeCostly(text)
	if err != nil {
		return nil, err
	}
	canonical, err := jcs.Transform(plain)
	if err != nil {
		return nil, explain(text)
	}
	return putCostly(canonical, taken), nil
}

// explain finds words of our own for why text is not I-JSON; jcs's errors quote the input and give no position.
func explain(text []byte) error {
	if bytes.HasPrefix(text, []byte("\xef\xbb\xbf")) {
		return Errorf(CodeInvalidRequest, "the JSON starts with a byte order mark; send plain UTF-8")
	}
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && size == 1 {
			return Errorf(CodeInvalidRequest, "invalid UTF-8 at byte %d", i)
		}
		i += size
	}
	if syntax, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(text, new(json.RawMessage))); ok {
		return Errorf(CodeInvalidRequest, "not valid JSON at byte %d", syntax.Offset)
	}
	return Errorf(CodeInvalidRequest, "the JSON is not I-JSON (RFC 7493): it has a member name twice in one object, "+
		"half of a surrogate pair, or a number beyond the range of a double")
}

// depth returns how deep arrays and objects nest in text, without parsing it: one pass that only skips strings. For
// text that is not JSON the number means nothing, but it bounds what a parser of it would recurse.
func depth(text []byte) (deepest int) {
	level, inString := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			level++
			deepest = max(deepest, level)
		case c == '}' || c == ']':
			level--
		}
	}
	return deepest
}

// What follows reads canonical text, and nothing else: no whitespace, valid by construction. Names are compared as
// exact bytes, never folded (encoding/json takes "Sender" and "ſender" for "sender").

// members yields the members of a canonical object in order: the name as it stands between its quotes, and the value.
// Any other value has none.
func members(object []byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for i := 1; isObject(object) && i < len(object) && object[i] == '"'; {
			nameEnd := valueEnd(object, i)
			end := valueEnd(object, nameEnd+1)
			if !yield(string(object[i+1:nameEnd-1]), object[nameEnd+1:end]) {
				return
			}
			i = end + 1
		}
	}
}

// member returns the value of one member of a canonical object, nil if it has none of that name.
func member(object []byte, name string) []byte {
	for n, value := range members(object) {
		if n == name {
			return value
		}
	}
	return nil
}

// elements yields the elements of a canonical array.
func elements(array []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := 1; i < len(array) && array[i] != ']'; {
			end := valueEnd(array, i)
			if !yield(array[i:end]) {
				return
			}
			i = end + 1
		}
	}
}

// valueEnd returns the index just after the value that starts at i.
func valueEnd(text []byte, i int) int {
	level := 0
	for ; i < len(text); i++ {
		switch text[i] {
		case '"':
			if i = stringEnd(text, i); level == 0 {
				return i
			}
			i--
		case '{', '[':
			level++
		case '}', ']':
			if level == 0 {
				return i
			}
			if level--; level == 0 {
				return i + 1
			}
		case ',':
			if level == 0 {
				return i
			}
		}
	}
	return i
}

// stringEnd returns the index behind the string whose opening quote is at i.
func stringEnd(text []byte, i int) int {
	for i++; ; i++ {
		i += bytes.IndexByte(text[i:], '"')
		slashes := 0
		for text[i-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 { // of an odd number, the last escapes the quote
			return i + 1
		}
	}
}

func isObject(value []byte) bool { return len(value) > 0 && value[0] == '{' }

// stringValue returns the text of a canonical string; ok is false if value is no string.
func stringValue(value []byte) (text string, ok bool) {
	if len(value) < 2 || value[0] != '"' {
		return "", false
	}
	inner := value[1 : len(value)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return string(inner), true
	}
	err := json.Unmarshal(value, &text)
	return text, err == nil
}

// wholeNumber returns a canonical number that is a whole one from 0 to max. RFC 8785 writes 300, 300.0 and 3e2 alike,
// which is why only canonical text may be asked.
func wholeNumber(value []byte, max int64) (n int64, ok bool) {
	if len(value) == 0 {
		return 0, false
	}
	for _, c := range value {
		if c < '0' || c > '9' || n > max/10 {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, n <= max
}

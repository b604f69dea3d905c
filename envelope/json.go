package envelope

import (
	"bytes"
	"encoding/json"
	"errors"
	"iter"
	"unicode/utf8"

	"github.com/gowebpki/jcs"
)

// Canonicalize returns the RFC 8785 form of text. It accepts only I-JSON (RFC 7493): no duplicate member, no unpaired
// surrogate, no invalid UTF-8, nothing after the value, and no number that is too large for a double. It also refuses
// more than MaxCostlyNumbers costly numbers, as every implementation must.
// The error is an *Error with CodeInvalidRequest. It says what is wrong and, if possible, at which byte.
func Canonicalize(text []byte) ([]byte, error) {
	if len(text) == 0 {
		return nil, Errorf(CodeInvalidRequest, "the body is empty; send one JSON object")
	}
	plain, replaced, err := replaceCostly(text)
	if err != nil {
		return nil, err
	}
	canonical, err := jcs.Transform(plain)
	if err != nil {
		return nil, explain(text)
	}
	return restoreCostly(canonical, replaced), nil
}

// explain returns an error that says why text is not I-JSON. The errors of jcs are not used, because they quote the
// input and give no position.
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
	return Errorf(CodeInvalidRequest, "the JSON is not I-JSON (RFC 7493): an object has the same member name twice, "+
		"a string has half of a surrogate pair, or a number is too large for a double")
}

// Depth returns how deep arrays and objects are nested in text. It makes one pass, skips strings and does not parse. If
// text is not JSON, the result is still an upper bound for the recursion of a parser.
func Depth(text []byte) (deepest int) {
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

// The functions below read canonical text only: valid JSON without whitespace. They compare names byte by byte.
// (encoding/json ignores case, so it takes "Sender" and "ſender" for "sender".)

// members yields the members of a canonical object in order: the name as written between its quotes, escapes included,
// and the value. It yields nothing if object is not an object.
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

// member returns the value of the member with this name in a canonical object, or nil if there is none.
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

// valueEnd returns the index after the value that starts at i.
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

// stringEnd returns the index after the string whose opening quote is at i.
func stringEnd(text []byte, i int) int {
	for i++; ; i++ {
		i += bytes.IndexByte(text[i:], '"')
		slashes := 0
		for text[i-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 { // the last of an odd number of backslashes escapes the quote
			return i + 1
		}
	}
}

func isObject(value []byte) bool { return len(value) > 0 && value[0] == '{' }

// stringValue returns the text of a canonical string. ok is false if value is not a string.
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

// wholeNumber returns the value of a canonical number that is an integer from 0 to max. value must be canonical: RFC
// 8785 writes 300, 300.0 and 3e2 all as 300.
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

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// canonical returns the RFC 8785 form of a JSON text. It is independent of the implementation under test, and lenient:
// of two members with the same name it takes the last one, and it replaces invalid characters by U+FFFD. So texts that
// must be refused can have the signature that a lenient parser would expect, and no second fault.
func canonical(text []byte) []byte {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		panic(fmt.Sprintf("a table of this package has invalid JSON: %.200q: %v", text, err))
	}
	return appendValue(nil, value)
}

func appendValue(out []byte, value any) []byte {
	switch value := value.(type) {
	case nil:
		return append(out, "null"...)
	case bool:
		return strconv.AppendBool(out, value)
	case json.Number:
		return append(out, ecmaNumber(string(value))...)
	case string:
		return appendString(out, value)
	case []any:
		out = append(out, '[')
		for i, element := range value {
			if i > 0 {
				out = append(out, ',')
			}
			out = appendValue(out, element)
		}
		return append(out, ']')
	case map[string]any:
		names := make([]string, 0, len(value))
		for name := range value {
			names = append(names, name)
		}
		slices.SortFunc(names, func(a, b string) int {
			return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
		})
		out = append(out, '{')
		for i, name := range names {
			if i > 0 {
				out = append(out, ',')
			}
			out = append(appendString(out, name), ':')
			out = appendValue(out, value[name])
		}
		return append(out, '}')
	}
	panic(fmt.Sprintf("not a JSON value: %T", value))
}

func appendString(out []byte, text string) []byte {
	const short = "\b\t\n\f\r\"\\"
	out = append(out, '"')
	for _, r := range text {
		switch i := strings.IndexRune(short, r); {
		case i >= 0:
			out = append(out, '\\', `btnfr"\`[i])
		case r < ' ':
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			out = append(out, string(r)...)
		}
	}
	return append(out, '"')
}

// ecmaNumber formats a number like ECMAScript's Number.prototype.toString: with the fewest digits that identify the
// double, and with an exponent from 1e21 up and below 1e-6. A number too large for a double becomes null, as in
// JSON.stringify.
func ecmaNumber(text string) string {
	number, _ := strconv.ParseFloat(text, 64)
	if math.IsInf(number, 0) {
		return "null"
	}
	if number == 0 {
		return "0" // also for minus zero
	}
	if size := math.Abs(number); size >= 1e-6 && size < 1e21 {
		return strconv.FormatFloat(number, 'f', -1, 64)
	}
	digits, exponent, _ := strings.Cut(strconv.FormatFloat(number, 'e', -1, 64), "e")
	return digits + "e" + exponent[:1] + strings.TrimLeft(exponent[1:], "0")
}

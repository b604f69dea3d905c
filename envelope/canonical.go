package envelope

import "unicode/utf8"

// isCanonical reports whether text is certainly one JSON value in RFC 8785 form, nested no deeper than MaxDepth.
// Programs that sign the canonical form usually send it. isCanonical makes one pass and accepts only simple texts. It
// returns false for names that are not ASCII or have escapes, and for numbers with an exponent or more than 15 digits,
// even if they are canonical. So false means "not known", and the canonicalizer decides. isCanonical never allocates.
func isCanonical(text []byte) bool {
	end, ok := canonicalValue(text, 0, 0)
	return ok && end == len(text)
}

// canonicalValue returns the index after the value that starts at i.
func canonicalValue(text []byte, i, depth int) (end int, ok bool) {
	if i >= len(text) {
		return 0, false
	}
	switch c := text[i]; c {
	case '{':
		return canonicalObject(text, i+1, depth+1)
	case '[':
		return canonicalArray(text, i+1, depth+1)
	case '"':
		return canonicalString(text, i+1)
	case 't':
		return literal(text, i, "true")
	case 'f':
		return literal(text, i, "false")
	case 'n':
		return literal(text, i, "null")
	default:
		return canonicalNumber(text, i)
	}
}

func literal(text []byte, i int, word string) (end int, ok bool) {
	end = i + len(word)
	return end, end <= len(text) && string(text[i:end]) == word
}

// canonicalObject reads an object; i is the index after its opening brace. RFC 8785 sorts names by UTF-16 code units.
// For ASCII names that is the order of their bytes.
func canonicalObject(text []byte, i, depth int) (end int, ok bool) {
	if depth > MaxDepth || i >= len(text) {
		return 0, false
	}
	if text[i] == '}' {
		return i + 1, true
	}
	var last []byte
	for first := true; ; first = false {
		if i >= len(text) || text[i] != '"' {
			return 0, false
		}
		name := i + 1
		for i = name; i < len(text) && plain(text[i]); i++ {
		}
		if i+1 >= len(text) || text[i] != '"' || text[i+1] != ':' || !first && string(text[name:i]) <= string(last) {
			return 0, false
		}
		last = text[name:i]
		if i, ok = canonicalValue(text, i+2, depth); !ok || i >= len(text) {
			return 0, false
		}
		switch text[i] {
		case '}':
			return i + 1, true
		case ',':
			i++
		default:
			return 0, false
		}
	}
}

func canonicalArray(text []byte, i, depth int) (end int, ok bool) {
	if depth > MaxDepth || i >= len(text) {
		return 0, false
	}
	if text[i] == ']' {
		return i + 1, true
	}
	for {
		if i, ok = canonicalValue(text, i, depth); !ok || i >= len(text) {
			return 0, false
		}
		switch text[i] {
		case ']':
			return i + 1, true
		case ',':
			i++
		default:
			return 0, false
		}
	}
}

// plain reports whether c is an ASCII character that a JSON string holds without an escape.
func plain(c byte) bool { return c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' }

// canonicalString reads a string; i is the index after its opening quote.
func canonicalString(text []byte, i int) (end int, ok bool) {
	for i < len(text) {
		switch c := text[i]; {
		case plain(c):
			i++
		case c == '"':
			return i + 1, true
		case c == '\\':
			if i, ok = canonicalEscape(text, i+1); !ok {
				return 0, false
			}
		case c < ' ':
			return 0, false
		default:
			r, size := utf8.DecodeRune(text[i:])
			if r == utf8.RuneError && size == 1 {
				return 0, false
			}
			i += size
		}
	}
	return 0, false
}

// canonicalEscape reads an escape; i is the index after its backslash. The canonical form escapes only the characters
// that need it, with the short escape if there is one (RFC 8785 §3.2.2.2).
func canonicalEscape(text []byte, i int) (end int, ok bool) {
	if i >= len(text) {
		return 0, false
	}
	switch text[i] {
	case '"', '\\', 'b', 'f', 'n', 'r', 't':
		return i + 1, true
	case 'u':
	default:
		return 0, false
	}
	if i+5 > len(text) || string(text[i+1:i+3]) != "00" || text[i+3] != '0' && text[i+3] != '1' {
		return 0, false
	}
	low := text[i+4]
	if text[i+3] == '0' && (low == '8' || low == '9' || low == 'a' || low == 'c' || low == 'd') {
		return 0, false
	}
	return i + 5, low >= '0' && low <= '9' || low >= 'a' && low <= 'f'
}

// canonicalNumber accepts integers and decimal fractions that are already the shortest text of their double. These are
// numbers of up to 15 digits without superfluous zeros at the start or the end. Numbers below 1e-6 are not accepted,
// because their canonical form has an exponent.
func canonicalNumber(text []byte, i int) (end int, ok bool) {
	negative := text[i] == '-'
	if negative {
		i++
	}
	whole := i
	for i < len(text) && digit(text[i]) {
		i++
	}
	digits := i - whole
	if digits == 0 || digits > 1 && text[whole] == '0' {
		return 0, false
	}
	zero := text[whole] == '0'
	if i < len(text) && text[i] == '.' {
		fraction := i + 1
		for i = fraction; i < len(text) && digit(text[i]); i++ {
		}
		if i == fraction || text[i-1] == '0' || zero && i-fraction > 5 && string(text[fraction:fraction+6]) == "000000" {
			return 0, false
		}
		digits += i - fraction
		zero = false
	}
	exponent := i < len(text) && (text[i] == 'e' || text[i] == 'E')
	return i, digits <= 15 && !exponent && !(zero && negative)
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

package envelope

import (
	"bytes"
	"slices"
)

// arrange returns the RFC 8785 form of text if text differs from that form only in whitespace and in the order of
// members. Programs that pretty-print JSON, or write it from a hash table, send such bodies. arrange accepts only the
// plain strings and numbers that isCanonical accepts. All other text is left to the canonicalizer, so ok == false means
// "not known", not "invalid".
func arrange(text []byte) (canonical []byte, ok bool) {
	a := arranger{text: text, out: make([]byte, 0, len(text))}
	end, ok := a.value(a.skipSpace(0), 0)
	return a.out, ok && a.skipSpace(end) == len(text)
}

type arranger struct {
	text, out []byte
	members   []span // of the objects that are being read, outermost object first
	spare     []byte
}

// span is a member in the output: its name, and the range of the output that it occupies.
type span struct {
	name     []byte
	from, to int
}

// skipSpace returns the index of the first byte at or after i that is not whitespace.
func (a *arranger) skipSpace(i int) int {
	for i < len(a.text) && (a.text[i] == ' ' || a.text[i] == '\n' || a.text[i] == '\t' || a.text[i] == '\r') {
		i++
	}
	return i
}

// hasByte reports whether the byte at index i is c.
func (a *arranger) hasByte(i int, c byte) bool { return i < len(a.text) && a.text[i] == c }

// value writes the value that starts at i. It returns the index after the value.
func (a *arranger) value(i, depth int) (end int, ok bool) {
	switch {
	case a.hasByte(i, '{'):
		return a.object(i+1, depth+1)
	case a.hasByte(i, '['):
		return a.array(i+1, depth+1)
	}
	if end, ok = canonicalValue(a.text, i, depth); ok {
		a.out = append(a.out, a.text[i:end]...)
	}
	return end, ok
}

func (a *arranger) array(i, depth int) (end int, ok bool) {
	if depth > MaxDepth {
		return 0, false
	}
	a.out = append(a.out, '[')
	if i = a.skipSpace(i); a.hasByte(i, ']') {
		a.out = append(a.out, ']')
		return i + 1, true
	}
	for {
		if i, ok = a.value(a.skipSpace(i), depth); !ok {
			return 0, false
		}
		switch i = a.skipSpace(i); {
		case a.hasByte(i, ','):
			a.out = append(a.out, ',')
			i++
		case a.hasByte(i, ']'):
			a.out = append(a.out, ']')
			return i + 1, true
		default:
			return 0, false
		}
	}
}

func (a *arranger) object(i, depth int) (end int, ok bool) {
	if depth > MaxDepth {
		return 0, false
	}
	a.out = append(a.out, '{')
	if i = a.skipSpace(i); a.hasByte(i, '}') {
		a.out = append(a.out, '}')
		return i + 1, true
	}
	for first := len(a.members); ; {
		if i, ok = a.member(a.skipSpace(i), depth); !ok {
			return 0, false
		}
		switch i = a.skipSpace(i); {
		case a.hasByte(i, ','):
			a.out = append(a.out, ',')
			i++
		case a.hasByte(i, '}'):
			ok = a.sort(a.members[first:])
			a.members = a.members[:first]
			a.out = append(a.out, '}')
			return i + 1, ok
		default:
			return 0, false
		}
	}
}

// member writes the member whose name has its opening quote at i. It returns the index after the member.
func (a *arranger) member(i, depth int) (end int, ok bool) {
	if !a.hasByte(i, '"') {
		return 0, false
	}
	from, name := len(a.out), i+1
	for i = name; i < len(a.text) && plain(a.text[i]); i++ {
	}
	colon := a.skipSpace(i + 1)
	if !a.hasByte(i, '"') || !a.hasByte(colon, ':') {
		return 0, false
	}
	a.out = append(append(a.out, a.text[name-1:i+1]...), ':')
	if end, ok = a.value(a.skipSpace(colon+1), depth); ok {
		a.members = append(a.members, span{a.text[name:i], from, len(a.out)})
	}
	return end, ok
}

// sort sorts the members of one object by name. The members must be the end of the output. ok is false if two members
// have the same name.
func (a *arranger) sort(members []span) (ok bool) {
	start := members[0].from
	byName := func(x, y span) int { return bytes.Compare(x.name, y.name) }
	if !slices.IsSortedFunc(members, byName) {
		a.spare = append(a.spare[:0], a.out[start:]...)
		slices.SortFunc(members, byName)
		a.out = a.out[:start]
		for n, m := range members {
			if n > 0 {
				a.out = append(a.out, ',')
			}
			a.out = append(a.out, a.spare[m.from-start:m.to-start]...)
		}
	}
	for n := 1; n < len(members); n++ {
		if bytes.Equal(members[n-1].name, members[n].name) {
			return false
		}
	}
	return true
}

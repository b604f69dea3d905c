package envelope

import (
	"bytes"
	"slices"
)

// arrange returns the RFC 8785 form of text if the two differ in nothing but whitespace and the order of members, as
// with bodies that a program has printed for people or written from a hash table. Like isCanonical, whose plain strings
// and numbers it takes, it leaves everything else to the canonicalizer: false means "not known".
func arrange(text []byte) (canonical []byte, ok bool) {
	a := arranger{text: text, out: make([]byte, 0, len(text))}
	end, ok := a.value(a.space(0), 0)
	return a.out, ok && a.space(end) == len(text)
}

type arranger struct {
	text, out []byte
	members   []span // of the objects that are open, the outermost's first
	spare     []byte
}

// span is a member in the output: its name, and where it stands.
type span struct {
	name     []byte
	from, to int
}

// space returns the index of what comes behind whitespace from i on.
func (a *arranger) space(i int) int {
	for i < len(a.text) && (a.text[i] == ' ' || a.text[i] == '\n' || a.text[i] == '\t' || a.text[i] == '\r') {
		i++
	}
	return i
}

// at reports whether c stands at i.
func (a *arranger) at(i int, c byte) bool { return i < len(a.text) && a.text[i] == c }

// value writes the value that starts at i and returns the index behind it.
func (a *arranger) value(i, depth int) (end int, ok bool) {
	switch {
	case a.at(i, '{'):
		return a.object(i+1, depth+1)
	case a.at(i, '['):
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
	if i = a.space(i); a.at(i, ']') {
		a.out = append(a.out, ']')
		return i + 1, true
	}
	for {
		if i, ok = a.value(a.space(i), depth); !ok {
			return 0, false
		}
		switch i = a.space(i); {
		case a.at(i, ','):
			a.out = append(a.out, ',')
			i++
		case a.at(i, ']'):
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
	if i = a.space(i); a.at(i, '}') {
		a.out = append(a.out, '}')
		return i + 1, true
	}
	for first := len(a.members); ; {
		if i, ok = a.member(a.space(i), depth); !ok {
			return 0, false
		}
		switch i = a.space(i); {
		case a.at(i, ','):
			a.out = append(a.out, ',')
			i++
		case a.at(i, '}'):
			ok = a.sort(a.members[first:])
			a.members = a.members[:first]
			a.out = append(a.out, '}')
			return i + 1, ok
		default:
			return 0, false
		}
	}
}

// member writes the member whose name's quote is at i.
func (a *arranger) member(i, depth int) (end int, ok bool) {
	if !a.at(i, '"') {
		return 0, false
	}
	from, name := len(a.out), i+1
	for i = name; i < len(a.text) && plain(a.text[i]); i++ {
	}
	colon := a.space(i + 1)
	if !a.at(i, '"') || !a.at(colon, ':') {
		return 0, false
	}
	a.out = append(append(a.out, a.text[name-1:i+1]...), ':')
	if end, ok = a.value(a.space(colon+1), depth); ok {
		a.members = append(a.members, span{a.text[name:i], from, len(a.out)})
	}
	return end, ok
}

// sort brings the members of an object, which end the output, into their order. false: two have one name.
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

package bench

import (
	"bytes"
	"encoding/json"
	"errors"
)

// page is an answer to GET /events. Its events are slices of the answer's body.
type page struct {
	events [][]byte
	cursor string
	more   bool // there are more events after cursor
}

var errPage = errors.New("the answer is no page of events")

// parsePage reads a page without decoding its events, at a fraction of encoding/json's cost. It does not find syntax
// errors inside an event. Those are found when the event is compared with the posted bytes. parsePage reuses the memory
// of p.events.
func parsePage(body []byte, p page) (page, error) {
	p = page{events: p.events[:0]}
	pos := skipSpace(body, 0)
	if pos == len(body) || body[pos] != '{' {
		return p, errPage
	}
	seen := false
	for pos = skipSpace(body, pos+1); pos < len(body) && body[pos] == '"'; {
		end := valueEnd(body, pos)
		name := body[pos:end]
		if pos = skipSpace(body, end); pos == len(body) || body[pos] != ':' {
			return p, errPage
		}
		pos = skipSpace(body, pos+1)
		from := pos
		if string(name) == `"events"` {
			seen = true
			pos = p.takeEvents(body, pos)
		} else {
			pos = valueEnd(body, pos)
		}
		value := body[from:pos]
		switch string(name) {
		case `"cursor"`:
			if json.Unmarshal(value, &p.cursor) != nil {
				return p, errPage
			}
		case `"hasMore"`:
			p.more = string(value) == "true"
		}
		if pos = skipSpace(body, pos); pos < len(body) && body[pos] == ',' {
			pos = skipSpace(body, pos+1)
		}
	}
	if pos != len(body)-1 && skipSpace(body, min(pos+1, len(body))) != len(body) || pos >= len(body) ||
		body[pos] != '}' || !seen || p.cursor == "" {
		return p, errPage
	}
	return p, nil
}

// takeEvents adds the elements of the array at body[pos] to p.events. It returns the index after the array, or
// len(body) if there is no array.
func (p *page) takeEvents(body []byte, pos int) int {
	if pos == len(body) || body[pos] != '[' {
		return len(body)
	}
	pos = skipSpace(body, pos+1)
	for pos < len(body) && body[pos] != ']' {
		end := valueEnd(body, pos)
		p.events = append(p.events, body[pos:end])
		if pos = skipSpace(body, end); pos < len(body) && body[pos] == ',' {
			pos = skipSpace(body, pos+1)
		}
	}
	return min(pos+1, len(body))
}

func skipSpace(b []byte, pos int) int {
	for pos < len(b) && (b[pos] == ' ' || b[pos] == '\n' || b[pos] == '\r' || b[pos] == '\t') {
		pos++
	}
	return pos
}

// valueEnd returns the index after the JSON value at b[pos]. It does not check that brackets match. If pos is in b, the
// result is greater than pos.
func valueEnd(b []byte, pos int) int {
	depth := 0
	for i := pos; i < len(b); i++ {
		switch b[i] {
		case '"':
			if i = stringEnd(b, i); depth == 0 {
				return min(i+1, len(b))
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth <= 0 {
				return max(i+depth+1, pos+1) // leave out a bracket that belongs to the enclosing value
			}
		case ',', ' ', '\n', '\r', '\t', ':':
			if depth == 0 {
				return max(i, pos+1)
			}
		}
	}
	return len(b)
}

// stringEnd returns the index of the quote that ends the string at b[pos], or len(b) if there is none.
func stringEnd(b []byte, pos int) int {
	for i := pos + 1; ; i++ {
		quote := bytes.IndexByte(b[i:], '"')
		if quote < 0 {
			return len(b)
		}
		i += quote
		slashes := 0
		for b[i-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return i
		}
	}
}

// isReceipt checks the body of an answer with status 200. It returns "" if the body is a receipt for a new event with
// this id. Otherwise it returns the reason why not.
func isReceipt(body, id []byte) (why string) {
	// This is the form in which the relay of this project writes a receipt. Receipts in another form are decoded.
	if rest, ok := bytes.CutPrefix(body, []byte(`{"ok":true,"id":"msg_`)); ok {
		if rest, ok = bytes.CutPrefix(rest, id); ok {
			if rest, ok = bytes.CutPrefix(rest, []byte(`","cursor":"`)); ok {
				if end := bytes.IndexByte(rest, '"'); end >= 0 &&
					bytes.HasPrefix(rest[end:], []byte(`","duplicate":false,"expiresAt":"`)) {
					return ""
				}
			}
		}
	}
	receipt, err := decodeReceipt(body)
	switch {
	case err != nil || !receipt.OK:
		return "answered 200 without a receipt"
	case receipt.ID != "msg_"+string(id):
		return "answered 200 with another id"
	case receipt.Duplicate:
		return "answered as a duplicate, but posted for the first time"
	}
	return ""
}

// receipt is the answer to an accepted post.
type receipt struct {
	OK        bool   `json:"ok"`
	ID        string `json:"id"`
	Cursor    string `json:"cursor"`
	Duplicate bool   `json:"duplicate"`
}

func decodeReceipt(body []byte) (r receipt, err error) {
	err = json.Unmarshal(body, &r)
	return r, err
}

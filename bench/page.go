package bench

import (
	"bytes"
	"encoding/json"
	"errors"
)

// page is an answer to GET /events. Its events are parts of the answer.
type page struct {
	events [][]byte
	cursor string
	more   bool
}

var errPage = errors.New("the answer is no page of events")

// parsePage reads a page without decoding its events, at a fraction of encoding/json's cost. What is malformed inside
// an event is noticed when it is compared with what was posted. The events use p's memory.
func parsePage(body []byte, p page) (page, error) {
	p = page{events: p.events[:0]}
	at := skipSpace(body, 0)
	if at == len(body) || body[at] != '{' {
		return p, errPage
	}
	seen := false
	for at = skipSpace(body, at+1); at < len(body) && body[at] == '"'; {
		end := valueEnd(body, at)
		name := body[at:end]
		if at = skipSpace(body, end); at == len(body) || body[at] != ':' {
			return p, errPage
		}
		at = skipSpace(body, at+1)
		from := at
		if string(name) == `"events"` {
			seen = true
			at = p.takeEvents(body, at)
		} else {
			at = valueEnd(body, at)
		}
		value := body[from:at]
		switch string(name) {
		case `"cursor"`:
			if json.Unmarshal(value, &p.cursor) != nil {
				return p, errPage
			}
		case `"hasMore"`:
			p.more = string(value) == "true"
		}
		if at = skipSpace(body, at); at < len(body) && body[at] == ',' {
			at = skipSpace(body, at+1)
		}
	}
	if at != len(body)-1 && skipSpace(body, min(at+1, len(body))) != len(body) || at >= len(body) || body[at] != '}' || !seen || p.cursor == "" {
		return p, errPage
	}
	return p, nil
}

// takeEvents collects the elements of the array at body[at] and returns where it ends.
func (p *page) takeEvents(body []byte, at int) int {
	if at == len(body) || body[at] != '[' {
		return len(body)
	}
	at = skipSpace(body, at+1)
	for at < len(body) && body[at] != ']' {
		end := valueEnd(body, at)
		p.events = append(p.events, body[at:end])
		if at = skipSpace(body, end); at < len(body) && body[at] == ',' {
			at = skipSpace(body, at+1)
		}
	}
	return min(at+1, len(body))
}

func skipSpace(b []byte, at int) int {
	for at < len(b) && (b[at] == ' ' || b[at] == '\n' || b[at] == '\r' || b[at] == '\t') {
		at++
	}
	return at
}

// valueEnd returns where the JSON value at b[at] ends, taking its brackets on trust; always behind at, if at is in b.
func valueEnd(b []byte, at int) int {
	depth := 0
	for i := at; i < len(b); i++ {
		switch b[i] {
		case '"':
			if i = stringEnd(b, i); depth == 0 {
				return min(i+1, len(b))
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth <= 0 {
				return max(i+depth+1, at+1) // a bracket that closes what is around the value is not its own
			}
		case ',', ' ', '\n', '\r', '\t', ':':
			if depth == 0 {
				return max(i, at+1)
			}
		}
	}
	return len(b)
}

// stringEnd returns where the quote is that ends the string at b[at].
func stringEnd(b []byte, at int) int {
	for i := at + 1; ; i++ {
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

// isReceipt reports whether body, of an answer 200, says that the envelope id was stored just now. If not, why.
func isReceipt(body, id []byte) (why string) {
	// The form our relay has. Any other is decoded.
	if rest, ok := bytes.CutPrefix(body, []byte(`{"ok":true,"id":"msg_`)); ok {
		if rest, ok = bytes.CutPrefix(rest, id); ok {
			if rest, ok = bytes.CutPrefix(rest, []byte(`","cursor":"`)); ok {
				if end := bytes.IndexByte(rest, '"'); end >= 0 && bytes.HasPrefix(rest[end:], []byte(`","duplicate":false,"expiresAt":"`)) {
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
		return "answered as a duplicate at its first post"
	}
	return ""
}

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

package httpapi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"iter"
	"net/http"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// sendBytes is how many bytes of a long answer are collected before they are sent.
const sendBytes = 32 << 10

// List is an answer with a list that may be long (GATEWAYS, G-33).
type List struct {
	Head string // the JSON text before the elements
	// Elements yields JSON texts. Each is one element, or several with commas between them. An error ends the list.
	Elements iter.Seq2[[]byte, error]
	Raw      bool   // Elements has the commas too, so an element may be any part of the text
	Type     string // the header Content-Type; empty: application/json
	// Tail returns the JSON text after the elements. It is called after the last element.
	Tail func() string
}

// WriteList answers a request with a list and the status 200. It sends a long list in parts, without a Content-Length. So
// only one part of it is in memory, also while a slow client reads. It stops when the client has left. If an element
// cannot be read, WriteList returns the error, as long as nothing was sent. After that it breaks the connection, so that
// the client does not take the part for the whole.
func WriteList(w http.ResponseWriter, l List) error {
	var part bytes.Buffer
	part.WriteString(l.Head)
	begun, sent := false, false
	for element, err := range l.Elements {
		switch {
		case err != nil && !sent:
			return err
		case err != nil:
			panic(cutOff{err})
		}
		if begun && !l.Raw {
			part.WriteByte(',')
		}
		part.Write(element)
		begun = true
		if part.Len() < sendBytes {
			continue
		}
		if sent {
			ExtendWrite(w)
		} else {
			SetHeader(w, cmp.Or(l.Type, contentJSON))
			sent = true
		}
		if _, err := w.Write(part.Bytes()); err != nil {
			return nil // the client has left
		}
		part.Reset()
	}
	part.WriteString(l.Tail())
	if sent {
		ExtendWrite(w)
		send(w, part.Bytes())
	} else {
		write(w, http.StatusOK, cmp.Or(l.Type, contentJSON), part.Bytes())
	}
	return nil
}

// cutOff is the value of the panic that ends a list whose next elements cannot be read.
type cutOff struct{ err error }

// breakOff ends a request after a panic with value p, if its connection must be broken. It logs why a list was cut off,
// unless the client has caused that: it has left, or it was banned meanwhile.
func (s *site) breakOff(r *http.Request, p any) {
	if c, isList := p.(cutOff); isList {
		if r.Context().Err() == nil && envelope.CodeOf(c.err) != envelope.CodeForbidden {
			s.log.Error("an answer was cut off because its next elements cannot be read", "path", s.loggedPath(r), "err", c.err)
		}
		p = http.ErrAbortHandler
	}
	if p == http.ErrAbortHandler {
		panic(p)
	}
}

// answerEvents writes the events of d, and after them the members of last, which must be a JSON object.
func (a *api) answerEvents(w http.ResponseWriter, d relay.Delivery, last any) error {
	tail, err := json.Marshal(last)
	if err != nil {
		return err
	}
	return WriteList(w, List{Head: `{"ok":true,"events":[`,
		Elements: elements(d.Pieces(), func(e relay.Event) []byte { return e.Body }),
		Tail:     func() string { return "]," + string(tail[1:]) + "\n" }})
}

// elements yields the bytes of each element of the pieces. They are the canonical bytes that were signed, which are never
// encoded again. It ends after the first error.
func elements[T any](pieces iter.Seq2[[]T, error], bytes func(T) []byte) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for piece, err := range pieces {
			if err != nil {
				yield(nil, err)
				return
			}
			for _, element := range piece {
				if !yield(bytes(element), nil) {
					return
				}
			}
		}
	}
}

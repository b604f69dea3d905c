// Package chain says what each message of a thread answers, and whether a message belongs to the same thread as those
// that are known (RELAYS §2). It does no I/O.
package chain

import (
	"errors"
	"fmt"
	"slices"

	"github.com/agora-relay/agora/envelope"
)

// Links are what the messages of a thread say about their place in it: the home of the thread, and the message that
// each one answers (RELAYS §2). A party knows the messages that it has sent or seen. nil: it does not know one.
type Links struct {
	Request, Offer, Accept *envelope.Envelope
}

// home returns the home of the thread; nil: it has none. known is false if no message of the thread is known.
func (l Links) home() (home *envelope.Home, known bool) {
	for _, e := range []*envelope.Envelope{l.Request, l.Accept, l.Offer} {
		if e != nil {
			return e.Home, true
		}
	}
	return nil, false
}

// re returns what a message of this type answers (RELAYS R-6); nil: it is not known.
func (l Links) re(t envelope.Type) *envelope.Envelope {
	switch t {
	case envelope.TypeOffer:
		return l.Request
	case envelope.TypeAccept:
		return l.Offer
	case envelope.TypeResult:
		return l.Accept
	case envelope.TypeCancel, envelope.TypeError:
		if l.Accept != nil {
			return l.Accept
		}
		return l.Request
	}
	return nil
}

// Join makes d a message of the thread: it gets the home, and the hash of the message that it answers. A thread without
// a home stays as it is.
func (l Links) Join(d envelope.Draft) envelope.Draft {
	home, _ := l.home()
	if d.Home = home; home == nil {
		return d
	}
	if re := l.re(envelope.TypeOf(d.Payload)); re != nil {
		d.Re = re.Hash()
	}
	return d
}

// Check returns an error if e cannot be a message of this thread, because it names another home, or does not name the
// message that it answers (RELAYS ). What is not known is not checked.
func (l Links) Check(e *envelope.Envelope) error {
	home, known := l.home()
	if !known {
		return nil
	}
	if (home == nil) != (e.Home == nil) || home != nil && *home != *e.Home {
		return errors.New("its meta.home is not that of the REQUEST")
	}
	if e.Re == (envelope.Hash{}) {
		if home == nil {
			return nil
		}
		return errors.New("it has no meta.re, and the thread has a home")
	}
	answered := []*envelope.Envelope{l.re(e.Type)}
	if e.Type == envelope.TypeCancel || e.Type == envelope.TypeError { // its sender may not have seen the ACCEPT
		answered = append(answered, l.Request)
	}
	answered = slices.DeleteFunc(answered, func(e *envelope.Envelope) bool { return e == nil })
	for _, one := range answered {
		if e.Re == one.Hash() {
			return nil
		}
	}
	if len(answered) == 0 {
		return nil
	}
	return fmt.Errorf("its meta.re is not the message that a %s of this thread answers", e.Type)
}

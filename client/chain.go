package client

import (
	"errors"
	"fmt"
	"slices"

	"github.com/agora-relay/agora/envelope"
)

// links are what the messages of a thread say about their place in it: the home of the thread, and the message that
// each one answers (RELAYS §2). A party knows the messages that it has sent or seen. nil: it does not know one.
type links struct {
	request, offer, accept *envelope.Envelope
}

// home returns the home of the thread; nil: it has none. known is false if no message of the thread is known.
func (l links) home() (home *envelope.Home, known bool) {
	for _, e := range []*envelope.Envelope{l.request, l.accept, l.offer} {
		if e != nil {
			return e.Home, true
		}
	}
	return nil, false
}

// re returns what a message of this type answers (RELAYS R-6); nil: it is not known.
func (l links) re(t envelope.Type) *envelope.Envelope {
	switch t {
	case envelope.TypeOffer:
		return l.request
	case envelope.TypeAccept:
		return l.offer
	case envelope.TypeResult:
		return l.accept
	case envelope.TypeCancel, envelope.TypeError:
		if l.accept != nil {
			return l.accept
		}
		return l.request
	}
	return nil
}

// join makes d a message of the thread: it gets the home, and the hash of the message that it answers. A thread without
// a home stays as it is.
func (l links) join(d envelope.Draft) envelope.Draft {
	home, _ := l.home()
	if d.Home = home; home == nil {
		return d
	}
	if re := l.re(envelope.TypeOf(d.Payload)); re != nil {
		d.Re = re.Hash()
	}
	return d
}

// check returns an error if e cannot be a message of this thread, because it names another home, or does not name the
// message that it answers (RELAYS ). What is not known is not checked.
func (l links) check(e *envelope.Envelope) error {
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
		answered = append(answered, l.request)
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

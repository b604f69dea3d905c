package cli

import (
	"bytes"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// The types in this file are values of flags and arguments. They are checked while the command line is parsed. So a
// wrong value is reported with the name of the flag, and the exit code is 2. The zero value means that the flag was not
// given.

// DIDText is a did:key. On the command line it can also be a name of the address book.
type DIDText didkey.DID

func (d *DIDText) UnmarshalText(text []byte) error {
	did, err := PersonDID(string(text))
	*d = DIDText(did)
	return err
}

// IDText is an id of a message or a thread.
type IDText string

func (i *IDText) UnmarshalText(text []byte) error {
	if !envelope.ValidID(string(text)) {
		return fmt.Errorf("want 1 to 128 letters, digits or ._:~-, the first a letter or a digit")
	}
	*i = IDText(text)
	return nil
}

// TypeText is a type of a message.
type TypeText envelope.Type

func (t *TypeText) UnmarshalText(text []byte) error {
	if *t = TypeText(text); !envelope.Type(text).Known() {
		var names []string
		for _, known := range envelope.Types() {
			names = append(names, string(known))
		}
		return fmt.Errorf("%q is not a message type, want one of %s%s", text, envelope.TypeNames(),
			DidYouMean(string(text), names))
	}
	return nil
}

// Lifetime is a whole number of seconds.
type Lifetime time.Duration

func (l *Lifetime) UnmarshalText(text []byte) error {
	d, err := ParseDuration(string(text))
	if err != nil || d < time.Second || d%time.Second != 0 {
		return fmt.Errorf("want whole seconds, at least one, such as 30s, 5m, 24h or 30d")
	}
	*l = Lifetime(d)
	return nil
}

// FutureTime is a time in the future.
type FutureTime time.Time

func (m *FutureTime) UnmarshalText(text []byte) error {
	t, ok := envelope.ParseTime(string(text))
	if !ok || t.Before(time.Now()) {
		return fmt.Errorf("want a time in the future, such as 2030-02-02T15:30:00Z")
	}
	*m = FutureTime(t)
	return nil
}

// PastTime is a time in the past. It can also be given as a duration until now.
type PastTime time.Time

func (p *PastTime) UnmarshalText(text []byte) error {
	now := time.Now()
	t, ok := envelope.ParseTime(string(text))
	if d, err := ParseDuration(string(text)); err == nil && d > 0 {
		t, ok = now.Add(-d), true
	}
	if !ok || t.After(now) {
		return fmt.Errorf("want a time in the past, such as 2026-02-02T15:30:00Z, or how long ago it was, such as 2h or 7d")
	}
	*p = PastTime(t)
	return nil
}

// SenderText is a sender of a relay or of one of its gateways: a did:key or a name of the address book, an address of the
// hub such as bob@relay.example, or the id of a channel, a slash and a name there.
type SenderText string

func (s *SenderText) UnmarshalText(text []byte) error {
	if strings.ContainsAny(string(text), "@/") {
		*s = SenderText(text)
		return nil
	}
	did, err := PersonDID(string(text))
	*s = SenderText(did)
	return err
}

// URLText is the URL of a relay. Of several, separated by spaces, it is the first: AGORA_RELAY and profiles may have
// several, and some commands use only one.
type URLText string

func (u *URLText) UnmarshalText(text []byte) error {
	text, _, _ = bytes.Cut(text, []byte{' '})
	parsed, err := url.Parse(string(text))
	if err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Host == "" {
		return fmt.Errorf("want the relay's URL, such as http://127.0.0.1:8789")
	}
	*u = URLText(text)
	return nil
}

// OriginText is the origin of a relay.
type OriginText string

func (o *OriginText) UnmarshalText(text []byte) error {
	origin, err := relay.ParseOrigin(string(text))
	*o = OriginText(origin)
	return err
}

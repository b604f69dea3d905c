package main

import (
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

// didText is a did:key. On the command line it can also be a name of the address book.
type didText didkey.DID

func (d *didText) UnmarshalText(text []byte) error {
	did, err := personDID(string(text))
	*d = didText(did)
	return err
}

type idText string

func (i *idText) UnmarshalText(text []byte) error {
	if !envelope.ValidID(string(text)) {
		return fmt.Errorf("want 1 to 128 letters, digits or ._:~-, the first a letter or a digit")
	}
	*i = idText(text)
	return nil
}

type typeText envelope.Type

func (t *typeText) UnmarshalText(text []byte) error {
	if *t = typeText(text); !envelope.Type(text).Known() {
		var names []string
		for _, known := range envelope.Types() {
			names = append(names, string(known))
		}
		return fmt.Errorf("%q is not a message type, want one of %s%s", text, envelope.TypeNames(),
			didYouMean(string(text), names))
	}
	return nil
}

// lifetime is a whole number of seconds.
type lifetime time.Duration

func (l *lifetime) UnmarshalText(text []byte) error {
	d, err := parseDuration(string(text))
	if err != nil || d < time.Second || d%time.Second != 0 {
		return fmt.Errorf("want whole seconds, at least one, such as 30s, 5m, 24h or 30d")
	}
	*l = lifetime(d)
	return nil
}

// futureTime is a time in the future.
type futureTime time.Time

func (m *futureTime) UnmarshalText(text []byte) error {
	t, ok := envelope.ParseTime(string(text))
	if !ok || t.Before(time.Now()) {
		return fmt.Errorf("want a time in the future, such as 2030-02-02T15:30:00Z")
	}
	*m = futureTime(t)
	return nil
}

// pastTime is a time in the past. It can also be given as a duration until now.
type pastTime time.Time

func (p *pastTime) UnmarshalText(text []byte) error {
	now := time.Now()
	t, ok := envelope.ParseTime(string(text))
	if d, err := parseDuration(string(text)); err == nil && d > 0 {
		t, ok = now.Add(-d), true
	}
	if !ok || t.After(now) {
		return fmt.Errorf("want a time in the past, such as 2026-02-02T15:30:00Z, or how long ago it was, such as 2h or 7d")
	}
	*p = pastTime(t)
	return nil
}

// senderText is a sender of a relay or of one of its gateways: a did:key or a name of the address book, an address of the
// hub such as bob@relay.example, or the id of a channel, a slash and a name there.
type senderText string

func (s *senderText) UnmarshalText(text []byte) error {
	if strings.ContainsAny(string(text), "@/") {
		*s = senderText(text)
		return nil
	}
	did, err := personDID(string(text))
	*s = senderText(did)
	return err
}

type urlText string

func (u *urlText) UnmarshalText(text []byte) error {
	parsed, err := url.Parse(string(text))
	if err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Host == "" {
		return fmt.Errorf("want the relay's URL, such as http://127.0.0.1:8789")
	}
	*u = urlText(text)
	return nil
}

// originText is the origin of a relay.
type originText string

func (o *originText) UnmarshalText(text []byte) error {
	origin, err := relay.ParseOrigin(string(text))
	*o = originText(origin)
	return err
}

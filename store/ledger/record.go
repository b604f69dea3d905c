package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// Thread is a thread with what a store needs to know of it. Row.Record is its stored form: a version, and then what does
// not follow from the Row and the rest. Numbers are varints, texts have their length before them, times are nanoseconds
// since 1970, and an identity is written once.
//
//	version keep requestExpires requestID
//	pendingTimeout activeTimeout quiet         Terms
//	count (identity)...
//	recipient agent                            numbers of identities: 0 is nobody, 1 the client
//	count (type, to, by, id, at)...            Transitions
//	count (number of the transition)...        Offers
type Thread struct {
	thread.Thread
	Number         int64
	RequestExpires time.Time // when its REQUEST expires
	Keep           time.Time // when the last of its envelopes expires
}

const recordVersion = 1

// What a record writes as numbers: the places in these lists.
var (
	stepTypes = []envelope.Type{envelope.TypeRequest, envelope.TypeOffer, envelope.TypeAccept, envelope.TypeCancel,
		envelope.TypeResult, envelope.TypeError, thread.TypeTimeout}
	noYes  = []bool{false, true}
	states = []thread.State{thread.Open, thread.Pending, thread.Active, thread.Completed, thread.Failed}
)

// Encode returns the Record of t.
func (t *Thread) Encode() []byte {
	identities := append(make([]didkey.DID, 0, 8), t.Client) // which the Row has
	number := func(did didkey.DID) uint64 {
		if did == "" {
			return 0
		}
		i := slices.Index(identities, did)
		if i < 0 {
			i = len(identities)
			identities = append(identities, did)
		}
		return uint64(i + 1)
	}
	rest := make([]byte, 0, 512)
	rest = binary.AppendUvarint(rest, number(t.Recipient))
	rest = binary.AppendUvarint(rest, number(t.Agent))
	rest = binary.AppendUvarint(rest, uint64(len(t.Transitions)))
	for _, s := range t.Transitions {
		rest = append(rest, byte(slices.Index(stepTypes, s.Type)), byte(slices.Index(states, s.To)))
		rest = binary.AppendUvarint(rest, number(s.By))
		rest = appendText(rest, s.ID)
		rest = appendTime(rest, s.At)
	}
	rest = binary.AppendUvarint(rest, uint64(len(t.Offers)))
	for _, o := range t.Offers {
		rest = binary.AppendUvarint(rest, uint64(slices.IndexFunc(t.Transitions, func(s thread.Transition) bool {
			return s.Type == envelope.TypeOffer && s.ID == o.ID && s.By == o.Agent && s.At.Equal(o.At)
		})))
	}
	b := make([]byte, 0, len(rest)+len(t.RequestID)+64*(len(identities)+1))
	b = append(b, recordVersion)
	b = appendTime(b, t.Keep)
	b = appendTime(b, t.RequestExpires)
	b = appendText(b, t.RequestID)
	b = binary.AppendUvarint(b, uint64(t.Terms.PendingTimeout))
	b = binary.AppendUvarint(b, uint64(t.Terms.ActiveTimeout))
	b = append(b, byte(slices.Index(noYes, t.Terms.Quiet)))
	b = binary.AppendUvarint(b, uint64(len(identities)-1))
	for _, did := range identities[1:] {
		b = appendText(b, string(did))
	}
	return append(b, rest...)
}

// Decode returns the thread of r. It fails if Record is not one that Encode made.
func (r Row) Decode() (*Thread, error) {
	t := &Thread{Number: r.Number, Thread: thread.Thread{ID: r.ID, Client: r.Client, State: thread.Open}}
	d := decoder{rest: r.Record}
	if version := d.byte(); version != recordVersion && d.err == nil {
		return nil, fmt.Errorf("the record of thread %d has the form %d, and this program knows %d", r.Number, version, recordVersion)
	}
	t.Keep, t.RequestExpires, t.RequestID = d.time(), d.time(), d.text()
	t.Terms = thread.Terms{PendingTimeout: time.Duration(d.uint()), ActiveTimeout: time.Duration(d.uint()), Quiet: pickByte(&d, noYes)}
	identities := make([]didkey.DID, 2+d.count(1))
	identities[1] = r.Client
	for i := range identities[2:] {
		identities[2+i] = didkey.DID(d.text())
	}
	t.Recipient, t.Agent = pick(&d, identities), pick(&d, identities)
	t.Transitions = make([]thread.Transition, d.count(5))
	for i := range t.Transitions {
		s := &t.Transitions[i]
		s.From, s.Type, s.To = t.State, pickByte(&d, stepTypes), pickByte(&d, states)
		s.By, s.ID, s.At = pick(&d, identities), d.text(), d.time()
		t.State = s.To
		if s.Type == envelope.TypeOffer {
			t.OffersMade++
		}
	}
	t.Offers = make([]thread.Offer, d.count(1))
	for i := range t.Offers {
		s := pick(&d, t.Transitions)
		if s.Type != envelope.TypeOffer {
			d.fail()
		}
		t.Offers[i] = thread.Offer{Agent: s.By, ID: s.ID, At: s.At}
	}
	if d.err == nil && (len(d.rest) > 0 || len(t.Transitions) == 0) {
		d.err = errRecord
	}
	if d.err != nil {
		return nil, fmt.Errorf("thread %d: %w", r.Number, d.err)
	}
	return t, nil
}

var errRecord = errors.New("the record is damaged")

// decoder reads a record. After the first error its methods return zeros.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) fail() { d.rest, d.err = nil, errRecord }

func (d *decoder) byte() (b byte) {
	if len(d.rest) == 0 {
		d.fail()
		return 0
	}
	b, d.rest = d.rest[0], d.rest[1:]
	return b
}

func (d *decoder) uint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) time() time.Time {
	nanos := int64(d.uint())
	t := Instant(nanos)
	if Nanos(t) != nanos {
		d.fail()
	}
	return t
}

// count reads how many things follow, of which each has so many bytes at least.
func (d *decoder) count(least int) int {
	n := d.uint()
	if n > uint64(len(d.rest)/least) {
		d.fail()
		return 0
	}
	return int(n)
}

func (d *decoder) text() string {
	n := d.count(1)
	text := string(d.rest[:n])
	d.rest = d.rest[n:]
	return text
}

func appendTime(b []byte, t time.Time) []byte { return binary.AppendUvarint(b, uint64(Nanos(t))) }

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// pick reads the place of a thing in a list.
func pick[T any](d *decoder, list []T) (thing T) {
	return at(d, list, d.uint())
}

// pickByte is pick where the place is one byte.
func pickByte[T any](d *decoder, list []T) (thing T) {
	return at(d, list, uint64(d.byte()))
}

func at[T any](d *decoder, list []T, i uint64) (thing T) {
	if i >= uint64(len(list)) {
		d.fail()
		return thing
	}
	return list[i]
}

// Nanos returns t as stores hold it: nanoseconds since 1970. Instants that do not fit, centuries away, become the
// nearest that does.
func Nanos(t time.Time) int64 {
	switch year := t.Year(); {
	case year < 1970:
		return 0
	case year > 2261:
		return 1<<63 - 1
	}
	return t.UnixNano()
}

// Instant returns the time of so many nanoseconds since 1970, in UTC.
func Instant(nanos int64) time.Time { return time.Unix(0, nanos).UTC() }

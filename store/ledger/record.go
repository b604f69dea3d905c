package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/thread"
)

// Thread is a thread with the additional data that a store needs. Row.Record is its encoded form. A record starts with
// a version number. It omits whatever the Row has and whatever can be computed from the rest of the record. Numbers are
// varints. The version and the fields quiet, type and to are one byte each. Strings are preceded by their length. Times
// are nanoseconds since 1970. Each identity is written once; other fields refer to it by its number.
//
//	version [request] keep requestExpires requestID   request only with version 2: its 32 bytes
//	pendingTimeout activeTimeout quiet         Terms
//	count (identity)...                        the identities with the numbers 2, 3, ...
//	recipient agent                            identity numbers: 0 means none, 1 means the client
//	count (type, to, by, id, at)...            Transitions; by is an identity number
//	count (index in Transitions)...            Offers
type Thread struct {
	thread.Thread
	Number         int64
	RequestExpires time.Time  // when the REQUEST expires
	Keep           time.Time  // when the last of the thread's envelopes expires
	Request        proof.Hash // of the REQUEST; zero if there was no log when the thread began
}

// A record has version 2 if it has the hash of the REQUEST.
const recordVersion, recordWithRequest = 1, 2

// A record stores values of these types as their index in these lists. The lists must only grow at the end. Engines
// store the index of a state too, see StateNumber.
var (
	stepTypes = thread.StepTypes()
	bools     = []bool{false, true}
	states    = thread.States()
)

// States returns every state, in the order of their numbers.
func States() []thread.State { return slices.Clone(states) }

// StateNumber returns the number as which records and engines store s: its index in States. A number never changes its
// meaning.
func StateNumber(s thread.State) int { return slices.Index(states, s) }

// StateOf returns the state with this number, or "" if there is none.
func StateOf(number int64) thread.State {
	if number < 0 || number >= int64(len(states)) {
		return ""
	}
	return states[number]
}

// Encode returns the Record of t.
func (t *Thread) Encode() []byte {
	identities := append(make([]didkey.DID, 0, 8), t.Client) // the client is in the Row, so it is not written
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
		rest = append(rest, byte(slices.Index(stepTypes, s.Type)), byte(StateNumber(s.To)))
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
	if t.Request == (proof.Hash{}) {
		b = append(b, recordVersion)
	} else {
		b = append(append(b, recordWithRequest), t.Request[:]...)
	}
	b = appendTime(b, t.Keep)
	b = appendTime(b, t.RequestExpires)
	b = appendText(b, t.RequestID)
	b = binary.AppendUvarint(b, uint64(t.Terms.PendingTimeout))
	b = binary.AppendUvarint(b, uint64(t.Terms.ActiveTimeout))
	b = append(b, byte(slices.Index(bools, t.Terms.Quiet)))
	b = binary.AppendUvarint(b, uint64(len(identities)-1))
	for _, did := range identities[1:] {
		b = appendText(b, string(did))
	}
	return append(b, rest...)
}

// Decode returns the thread of r. It returns an error if r.Record is damaged or has another version.
func (r Row) Decode() (*Thread, error) {
	t := &Thread{Number: r.Number, Thread: thread.Thread{ID: r.ID, Client: r.Client, State: thread.Open}}
	d := decoder{rest: r.Record}
	switch version := d.byte(); version {
	case recordVersion:
	case recordWithRequest:
		if t.Request = d.hash(); t.Request == (proof.Hash{}) {
			d.fail()
		}
	default:
		if d.err == nil {
			return nil, fmt.Errorf("the record of thread %d has version %d, but this program supports only versions up to %d",
				r.Number, version, recordWithRequest)
		}
	}
	t.Keep, t.RequestExpires, t.RequestID = d.time(), d.time(), d.text()
	t.Terms = thread.Terms{PendingTimeout: time.Duration(d.uint()), ActiveTimeout: time.Duration(d.uint()),
		Quiet: pickByte(&d, bools)}
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

// decoder reads a record. After the first error its methods return zero values.
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

func (d *decoder) hash() (h proof.Hash) {
	if len(d.rest) < len(h) {
		d.fail()
		return h
	}
	h, d.rest = proof.Hash(d.rest[:len(h)]), d.rest[len(h):]
	return h
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

// count reads the number of the elements that follow. It fails if the rest of the record is too short for that many
// elements of at least size bytes each.
func (d *decoder) count(size int) int {
	n := d.uint()
	if n > uint64(len(d.rest)/size) {
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

// pick reads an index as a varint and returns that element of list.
func pick[T any](d *decoder, list []T) (element T) {
	return elementAt(d, list, d.uint())
}

// pickByte is like pick, but the index is one byte.
func pickByte[T any](d *decoder, list []T) (element T) {
	return elementAt(d, list, uint64(d.byte()))
}

// elementAt returns list[i]. It fails if there is no such element.
func elementAt[T any](d *decoder, list []T, i uint64) (element T) {
	if i >= uint64(len(list)) {
		d.fail()
		return element
	}
	return list[i]
}

// Nanos returns t in nanoseconds since 1970, the form in which stores keep times. A time before 1970 becomes 0. A time
// after the year 2261 becomes the largest int64.
func Nanos(t time.Time) int64 {
	switch year := t.Year(); {
	case year < 1970:
		return 0
	case year > 2261:
		return 1<<63 - 1
	}
	return t.UnixNano()
}

// Instant returns the time that is nanos nanoseconds after the start of 1970, in UTC.
func Instant(nanos int64) time.Time { return time.Unix(0, nanos).UTC() }

package bench

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// MinBody is the size of the smallest envelope that the generator makes, in bytes of its canonical form.
const MinBody = 600

// ttl is the meta.ttl of all envelopes, in seconds.
const ttl = 3600

// part names a value that differs between the envelopes of a run. All envelopes are made from one template, which has
// slots for these values. All values of a part have the same length.
type part int

const (
	partID part = iota // the 26 characters after the prefix in the ids of the envelope, the thread and the request
	partTS
	partSender
	partRecipient
	partSig
	partCount
)

// placeholders fill the slots while a template is being made.
var placeholders = [partCount]string{
	partID:        strings.Repeat("I", 26),
	partTS:        strings.Repeat("T", len("2026-02-02T15:30:00.000Z")),
	partSender:    strings.Repeat("S", 56),
	partRecipient: strings.Repeat("R", 56),
	partSig:       strings.Repeat("G", 86),
}

// values contains the values of one envelope, one for each part.
type values [partCount][]byte

// template is an envelope, or a complete request, with slots for values.
type template struct {
	bytes []byte
	slots []slot
}

// slot is the place of a part's value in a template.
type slot struct {
	offset int
	part   part
}

// newTemplate returns a template from b. It finds the slots by their placeholders.
func newTemplate(b []byte) template {
	t := template{bytes: b}
	for p, mark := range placeholders {
		for at := 0; ; {
			i := bytes.Index(b[at:], []byte(mark))
			if i < 0 {
				break
			}
			t.slots = append(t.slots, slot{at + i, part(p)})
			at += i + len(mark)
		}
	}
	return t
}

// fill returns the template with the values v in its slots. It overwrites dst and uses its memory.
func (t template) fill(dst []byte, v *values) []byte {
	dst = append(dst[:0], t.bytes...)
	for _, h := range t.slots {
		copy(dst[h.offset:], v[h.part])
	}
	return dst
}

// templates are the templates of a run's envelopes.
type templates struct {
	unsigned  template   // the bytes that the signature covers
	canonical template   // the bytes that the relay must deliver
	posts     []template // complete requests that post the envelope in different forms, used in turns
}

// prettyForms is the number of forms of a body that is not canonical. They differ in the order and indent of members.
const prettyForms = 16

func newTemplates(to target, size int, pretty bool) (templates, error) {
	message := map[string]any{
		"version": envelope.Version, "id": "msg_" + placeholders[partID], "ts": placeholders[partTS],
		"type":      envelope.TypeRequest,
		"sender":    map[string]any{"id": placeholders[partSender], "name": "agora bench"},
		"recipient": map[string]any{"id": placeholders[partRecipient]},
		"thread":    map[string]any{"id": "req_" + placeholders[partID]},
		"meta":      map[string]any{"ttl": ttl},
		"payload": map[string]any{
			"request_id": "req_" + placeholders[partID], "intent": "bench.echo",
			"constraints": map[string]any{"max_cost_usd": 0.05, "max_latency_ms": 2500},
			"params":      map[string]any{"text": ""},
		},
		"sig": placeholders[partSig],
	}
	canonical, err := canonicalOf(message)
	if err != nil {
		return templates{}, err
	}
	message["payload"].(map[string]any)["params"] = map[string]any{"text": filler(size - len(canonical))}
	if canonical, err = canonicalOf(message); err != nil {
		return templates{}, err
	}
	t := templates{canonical: newTemplate(canonical)}
	bodies := [][]byte{canonical}
	if pretty {
		bodies = nil
		for range prettyForms {
			bodies = append(bodies, shuffled(nil, message, strings.Repeat(" ", 1+rand.N(4)), "\n"))
		}
	}
	for _, body := range bodies {
		t.posts = append(t.posts, newTemplate(to.request("POST", "/events", body)))
	}
	delete(message, "sig")
	unsigned, err := canonicalOf(message)
	t.unsigned = newTemplate(unsigned)
	return t, err
}

func canonicalOf(message map[string]any) ([]byte, error) {
	body, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	return envelope.Canonicalize(body)
}

// filler returns size bytes of text. JSON escapes none of them.
func filler(size int) string {
	const prose = "Translate the following paragraph, keep its tone, and leave the names of people and places " +
		"as they are. "
	return strings.Repeat(prose, size/len(prose)+1)[:max(size, 0)]
}

// shuffled appends v to dst as JSON. It writes the members of objects in random order, each on its own line.
func shuffled(dst []byte, v any, indent, line string) []byte {
	object, ok := v.(map[string]any)
	if !ok {
		scalar, err := json.Marshal(v)
		if err != nil {
			panic(err) // cannot happen: the envelopes contain only strings and numbers
		}
		return append(dst, scalar...)
	}
	names := make([]string, 0, len(object))
	for name := range object {
		names = append(names, name)
	}
	slices.Sort(names)
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	dst = append(dst, '{')
	for i, name := range names {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = fmt.Appendf(dst, "%s%s%q: ", line, indent, name)
		dst = shuffled(dst, object[name], indent, line+indent)
	}
	return append(append(dst, line...), '}')
}

// check verifies that every form of the envelope with values v is one that a relay must accept. So if a relay refuses a
// post, the reason is never a mistake of the generator.
func (t templates) check(v *values) error {
	canonical := t.canonical.fill(nil, v)
	for _, post := range t.posts {
		_, body, _ := bytes.Cut(post.fill(nil, v), []byte("\r\n\r\n"))
		e, err := envelope.Parse(body, 0)
		if err == nil {
			err = e.Verify()
		}
		if err == nil && !bytes.Equal(e.Canonical(), canonical) {
			err = fmt.Errorf("its canonical form differs from the expected one")
		}
		if err != nil {
			return fmt.Errorf("an envelope made for the run is invalid: %w", err)
		}
	}
	return nil
}

// ids converts envelope numbers to ids and back. The ids look like those that clients make: ULIDs in lower case. They
// are also distributed like the ULIDs of many clients: ordered by millisecond, and random within a millisecond. Each
// run has its own seed, so that runs have different ids.
type ids struct{ seed uint64 }

const (
	alphabet   = "0123456789abcdefghjkmnpqrstvwxyz"
	multiplier = 0x9e3779b97f4a7c15 // odd, so that multiplication by it can be inverted
)

// append appends the 26 characters for number n to dst. ms is the time in milliseconds since 1970.
func (s ids) append(dst []byte, n int, ms int64) []byte {
	low := uint64(n)*multiplier ^ s.seed
	for shift := 45; shift >= 0; shift -= 5 {
		dst = append(dst, alphabet[ms>>shift&31])
	}
	// The random part has 80 bits: 16 that identify the run and 64 for the number.
	high := s.tag()<<4 | low>>60
	for shift := 15; shift >= 0; shift -= 5 {
		dst = append(dst, alphabet[high>>shift&31])
	}
	for shift := 55; shift >= 0; shift -= 5 {
		dst = append(dst, alphabet[low>>shift&31])
	}
	return dst
}

func (s ids) tag() uint64 { return s.seed * multiplier >> 48 }

// number returns the number from which append made id. ok is false if id is not from this run.
func (s ids) number(id []byte) (n int, ok bool) {
	if len(id) != 26 {
		return 0, false
	}
	var high, low uint64
	for i, c := range id[10:] {
		digit := strings.IndexByte(alphabet, c)
		if digit < 0 {
			return 0, false
		}
		if i < 4 {
			high = high<<5 | uint64(digit)
		} else {
			low = low<<5 | uint64(digit)
		}
	}
	low |= high << 60
	number := (low ^ s.seed) * inverse(multiplier)
	return int(number), high>>4 == s.tag() && number < 1<<40
}

// inverse returns the inverse of an odd k modulo 2⁶⁴. It uses Newton's method, in which each step doubles the number of
// correct bits.
func inverse(k uint64) uint64 {
	x := k // correct in its 3 lowest bits
	for range 5 {
		x *= 2 - k*x
	}
	return x
}

// choices returns two random numbers, which are always the same for the same n.
func (s ids) choices(n int) (a, b uint32) {
	x := uint64(n) + s.seed // the following lines are the last steps of splitmix64
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	return uint32(x), uint32(x >> 32)
}

// newIDs returns ids with a random seed.
func newIDs() ids {
	return ids{rand.Uint64()}
}

func appendTS(dst []byte, ms int64) []byte {
	return time.UnixMilli(ms).UTC().AppendFormat(dst, "2006-01-02T15:04:05.000Z")
}

func appendSig(dst, sig []byte) []byte { return base64.RawURLEncoding.AppendEncode(dst, sig) }

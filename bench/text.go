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

// MinBody is the smallest envelope the generator makes, in bytes of its canonical form.
const MinBody = 600

// life is the meta.ttl of all envelopes, in seconds.
const life = 3600

// All envelopes of a run are one text with holes. The members that differ have values of one length each.
type part int

const (
	partID part = iota // 26 characters: of the id, and with another prefix of the thread and the request
	partTS
	partSender
	partRecipient
	partSig
	parts
)

// marks stand in the holes while a text is being made.
var marks = [parts]string{
	partID:        strings.Repeat("I", 26),
	partTS:        strings.Repeat("T", len("2026-02-02T15:30:00.000Z")),
	partSender:    strings.Repeat("S", 56),
	partRecipient: strings.Repeat("R", 56),
	partSig:       strings.Repeat("G", 86),
}

// values are what one envelope has in the holes.
type values [parts][]byte

// text is an envelope, or a whole request, with holes.
type text struct {
	bytes []byte
	holes []hole
}

type hole struct {
	at   int
	part part
}

func newText(b []byte) text {
	t := text{bytes: b}
	for p, mark := range marks {
		for at := 0; ; {
			i := bytes.Index(b[at:], []byte(mark))
			if i < 0 {
				break
			}
			t.holes = append(t.holes, hole{at + i, part(p)})
			at += i + len(mark)
		}
	}
	return t
}

// fill writes the text with v in its holes over dst and returns it.
func (t text) fill(dst []byte, v *values) []byte {
	dst = append(dst[:0], t.bytes...)
	for _, h := range t.holes {
		copy(dst[h.at:], v[h.part])
	}
	return dst
}

// texts are the forms of a run's envelopes.
type texts struct {
	unsigned  text   // what the signature covers
	canonical text   // what the relay must deliver
	posts     []text // whole requests that post it, to take turns
}

// prettyForms is how many different orders and indents of members take turns.
const prettyForms = 16

func newTexts(to target, size int, pretty bool) (texts, error) {
	message := map[string]any{
		"version": envelope.Version, "id": "msg_" + marks[partID], "ts": marks[partTS], "type": envelope.TypeRequest,
		"sender":    map[string]any{"id": marks[partSender], "name": "agora bench"},
		"recipient": map[string]any{"id": marks[partRecipient]},
		"thread":    map[string]any{"id": "req_" + marks[partID]},
		"meta":      map[string]any{"ttl": life},
		"payload": map[string]any{
			"request_id": "req_" + marks[partID], "intent": "bench.echo",
			"constraints": map[string]any{"max_cost_usd": 0.05, "max_latency_ms": 2500},
			"params":      map[string]any{"text": ""},
		},
		"sig": marks[partSig],
	}
	canonical, err := canonicalOf(message)
	if err != nil {
		return texts{}, err
	}
	message["payload"].(map[string]any)["params"] = map[string]any{"text": filler(size - len(canonical))}
	if canonical, err = canonicalOf(message); err != nil {
		return texts{}, err
	}
	t := texts{canonical: newText(canonical)}
	bodies := [][]byte{canonical}
	if pretty {
		bodies = nil
		for range prettyForms {
			bodies = append(bodies, shuffled(nil, message, strings.Repeat(" ", 1+rand.N(4)), "\n"))
		}
	}
	for _, body := range bodies {
		t.posts = append(t.posts, newText(to.request("POST", "/events", body)))
	}
	delete(message, "sig")
	unsigned, err := canonicalOf(message)
	t.unsigned = newText(unsigned)
	return t, err
}

func canonicalOf(message map[string]any) ([]byte, error) {
	body, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	return envelope.Canonicalize(body)
}

// filler returns so many bytes of prose, none of which JSON escapes.
func filler(size int) string {
	const prose = "Translate the following paragraph, keep its tone, and leave the names of people and places as they are. "
	return strings.Repeat(prose, size/len(prose)+1)[:max(size, 0)]
}

// shuffled appends v to dst with the members of its objects in a random order and each on a line of its own.
func shuffled(dst []byte, v any, indent, line string) []byte {
	object, ok := v.(map[string]any)
	if !ok {
		scalar, err := json.Marshal(v)
		if err != nil {
			panic(err) // texts are made of strings and numbers
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

// check holds that e, in all its forms, is what a relay must accept, so that what it refuses is never our mistake.
func (t texts) check(v *values) error {
	canonical := t.canonical.fill(nil, v)
	for _, post := range t.posts {
		_, body, _ := bytes.Cut(post.fill(nil, v), []byte("\r\n\r\n"))
		e, err := envelope.Parse(body, 0)
		if err == nil {
			err = e.Verify()
		}
		if err == nil && !bytes.Equal(e.Canonical(), canonical) {
			err = fmt.Errorf("its canonical form is another")
		}
		if err != nil {
			return fmt.Errorf("an envelope made for the run is wrong: %w", err)
		}
	}
	return nil
}

// names turns numbers into ids like those clients make, a ULID in lower case, and back. They scatter as ULIDs of many
// clients do: by their milliseconds in order, and random within one.
type names struct{ seed uint64 }

const (
	alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
	spread   = 0x9e3779b97f4a7c15 // odd, so multiplying by it can be undone
)

// append appends the 26 characters of number n, made at ms milliseconds since 1970.
func (s names) append(dst []byte, n int, ms int64) []byte {
	low := uint64(n)*spread ^ s.seed
	for shift := 45; shift >= 0; shift -= 5 {
		dst = append(dst, alphabet[ms>>shift&31])
	}
	// 80 bits: 16 that mark the run, and 64 of the number.
	high := s.tag()<<4 | low>>60
	for shift := 15; shift >= 0; shift -= 5 {
		dst = append(dst, alphabet[high>>shift&31])
	}
	for shift := 55; shift >= 0; shift -= 5 {
		dst = append(dst, alphabet[low>>shift&31])
	}
	return dst
}

func (s names) tag() uint64 { return s.seed * spread >> 48 }

// number returns what append was given; ok is false if id is not this run's.
func (s names) number(id []byte) (n int, ok bool) {
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
	number := (low ^ s.seed) * inverse(spread)
	return int(number), high>>4 == s.tag() && number < 1<<40
}

// inverse returns the number that undoes multiplication by an odd k, by Newton's method: each step doubles the bits.
func inverse(k uint64) uint64 {
	x := k // right in its 3 lowest bits
	for range 5 {
		x *= 2 - k*x
	}
	return x
}

// choices returns two random numbers that belong to n.
func (s names) choices(n int) (a, b uint32) {
	x := uint64(n) + s.seed // splitmix64's last steps
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	return uint32(x), uint32(x >> 32)
}

// newNames returns names unlike any other run's.
func newNames() names {
	return names{rand.Uint64()}
}

func appendTS(dst []byte, ms int64) []byte {
	return time.UnixMilli(ms).UTC().AppendFormat(dst, "2006-01-02T15:04:05.000Z")
}

func appendSig(dst, sig []byte) []byte { return base64.RawURLEncoding.AppendEncode(dst, sig) }

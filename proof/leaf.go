package proof

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Origin names a log: there is one for each relay and epoch of its database (LOG L-1).
type Origin struct {
	DID   didkey.DID
	Epoch uint32
}

// String returns the origin as it stands in a checkpoint: DID/EPOCH.
func (o Origin) String() string { return fmt.Sprintf("%s/%08x", o.DID, o.Epoch) }

// ErrOrigin is in the error of parsing a text that is not about the log of a relay.
var ErrOrigin = errors.New("the origin of a log is DID/EPOCH")

// ParseOrigin parses the text that String returns.
func ParseOrigin(text string) (o Origin, err error) {
	did, epoch, _ := strings.Cut(text, "/")
	if o.DID, err = didkey.Parse(did); err != nil {
		return Origin{}, fmt.Errorf("%w: %w", ErrOrigin, err)
	}
	n, err := strconv.ParseUint(epoch, 16, 32)
	if o.Epoch = uint32(n); err != nil || o.String() != text {
		return Origin{}, fmt.Errorf("%w, not %.80q", ErrOrigin, text)
	}
	return o, nil
}

// Leaf is what a log says about a message (LOG L-3).
type Leaf struct {
	Salt     [16]byte  // random; without it, nobody can tell which message the leaf's hash stands for
	Event    Hash      // see envelope.Envelope.Hash
	Received time.Time // when the message arrived
	// Request is the hash of the REQUEST that opened the thread. It is zero if the relay did not tell: for a MANIFEST, and
	// for a message that came from another relay.
	Request Hash
}

// String returns the text of the leaf.
func (l Leaf) String() string {
	b := append(make([]byte, 0, 256), "agora-leaf/1\nsalt "...)
	b = base64.RawURLEncoding.AppendEncode(b, l.Salt[:])
	b = hex.AppendEncode(append(b, "\nevent "...), l.Event[:])
	b = append(append(b, "\nreceived "...), envelope.FormatTime(l.Received)...)
	b = append(b, "\nrequest "...)
	if l.Request == (Hash{}) {
		b = append(b, '-')
	} else {
		b = hex.AppendEncode(b, l.Request[:])
	}
	return string(append(b, '\n'))
}

// ParseLeaf parses the text that Leaf.String returns.
func ParseLeaf(text string) (l Leaf, err error) {
	lines := lineReader{text}
	lines.next()
	salt, _ := base64.RawURLEncoding.DecodeString(lines.after("salt "))
	event, _ := hex.DecodeString(lines.after("event "))
	l.Received, _ = envelope.ParseTime(lines.after("received "))
	request, _ := hex.DecodeString(lines.after("request "))
	copy(l.Salt[:], salt)
	copy(l.Event[:], event)
	copy(l.Request[:], request)
	if l.String() != text { // this also finds what could not be decoded
		return Leaf{}, errors.New("the leaf has not the form of agora-leaf/1")
	}
	return l, nil
}

// Start is leaf 0 of a log (LOG L-2).
type Start struct {
	Began    time.Time
	Previous *Previous // nil: there is no log before
}

// Previous is the log before, as its relay had it when the next one began.
type Previous struct {
	Origin Origin
	Size   int64
	Root   Hash
}

// String returns the text of the leaf.
func (s Start) String() string {
	return fmt.Sprintf("agora-log/1\nbegan %s\nprevious %s\n", envelope.FormatTime(s.Began), s.Previous)
}

// String returns what stands behind the word previous.
func (p *Previous) String() string {
	if p == nil {
		return "-"
	}
	return fmt.Sprintf("%s %d %s", p.Origin, p.Size, p.Root)
}

// ParseStart parses the text that Start.String returns.
func ParseStart(text string) (s Start, err error) {
	lines := lineReader{text}
	lines.next()
	s.Began, _ = envelope.ParseTime(lines.after("began "))
	if previous := lines.after("previous "); previous != "-" {
		origin, rest, _ := strings.Cut(previous, " ")
		size, root, _ := strings.Cut(rest, " ")
		s.Previous = &Previous{}
		var failed [3]error
		s.Previous.Origin, failed[0] = ParseOrigin(origin)
		s.Previous.Size, failed[1] = parseNumber(size)
		s.Previous.Root, failed[2] = parseHash(root)
		err = errors.Join(failed[:]...)
	}
	if err != nil || s.String() != text || s.Previous != nil && s.Previous.Size == 0 {
		return Start{}, errors.New("the leaf has not the form of agora-log/1")
	}
	return s, nil
}

// Package proof reads and checks the texts by which a relay proves what it has accepted (LOG): proofs, checkpoints
// and evidence. It also checks the chains of messages by which the parties of a deal prove it without any relay
// (RELAYS §2). Everybody can check all of this offline: it needs no clock, no network and no trust in the relay.
//
// A relay keeps an append-only log, a Merkle tree of RFC 6962. Each message that it accepts has a leaf there. A
// checkpoint is a signed statement about the whole log. A proof shows that a leaf is in the tree of a checkpoint. If a
// relay contradicts itself, two of these texts together are evidence of it.
//
// The formats are formats of C2SP: tlog-proof, tlog-checkpoint, tlog-cosignature and signed-note. Each text has exactly
// one accepted spelling: String returns what was parsed, byte for byte.
package proof

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Hash is a SHA-256 hash of a tree or of a message.
type Hash = tlog.Hash

// MaxBytes is the maximum size of a proof. A proof has at most 63 lines of a path and 100 signatures.
const MaxBytes = 64 << 10

const (
	header    = "c2sp.org/tlog-proof@v1"
	maxPath   = 63
	maxOfTime = 5 * time.Minute // between a message's ts and its arrival, see replay.DefaultSkew
)

// Proof says that a leaf is in the tree of a checkpoint. It proves nothing before Verify has returned no error.
type Proof struct {
	Extra      string // the text of the leaf
	Index      int64
	Path       []Hash
	Checkpoint Checkpoint
}

// Parse reads a proof (LOG L-12). It checks the form only.
func Parse(text string) (*Proof, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("the proof has more than %d bytes", MaxBytes)
	}
	lines := lineReader{text}
	if line := lines.next(); line != header {
		return nil, fmt.Errorf("the first line of a proof is %q", header)
	}
	p := &Proof{}
	extra, err := parseBase64(lines.after("extra "))
	if err != nil {
		return nil, fmt.Errorf("the line extra: %w", err)
	}
	p.Extra = string(extra)
	if p.Index, err = parseNumber(lines.after("index ")); err != nil {
		return nil, fmt.Errorf("the line index: %w", err)
	}
	for line := lines.next(); line != ""; line = lines.next() {
		hash, err := parseHash(line)
		if err != nil {
			return nil, fmt.Errorf("the path: %w", err)
		}
		if p.Path = append(p.Path, hash); len(p.Path) > maxPath {
			return nil, fmt.Errorf("the path has more than %d lines", maxPath)
		}
	}
	p.Checkpoint, err = ParseCheckpoint(lines.rest)
	return p, err
}

// String returns the text of p.
func (p *Proof) String() string { return p.text(p.Checkpoint.String()) }

// text returns the text of p with this text of its checkpoint.
func (p *Proof) text(checkpoint string) string {
	const line = 44 + 1 // a hash
	var b strings.Builder
	b.Grow(len(header) + base64.StdEncoding.EncodedLen(len(p.Extra)) + line*len(p.Path) + len(checkpoint) + 40)
	b.WriteString(header + "\nextra ")
	writeBase64(&b, []byte(p.Extra))
	b.WriteString("\nindex " + strconv.FormatInt(p.Index, 10) + "\n")
	for _, hash := range p.Path {
		writeBase64(&b, hash[:])
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	b.WriteString(checkpoint)
	return b.String()
}

// writeBase64 writes raw as base64, a part at a time, so that it needs no memory.
func writeBase64(b *strings.Builder, raw []byte) {
	const size = 192 // a multiple of 3
	var part [size / 3 * 4]byte
	for len(raw) > 0 {
		n := min(size, len(raw))
		base64.StdEncoding.Encode(part[:], raw[:n])
		b.Write(part[:base64.StdEncoding.EncodedLen(n)])
		raw = raw[n:]
	}
}

// Verified is what a valid proof says. The log's DID has signed it.
type Verified struct {
	Origin   Origin
	Index    int64
	Size     int64 // of the log
	Leaf     Leaf  // if Index is not 0
	Start    Start // if Index is 0
	Cosigned []Cosigned

	hash Hash // of the leaf
}

// Verify checks that p's leaf is in the tree of the checkpoint, and the signatures of the relay and of the witnesses.
// It does not check what the leaf stands for: see CheckMessage.
func (p *Proof) Verify(witnesses ...*Witness) (*Verified, error) {
	c := &p.Checkpoint
	v := &Verified{Origin: c.Origin, Index: p.Index, Size: c.Size, hash: tlog.RecordHash([]byte(p.Extra))}
	var err error
	if v.Cosigned, err = c.Verify(witnesses...); err != nil {
		return nil, err
	}
	if p.Index >= c.Size {
		return nil, fmt.Errorf("the log has %d leaves, so none with the index %d", c.Size, p.Index)
	}
	if err := tlog.CheckRecord(p.Path, c.Size, c.Root, p.Index, v.hash); err != nil {
		return nil, errors.New("the path does not lead from the leaf to the root of the checkpoint")
	}
	if p.Index == 0 {
		v.Start, err = ParseStart(p.Extra)
	} else {
		v.Leaf, err = ParseLeaf(p.Extra)
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}

// CheckMessage checks that v is the proof of the message e by this relay, and that e arrived within five minutes of its
// ts (LOG L-12). The caller must have verified e's signature.
func (v *Verified) CheckMessage(e *envelope.Envelope, relay didkey.DID) error {
	if err := v.CheckRelay(relay); err != nil {
		return err
	}
	switch {
	case v.Index == 0:
		return errors.New("the proof is that of the start of the log, not of a message")
	case v.Leaf.Event != e.Hash():
		return errors.New("the proof is that of another message")
	case v.Leaf.Received.Sub(e.TS).Abs() > maxOfTime:
		return fmt.Errorf("the proof says that the message arrived at %s, but its ts is %s",
			envelope.FormatTime(v.Leaf.Received), envelope.FormatTime(e.TS))
	}
	return nil
}

// CheckRelay checks that v is a proof by this relay.
func (v *Verified) CheckRelay(relay didkey.DID) error {
	if v.Origin.DID != relay {
		return fmt.Errorf("the proof is by the relay %s, not by %s", v.Origin.DID, relay)
	}
	return nil
}

// lineReader takes a text apart. A line ends with LF. A missing line is the same as an empty one, which no format has
// where it is read.
type lineReader struct{ rest string }

func (l *lineReader) next() (line string) {
	line, rest, found := strings.Cut(l.rest, "\n")
	if !found {
		l.rest = ""
		return ""
	}
	l.rest = rest
	return line
}

// after returns the next line without the given beginning. If it begins otherwise, the result is empty.
func (l *lineReader) after(beginning string) string {
	line, found := strings.CutPrefix(l.next(), beginning)
	if !found {
		return ""
	}
	return line
}

// parseNumber parses a decimal number in its only spelling.
func parseNumber(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != text {
		return 0, fmt.Errorf("%.30q is not a number", text)
	}
	return n, nil
}

// parseBase64 parses standard base64 with padding, in its only spelling, and not empty.
func parseBase64(text string) ([]byte, error) {
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(raw) == 0 || base64.StdEncoding.EncodeToString(raw) != text {
		return nil, fmt.Errorf("%.30q is not base64 with padding", text)
	}
	return raw, nil
}

func parseHash(text string) (h Hash, err error) {
	raw, err := parseBase64(text)
	if err == nil && len(raw) != len(h) {
		err = fmt.Errorf("%.60q has %d bytes, not %d", text, len(raw), len(h))
	}
	if err != nil {
		return h, err
	}
	return Hash(raw), nil
}

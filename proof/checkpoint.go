package proof

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/agora-relay/agora/didkey"
)

// Types of signatures (C2SP signed-note, tlog-cosignature).
const (
	typeNote        = 0x01 // Ed25519 of the text
	typeCosignature = 0x04 // Ed25519 of a time and the text
	typeMLDSA       = 0x06 // ML-DSA-44 of a time and a tree
)

const (
	// maxSignatures is how many lines of signatures a checkpoint may have.
	maxSignatures = 100
	signatureMark = "— " // begins the line of a signature
	keyHashSize   = 4
	timeSize      = 8
	mlDSAKeySize  = 1312
	// maxSize is the largest size of a log. Package tlog never ends for sizes above 2^62. JSON numbers are exact up to here.
	maxSize = 1<<53 - 1
)

// Checkpoint is a signed statement of a relay about its log: its size and the root of its tree. It states nothing before
// Verify has returned no error.
type Checkpoint struct {
	Origin     Origin
	Size       int64
	Root       Hash
	Signatures []Signature
}

// Signature is a line under a checkpoint.
type Signature struct {
	Name    string // of the key
	KeyHash [keyHashSize]byte
	Bytes   []byte // at least one
}

// ParseCheckpoint reads a checkpoint (C2SP tlog-checkpoint) without extension lines (LOG L-9). It checks the form only.
func ParseCheckpoint(text string) (c Checkpoint, err error) {
	if len(text) > MaxBytes {
		return Checkpoint{}, fmt.Errorf("the checkpoint has more than %d bytes", MaxBytes)
	}
	lines := lineReader{text}
	if c.Origin, err = ParseOrigin(lines.next()); err != nil {
		return Checkpoint{}, fmt.Errorf("the checkpoint: %w", err)
	}
	if c.Size, err = parseNumber(lines.next()); err != nil || c.Size < 1 || c.Size > maxSize {
		return Checkpoint{}, fmt.Errorf("the second line of a checkpoint is the size of the log, from 1 to %d", maxSize)
	}
	if c.Root, err = parseHash(lines.next()); err != nil {
		return Checkpoint{}, fmt.Errorf("the root of the checkpoint: %w", err)
	}
	if !strings.HasPrefix(lines.rest, "\n") {
		return Checkpoint{}, errors.New("an empty line must follow the root of a checkpoint")
	}
	lines.next()
	for lines.rest != "" {
		s, err := parseSignature(&lines)
		if err != nil {
			return Checkpoint{}, err
		}
		if c.Signatures = append(c.Signatures, s); len(c.Signatures) > maxSignatures {
			return Checkpoint{}, fmt.Errorf("the checkpoint has more than %d signatures", maxSignatures)
		}
	}
	if c.Signatures == nil {
		return Checkpoint{}, errors.New("the checkpoint has no signature")
	}
	return c, nil
}

func parseSignature(lines *lineReader) (s Signature, err error) {
	name, encoded, _ := strings.Cut(lines.after(signatureMark), " ")
	raw, err := parseBase64(encoded)
	if err != nil || len(raw) <= keyHashSize || !validName(name) {
		return s, errors.New("the checkpoint has a line that is not a signature")
	}
	return Signature{name, [keyHashSize]byte(raw), raw[keyHashSize:]}, nil
}

// validName reports whether name may be the name of a key (C2SP signed-note).
func validName(name string) bool {
	return name != "" && utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r) || r == '+'
	})
}

// Body returns the part of c that is signed.
func (c *Checkpoint) Body() string { return fmt.Sprintf("%s\n%d\n%s\n", c.Origin, c.Size, c.Root) }

// String returns the text of c.
func (c *Checkpoint) String() string {
	text := c.Body() + "\n"
	for _, s := range c.Signatures {
		text += s.String()
	}
	return text
}

// String returns the line of s.
func (s Signature) String() string {
	raw := append(s.KeyHash[:], s.Bytes...)
	return signatureMark + s.Name + " " + base64.StdEncoding.EncodeToString(raw) + "\n"
}

// isBy reports whether s is said to be by the key with this name and hash.
func (s *Signature) isBy(name string, hash [keyHashSize]byte) bool {
	return s.Name == name && s.KeyHash == hash
}

// hashOfKey returns the key hash (C2SP signed-note) of a public key.
func hashOfKey(name string, kind byte, public ed25519.PublicKey) [keyHashSize]byte {
	sum := sha256.Sum256(append([]byte(name+"\n"), append([]byte{kind}, public...)...))
	return [keyHashSize]byte(sum[:])
}

// Verify checks the signatures of c. The relay must have signed it. Signatures by unknown keys are ignored. Every
// signature by the relay and by one of the witnesses must be valid. Verify returns who else has signed c.
func (c *Checkpoint) Verify(witnesses ...*Witness) (cosigned []Cosigned, err error) {
	relay, err := didkey.ParseVerifier(string(c.Origin.DID))
	if err != nil {
		return nil, err
	}
	body, name := c.Body(), c.Origin.String()
	known, signed := hashOfKey(name, typeNote, c.Origin.DID.PublicKey()), false
	for _, s := range c.Signatures {
		if s.isBy(name, known) {
			if signed = relay.Verify([]byte(body), s.Bytes); !signed {
				return nil, errors.New("the relay's signature of the checkpoint is wrong")
			}
		}
		for _, w := range witnesses {
			if !s.isBy(w.Name, w.hash) {
				continue
			}
			at, ok := w.verify(body, s.Bytes)
			if !ok {
				return nil, fmt.Errorf("the signature of the witness %s is wrong", w.Name)
			}
			cosigned = append(cosigned, Cosigned{w, at})
		}
	}
	if !signed {
		return nil, fmt.Errorf("the relay %s has not signed the checkpoint", c.Origin.DID)
	}
	return cosigned, nil
}

// Only returns c with one signature by its relay and one by each of the witnesses, as far as c has them. Everybody can
// add lines to a checkpoint, so a program that keeps or publishes one keeps only these.
func (c *Checkpoint) Only(witnesses ...*Witness) Checkpoint {
	only := Checkpoint{Origin: c.Origin, Size: c.Size, Root: c.Root}
	name := c.Origin.String()
	relay := &Witness{Name: name, hash: hashOfKey(name, typeNote, c.Origin.DID.PublicKey())}
	for _, w := range append([]*Witness{relay}, witnesses...) {
		i := slices.IndexFunc(c.Signatures, func(s Signature) bool { return s.isBy(w.Name, w.hash) })
		if i >= 0 {
			only.Signatures = append(only.Signatures, c.Signatures[i])
		}
	}
	return only
}

// Extends checks that c's tree continues the tree with this size and root (RFC 9162 §2.1.4.2). The consistency proof is
// path.
func (c *Checkpoint) Extends(size int64, root Hash, path []Hash) error {
	if size < 1 || size > c.Size {
		return fmt.Errorf("a log with %d leaves cannot continue one with %d", c.Size, size)
	}
	if err := tlog.CheckTree(path, c.Size, c.Root, size, root); err != nil {
		return errors.New("the path does not lead from the smaller tree to the larger one")
	}
	return nil
}

// Witness is the key of somebody who signs checkpoints that are consistent with the ones before.
type Witness struct {
	Name string

	verifier *didkey.Verifier
	hash     [keyHashSize]byte
}

// Cosigned says that a witness has signed a checkpoint, and when.
type Cosigned struct {
	Witness *Witness
	At      time.Time
}

// verifierKey is a key of the form NAME+HASH+KEY (C2SP signed-note).
type verifierKey struct {
	name   string
	hash   [keyHashSize]byte
	kind   byte
	public []byte
}

func parseVerifierKey(text string) (k verifierKey, err error) {
	name, rest, _ := strings.Cut(text, "+")
	hash, encoded, _ := strings.Cut(rest, "+")
	raw, err := parseBase64(encoded)
	id, failed := hex.DecodeString(hash)
	if err != nil || failed != nil || !validName(name) || len(id) != keyHashSize || hex.EncodeToString(id) != hash {
		return k, errors.New("a key has the form NAME+HASH+KEY")
	}
	return verifierKey{name, [keyHashSize]byte(id), raw[0], raw[1:]}, nil
}

// checkHash checks the hash of a key for cosignatures. Other keys may have other hashes.
func (k verifierKey) checkHash() error {
	if k.hash != hashOfKey(k.name, k.kind, k.public) {
		return fmt.Errorf("the hash in the key of the witness %s is wrong", k.name)
	}
	return nil
}

// ParseWitness parses a verifier key of type 0x04 (C2SP tlog-cosignature): NAME+HASH+KEY.
func ParseWitness(key string) (*Witness, error) {
	k, err := parseVerifierKey(key)
	if err != nil || k.kind != typeCosignature || len(k.public) != ed25519.PublicKeySize {
		return nil, errors.New("the key of a witness has the form NAME+HASH+KEY, and a key of the type 4")
	}
	did, err := didkey.FromPublicKey(k.public)
	if err != nil {
		return nil, fmt.Errorf("the key of the witness %s: %w", k.name, err)
	}
	w := &Witness{Name: k.name, hash: k.hash}
	if w.verifier, err = didkey.ParseVerifier(string(did)); err != nil {
		return nil, err
	}
	if err := k.checkHash(); err != nil {
		return nil, err
	}
	return w, nil
}

// verify checks a cosignature of a checkpoint with this body.
func (w *Witness) verify(body string, signature []byte) (at time.Time, ok bool) {
	if len(signature) != timeSize+ed25519.SignatureSize {
		return time.Time{}, false
	}
	seconds := binary.BigEndian.Uint64(signature)
	return time.Unix(int64(seconds), 0), int64(seconds) >= 0 &&
		w.verifier.Verify([]byte(cosigned(int64(seconds), body)), signature[timeSize:])
}

package proof

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
)

// Cosign returns the cosignature of c at a time by the witness with this name and key (C2SP tlog-cosignature).
func (c *Checkpoint) Cosign(name string, key didkey.Key, at time.Time) (Signature, error) {
	seconds := binary.BigEndian.AppendUint64(nil, uint64(at.Unix()))
	signature, err := key.Sign([]byte(cosigned(at.Unix(), c.Body())))
	return Signature{name, hashOfKey(name, typeCosignature, key.DID().PublicKey()), append(seconds, signature...)}, err
}

// cosigned returns what a witness signs.
func cosigned(seconds int64, body string) string {
	return fmt.Sprintf("cosignature/v1\ntime %d\n%s", seconds, body)
}

// VerifierKey returns the verifier key of the witness with this name and public key, as ParseWitness reads it.
func VerifierKey(name string, key didkey.DID) string {
	hash := hashOfKey(name, typeCosignature, key.PublicKey())
	raw := append([]byte{typeCosignature}, key.PublicKey()...)
	return name + "+" + hex.EncodeToString(hash[:]) + "+" + base64.StdEncoding.EncodeToString(raw)
}

// ParseSignatures reads lines of signatures, at least one. It checks the form only.
func ParseSignatures(text string) (all []Signature, err error) {
	for lines := (lineReader{text}); lines.rest != "" || all == nil; {
		s, err := parseSignature(&lines)
		if err != nil {
			return nil, err
		}
		if all = append(all, s); len(all) > maxSignatures {
			return nil, fmt.Errorf("there are more than %d signatures", maxSignatures)
		}
	}
	return all, nil
}

// Submission asks a witness to cosign a checkpoint (C2SP tlog-witness, add-checkpoint).
type Submission struct {
	Old        int64  // the size of the log that the witness has cosigned before; 0: it knows none
	Path       []Hash // proves that Checkpoint continues the log with Old leaves; empty if Old is 0 or the same size
	Checkpoint Checkpoint
}

// MaxSubmission is the maximum size of a submission in bytes (LOG §3).
const MaxSubmission = 8 << 10

// String returns the text of s.
func (s *Submission) String() string {
	text := "old " + strconv.FormatInt(s.Old, 10) + "\n"
	for _, hash := range s.Path {
		text += hash.String() + "\n"
	}
	return text + "\n" + s.Checkpoint.String()
}

// ParseSubmission reads a submission. It checks the form only.
func ParseSubmission(text string) (s Submission, err error) {
	if len(text) > MaxSubmission {
		return s, fmt.Errorf("the request has more than %d bytes", MaxSubmission)
	}
	lines := lineReader{text}
	if s.Old, err = parseNumber(lines.after("old ")); err != nil {
		return s, errors.New("the first line must be the word old and the size of the log that was cosigned before")
	}
	for !strings.HasPrefix(lines.rest, "\n") {
		hash, err := parseHash(lines.next())
		if err != nil {
			return s, fmt.Errorf("the consistency proof: %w", err)
		}
		if s.Path = append(s.Path, hash); len(s.Path) > maxPath {
			return s, fmt.Errorf("the consistency proof has more than %d lines", maxPath)
		}
	}
	lines.next()
	s.Checkpoint, err = ParseCheckpoint(lines.rest)
	return s, err
}

// Policy says which witnesses must have cosigned a checkpoint (C2SP tlog-policy).
type Policy struct {
	Witnesses []PolicyWitness

	quorum string
	groups map[string]policyGroup // by name
}

// PolicyWitness is a witness of a policy.
type PolicyWitness struct {
	Name string   // in the policy
	URL  string   // where it takes submissions; empty: unknown
	Key  *Witness // nil: a key of a type that this program does not know, so it counts as absent
}

// policyGroup needs the cosignatures of some of its members, which are witnesses or groups.
type policyGroup struct {
	threshold int
	members   []string
}

const maxPolicy = 64 << 10 // bytes of a policy

// ParsePolicy reads a policy. The lines for logs are ignored: the origin of a log has the key of its relay.
func ParsePolicy(text string) (*Policy, error) {
	if len(text) > maxPolicy {
		return nil, fmt.Errorf("the policy has more than %d bytes", maxPolicy)
	}
	p := &Policy{groups: map[string]policyGroup{}}
	for n, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if err := p.add(words); err != nil {
			return nil, fmt.Errorf("line %d of the policy: %w", n+1, err)
		}
	}
	if p.quorum == "" {
		return nil, errors.New("the policy has no line with a quorum; add: quorum none, or the name of a witness or group")
	}
	return p, nil
}

// noQuorum is the quorum of a policy that needs no cosignature.
const noQuorum = "none"

func (p *Policy) add(words []string) error {
	switch {
	case words[0] == "log" && len(words) >= 2 && len(words) <= 3:
		return nil
	case words[0] == "witness" && (len(words) == 3 || len(words) == 4):
		return p.addWitness(words[1], words[2], strings.Join(words[3:], ""))
	case words[0] == "group" && len(words) >= 4:
		return p.addGroup(words[1], words[2], words[3:])
	case words[0] == "quorum" && len(words) == 2 && p.quorum == "":
		if words[1] != noQuorum && !p.has(words[1]) {
			return fmt.Errorf("there is no witness and no group %.50q above", words[1])
		}
		p.quorum = words[1]
		return nil
	}
	return errors.New("a line is one of: log KEY [URL], witness NAME KEY [URL], group NAME THRESHOLD MEMBER…, quorum NAME " +
		"(once)")
}

func (p *Policy) has(name string) bool {
	if _, ok := p.groups[name]; ok {
		return true
	}
	for _, w := range p.Witnesses {
		if w.Name == name {
			return true
		}
	}
	return false
}

func (p *Policy) addWitness(name, key, url string) error {
	if name == noQuorum || p.has(name) {
		return fmt.Errorf("the name %.50q is used already", name)
	}
	w := PolicyWitness{Name: name, URL: strings.TrimSuffix(url, "/")}
	var err error
	if w.Key, err = ParseWitness(key); err != nil && !isOtherKey(key) {
		return err
	}
	p.Witnesses = append(p.Witnesses, w)
	return nil
}

// isOtherKey reports whether key is a verifier key of a type other than 0x04.
func isOtherKey(key string) bool {
	_, rest, _ := strings.Cut(key, "+")
	_, encoded, _ := strings.Cut(rest, "+")
	raw, err := parseBase64(encoded)
	return err == nil && len(raw) > 1 && raw[0] != typeCosignature
}

func (p *Policy) addGroup(name, threshold string, members []string) error {
	if name == noQuorum || p.has(name) {
		return fmt.Errorf("the name %.50q is used already", name)
	}
	for _, member := range members {
		if !p.has(member) {
			return fmt.Errorf("there is no witness and no group %.50q above", member)
		}
	}
	n, err := strconv.Atoi(threshold)
	switch threshold {
	case "any":
		n, err = 1, nil
	case "all":
		n, err = len(members), nil
	}
	if err != nil || n < 1 || n > len(members) {
		return fmt.Errorf("a threshold is any, all, or a number from 1 to the number of members, %d", len(members))
	}
	p.groups[name] = policyGroup{n, members}
	return nil
}

// Keys returns the keys of the witnesses, for Verify.
func (p *Policy) Keys() (keys []*Witness) {
	for _, w := range p.Witnesses {
		if w.Key != nil {
			keys = append(keys, w.Key)
		}
	}
	return keys
}

// Met reports whether these cosignatures, which Verify has returned, are enough.
func (p *Policy) Met(cosigned []Cosigned) bool {
	met := map[string]bool{noQuorum: true}
	for _, w := range p.Witnesses {
		for _, c := range cosigned {
			met[w.Name] = met[w.Name] || c.Witness == w.Key
		}
	}
	return p.met(p.quorum, met)
}

// met computes whether a name is met. The members of a group stand above it, so the depth is that of the policy.
func (p *Policy) met(name string, known map[string]bool) bool {
	met, ok := known[name]
	group, isGroup := p.groups[name]
	if ok || !isGroup {
		return met
	}
	n := 0
	for _, member := range group.members {
		if p.met(member, known) {
			n++
		}
	}
	known[name] = n >= group.threshold
	return known[name]
}

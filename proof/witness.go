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
	Key  *Witness // nil: a key for ML-DSA, which this program cannot verify, so the witness counts as absent (LOG L-21)
}

// policyGroup needs the cosignatures of some of its members, which are witnesses or groups.
type policyGroup struct {
	threshold int64
	members   []string
}

const maxPolicy = 256 << 10 // bytes of a policy; room for more than 32 logs and 32 witnesses with keys for ML-DSA

// ParsePolicy reads a policy. The logs are not used: the origin of a log has the key of its relay.
func ParsePolicy(text string) (*Policy, error) {
	if len(text) > maxPolicy {
		return nil, fmt.Errorf("the policy has more than %d bytes", maxPolicy)
	}
	p := policyReader{Policy{groups: map[string]policyGroup{}}, map[string]bool{}}
	for n, line := range strings.Split(text, "\n") {
		if err := p.readLine(line); err != nil {
			return nil, fmt.Errorf("line %d of the policy: %w", n+1, err)
		}
	}
	if p.quorum == "" {
		return nil, errors.New("the policy has no line with a quorum; add: quorum none, or the name of a witness or group")
	}
	return &p.Policy, nil
}

// noQuorum is the quorum of a policy that needs no cosignature.
const noQuorum = "none"

// policyReader reads the lines of a policy.
type policyReader struct {
	Policy
	taken map[string]bool // what must not be there again, see take
}

// Kinds of what may be in a policy only once.
const (
	policyLog     = "log "     // a public key
	policyWitness = "witness " // a public key
	policyName    = "name "    // of a witness or a group
	policyMember  = "member "  // the name of a member of a group
)

// take reports whether the policy has not had this before.
func (p *policyReader) take(kind, what string) bool {
	before := p.taken[kind+what]
	p.taken[kind+what] = true
	return !before
}

// has reports whether a witness or group has this name.
func (p *policyReader) has(name string) bool { return p.taken[policyName+name] }

func (p *policyReader) readLine(line string) error {
	if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return errors.New("there is a control character; lines end with LF only")
	}
	words := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '\t' })
	switch {
	case len(words) == 0 || strings.HasPrefix(words[0], "#"):
		return nil
	case words[0] == "log" && (len(words) == 2 || len(words) == 3):
		return p.addLog(words[1])
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
	return errors.New("a line is one of: log KEY [URL], witness NAME KEY [URL], group NAME THRESHOLD MEMBER…, " +
		"quorum NAME (once)")
}

func (p *policyReader) addLog(key string) error {
	k, err := parseVerifierKey(key)
	if err == nil && !p.take(policyLog, string(k.public)) {
		err = fmt.Errorf("the key of the log %.50q is there already", k.name)
	}
	return err
}

func (p *policyReader) addName(name string) error {
	if name == noQuorum || !p.take(policyName, name) {
		return fmt.Errorf("the name %.50q is used already", name)
	}
	return nil
}

func (p *policyReader) addWitness(name, key, url string) error {
	if err := p.addName(name); err != nil {
		return err
	}
	k, err := parseVerifierKey(key)
	if err != nil {
		return err
	}
	if !p.take(policyWitness, string(k.public)) {
		return fmt.Errorf("another witness has the key of the witness %.50q", name)
	}
	w := PolicyWitness{Name: name, URL: strings.TrimSuffix(url, "/")}
	if k.kind == typeMLDSA && len(k.public) == mlDSAKeySize {
		err = k.checkHash()
	} else {
		w.Key, err = ParseWitness(key)
	}
	p.Witnesses = append(p.Witnesses, w)
	return err
}

func (p *policyReader) addGroup(name, threshold string, members []string) error {
	for _, member := range members {
		if !p.has(member) {
			return fmt.Errorf("there is no witness and no group %.50q above", member)
		}
		if !p.take(policyMember, member) {
			return fmt.Errorf("%.50q is a member of a group already", member)
		}
	}
	if err := p.addName(name); err != nil {
		return err
	}
	all := int64(len(members))
	n, err := parseNumber(threshold)
	switch threshold {
	case "any":
		n, err = 1, nil
	case "all":
		n, err = all, nil
	}
	if err != nil || n < 1 || n > all {
		return fmt.Errorf("a threshold is any, all, or a number from 1 to the number of members, %d", all)
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
	signed := map[string]bool{noQuorum: true}
	for _, w := range p.Witnesses {
		for _, c := range cosigned {
			if c.Witness == w.Key {
				signed[w.Name] = true
			}
		}
	}
	return p.met(p.quorum, signed)
}

// met computes whether a name is met. The members of a group stand above it, and each is a member of one group only. So
// no name is visited twice.
func (p *Policy) met(name string, signed map[string]bool) bool {
	group, isGroup := p.groups[name]
	if !isGroup {
		return signed[name]
	}
	var n int64
	for _, member := range group.members {
		if p.met(member, signed) {
			n++
		}
	}
	return n >= group.threshold
}

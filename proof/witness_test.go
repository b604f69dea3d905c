package proof

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/testvectors"
)

// seeded returns the key whose seed has 32 times this byte.
func seeded(t testing.TB, seed byte) didkey.Key {
	t.Helper()
	key, err := didkey.FromSeed(bytes.Repeat([]byte{seed}, 32))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// logVector returns the proof and the known witnesses of a vector of log.json.
func logVector(t testing.TB, name string) (*Proof, testvectors.LogVector) {
	t.Helper()
	all := testvectors.Log()
	v := all[slices.IndexFunc(all, func(v testvectors.LogVector) bool { return v.Name == name })]
	p, err := Parse(v.Proof)
	if err != nil {
		t.Fatal(err)
	}
	return p, v
}

// TestCosign compares cosignatures and keys of witnesses with those in the vectors, which other code has made. The key
// in the example of LOG §2 is derived by L-21.
func TestCosign(t *testing.T) {
	relay := seeded(t, 5)
	seed, err := relay.Derive("agora witness 5e6f7081")
	if err != nil {
		t.Fatal(err)
	}
	derived, err := didkey.FromSeed(seed)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		vector, name string
		key          didkey.Key
	}{
		{"example-of-the-specification", string(relay.DID()) + "/witness/5e6f7081", derived},
		{"cosigned", "witness.example/1", relay},
	} {
		p, v := logVector(t, c.vector)
		own := p.Checkpoint.Only()
		got, err := own.Cosign(c.name, c.key, time.Unix(1770033605, 999))
		if want := v.Proof[strings.LastIndex(v.Proof, signatureMark):]; err != nil || got.String() != want {
			t.Errorf("%s: the cosignature is %v%v, want %s", c.vector, got, err, want)
		}
		key := VerifierKey(c.name, c.key.DID())
		if v.Witnesses != nil && key != v.Witnesses[0] {
			t.Errorf("%s: the key is %s, want %s", c.vector, key, v.Witnesses)
		}
		w, err := ParseWitness(key)
		if err != nil {
			t.Fatal(err)
		}
		found, err := p.Checkpoint.Verify(w)
		if err != nil || len(found) != 1 || found[0].At.Unix() != 1770033605 {
			t.Errorf("%s: %v, %v", c.vector, found, err)
		}
	}
}

// TestOnly checks that only one signature by each known key is kept.
func TestOnly(t *testing.T) {
	p, v := logVector(t, "unknown-signatures")
	c := p.Checkpoint
	w, err := ParseWitness(v.Witnesses[0])
	if err != nil {
		t.Fatal(err)
	}
	cosigned, err := c.Cosign(w.Name, seeded(t, 5), time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	c.Signatures = append([]Signature{cosigned, cosigned}, append(c.Signatures, c.Signatures...)...)
	for n, only := range map[int]Checkpoint{1: c.Only(), 2: c.Only(w)} {
		if found, err := only.Verify(w); err != nil || len(only.Signatures) != n || len(found) != n-1 {
			t.Errorf("%d signatures, %v, %v; want %d", len(only.Signatures), found, err, n)
		}
	}
}

func TestParseSubmission(t *testing.T) {
	p, _ := logVector(t, "larger-tree")
	checkpoint, line := p.Checkpoint.String(), base64.StdEncoding.EncodeToString(make([]byte, 32))+"\n"
	for _, c := range []struct {
		old  int64
		path int
	}{{0, 0}, {0, 1}, {1, 4}, {14, 0}, {15, 0}, {9, 63}, {1<<63 - 1, 1}} {
		text := fmt.Sprintf("old %d\n", c.old) + strings.Repeat(line, c.path) + "\n" + checkpoint
		s, err := ParseSubmission(text)
		if err != nil || s.Old != c.old || len(s.Path) != c.path || s.Checkpoint.Size != 14 || s.String() != text {
			t.Errorf("%q is read as %+v, %v", text, s, err)
		}
	}
	good, line31 := "old 1\n"+line+"\n"+checkpoint, make([]byte, 31)
	if _, err := ParseSubmission(good); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"nothing":                       "",
		"no old size":                   line + "\n" + checkpoint,
		"an old size without the word":  strings.TrimPrefix(good, "old "),
		"an old size in capitals":       strings.Replace(good, "old", "Old", 1),
		"an empty old size":             strings.Replace(good, "old 1", "old ", 1),
		"an old size with a zero":       strings.Replace(good, "old 1", "old 01", 1),
		"an old size with a sign":       strings.Replace(good, "old 1", "old +1", 1),
		"a negative old size":           strings.Replace(good, "old 1", "old -1", 1),
		"an old size with two spaces":   strings.Replace(good, "old 1", "old  1", 1),
		"an old size with a space":      strings.Replace(good, "old 1", "old 1 ", 1),
		"an old size of 64 bits":        strings.Replace(good, "old 1", "old 9223372036854775808", 1),
		"a line before":                 "\n" + good,
		"CR LF":                         strings.ReplaceAll(good, "\n", "\r\n"),
		"no empty line":                 strings.Replace(good, "\n\n", "\n", 1),
		"two empty lines":               strings.Replace(good, "\n\n", "\n\n\n", 1),
		"a hash without padding":        strings.Replace(good, "A=\n", "A\n", 1),
		"a hash with loose bits":        strings.Replace(good, "A=\n", "B=\n", 1),
		"a hash of 31 bytes":            strings.Replace(good, line, base64.StdEncoding.EncodeToString(line31)+"\n", 1),
		"64 hashes":                     strings.Replace(good, line, strings.Repeat(line, 64), 1),
		"only an old size":              "old 1\n",
		"no checkpoint":                 "old 1\n" + line + "\n",
		"a checkpoint without signer":   "old 1\n" + line + "\n" + p.Checkpoint.Body() + "\n",
		"an extension line":             strings.Replace(good, "\n\n—", "\nextension\n\n—", 1),
		"an empty log":                  strings.Replace(good, "\n14\n", "\n0\n", 1),
		"the origin of another program": strings.Replace(good, p.Checkpoint.Origin.String()+"\n", "example.com/log\n", 1),
		"a line behind":                 good + "x\n",
		"a text that is too long":       good + Signature{"x", [4]byte{}, make([]byte, MaxSubmission)}.String(),
	} {
		if s, err := ParseSubmission(text); err == nil {
			t.Errorf("%s: %q is read as %+v", name, text, s)
		}
	}
}

// TestParseSignatures reads what a witness answers.
func TestParseSignatures(t *testing.T) {
	line := Signature{"a", [4]byte{1}, []byte{2}}.String()
	for _, n := range []int{1, 2, 100} {
		if all, err := ParseSignatures(strings.Repeat(line, n)); err != nil || len(all) != n || all[n-1].String() != line {
			t.Errorf("%d signatures are read as %v, %v", n, all, err)
		}
	}
	for _, text := range []string{"", "\n", "x", strings.TrimSuffix(line, "\n"), line + "\n", line + "x\n", "\n" + line,
		strings.Repeat(line, 101)} {
		if all, err := ParseSignatures(text); err == nil {
			t.Errorf("%.50q is read as %v", text, all)
		}
	}
}

// mlDSAKey returns a key for ML-DSA. Nobody has its private key.
func mlDSAKey(name string, public []byte) string {
	hash, raw := hashOfKey(name, typeMLDSA, public), append([]byte{typeMLDSA}, public...)
	return name + "+" + hex.EncodeToString(hash[:]) + "+" + base64.StdEncoding.EncodeToString(raw)
}

// policyKeys replaces the words in capitals in the policies of the tests: the keys W1 to W5 of witnesses, the key OTHER
// of W1 under another name, keys for ML-DSA, and the keys of logs.
func policyKeys(t testing.TB) *strings.Replacer {
	t.Helper()
	words := []string{"OTHER", VerifierKey("other", seeded(t, 1).DID()), "TAB", "\t",
		"ML1", mlDSAKey("m", make([]byte, 1312)), "ML2", mlDSAKey("n", make([]byte, 1312)),
		"SHORTML", mlDSAKey("m", make([]byte, 1311)),
		"WRONGML", "m+00000000+" + strings.Split(mlDSAKey("m", make([]byte, 1312)), "+")[2],
		"LOG1", "example.com/log+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k",
		"LOG2", "example.com/2+00000000+AgAA", "LOG3", "example.com/3+00000001+AwEA",
		"LOG4", "example.com/4+00000002+AwAA"}
	for n := byte(1); n <= 5; n++ {
		words = append(words, fmt.Sprint("W", n), VerifierKey(fmt.Sprint("witness.example/", n), seeded(t, n).DID()))
	}
	return strings.NewReplacer(words...)
}

// witnessLines has five witnesses.
const witnessLines = "witness a W1\nwitness b W2 https://b.example/\nwitness c W3\nwitness d W4\nwitness e W5\n"

// cosignedBy returns c with the signatures of some of the witnesses a to e in witnessLines.
func cosignedBy(t testing.TB, c Checkpoint, names string) *Checkpoint {
	t.Helper()
	c = c.Only()
	for _, name := range []byte(names) {
		n := name - 'a' + 1
		s, err := c.Cosign(fmt.Sprint("witness.example/", n), seeded(t, n), time.Unix(1, 0))
		if err != nil {
			t.Fatal(err)
		}
		c.Signatures = append(c.Signatures, s)
	}
	return &c
}

// TestPolicy checks which cosignatures meet a policy.
func TestPolicy(t *testing.T) {
	p, _ := logVector(t, "larger-tree")
	for _, c := range []struct {
		policy string
		enough []string // names of witnesses that have signed
		tooFew []string
		absent int // witnesses whose key is not known
	}{
		{policy: "quorum none\n", enough: []string{"", "a"}},
		{policy: witnessLines + "quorum none\n", enough: []string{"", "e"}},
		{policy: witnessLines + "quorum b\n", enough: []string{"b", "abc"}, tooFew: []string{"", "a", "acde"}},
		{policy: witnessLines + "group g any a b\nquorum g\n",
			enough: []string{"a", "b", "ab"}, tooFew: []string{"", "cde"}},
		{policy: witnessLines + "group g all a b\nquorum g\n",
			enough: []string{"ab", "abc"}, tooFew: []string{"", "a", "bcde"}},
		{policy: witnessLines + "group g 2 a b c\nquorum g\n",
			enough: []string{"ab", "bc", "abc"}, tooFew: []string{"a", "ade"}},
		{policy: witnessLines + "group g 1 a\nquorum g\n", enough: []string{"a"}, tooFew: []string{"b"}},
		{policy: witnessLines + "group x 2 a b c\ngroup y any d e\ngroup z all x y\nquorum z\n",
			enough: []string{"abd", "bce", "abcde"}, tooFew: []string{"abc", "ade", "de"}},
		{policy: witnessLines + "group x all a b\ngroup y any x c\nquorum y\n",
			enough: []string{"c", "ab"}, tooFew: []string{"a", "bde"}},
		{policy: witnessLines + "group x all a b\nquorum c\n", enough: []string{"c"}, tooFew: []string{"ab"}},
		// The lines for logs, comments, empty lines, blanks, names that are not ASCII, and a last line without LF.
		{policy: "# comment\n\n TAB # another\nlog LOG1\nlog LOG2 https://x\nlog LOG3\n" +
			"TAB witness  é\u3000\xffTABW1 https://a.example/x \nquorum é\u3000\xff",
			enough: []string{"a"}, tooFew: []string{"b"}},
		{policy: "witness any W1\nwitness all W2\nwitness 1 W3\ngroup none! any any all 1\nquorum none!\n",
			enough: []string{"c"}, tooFew: []string{"d"}},
		{policy: "quorum none\nwitness a W1\ngroup g any a\n", enough: []string{""}},
		// A witness with a key for ML-DSA counts as absent (LOG L-21).
		{policy: "witness m ML1\nwitness a W1\ngroup g any m a\nquorum g\n",
			enough: []string{"a"}, tooFew: []string{""}, absent: 1},
		{policy: "witness m ML1\nwitness a W1\ngroup g all m a\nquorum g\n", tooFew: []string{"", "a"}, absent: 1},
	} {
		policy, err := ParsePolicy(policyKeys(t).Replace(c.policy))
		if err != nil {
			t.Errorf("%q: %v", c.policy, err)
			continue
		}
		if absent := len(policy.Witnesses) - len(policy.Keys()); absent != c.absent {
			t.Errorf("%q: %d witnesses are absent, want %d", c.policy, absent, c.absent)
		}
		for i, names := range append(slices.Clone(c.enough), c.tooFew...) {
			cosigned, err := cosignedBy(t, p.Checkpoint, names).Verify(policy.Keys()...)
			if want := i < len(c.enough); err != nil || policy.Met(cosigned) != want {
				t.Errorf("%q, signed by %q: met is %v, %v; want %v", c.policy, names, !want, err, want)
			}
		}
	}
	policy, err := ParsePolicy(policyKeys(t).Replace(witnessLines + "quorum none"))
	if err != nil {
		t.Fatal(err)
	}
	a, b := policy.Witnesses[0], policy.Witnesses[1]
	if a.URL != "" || b.URL != "https://b.example" || b.Name != "b" || b.Key.Name != "witness.example/2" {
		t.Errorf("%+v, %+v", a, b)
	}
}

// TestBadPolicies checks what is no policy.
func TestBadPolicies(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":                          "",
		"no quorum":                        witnessLines,
		"two quorums":                      witnessLines + "quorum a\nquorum none\n",
		"an unknown quorum":                witnessLines + "quorum x\n",
		"a quorum that comes later":        "quorum a\n" + witnessLines,
		"a quorum of two words":            witnessLines + "quorum a b\n",
		"an empty quorum":                  witnessLines + "quorum\n",
		"an unknown line":                  witnessLines + "quorum none\nmonitor a\n",
		"a line in capitals":               witnessLines + "Quorum none\n",
		"a comment behind a line":          witnessLines + "quorum none # all\n",
		"a key without a name":             "witness W1\nquorum none\n",
		"a witness with two addresses":     "witness a W1 https://a https://b\nquorum none\n",
		"a witness twice":                  witnessLines + "witness a ML1\nquorum none\n",
		"a key twice":                      witnessLines + "witness f W1\nquorum none\n",
		"a key under another name":         witnessLines + "witness f OTHER\nquorum none\n",
		"a key for ML-DSA twice":           "witness m ML1\nwitness n ML2\nquorum none\n",
		"a witness with the name none":     "witness none W1\nquorum none\n",
		"a key of a log as a witness":      "witness a LOG1\nquorum none\n",
		"a broken key":                     "witness a x+00000000+AA==\nquorum none\n",
		"a key with another hash":          "witness a xW1\nquorum none\n",
		"a short key for ML-DSA":           "witness m SHORTML\nquorum none\n",
		"a key for ML-DSA with wrong hash": "witness m WRONGML\nquorum none\n",
		"a key of an unknown type":         "witness a LOG3\nquorum none\n",
		"a group without members":          witnessLines + "group g any\nquorum g\n",
		"a group with an unknown member":   witnessLines + "group g any a x\nquorum g\n",
		"a group in itself":                witnessLines + "group g any g\nquorum g\n",
		"a group of none":                  witnessLines + "group g any none\nquorum g\n",
		"a group with the name none":       witnessLines + "group none any a\nquorum none\n",
		"a group with a name twice":        witnessLines + "group a any b\nquorum a\n",
		"a group that comes later":         witnessLines + "group g any h\ngroup h any a\nquorum g\n",
		"a member twice":                   witnessLines + "group g 2 a a\nquorum g\n",
		"a member of two groups":           witnessLines + "group g any a b\ngroup h any a c\nquorum h\n",
		"a threshold of zero":              witnessLines + "group g 0 a b\nquorum g\n",
		"a threshold above the members":    witnessLines + "group g 3 a b\nquorum g\n",
		"a threshold with a zero":          witnessLines + "group g 01 a b\nquorum g\n",
		"a threshold with a sign":          witnessLines + "group g +1 a b\nquorum g\n",
		"a threshold that is no number":    witnessLines + "group g some a b\nquorum g\n",
		"a log without a key":              "log\nquorum none\n",
		"a log with a broken key":          "log example.com\nquorum none\n",
		"a log twice":                      "log LOG1\nlog LOG2\nlog LOG1\nquorum none\n",
		"a log under another name":         "log LOG2\nlog LOG4\nquorum none\n",
		"CR LF":                            strings.ReplaceAll(witnessLines+"quorum none\n", "\n", "\r\n"),
		"a control character":              "# \x00\nquorum none\n",
		"the control character DEL":        "# \x7f\nquorum none\n",
		"a space that is not ASCII":        "quorum\u00a0none\n",
		"a text that is too long":          "#" + strings.Repeat("x", maxPolicy) + "\nquorum none\n",
	} {
		if p, err := ParsePolicy(policyKeys(t).Replace(text)); err == nil {
			t.Errorf("%s: %q is read as %+v", name, text, p)
		}
	}
}

// FuzzSubmission checks that what is parsed is written as the same bytes.
func FuzzSubmission(f *testing.F) {
	p, _ := logVector(f, "cosigned")
	s := Submission{Old: 3, Path: p.Path, Checkpoint: p.Checkpoint}
	f.Add(s.String())
	s.Old, s.Path = 0, nil
	f.Add(s.String())
	f.Add(p.Checkpoint.Signatures[0].String() + p.Checkpoint.Signatures[1].String())
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := ParseSubmission(text); err == nil && s.String() != text {
			t.Fatalf("%q is written as %q", text, s.String())
		}
		all, err := ParseSignatures(text)
		again := ""
		for _, s := range all {
			again += s.String()
		}
		if err == nil && again != text {
			t.Fatalf("%q is written as %q", text, again)
		}
	})
}

// FuzzPolicy checks that a policy without signatures is met only if it needs none, and that all signatures together
// meet every policy whose keys are known.
func FuzzPolicy(f *testing.F) {
	keys := policyKeys(f)
	f.Add("log LOG1\nquorum none\n")
	f.Add(keys.Replace(witnessLines + "group x 2 a b c\ngroup y any d e\ngroup z all x y\nquorum z\n"))
	f.Add(keys.Replace("# x\nwitness m ML1\nquorum m\n"))
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePolicy(text)
		if err != nil {
			return
		}
		var all []Cosigned
		for _, w := range p.Keys() {
			all = append(all, Cosigned{Witness: w})
		}
		known := len(all) == len(p.Witnesses)
		if p.Met(nil) != (p.quorum == noQuorum) || known && !p.Met(all) {
			t.Fatalf("met is %v without signatures, and %v with all", p.Met(nil), p.Met(all))
		}
	})
}

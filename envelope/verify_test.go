package envelope_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/mr-tron/base58"

	"github.com/agora-relay/agora/envelope"
)

func TestVerify(t *testing.T) {
	text := sign(t, body(t, "sig", ""))
	if err := parse(t, text).Verify(); err != nil {
		t.Fatal(err)
	}
	// The spelling and the wrapper do not matter: the canonical form is the same.
	for _, same := range []string{
		" " + strings.ReplaceAll(text, `,"`, ",\n\t\""),
		`{"envelope":` + text + `}`,
		strings.Replace(text, `"hop":0`, `"hop":-0.0`, 1),
		strings.Replace(text, `"ttl":300`, `"ttl":3e2`, 1),
		strings.Replace(text, `"msg_1"`, `"\u006dsg_1"`, 1),
		strings.Replace(text, `"sig"`, `"\u0073ig"`, 1),
	} {
		e := parse(t, same)
		if same == text || e.Verify() != nil || !bytes.Equal(e.Canonical(), parse(t, text).Canonical()) {
			t.Errorf("%s: Verify: %v; canonical form %s", same, e.Verify(), e.Canonical())
		}
	}
	for name, other := range map[string]string{
		"a member changed":  strings.Replace(text, `"hop":0`, `"hop":1`, 1),
		"a member added":    text[:len(text)-1] + `,"x":1}`,
		"a member removed":  strings.Replace(text, `"hop":0,`, "", 1),
		"ts, same instant":  strings.Replace(text, `:00Z"`, `:00.0Z"`, 1),
		"another sender":    strings.Replace(text, string(testKey(t, 1).DID()), string(testKey(t, 2).DID()), 1),
		"another signature": sign(t, body(t, "sig", "", "id", `"msg_2"`))[:95] + text[95:],
	} {
		if e := parse(t, other); codeOf(t, e.Verify()) != badSignature {
			t.Errorf("%s: %v", name, e.Verify())
		}
	}
}

// TestVerifyWithOddMembers checks that the signature covers members whose names sort around "sig" or need escapes.
func TestVerifyWithOddMembers(t *testing.T) {
	for _, names := range [][]string{
		{`\"`}, {`\\`}, {`\u0000`}, {`\n`}, {"é"}, {"\u2028"}, {"😀"}, {"<&>"}, {""}, {"zz"}, {"si"}, {"sigh"}, {`sig\"`}, {`\"sig`},
		{"aa", "zz", `sig\u0001`, "sih", "<"},
	} {
		changes := []string{"sig", ""}
		for _, name := range names {
			changes = append(changes, name, `{"sig":"no","x":"}],\""}`)
		}
		signed := sign(t, body(t, changes...))
		if err := parse(t, signed).Verify(); err != nil {
			t.Errorf("members %q: %v", names, err)
		}
		if err := parse(t, strings.Replace(signed, `"no"`, `"on"`, 1)).Verify(); codeOf(t, err) != badSignature {
			t.Errorf("members %q, changed: %v", names, err)
		}
	}
}

func TestSignatureSpellings(t *testing.T) {
	text := sign(t, body(t, "sig", ""))
	sig := text[len(`{"sig":"`):][:86]
	raw, _ := base64.RawURLEncoding.DecodeString(sig)
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(alphabet, sig[85])
	spellings := map[string]string{
		"padded":            sig + "==",
		"half padded":       sig + "=",
		"standard alphabet": base64.RawStdEncoding.EncodeToString(bytes.Repeat([]byte{0xff}, 64)),
		"hex":               hex.EncodeToString(raw),
		"base58":            base58.Encode(raw),
		"line break":        sig[:40] + `\n` + sig[40:],
		"CR LF as padding":  sig[:40] + `\r\n` + sig[42:],
		"line breaks in 86": sig[:82] + `\n\n\n\n`,
		"trailing break":    sig + `\n`,
		"leading space":     " " + sig,
		"space inside":      sig[:40] + " " + sig[41:],
		"85 characters":     sig[:85],
		"87 characters":     sig + "A",
		"empty":             "",
		"88 of 66 bytes":    base64.RawURLEncoding.EncodeToString(append(raw, 0, 0)),
		"63 bytes":          base64.RawURLEncoding.EncodeToString(raw[:63]),
		"multibase":         "u" + sig,
		"zero":              strings.Repeat("A", 86),
		"non-ASCII":         sig[:84] + "é",
	}
	for bits := 1; bits < 16; bits++ { // the last character holds 2 bits of the signature and 4 spare bits
		spellings["spare bits "+alphabet[last+bits:][:1]] = sig[:85] + alphabet[last+bits:][:1]
	}
	for name, spelling := range spellings {
		if err := parse(t, strings.Replace(text, sig, spelling, 1)).Verify(); codeOf(t, err) != badSignature {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, value := range []string{"", "null", "5", "{}", `["` + sig + `"]`, `{"sig":"` + sig + `"}`} {
		if err := parse(t, body(t, "sig", value)).Verify(); codeOf(t, err) != badSignature {
			t.Errorf("sig = %s: %v", value, err)
		}
	}
}

// TestSignatureIsNotMalleable checks that S+L is refused in place of S. Verifiers without a check, unlike the standard
// library, accept both.
func TestSignatureIsNotMalleable(t *testing.T) {
	text := sign(t, body(t, "sig", ""))
	sig := text[len(`{"sig":"`):][:86]
	raw, _ := base64.RawURLEncoding.DecodeString(sig)
	order, _ := hex.DecodeString("edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010")
	carry := 0
	for i, b := range order {
		carry += int(raw[32+i]) + int(b)
		raw[32+i] = byte(carry)
		carry >>= 8
	}
	if err := parse(t, strings.Replace(text, sig, base64.RawURLEncoding.EncodeToString(raw), 1)).Verify(); codeOf(t, err) != badSignature {
		t.Errorf("S+L: %v", err)
	}
}

// TestVerifyParties checks that the identifiers of sender and recipient are checked before the signature, and both by
// the same rules.
func TestVerifyParties(t *testing.T) {
	spell := func(raw []byte) string { return "did:key:z" + base58.Encode(append([]byte{0xed, 0x01}, raw...)) }
	good := string(testKey(t, 1).DID())
	for name, did := range map[string]string{
		"empty": "", "other method": "did:web:example.org", "fragment": good + "#" + good[8:], "space": good + " ",
		"31 bytes": spell(make([]byte, 31)), "33 bytes": spell(make([]byte, 33)),
		"identity point": spell(append([]byte{1}, make([]byte, 31)...)), "y ≥ p": spell(bytes.Repeat([]byte{0xff}, 32)),
	} {
		if err := parse(t, sign(t, body(t, "sig", "", "sender", `{"id":"`+did+`"}`))).Verify(); codeOf(t, err) != badDID {
			t.Errorf("sender %s: %v", name, err)
		}
		e, err := envelope.Parse([]byte(sign(t, body(t, "sig", "", "recipient", `{"id":"`+did+`"}`))), 0)
		if err == nil {
			err = e.Verify()
		}
		if codeOf(t, err) != badDID {
			t.Errorf("recipient %s: %v", name, err)
		}
	}
	// There is no point with y = 2. So nobody can have this key, as a sender or as a recipient.
	nobody := spell(append([]byte{2}, make([]byte, 31)...))
	if err := parse(t, body(t, "sender", `{"id":"`+nobody+`"}`)).Verify(); codeOf(t, err) != badDID {
		t.Errorf("a sender off the curve: %v", err)
	}
	if err := parse(t, sign(t, body(t, "sig", "", "recipient", `{"id":"`+nobody+`"}`))).Verify(); codeOf(t, err) != badDID {
		t.Errorf("a recipient off the curve: %v", err)
	}
}

// TestConstantSignature checks a key under which one constant signature verifies every message: the identity point.
func TestConstantSignature(t *testing.T) {
	identity := append([]byte{1}, make([]byte, 31)...)
	sig := base64.RawURLEncoding.EncodeToString(append(identity, make([]byte, 32)...))
	did := "did:key:z" + base58.Encode(append([]byte{0xed, 0x01}, identity...))
	e := parse(t, body(t, "sender", `{"id":"`+did+`"}`, "sig", `"`+sig+`"`))
	if err := e.Verify(); codeOf(t, err) != badDID {
		t.Errorf("got %v", err)
	}
}

func TestEveryByteCounts(t *testing.T) {
	text := parse(t, sign(t, body(t, "sig", "", "extra", `{"list":[1,true,null,"é"]}`))).Canonical()
	for i := range text {
		for _, mask := range []byte{0x01, 0x02, 0x04, 0x10, 0x20, 0x80, 0xff} {
			changed := bytes.Clone(text)
			changed[i] ^= mask
			e, err := envelope.Parse(changed, 0)
			if err == nil {
				err = e.Verify()
			}
			if codeOf(t, err) == "" {
				t.Errorf("byte %d: a change to %q from %q was accepted", i, changed[i], text[i])
			}
		}
	}
}

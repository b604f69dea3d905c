package envelope_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mr-tron/base58"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/testvectors"
)

// accept checks a body as a relay does before it uses its store: it parses the body, checks the time and verifies it.
func accept(body []byte, now time.Time) (*envelope.Envelope, error) {
	e, err := envelope.Parse(body, 0)
	if err != nil {
		return nil, err
	}
	if err := (replay.Window{}).Check(e.TS, e.TTL, now); err != nil {
		return nil, err
	}
	return e, e.Verify()
}

// policy has the results for vectors that leave the verdict to the implementation (PROTOCOL §1).
var policy = map[string]envelope.Code{"casefold_type": rejected, "deep_5000": rejected, "ttl_300_0": ok}

// refusals returns the codes with which a vector of a class may be refused.
func refusals(class, name string) []envelope.Code {
	is := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	switch class {
	case "signature":
		return []envelope.Code{badSignature}
	case "didkey":
		return []envelope.Code{badDID}
	case "json":
		return []envelope.Code{rejected}
	case "fields":
		switch {
		case is("version"):
			return []envelope.Code{badVersion}
		case is("sender"), is("recipient"):
			return []envelope.Code{badDID}
		}
		return []envelope.Code{rejected}
	case "time":
		if is("ts_plus_") || is("ts_minus_") || is("ts_year_") {
			return []envelope.Code{envelope.CodeStaleTimestamp}
		}
		return []envelope.Code{rejected, envelope.CodeExpired, envelope.CodeStaleTimestamp}
	}
	return nil
}

// sigMember matches the signature in canonical text. Other members always follow it.
var sigMember = regexp.MustCompile(`"sig":"[A-Za-z0-9_-]{86}",`)

func TestPublicEnvelopes(t *testing.T) {
	accepted := 0
	for _, v := range testvectors.PublicList[struct {
		Name, Class, Expect, Why string
		Now                      time.Time
		Body                     []byte   `json:"body_b64"`
		Unsigned                 hexBytes `json:"canonical_hex"` // the signed bytes
	}](t, "envelope/verify_vectors.json", "vectors") {
		e, err := accept(v.Body, v.Now)
		code := codeOf(t, err)
		switch v.Expect {
		case "accept":
			accepted++
			if err != nil {
				t.Errorf("%s (%s): %v; want no error", v.Name, v.Why, err)
			} else if unsigned := sigMember.ReplaceAll(e.Canonical(), nil); !bytes.Equal(unsigned, v.Unsigned) {
				t.Errorf("%s: the canonical form is %s without sig, want %s", v.Name, unsigned, v.Unsigned)
			}
		case "reject":
			if !slices.Contains(refusals(v.Class, v.Name), code) {
				t.Errorf("%s/%s (%s): %v; want %v", v.Class, v.Name, v.Why, err, refusals(v.Class, v.Name))
			}
		case "policy":
			if want, decided := policy[v.Name]; decided && code != want {
				t.Errorf("%s (%s): %v; our policy is %q", v.Name, v.Why, err, want)
			}
		default:
			t.Errorf("%s expects %q", v.Name, v.Expect)
		}
	}
	if accepted == 0 {
		t.Error("the file has no vector that must be accepted")
	}
}

// relayVerifies verifies a signature in the same way as Envelope.Verify.
func relayVerifies(key, message, sig []byte) bool {
	v, err := didkey.ParseVerifier("did:key:z" + base58.Encode(append([]byte{0xed, 0x01}, key...)))
	return err == nil && v.Verify(message, sig)
}

type hexBytes []byte

func (h *hexBytes) UnmarshalJSON(text []byte) (err error) {
	var digits string
	if err = json.Unmarshal(text, &digits); err == nil {
		*h, err = hex.DecodeString(digits)
	}
	return err
}

func TestPublicWycheproof(t *testing.T) {
	tests := 0
	for _, group := range testvectors.PublicList[struct {
		PublicKey struct{ PK hexBytes }
		Tests     []struct {
			TcID            int
			Comment, Result string
			Msg, Sig        hexBytes
		}
	}](t, "ed25519/wycheproof_ed25519.json", "testGroups") {
		for _, v := range group.Tests {
			tests++
			if got := relayVerifies(group.PublicKey.PK, v.Msg, v.Sig); got != (v.Result == "valid") {
				t.Errorf("test %d (%s): verified %v, want %s", v.TcID, v.Comment, got, v.Result)
			}
		}
	}
	if tests == 0 {
		t.Error("the test groups are empty")
	}
}

// TestPublicEd25519Policy checks the edge cases about which Ed25519 verifiers disagree. We accept what the standard
// library accepts, except keys of small order and keys that are not encoded canonically.
func TestPublicEd25519Policy(t *testing.T) {
	verdicts := map[bool]int{}
	check := func(name string, key, message, sig []byte, stdlib bool, policy string) {
		got := relayVerifies(key, message, sig)
		verdicts[got]++
		if got != (policy == "accept") || ed25519.Verify(key, message, sig) != stdlib {
			t.Errorf("%s: %v, want %s; want %v from the standard library", name, got, policy, stdlib)
		}
	}
	for _, v := range testvectors.PublicList[struct {
		Comment   string
		Message   hexBytes
		Key       hexBytes `json:"pub_key"`
		Signature hexBytes
		Stdlib    bool   `json:"go_stdlib"`
		Policy    string `json:"relay_policy"`
	}](t, "ed25519/speccheck_cases.json", "") {
		check(v.Comment, v.Key, v.Message, v.Signature, v.Stdlib, v.Policy)
	}
	for _, v := range testvectors.PublicList[struct {
		Key, Sig hexBytes
		Msg      string
		Flags    []string
		Stdlib   bool   `json:"go_stdlib"`
		Policy   string `json:"relay_policy"`
	}](t, "ed25519/cctv_ed25519.json", "") {
		check(strings.Join(v.Flags, " "), v.Key, []byte(v.Msg), v.Sig, v.Stdlib, v.Policy)
	}
	if verdicts[true] == 0 || verdicts[false] == 0 {
		t.Errorf("the cases have only one verdict: %v", verdicts)
	}
}

func TestPublicEd25519Signatures(t *testing.T) {
	type vector struct{ Priv, Seed, Pub, Msg, Sig hexBytes }
	for _, v := range slices.Concat(testvectors.PublicList[vector](t, "ed25519/rfc8032.json", ""),
		testvectors.PublicList[vector](t, "ed25519/sign_input_128.json", "")) {
		// The two files have the seed under different names, so one of Priv and Seed is empty.
		key, err := didkey.FromSeed(append(v.Priv, v.Seed...))
		if err != nil {
			t.Fatal(err)
		}
		sig, err := key.Sign(v.Msg)
		if err != nil || !bytes.Equal(sig, v.Sig) || !bytes.Equal(key.DID().PublicKey(), v.Pub) {
			t.Errorf("%x: signature %x, %v; want %x", v.Pub, sig, err, v.Sig)
		}
		if !relayVerifies(v.Pub, v.Msg, v.Sig) || relayVerifies(v.Pub, append(v.Msg, 0), v.Sig) {
			t.Errorf("%x: the good signature must verify, and must not verify for another message", v.Pub)
		}
	}
}

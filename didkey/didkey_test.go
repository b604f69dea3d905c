package didkey_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/mr-tron/base58"
	"github.com/multiformats/go-multibase"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/testvectors"
)

// good is the identifier of the all-zero seed, as published in the did:key method. goodHex is its public key.
const (
	good    = "did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp"
	goodHex = "3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29"
)

// spell encodes raw as a did:key of an Ed25519 key, even if raw is not a usable key.
func spell(raw []byte) string {
	return "did:key:z" + base58.Encode(append([]byte{0xed, 0x01}, raw...))
}

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	raw, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestPublicValid(t *testing.T) {
	seeds := 0
	for _, v := range testvectors.PublicList[struct{ DID, Seed, PublicKeyHex string }](t, "didkey/ed25519_valid.json", "") {
		pub := unhex(t, v.PublicKeyHex)
		did, err := didkey.Parse(v.DID)
		if err != nil {
			t.Errorf("Parse(%s): %v", v.DID, err)
			continue
		}
		if !bytes.Equal(did.PublicKey(), pub) {
			t.Errorf("%s: PublicKey = %x, want %x", did, did.PublicKey(), pub)
		}
		if again, err := didkey.FromPublicKey(pub); string(again) != v.DID {
			t.Errorf("FromPublicKey(%x) = %s, %v; want %s", pub, again, err, v.DID)
		}
		if v.Seed == "" {
			continue
		}
		seeds++
		if key, err := didkey.FromSeed(unhex(t, v.Seed)); string(key.DID()) != v.DID {
			t.Errorf("FromSeed(%s) = %s, %v; want %s", v.Seed, key.DID(), err, v.DID)
		}
	}
	if seeds == 0 {
		t.Error("no vector has a seed")
	}
}

func TestPublicMustReject(t *testing.T) {
	for _, v := range testvectors.PublicList[struct{ DID, Reason string }](t, "didkey/must_reject.json", "") {
		if did, err := didkey.Parse(v.DID); err == nil || did != "" {
			t.Errorf("%s: Parse(%q) = %q, %v; want a refusal", v.Reason, v.DID, did, err)
		}
	}
}

// TestPublicMultibase checks that base58btc is the only accepted multibase. It tests the texts of the vectors, and the
// good key in each of their encodings that the library supports.
func TestPublicMultibase(t *testing.T) {
	respelled := 0
	for _, v := range testvectors.PublicList[struct{ Encoding, Value string }](t, "didkey/multibase.json", "") {
		if _, err := didkey.Parse("did:key:" + v.Value); err == nil {
			t.Errorf("accepted the %s text %q", v.Encoding, v.Value)
		}
		base, known := multibase.Encodings[v.Encoding]
		if !known {
			continue
		}
		respelled++
		if did := respell(t, base); (did == good) != (v.Encoding == "base58btc") {
			t.Errorf("the good key in %s is %s", v.Encoding, did)
		} else if _, err := didkey.Parse(did); (err == nil) != (did == good) {
			t.Errorf("%s: Parse(%q): %v", v.Encoding, did, err)
		}
	}
	if respelled == 0 {
		t.Error("the library supports none of the vectors' encodings")
	}
}

func respell(t *testing.T, base multibase.Encoding) string {
	t.Helper()
	text, err := multibase.Encode(base, append([]byte{0xed, 0x01}, unhex(t, goodHex)...))
	if err != nil {
		t.Fatal(err)
	}
	return "did:key:" + text
}

func TestOneSpellingPerKey(t *testing.T) {
	for name, base := range multibase.Encodings {
		did := respell(t, base)
		_, parse := didkey.Parse(did)
		_, verifier := didkey.ParseVerifier(did)
		if want := base == multibase.Base58BTC; (parse == nil) != want || (verifier == nil) != want {
			t.Errorf("%s: Parse(%q): %v, ParseVerifier: %v", name, did, parse, verifier)
		}
	}
}

func TestRefusedForm(t *testing.T) {
	seed := unhex(t, goodHex)
	for name, text := range map[string]string{
		"empty":              "",
		"55 characters":      good[:55],
		"57 characters":      good + "1",
		"leading space":      " " + good[:55],
		"trailing space":     good[:55] + " ",
		"line break":         good[:55] + "\n",
		"NUL":                good[:55] + "\x00",
		"no base58: 0":       good[:55] + "0",
		"no base58: O":       good[:55] + "O",
		"no base58: I":       good[:55] + "I",
		"no base58: l":       good[:55] + "l",
		"non-ASCII":          good[:54] + "é",
		"upper-case scheme":  strings.Replace(good, "did:", "DID:", 1),
		"other method":       strings.Replace(good, ":key:", ":kex:", 1),
		"fragment":           good + "#" + good[8:],
		"query":              good + "?versionId=1",
		"31-byte key":        spell(seed[:31]),
		"33-byte key":        spell(append(seed[:32:32], 0)),
		"more than 34 bytes": "did:key:z6Mk" + strings.Repeat("z", 44),
		"x25519 codec":       "did:key:z" + base58.Encode(append([]byte{0xec, 0x01}, seed...)),
		"secp256k1 codec":    "did:key:z" + base58.Encode(append([]byte{0xe7, 0x01}, seed...)),
	} {
		if did, err := didkey.Parse(text); err == nil || did != "" {
			t.Errorf("%s: Parse(%q) = %q, %v; want a refusal", name, text, did, err)
		}
		if _, err := didkey.ParseVerifier(text); err == nil {
			t.Errorf("%s: ParseVerifier(%q) succeeded", name, text)
		}
	}
}

// TestLongTextIsNotDecoded checks that a long text is refused without being decoded, which would allocate memory.
// Decoding base58 takes quadratic time.
func TestLongTextIsNotDecoded(t *testing.T) {
	long := "did:key:z6Mk" + strings.Repeat("z", 1<<20)
	if n := testing.AllocsPerRun(3, func() { didkey.Parse(long) }); n != 0 {
		t.Errorf("Parse allocated %v times for a text of one megabyte; want 0, it must not decode the text", n)
	}
}

func TestFromPublicKeyRefuses(t *testing.T) {
	for _, n := range []int{0, 31, 33, 64} {
		if did, err := didkey.FromPublicKey(make([]byte, n)); err == nil || did != "" {
			t.Errorf("%d bytes: %q, %v; want a refusal", n, did, err)
		}
	}
	for name, raw := range map[string][]byte{
		"low order": bytes.Repeat([]byte{0}, 32), "not canonical": bytes.Repeat([]byte{0xff}, 32), "no point": {31: 0, 0: 2},
	} {
		if did, err := didkey.FromPublicKey(raw); err == nil || did != "" {
			t.Errorf("%s: %q, %v; want a refusal", name, did, err)
		}
	}
}

func TestKeys(t *testing.T) {
	a, errA := didkey.Generate()
	b, errB := didkey.Generate()
	if errA != nil || errB != nil || a.DID() == b.DID() {
		t.Fatalf("Generate: %s, %v; %s, %v", a.DID(), errA, b.DID(), errB)
	}
	message := []byte("a message")
	sig, err := a.Sign(message)
	if err != nil || !ed25519.Verify(a.DID().PublicKey(), message, sig) {
		t.Errorf("Sign: %v, and the DID's key does not verify it", err)
	}
	if ed25519.Verify(b.DID().PublicKey(), message, sig) {
		t.Error("the signature verifies under another key too")
	}
	if did, err := didkey.Parse(string(a.DID())); did != a.DID() || err != nil {
		t.Errorf("Parse(%s) = %s, %v", a.DID(), did, err)
	}
	if a.DID().Multibase() != strings.TrimPrefix(string(a.DID()), "did:key:") {
		t.Errorf("Multibase = %s", a.DID().Multibase())
	}
	for _, n := range []int{0, 31, 33, 64} {
		if _, err := didkey.FromSeed(make([]byte, n)); err == nil {
			t.Errorf("a seed of %d bytes was accepted", n)
		}
	}
	if _, err := (didkey.Key{}).Sign(message); err == nil {
		t.Error("the zero Key signed")
	}
}

func TestPublicKeyOfMalformedDID(t *testing.T) {
	if key := didkey.DID("did:key:z6Mk").PublicKey(); key != nil {
		t.Errorf("PublicKey of a malformed DID is %x; want nil", key)
	}
}

// FuzzParse checks that every accepted text is the one spelling of its key, with 56 characters. Parse must not panic,
// and it must be quick for texts of any length.
func FuzzParse(f *testing.F) {
	for _, text := range []string{good, good[:55] + "q", "did:key:z6Mk", "did:web:example.org", spell(make([]byte, 32)), ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		began := time.Now()
		did, err := didkey.Parse(text)
		if took := time.Since(began); took > time.Millisecond && bestTime(text) > time.Millisecond { // it takes about 20 µs
			t.Errorf("%d characters took %v", len(text), took)
		}
		if err != nil {
			if did != "" {
				t.Errorf("%q was refused, but Parse returned %q", text, did)
			}
			return
		}
		if len(text) != 56 || !strings.HasPrefix(text, "did:key:z6Mk") || string(did) != text {
			t.Errorf("accepted %q as %q", text, did)
		}
		if again, err := didkey.FromPublicKey(did.PublicKey()); string(again) != text || err != nil {
			t.Errorf("%q was accepted, but FromPublicKey of its key returns %q (%v)", text, again, err)
		}
		// Under a key of order n, one in n of these signatures verifies, for any message. n is at most 8.
		constant := append([]byte{1}, make([]byte, 63)...)
		for message := range byte(64) {
			if ed25519.Verify(did.PublicKey(), []byte{message}, constant) {
				t.Fatalf("a constant signature verifies under %q", text)
			}
		}
	})
}

// bestTime returns the shortest time of some calls of Parse, because the machine may pause during the others.
func bestTime(text string) time.Duration {
	best := time.Hour
	for range 100 {
		began := time.Now()
		_, _ = didkey.Parse(text)
		best = min(best, time.Since(began))
	}
	return best
}

// TestRefusingIsQuick checks that parsing takes less than a millisecond for long texts, and for texts that are slow to
// decode.
func TestRefusingIsQuick(t *testing.T) {
	for name, text := range map[string]string{
		"60 KB": "did:key:z6Mk" + strings.Repeat("z", 60<<10), "good": good, "no point": spell(unhex(t, "02"+strings.Repeat("00", 31))),
	} {
		if took := bestTime(text); took > time.Millisecond {
			t.Errorf("%s: Parse takes %v; want at most 1ms", name, took)
		}
	}
}

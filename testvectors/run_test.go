package testvectors_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/testvectors"
)

// These tests run every vector with the package that it tests. The loader refuses an empty file, and TestFiles checks
// the number of vectors, so no file can pass without being run.

func TestDIDKey(t *testing.T) {
	for _, v := range testvectors.DIDKey() {
		t.Run(v.Name, func(t *testing.T) {
			did, err := didkey.Parse(v.DID)
			if (err == nil) != (v.Expect == testvectors.Accept) {
				t.Fatalf("Parse(%.100q): %v, want %s", v.DID, err, v.Expect)
			}
			if err != nil {
				return
			}
			public := unhex(t, v.PublicKeyHex)
			if !bytes.Equal(did.PublicKey(), public) {
				t.Errorf("the key is %x", did.PublicKey())
			}
			if again, err := didkey.FromPublicKey(public); string(again) != v.DID {
				t.Errorf("FromPublicKey = %s, %v", again, err)
			}
			if v.SeedHex == "" {
				return
			}
			if key, err := didkey.FromSeed(unhex(t, v.SeedHex)); string(key.DID()) != v.DID {
				t.Errorf("FromSeed = %s, %v", key.DID(), err)
			}
		})
	}
}

func TestCanonicalize(t *testing.T) {
	for _, v := range testvectors.Canonicalize() {
		t.Run(v.Name, func(t *testing.T) {
			got, err := envelope.Canonicalize(v.Input)
			if v.Expect == testvectors.Reject {
				wantCode(t, err, string(envelope.CodeInvalidRequest))
				return
			}
			if err != nil || !bytes.Equal(got, v.Output) {
				t.Fatalf("%q became %q, %v; want %q", v.Input, got, err, v.Output)
			}
			if again, err := envelope.Canonicalize(got); err != nil || !bytes.Equal(again, got) {
				t.Errorf("the canonical form %q becomes %q, %v", got, again, err)
			}
		})
	}
}

func TestSign(t *testing.T) {
	for _, v := range testvectors.Sign() {
		t.Run(v.Name, func(t *testing.T) {
			key, err := didkey.FromSeed(unhex(t, v.SeedHex))
			if err != nil {
				t.Fatal(err)
			}
			if unsigned, err := envelope.Canonicalize(v.Input); err != nil || !bytes.Equal(unsigned, v.Signed) {
				t.Errorf("the canonical form of the input is %s, %v", unsigned, err)
			}
			e, err := envelope.SignJSON(key, v.Input, time.Time{})
			if err != nil || !bytes.Equal(e.Canonical(), v.Envelope) {
				t.Fatalf("SignJSON: %v\n%s", err, e.Canonical())
			}
			if !bytes.Contains(v.Envelope, []byte(`"sig":"`+v.Sig+`"`)) {
				t.Error("the envelope does not carry sig")
			}
			if sum := e.Hash(); hex.EncodeToString(sum[:]) != v.SHA256 || sum != sha256.Sum256(v.Envelope) {
				t.Errorf("the hash is %x", sum)
			}
			parsed, err := envelope.Parse(v.Envelope, 0)
			if err == nil {
				err = parsed.Verify()
			}
			if err != nil {
				t.Errorf("a relay would refuse the envelope: %v", err)
			}
			if sig, err := key.Sign(v.Signed); err != nil || !ed25519.Verify(key.DID().PublicKey(), v.Signed, sig) {
				t.Errorf("Sign: %v", err)
			}
		})
	}
}

// relaySpecific is the code of the vectors in verify.json whose result depends on the relay's origin.
const relaySpecific = string(envelope.CodeForbidden)

func TestVerify(t *testing.T) {
	for _, v := range testvectors.Verify() {
		t.Run(v.Name, func(t *testing.T) {
			e, err := envelope.Parse(v.Body, 0)
			if err == nil {
				err = (replay.Window{}).Check(e.TS, e.TTL, instant(t, v.Now))
			}
			if err == nil {
				err = e.Verify()
			}
			if v.Code == relaySpecific {
				return // TestVerifyThroughARelay checks these
			}
			wantCode(t, err, v.Code)
			if err != nil || v.Expect == testvectors.Reject {
				return
			}
			if e.ID != v.ID || string(e.Sender.ID) != v.Sender || !bytes.Equal(e.Canonical(), v.Canonical) {
				t.Errorf("parsed as message %s by %s: %s", e.ID, e.Sender.ID, e.Canonical())
			}
		})
	}
}

// TestVerifyThroughARelay posts the bodies to a relay. Bodies to reject must be refused with exactly the code of the
// vector. Bodies to accept must be stored, or refused only because of the rules of threads.
func TestVerifyThroughARelay(t *testing.T) {
	r, _, clock := newRelay(t)
	for _, v := range testvectors.Verify() {
		t.Run(v.Name, func(t *testing.T) {
			clock.set(instant(t, v.Now))
			receipt, err := r.Post(t.Context(), localPeer, v.Body)
			if v.Expect == testvectors.Reject {
				wantCode(t, err, v.Code)
				return
			}
			if code := codeOf(err); code == string(envelope.CodeThreadNotFound) {
				return
			}
			if err != nil || receipt.ID != v.ID || receipt.Duplicate {
				t.Errorf("Post = %+v, %v", receipt, err)
			}
		})
	}
}

func TestWindow(t *testing.T) {
	for _, v := range testvectors.Window() {
		t.Run(v.Name, func(t *testing.T) {
			ts, ttl := instant(t, v.TS), time.Duration(v.TTL)*time.Second
			err := (replay.Window{}).Check(ts, ttl, instant(t, v.Now))
			wantCode(t, err, v.Code)
			if err != nil {
				return
			}
			if got := (replay.Window{}).Expires(ts, ttl); !got.Equal(instant(t, v.ExpiresAt)) {
				t.Errorf("kept until %s, want %s", got, v.ExpiresAt)
			}
		})
	}
}

// wantCode ends the test unless err has this code, or is nil if code is empty.
func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	if got := codeOf(err); got != code {
		t.Fatalf("got %v, want code %q", err, code)
	}
}

// codeOf returns the code of err, its text if it has no code, and "" for nil.
func codeOf(err error) string {
	if code := envelope.CodeOf(err); code != envelope.CodeInternal {
		return string(code)
	}
	return err.Error()
}

func instant(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func unhex(t *testing.T, digits string) []byte {
	t.Helper()
	raw, err := hex.DecodeString(digits)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

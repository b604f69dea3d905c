package testvectors_test

import (
	"bytes"
	"crypto/ecdh"
	"crypto/hpke"
	"encoding/base64"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/testvectors"
)

func TestSealing(t *testing.T) {
	for _, v := range testvectors.Sealing() {
		t.Run(v.Name, func(t *testing.T) {
			if v.Envelope == nil {
				checkConversion(t, v)
				return
			}
			key, err := didkey.FromSeed(unhex(t, v.SeedHex))
			if err != nil {
				t.Fatal(err)
			}
			e, err := envelope.Parse(v.Envelope, 0)
			if err != nil || !bytes.Equal(e.Canonical(), v.Envelope) {
				t.Fatalf("%v, or not canonical", err)
			}
			if err := e.Verify(); (err == nil) != (v.Name != "bad-signature") {
				t.Fatalf("the signature: %v", err)
			}
			opened, err := e.Open(key)
			if v.Expect == testvectors.Reject {
				if err != envelope.ErrOpen || opened != nil {
					t.Errorf("Open = %+v, %v; want ErrOpen", opened, err)
				}
				return
			}
			if err != nil || !bytes.Equal(opened.Payload, v.Payload) || opened.ID != e.ID || !opened.Opened {
				t.Fatalf("%v: opened as %s", err, opened.Payload)
			}
			checkSteps(t, v, key, e)
		})
	}
}

func checkConversion(t *testing.T, v testvectors.SealingVector) {
	t.Helper()
	public, err := didkey.DID(v.DID).X25519()
	if v.Expect == testvectors.Reject {
		if err == nil {
			t.Errorf("a DID that must be rejected was converted to %x", public.Bytes())
		}
		return
	}
	if err != nil || hex.EncodeToString(public.Bytes()) != v.PublicHex {
		t.Fatalf("becomes %x, %v", public.Bytes(), err)
	}
	if v.SeedHex == "" {
		return
	}
	key, err := didkey.FromSeed(unhex(t, v.SeedHex))
	if err != nil || string(key.DID()) != v.DID {
		t.Fatalf("the seed is of %s, %v", key.DID(), err)
	}
	private, err := key.X25519()
	if err != nil || hex.EncodeToString(private.(*ecdh.PrivateKey).Bytes()) != v.PrivateHex {
		t.Errorf("the X25519 private key is %x, %v", private.(*ecdh.PrivateKey).Bytes(), err)
	}
}

// checkSteps checks the values of the sealing in a vector with crypto/hpke.
func checkSteps(t *testing.T, v testvectors.SealingVector, key didkey.Key, e *envelope.Envelope) {
	t.Helper()
	exchanger, err := key.X25519()
	if err != nil {
		t.Fatal(err)
	}
	private, err := hpke.NewDHKEMPrivateKey(exchanger)
	if err != nil {
		t.Fatal(err)
	}
	raw, ok := sealedBytes(e)
	if !ok {
		t.Fatalf("%s has no sealed bytes", e.Payload)
	}
	plaintext, err := hpke.Open(private, hpke.HKDFSHA256(), hpke.ChaCha20Poly1305(), v.Info, raw)
	if err != nil || !bytes.Equal(plaintext, v.Plaintext) {
		t.Errorf("the plaintext is %q, %v", plaintext, err)
	}
	ephemeral, err := ecdh.X25519().NewPrivateKey(unhex(t, v.EphemeralHex))
	if err != nil || !bytes.Equal(ephemeral.PublicKey().Bytes(), raw[:32]) {
		t.Errorf("ephemeralHex does not belong to enc: %v", err)
	}
	// If the plaintext has standard padding, sealing the payload again must give the same plaintext.
	if len(v.Plaintext)%256 == 0 {
		sender, err := didkey.FromSeed(bytes.Repeat([]byte{1}, 32))
		if err != nil {
			t.Fatal(err)
		}
		again, err := envelope.Draft{ID: e.ID, TS: e.TS, Thread: e.Thread, Recipient: e.Recipient, Seal: true,
			Payload: envelope.Raw{Type: e.Type, JSON: v.Payload}}.Sign(sender, e.TS)
		if err != nil {
			t.Fatal(err)
		}
		raw, _ := sealedBytes(again)
		plaintext, err := hpke.Open(private, hpke.HKDFSHA256(), hpke.ChaCha20Poly1305(), v.Info, raw)
		if err != nil || !bytes.Equal(plaintext, v.Plaintext) {
			t.Errorf("the plaintext is %q, %v after sealing again", plaintext, err)
		}
	}
	if info, err := envelope.Canonicalize(v.Info); err != nil || !bytes.Equal(info, v.Info) {
		t.Errorf("the info is not canonical: %v", err)
	}
}

func sealedBytes(e *envelope.Envelope) (raw []byte, ok bool) {
	text, ok := strings.CutPrefix(e.PayloadString("sealed"), "v1.")
	raw, err := base64.RawURLEncoding.DecodeString(text)
	return raw, ok && err == nil && len(raw) > 32
}

// TestSealingExample checks that the example in docs/SEALING.md has the values of the vector "request".
func TestSealingExample(t *testing.T) {
	text, err := os.ReadFile("../docs/SEALING.md")
	if err != nil {
		t.Fatal(err)
	}
	document := strings.ReplaceAll(string(text), "\n", "")
	vectors := map[string]testvectors.SealingVector{}
	for _, v := range testvectors.Sealing() {
		vectors[v.Name] = v
	}
	v, bob := vectors["request"], vectors["key-of-seed-02"]
	e, err := envelope.Parse(v.Envelope, 0)
	if err != nil {
		t.Fatal(err)
	}
	raw, ok := sealedBytes(e)
	if !ok {
		t.Fatal("the vector is not sealed")
	}
	for name, part := range map[string]string{
		"Bob": bob.DID, "private key": bob.PrivateHex, "public key": bob.PublicHex, "ephemeral key": v.EphemeralHex,
		"shared secret": v.SharedSecretHex, "key": v.KeyHex, "nonce": v.NonceHex, "info": string(v.Info), "payload": string(v.Payload),
		"plaintext": strings.TrimRight(string(v.Plaintext), " "), "envelope": string(v.Envelope), "sealed": e.PayloadString("sealed"),
		"enc": hex.EncodeToString(raw[:32]), "ciphertext": hex.EncodeToString(raw[32:]),
	} {
		if part == "" || !strings.Contains(document, part) {
			t.Errorf("the document does not have the %s %s", name, part)
		}
	}
}

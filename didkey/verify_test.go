package didkey_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"math/big"
	"slices"
	"sync"
	"testing"

	"filippo.io/edwards25519"
	"github.com/mr-tron/base58"

	"github.com/agora-relay/agora/didkey"
)

func newKey(t testing.TB, n byte) didkey.Key {
	t.Helper()
	key, err := didkey.FromSeed(bytes.Repeat([]byte{n}, 32))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// agree verifies a signature with a Verifier and with the standard library, and returns the result. It fails the test
// if the two disagree.
func agree(t *testing.T, key ed25519.PublicKey, message, sig []byte) bool {
	t.Helper()
	v, err := didkey.ParseVerifier("did:key:z" + base58.Encode(append([]byte{0xed, 0x01}, key...)))
	if err != nil {
		return false // other tests cover refused keys
	}
	got, want := v.Verify(message, sig), ed25519.Verify(key, message, sig)
	if got != want {
		t.Errorf("key %x, message %x, signature %x: %v; the standard library says %v", key, message, sig, got, want)
	}
	return got
}

// TestVerifierAgrees checks that altered signatures are refused, as by the standard library: with any bit flipped, with
// S replaced by S+L, or with another length.
func TestVerifierAgrees(t *testing.T) {
	order, _ := new(big.Int).SetString("1000000000000000000000000000000014def9dea2f79cd65812631a5cf5d3ed", 16)
	for n := range byte(4) {
		key, message := newKey(t, n), bytes.Repeat([]byte{n}, 100*int(n))
		sig, err := key.Sign(message)
		if err != nil {
			t.Fatal(err)
		}
		pub := key.DID().PublicKey()
		if !agree(t, pub, message, sig) {
			t.Error("a good signature is refused")
		}
		for bit := range 8 * len(sig) {
			bad := slices.Clone(sig)
			bad[bit/8] ^= 1 << (bit % 8)
			if agree(t, pub, message, bad) {
				t.Errorf("the signature verifies with bit %d of it flipped", bit)
			}
		}
		for bit := range 8 * len(pub) {
			other := slices.Clone(pub)
			other[bit/8] ^= 1 << (bit % 8)
			if agree(t, other, message, sig) {
				t.Errorf("the signature verifies with bit %d of the key flipped", bit)
			}
		}
		if agree(t, pub, append(slices.Clone(message), 0), sig) {
			t.Error("the signature verifies for another message")
		}
		half := slices.Clone(sig[32:])
		slices.Reverse(half)
		for s := new(big.Int).SetBytes(half); s.BitLen() <= 256; s.Add(s, order) {
			whole := s.FillBytes(make([]byte, 32))
			slices.Reverse(whole)
			bad := append(slices.Clone(sig[:32]), whole...)
			if agree(t, pub, message, bad) != bytes.Equal(bad, sig) {
				t.Errorf("S = %v: accepted or refused wrongly", s)
			}
		}
		for _, length := range []int{0, 32, 63, 65, 128} {
			if agree(t, pub, message, append(slices.Clone(sig), make([]byte, 64)...)[:length]) {
				t.Errorf("a signature of %d bytes is accepted", length)
			}
		}
	}
}

// TestVerifierRefusesCraftedSignatures checks signatures that some verifiers accept: with a component of small order in
// R, which only the equation with the cofactor accepts, and with an R in a non-canonical form, which only a comparison
// of points accepts. The owner of the key can make both.
func TestVerifierRefusesCraftedSignatures(t *testing.T) {
	key, message := newKey(t, 1), []byte("a message")
	pub := []byte(key.DID().PublicKey())
	expanded := sha512.Sum512(bytes.Repeat([]byte{1}, 32)) // of the seed (RFC 8032 §5.1.5)
	a, err := new(edwards25519.Scalar).SetBytesWithClamping(expanded[:32])
	if err != nil {
		t.Fatal(err)
	}
	nonce, err := new(edwards25519.Scalar).SetCanonicalBytes(append([]byte{7}, make([]byte, 31)...))
	if err != nil {
		t.Fatal(err)
	}
	// craft returns a signature with the given encoding of R, for which S = nonce + k·a.
	craft := func(r []byte, nonce *edwards25519.Scalar) []byte {
		digest := sha512.Sum512(slices.Concat(r, pub, message))
		k, err := new(edwards25519.Scalar).SetUniformBytes(digest[:])
		if err != nil {
			t.Fatal(err)
		}
		return append(slices.Clone(r), new(edwards25519.Scalar).MultiplyAdd(k, a, nonce).Bytes()...)
	}
	point := new(edwards25519.Point).ScalarBaseMult(nonce)
	if !agree(t, pub, message, craft(point.Bytes(), nonce)) {
		t.Error("a good signature is refused")
	}
	small, err := hex.DecodeString("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a") // of order 8
	if err != nil {
		t.Fatal(err)
	}
	torsion, err := new(edwards25519.Point).SetBytes(small)
	if err != nil {
		t.Fatal(err)
	}
	if agree(t, pub, message, craft(new(edwards25519.Point).Add(point, torsion).Bytes(), nonce)) {
		t.Error("a signature is accepted whose R has a component of small order")
	}
	identity := append([]byte{0xee}, bytes.Repeat([]byte{0xff}, 30)...) // y = p+1
	identity = append(identity, 0x7f)
	if agree(t, pub, message, craft(identity, edwards25519.NewScalar())) {
		t.Error("a signature is accepted whose R is not in canonical form")
	}
}

// FuzzVerifier checks that the Verifier and the standard library agree on any key, message and signature.
func FuzzVerifier(f *testing.F) {
	for n := range byte(3) {
		key, message := newKey(f, n), []byte("a message")
		sig, err := key.Sign(message)
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(key.DID().PublicKey()), message, sig)
	}
	f.Fuzz(func(t *testing.T, key, message, sig []byte) {
		if len(key) == ed25519.PublicKeySize {
			agree(t, key, message, sig)
		}
	})
}

// TestVerifiers checks that the cache returns the same Verifier for the same identity, does not cache refused
// identifiers, and has a maximum size.
func TestVerifiers(t *testing.T) {
	var cache didkey.Verifiers
	parse := func(s string) *didkey.Verifier {
		t.Helper()
		v, err := cache.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	alice, bob := string(newKey(t, 1).DID()), string(newKey(t, 2).DID())
	first := parse(alice)
	if parse(bob) == first || parse(alice) != first {
		t.Error("the cache confuses identities, or does not keep them")
	}
	for range 2 {
		if v, err := cache.Parse(spell(append([]byte{2}, make([]byte, 31)...))); err == nil || v != nil {
			t.Errorf("Parse of a key that is not a point = %v, %v", v, err)
		}
	}
	if cache.Size() != 2 {
		t.Errorf("%d identities are kept, want 2", cache.Size())
	}
	key := make([]byte, 32)
	for n := 0; cache.Size() < 2*didkey.CacheSize && n < 8*didkey.CacheSize; n++ {
		key[0], key[1], key[2] = byte(n), byte(n>>8), byte(n>>16)
		_, _ = cache.Parse(spell(key)) // about half of them are not points
		if n%1000 == 0 {
			parse(bob)
		}
	}
	for n := range 100 {
		key[3] = byte(n)
		_, _ = cache.Parse(spell(key))
	}
	if size := cache.Size(); size > 2*didkey.CacheSize || size < didkey.CacheSize {
		t.Errorf("%d identities are kept, want from %d to %d", size, didkey.CacheSize, 2*didkey.CacheSize)
	}
	if parse(alice) == first {
		t.Error("an identity that was not used again is still in the cache")
	}
}

func TestVerifiersConcurrentUse(t *testing.T) {
	var cache didkey.Verifiers
	var workers sync.WaitGroup
	for worker := range 8 {
		workers.Go(func() {
			for n := range 200 {
				key := newKey(t, byte(worker+n))
				sig, err := key.Sign([]byte("m"))
				v, refused := cache.Parse(string(key.DID()))
				if err != nil || refused != nil || !v.Verify([]byte("m"), sig) {
					t.Error(fmt.Sprint(n), err, refused)
				}
			}
		})
	}
	workers.Wait()
}

func BenchmarkVerify(b *testing.B) {
	key, message := newKey(b, 1), make([]byte, 640)
	sig, err := key.Sign(message)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("standard library", func(b *testing.B) {
		pub := key.DID().PublicKey()
		for b.Loop() {
			if !ed25519.Verify(pub, message, sig) {
				b.Fatal("the signature does not verify")
			}
		}
	})
	b.Run("cached", func(b *testing.B) {
		var cache didkey.Verifiers
		b.ReportAllocs()
		for b.Loop() {
			if v, err := cache.Parse(string(key.DID())); err != nil || !v.Verify(message, sig) {
				b.Fatal("the signature does not verify")
			}
		}
	})
}

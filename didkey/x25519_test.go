package didkey

import (
	"bytes"
	"crypto/ecdh"
	"encoding/hex"
	"math/big"
	"testing"

	"github.com/mr-tron/base58"
)

// TestX25519 checks that the converted private key belongs to the converted public key, for keys with either sign of x.
func TestX25519(t *testing.T) {
	signs := map[byte]int{}
	for n := range 64 {
		k, err := FromSeed(bytes.Repeat([]byte{byte(n)}, 32))
		if err != nil {
			t.Fatal(err)
		}
		public, err := k.DID().X25519()
		if err != nil {
			t.Fatal(err)
		}
		private, err := k.X25519()
		if err != nil || !private.PublicKey().Equal(public) {
			t.Fatalf("seed %d: %x belongs to %x, not to %x, %v", n, k.DID().PublicKey(), private.PublicKey().Bytes(), public.Bytes(), err)
		}
		signs[k.DID().PublicKey()[31]>>7]++
	}
	if signs[0] == 0 || signs[1] == 0 {
		t.Errorf("the keys have only one sign of x: %v", signs)
	}
}

// TestX25519OfKnownPoints checks points whose u coordinate is known.
func TestX25519OfKnownPoints(t *testing.T) {
	for y, u := range map[string]string{
		// The base points of both curves are the same point (RFC 7748 §4.1).
		"5866666666666666666666666666666666666666666666666666666666666666": "0900000000000000000000000000000000000000000000000000000000000000",
		"58666666666666666666666666666666666666666666666666666666666666e6": "0900000000000000000000000000000000000000000000000000000000000000",
	} {
		raw, err := hex.DecodeString(y)
		if err != nil {
			t.Fatal(err)
		}
		did, err := FromPublicKey(raw)
		if err != nil {
			t.Fatal(err)
		}
		public, err := did.X25519()
		if err != nil || hex.EncodeToString(public.Bytes()) != u {
			t.Errorf("%s becomes %x, %v; want %s", y, public.Bytes(), err, u)
		}
	}
}

// TestX25519Refuses checks that only usable identities can be converted. The point with y = 1, which has no u, is among
// the points of small order.
func TestX25519Refuses(t *testing.T) {
	var refused [][]byte
	for _, text := range smallOrder {
		y, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		refused = append(refused, y)
	}
	for n := range int64(19) {
		refused = append(refused, encode(new(big.Int).Add(p, big.NewInt(n)), 0))
	}
	refused = append(refused, append([]byte{2}, make([]byte, 31)...)) // not a point
	for _, y := range refused {
		did := DID("did:key:z" + base58.Encode(append(codec[:], y...)))
		if public, err := did.X25519(); err == nil || public != nil {
			t.Errorf("%x becomes %x", y, public.Bytes())
		}
	}
	if _, err := DID("did:key:z6Mk").X25519(); err == nil {
		t.Error("a DID without a key was converted")
	}
	if _, err := (Key{}).X25519(); err == nil {
		t.Error("the zero Key was converted")
	}
}

// TestX25519OfSmallOrder checks that an ephemeral key of small order gives no shared secret. Sealing relies on that:
// the secret would be the same for every identity.
func TestX25519OfSmallOrder(t *testing.T) {
	k, err := FromSeed(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	private, err := k.X25519()
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range []string{
		"0000000000000000000000000000000000000000000000000000000000000000",
		"0100000000000000000000000000000000000000000000000000000000000000",
		"e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
		"5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
		"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	} {
		raw, err := hex.DecodeString(u)
		if err != nil {
			t.Fatal(err)
		}
		public, err := ecdh.X25519().NewPublicKey(raw)
		if err != nil {
			t.Fatal(err)
		}
		if secret, err := private.ECDH(public); err == nil {
			t.Errorf("%s gives the secret %x", u, secret)
		}
	}
}

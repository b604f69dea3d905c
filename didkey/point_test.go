package didkey

import (
	"encoding/hex"
	"math/big"
	"slices"
	"testing"

	"github.com/mr-tron/base58"
)

var (
	p, _ = new(big.Int).SetString("7fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffed", 16)
	// d of the curve equation -x² + y² = 1 + d·x²·y² (RFC 8032, section 5.1)
	d, _ = new(big.Int).SetString("37095705934669439343138083508754565189542113879843219016388785533085940283555", 10)
)

// encode encodes y and a sign bit in the format of RFC 8032.
func encode(y *big.Int, sign byte) []byte {
	raw := y.FillBytes(make([]byte, 32))
	slices.Reverse(raw)
	raw[31] |= sign << 7
	return raw
}

// squareX reports whether the curve has a point with this y: whether x² = (y²-1)/(d·y²+1) is a square.
func squareX(y *big.Int) bool {
	yy := new(big.Int).Mul(y, y)
	over := new(big.Int).Mul(d, yy)
	over.ModInverse(over.Add(over, big.NewInt(1)).Mod(over, p), p)
	xx := yy.Mul(yy.Sub(yy, big.NewInt(1)), over)
	return big.Jacobi(xx.Mod(xx, p), p) >= 0
}

// TestDecodePoint compares decodePoint with the curve equation on 200 coordinates. About half of them have no point.
func TestDecodePoint(t *testing.T) {
	points := 0
	for y := int64(2); y < 202; y++ {
		want := squareX(big.NewInt(y))
		if want {
			points++
		}
		for sign := range byte(2) {
			_, err := decodePoint([32]byte(encode(big.NewInt(y), sign)))
			if (err == nil) != want || err != nil && err != errNoPoint {
				t.Errorf("y = %d, sign %d: %v, want a point: %v", y, sign, err, want)
			}
		}
	}
	if points < 50 || points > 150 {
		t.Errorf("%d of 200 coordinates have points; want about half, so the equation in this test is wrong", points)
	}
	refused(t, encode(big.NewInt(2), 0), errNoPoint)
}

// smallOrder has the y coordinates of the points of order 1, 2, 4 and 8, little-endian. They are from the literature,
// for instance the README of the CCTV Ed25519 vectors.
var smallOrder = []string{
	"0000000000000000000000000000000000000000000000000000000000000000",
	"0100000000000000000000000000000000000000000000000000000000000000",
	"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
	"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
}

func TestLowOrderPoints(t *testing.T) {
	for _, text := range smallOrder {
		for sign := range byte(2) {
			raw, err := hex.DecodeString(text)
			if err != nil {
				t.Fatal(err)
			}
			raw[31] |= sign << 7
			refused(t, raw, errLowOrder)
		}
	}
}

// TestNonCanonicalPoints checks the 19 values of 255 bits that are at least p. Each is a second encoding of a small y.
func TestNonCanonicalPoints(t *testing.T) {
	for above := range int64(19) {
		for sign := range byte(2) {
			refused(t, encode(new(big.Int).Add(p, big.NewInt(above)), sign), errEncoding)
		}
	}
	for below := int64(2); below < 40; below++ {
		y := new(big.Int).Sub(p, big.NewInt(below))
		if _, err := FromPublicKey(encode(y, 1)); (err == nil) != squareX(y) {
			t.Errorf("y = p-%d is canonical: %v", below, err)
		}
	}
	// Every byte matters: p with one byte reduced by one is below p.
	for i := 1; i < 32; i++ {
		raw := encode(p, 0)
		raw[i]--
		if _, err := decodePoint([32]byte(raw)); err == errEncoding {
			t.Errorf("p with byte %d reduced by one: %v", i, err)
		}
	}
}

func refused(t *testing.T, raw []byte, want error) {
	t.Helper()
	text := "did:key:z" + base58.Encode(append(codec[:], raw...))
	if did, err := Parse(text); err != want || did != "" {
		t.Errorf("Parse of key %x = %q, %v; want %v", raw, did, err, want)
	}
	if v, err := ParseVerifier(text); err != want || v != nil {
		t.Errorf("ParseVerifier of key %x = %v, %v; want %v", raw, v, err, want)
	}
	if did, err := FromPublicKey(raw); err != want || did != "" {
		t.Errorf("FromPublicKey(%x) = %q, %v; want %v", raw, did, err, want)
	}
}

package didkey

import (
	"errors"

	"filippo.io/edwards25519"
)

var (
	errLowOrder = errors.New("the key is a low-order point: one constant signature would verify every message")
	errEncoding = errors.New("the key's encoding is not canonical: its y coordinate is not below 2^255-19")
	errNoPoint  = errors.New("the key is not a point on the curve")
)

// decodePoint decodes a point of the curve (RFC 8032 §5.1.3). It refuses two kinds of points that crypto/ed25519
// accepts as keys: points of small order, and points encoded with y ≥ p.
func decodePoint(encoding [32]byte) (*edwards25519.Point, error) {
	if !belowP(encoding) {
		return nil, errEncoding
	}
	point, err := new(edwards25519.Point).SetBytes(encoding[:])
	if err != nil {
		return nil, errNoPoint
	}
	if new(edwards25519.Point).MultByCofactor(point).Equal(edwards25519.NewIdentityPoint()) == 1 {
		return nil, errLowOrder
	}
	return point, nil
}

// belowP reports whether the y coordinate of an encoding is below p = 2^255-19. y is the lower 255 bits, little-endian.
func belowP(encoding [32]byte) bool {
	if encoding[0] < 0xed || encoding[31]&0x7f != 0x7f {
		return true
	}
	for _, b := range encoding[1:31] {
		if b != 0xff {
			return true
		}
	}
	return false
}

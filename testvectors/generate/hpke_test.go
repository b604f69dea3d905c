package main

import (
	"encoding/hex"
	"testing"
)

// TestHPKE checks this package's HPKE with the vector for this suite in RFC 9180 (appendix A.2.1, the first
// encryption).
func TestHPKE(t *testing.T) {
	s := hpkeSeal(unhex("f4ec9b33b792c372c1d2c2063507b684ef925b8c75a42dbcbf57d63ccd381600"), nil,
		unhex("4310ee97d88cc1f088a5576c77ab0cf5c3ac797f3d95139c6c84b5429c59662a"),
		[]byte("Ode on a Grecian Urn"), []byte("Count-0"), []byte("Beauty is truth, truth beauty"))
	for name, c := range map[string][2]string{
		"enc":           {hex.EncodeToString(s.enc), "1afa08d3dec047a643885163f1180476fa7ddb54c6a8029ea33f95796bf2ac4a"},
		"shared_secret": {hex.EncodeToString(s.shared), "0bbe78490412b4bbea4812666f7916932b828bba79942424abb65244930d69a7"},
		"key":           {hex.EncodeToString(s.key), "ad2744de8e17f4ebba575b3f5f5a8fa1f69c2a07f6e7500bc60ca6e3e3ec1c91"},
		"base_nonce":    {hex.EncodeToString(s.nonce), "5c4d98150661b848853b547f"},
		"ct": {hex.EncodeToString(s.ciphertext), "1c5250d8034ec2b784ba2cfd69dbdb8af406cfe3ff938e131f0def8c8b60b4d" +
			"b21993c62ce81883d2dd1b51a28"},
	} {
		if c[0] != c[1] {
			t.Errorf("%s is %s, want %s", name, c[0], c[1])
		}
	}
}

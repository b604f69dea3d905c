package didkey_test

import (
	"encoding/hex"
	"testing"

	"github.com/agora-relay/agora/didkey"
)

// TestDerive checks Derive with bytes that another implementation of RFC 5869 has computed.
func TestDerive(t *testing.T) {
	seed := make([]byte, 32)
	for i := range seed {
		seed[i] = byte(i)
	}
	k, err := didkey.FromSeed(seed)
	if err != nil {
		t.Fatal(err)
	}
	got, err := k.Derive("agora test")
	const want = "ef0023e29362d83dd0c4681d6625977fb51bd146af8aa07ffae1aeb6af178dd4"
	if err != nil || hex.EncodeToString(got) != want {
		t.Errorf("%x, %v; want %s", got, err, want)
	}
	if _, err := (didkey.Key{}).Derive("agora test"); err == nil {
		t.Error("the zero Key derives bytes")
	}
}

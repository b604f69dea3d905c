package gateway_test

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
)

func newSecrets(t *testing.T, fill byte) gateway.Secrets {
	t.Helper()
	key, err := didkey.FromSeed(bytes.Repeat([]byte{fill}, 32))
	if err != nil {
		t.Fatal(err)
	}
	s, err := gateway.NewSecrets(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSecrets checks G-32: a stored secret decrypts only in its own place, unchanged, and with its own key.
func TestSecrets(t *testing.T) {
	s, place := newSecrets(t, 7), gateway.Place{Table: "hub_agent", Column: "endpoint", Row: int64(12)}
	secret := []byte("https://agent.example/hook?key=1")
	stored := s.Encrypt(place, secret)
	if again := s.Encrypt(place, secret); bytes.Equal(stored, again) || len(stored) != 1+12+len(secret)+16 || stored[0] != 1 {
		t.Errorf("the stored form is %x, and then %x", stored, again)
	}
	if got, err := s.Decrypt(place, stored); err != nil || !bytes.Equal(got, secret) {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := s.Decrypt(place, s.Encrypt(place, nil)); err != nil || len(got) != 0 {
		t.Errorf("an empty secret becomes %q, %v", got, err)
	}
	for _, other := range []gateway.Place{
		{Table: "hub_agents", Column: "endpoint", Row: int64(12)}, {Table: "hub_agent", Column: "endpoints", Row: int64(12)},
		{Table: "hub_agent", Column: "endpoint", Row: int64(13)}, {Table: "hub_agent", Column: "endpoint", Row: "12 "},
	} {
		if _, err := s.Decrypt(other, stored); err == nil {
			t.Errorf("it decrypts in %v", other)
		}
	}
	if _, err := newSecrets(t, 8).Decrypt(place, stored); err == nil {
		t.Error("it decrypts with another key")
	}
	for i := range stored {
		changed := bytes.Clone(stored)
		changed[i] ^= 1
		if _, err := s.Decrypt(place, changed); err == nil {
			t.Errorf("it decrypts with another byte %d", i)
		}
		if _, err := s.Decrypt(place, stored[:i]); err == nil {
			t.Errorf("its first %d bytes decrypt", i)
		}
	}
}

// TestSecretsOfAnotherImplementation checks the derivation of the key and the stored form with a secret that another
// implementation has encrypted.
func TestSecretsOfAnotherImplementation(t *testing.T) {
	stored, err := hex.DecodeString(storedSecret)
	if err != nil {
		t.Fatal(err)
	}
	got, err := newSecrets(t, 1).Decrypt(gateway.Place{Table: "gate_outbox", Column: "url", Row: "a"}, stored)
	if string(got) != "secret" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

const storedSecret = "01000102030405060708090a0b582ba24c0e783311b14e5cdae332b6b68530bc1bdb26"

package testvectors_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/testvectors"
)

// TestReads sends the tokens to a relay that requires signed reads.
func TestReads(t *testing.T) {
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "agora.db"), sqlite.Options{Reserve: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range testvectors.Reads() {
		t.Run(v.Name, func(t *testing.T) {
			now := instant(t, v.Now).Add(-time.Hour) // the relay has run for a while
			r, err := relay.New(t.Context(), relay.Config{Store: store, Key: key, Origin: v.Origin, Reads: relay.ToParties,
				Now: func() time.Time { return now }, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			now = instant(t, v.Now)
			did, err := r.VerifyRead(t.Context(), v.Token, v.Method, v.Target)
			if wantCode(t, err, v.Code); err != nil {
				if refusal, ok := errors.AsType[*envelope.Error](err); !ok || refusal.Reason() != v.Detail {
					t.Errorf("VerifyRead: %v; want the reason %s", err, v.Detail)
				}
				return
			}
			if string(did) != v.DID {
				t.Errorf("the reader is %s", did)
			}
			checkSigned(t, v)
		})
	}
}

// checkSigned checks that the token's signature is that of the vector's key over the vector's member signed.
func checkSigned(t *testing.T, v testvectors.ReadVector) {
	t.Helper()
	text, err := base64.RawURLEncoding.DecodeString(v.Token)
	if err != nil {
		t.Fatal(err)
	}
	var token struct{ Sig string }
	if err := json.Unmarshal(text, &token); err != nil {
		t.Fatal(err)
	}
	sig := ed25519.Sign(ed25519.NewKeyFromSeed(unhex(t, v.SeedHex)), v.Signed)
	if base64.RawURLEncoding.EncodeToString(sig) != token.Sig {
		t.Errorf("the vector's member signed is not what the signature %s covers", token.Sig)
	}
	if form, err := envelope.Canonicalize(v.Signed); err != nil || !bytes.Equal(form, v.Signed) || strings.Contains(string(form), `"sig"`) {
		t.Errorf("the vector's member signed is not canonical or has a sig: %s, %v", v.Signed, err)
	}
}

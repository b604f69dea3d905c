package envelope

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
)

// typical returns a signed REQUEST of about 730 bytes.
func typical(tb testing.TB) *Envelope {
	tb.Helper()
	key, err := didkey.FromSeed(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		tb.Fatal(err)
	}
	other, err := didkey.FromSeed(bytes.Repeat([]byte{8}, 32))
	if err != nil {
		tb.Fatal(err)
	}
	e, err := Draft{Recipient: other.DID(), Thread: "thread_01JKWXYZ", TTL: 86400 * time.Second, Payload: Request{
		RequestID: "req_01JKWXYZ", Intent: "translation.en_zh", Title: "Translate a page",
		Params: json.RawMessage(fmt.Sprintf(`{"text":%q,"max_words":30}`, strings.Repeat("Hello, world. ", 12))),
	}}.Sign(key, time.Date(2026, 2, 2, 15, 30, 0, 0, time.UTC))
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

func BenchmarkParse(b *testing.B) {
	canonical := typical(b).Canonical()
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, canonical, "", "  "); err != nil {
		b.Fatal(err)
	}
	for _, form := range []struct {
		name string
		body []byte
	}{{"canonical", canonical}, {"pretty", pretty.Bytes()}} {
		b.Run(form.name, func(b *testing.B) {
			b.SetBytes(int64(len(form.body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(form.body, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkIsCanonical(b *testing.B) {
	body := typical(b).Canonical()
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if !isCanonical(body) {
			b.Fatal("not canonical")
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	e := typical(b)
	b.ReportAllocs()
	for b.Loop() {
		if err := e.Verify(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkStdVerify measures crypto/ed25519 alone, over the bytes that the signature of typical covers. The times of
// all other stages are given as ratios to this time (make bench-guard, docs/PERFORMANCE.md).
func BenchmarkStdVerify(b *testing.B) {
	e := typical(b)
	did, err := didkey.Parse(string(e.Sender.ID))
	if err != nil {
		b.Fatal(err)
	}
	sig, err := decodeSig(e.sig)
	if err != nil {
		b.Fatal(err)
	}
	public, signed := did.PublicKey(), e.signedPart()
	b.ReportAllocs()
	for b.Loop() {
		if !ed25519.Verify(public, signed, sig) {
			b.Fatal("the signature does not verify")
		}
	}
}

// BenchmarkSeal measures what Draft.Seal adds to signing: the conversion of the recipient's key, and HPKE.
func BenchmarkSeal(b *testing.B) {
	e := typical(b)
	b.SetBytes(int64(len(e.Payload)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.seal(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen measures Open, which verifies the signature and decrypts the payload.
func BenchmarkOpen(b *testing.B) {
	plain := typical(b)
	key := seedKey(b, 8)
	e := sealedBy(b, seedKey(b, 7), Draft{ID: plain.ID, Thread: plain.Thread, Recipient: key.DID(), Payload: Raw{plain.Type, plain.Payload}})
	b.SetBytes(int64(len(e.Payload)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.Open(key); err != nil {
			b.Fatal(err)
		}
	}
}

package envelope

import (
	"bytes"
	"crypto/ecdh"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
)

var noon = time.Date(2026, 2, 2, 12, 0, 0, 0, time.UTC)

func seedKey(tb testing.TB, n byte) didkey.Key {
	tb.Helper()
	key, err := didkey.FromSeed(bytes.Repeat([]byte{n}, 32))
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// sealedBy signs a draft with a sealed payload.
func sealedBy(tb testing.TB, sender didkey.Key, d Draft) *Envelope {
	tb.Helper()
	d.Seal = true
	e, err := d.Sign(sender, noon)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

// TestSeal seals and opens messages of each type. The opened payload must be that of the unsealed message. Only the
// members that relays read may be left clear.
func TestSeal(t *testing.T) {
	alice, bob := seedKey(t, 1), seedKey(t, 2)
	price := 0.5
	for clear, payload := range map[string]Payload{
		`{"intent":"i","request_id":"r","sealed":"*"}`: Request{RequestID: "r", Intent: "i", Title: "secret", Params: json.RawMessage(`{"b":1.0,"a":"secret"}`),
			Constraints: &Constraints{MaxCostUSD: &price}},
		`{"request_id":"r","sealed":"*"}`:                                      Offer{RequestID: "r", Plan: "secret", Price: &Price{Amount: price, Currency: "secret"}},
		`{"sealed":"*"}`:                                                       Accept{Terms: &Terms{PriceUSD: &price}},
		`{"request_id":"r","sealed":"*","status":"s"}`:                         Result{RequestID: "r", Status: "s", Output: json.RawMessage(`["secret",{"status":"secret"}]`)},
		`{"code":"C","message":"sealed","request_id":"r","sealed":"*"}`:        Failure{RequestID: "r", Code: "C", Message: "secret", Details: json.RawMessage(`[]`)},
		`{"code":"D","message":"sealed","sealed":"*"}`:                         Failure{Code: "D", Message: "sealed"},
		`{"request_id":"\u0001\"","sealed":"*"}`:                               Cancel{RequestID: "\x01\"", Reason: "secret"},
		`{"intent":5,"request_id":"r","sealed":"*"}`:                           Raw{TypeRequest, []byte(`{"request_id":"r","intent":5,"Intent":"secret","message":1}`)},
		`{"request_id":"","sealed":"*"}`:                                       Raw{TypeCancel, []byte(`{"request_id":"","status":"secret","intent":"secret","code":{}}`)},
		`{"request_id":"r","sealed":"*","status":"nothing but what is clear"}`: Result{RequestID: "r", Status: "nothing but what is clear"},
	} {
		d := Draft{ID: "m", Thread: "t", Recipient: bob.DID(), Payload: payload}
		plain, err := d.Sign(alice, noon)
		if err != nil {
			t.Fatal(err)
		}
		e := sealedBy(t, alice, d)
		text := e.PayloadString("sealed")
		if got := strings.Replace(string(e.Payload), text, "*", 1); got != clear || strings.Contains(string(e.canonical), "secret") {
			t.Errorf("the sealed payload is %s, want %s", e.Payload, clear)
		}
		if !e.Sealed() || e.Opened || plain.Sealed() || e.Verify() != nil {
			t.Errorf("%s: sealed %v, opened %v; plain: %v", clear, e.Sealed(), e.Opened, plain.Sealed())
		}
		opened, err := e.Open(bob)
		if err != nil || !opened.Opened || !opened.Sealed() || !bytes.Equal(opened.Payload, plain.Payload) {
			t.Fatalf("opened as %s, %v; want %s", opened.Payload, err, plain.Payload)
		}
		if !bytes.Equal(opened.Canonical(), e.Canonical()) || opened.Hash() != e.Hash() || opened.Verify() != nil || e.Opened ||
			opened.RequestID != plain.RequestID || opened.Thread != "t" {
			t.Errorf("the opened message differs from the sent message: %+v", opened)
		}
		if _, err := opened.Open(bob); err != ErrOpen {
			t.Errorf("opened twice: %v", err)
		}
		if again := sealedBy(t, alice, d); bytes.Equal(again.Payload, e.Payload) {
			t.Error("sealing the same message twice gives the same ciphertext")
		}
	}
}

// TestSealRefuses checks that messages which cannot be sealed are refused before anything is signed.
func TestSealRefuses(t *testing.T) {
	key := seedKey(t, 1)
	for want, d := range map[string]Draft{
		"INVALID_REQUEST: a broadcast cannot be sealed":           {Payload: Request{Intent: "i"}},
		"INVALID_REQUEST: a MANIFEST is public":                   {Payload: Manifest{ID: "m"}, Recipient: key.DID()},
		"INVALID_REQUEST: the payload already has a member":       {Payload: Raw{TypeRequest, []byte(`{"request_id":"r","intent":"i","sealed":1}`)}, Recipient: key.DID(), Thread: "t"},
		"INVALID_REQUEST: the recipient could not open":           {Payload: Failure{Code: "C"}, Recipient: key.DID(), Thread: "t"},
		"INVALID_REQUEST: the recipient could not open this":      {Payload: Request{Intent: "i", Params: json.RawMessage(nested(MaxDepth))}, Recipient: key.DID()},
		"INVALID_DID: recipient.id: not an Ed25519":               {Payload: Request{Intent: "i"}, Recipient: "did:key:z6Mk"},
		"INVALID_DID: recipient.id: the key is a low-order point": {Payload: Request{Intent: "i"}, Recipient: "did:key:z6MkeTG3bFFSLYVU7VqhgZxqr6YzpaGrQtFMh1uvqGy1vDnP"},
		"INVALID_REQUEST: payload must be an object":              {Payload: Raw{TypeCancel, []byte(`[]`)}, Recipient: key.DID(), Thread: "t"},
		"PAYLOAD_TOO_LARGE: the body or its canonical form":       {Payload: Request{Intent: "i", Title: strings.Repeat("x", 100_000)}, Recipient: key.DID()},
	} {
		d.Seal = true
		signed := false
		e, err := d.Sign(spySigner{key, func([]byte) { signed = true }}, noon)
		if err == nil || !strings.HasPrefix(err.Error(), want) || e != nil {
			t.Errorf("%v, %v; want %s", e, err, want)
		}
		if signed && !strings.HasPrefix(want, "PAYLOAD") {
			t.Errorf("Sign has signed something, and then returned %v", err)
		}
	}
}

func nested(levels int) string {
	return strings.Repeat("[", levels) + strings.Repeat("]", levels)
}

type spySigner struct {
	didkey.Key
	seen func([]byte)
}

func (s spySigner) Sign(message []byte) ([]byte, error) {
	s.seen(message)
	return s.Key.Sign(message)
}

// TestSealedTextIsPadded checks that small differences in the length of a payload do not show in the ciphertext's
// length.
func TestSealedTextIsPadded(t *testing.T) {
	key := seedKey(t, 1)
	lengths := map[int]int{}
	for n := range 600 {
		e := sealedBy(t, key, Draft{Recipient: key.DID(), Payload: Request{Intent: "i", Title: strings.Repeat("x", n)}})
		raw, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(e.PayloadString("sealed"), "v1."))
		if err != nil {
			t.Fatal(err)
		}
		lengths[len(raw)-32-16]++
	}
	// {"title":"…"} has 12 characters more than the title. Without a title the plaintext is {}.
	want := map[int]int{256: 245, 512: 256, 768: 99}
	if !maps.Equal(lengths, want) {
		t.Errorf("number of plaintexts by their padded length: %v, want %v", lengths, want)
	}
}

// resigned replaces members of e, given as raw JSON, and signs the result by signer. An empty value removes the member.
func resigned(t *testing.T, e *Envelope, signer didkey.Key, changes map[string]string) *Envelope {
	t.Helper()
	message := map[string]json.RawMessage{}
	if err := json.Unmarshal(e.canonical, &message); err != nil {
		t.Fatal(err)
	}
	message["sender"] = json.RawMessage(`{"id":"` + signer.DID() + `"}`)
	for name, value := range changes {
		if message[name] = json.RawMessage(value); value == "" {
			delete(message, name)
		}
	}
	text, err := json.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	other, err := SignJSON(signer, text, noon)
	if err != nil {
		t.Fatal(err)
	}
	return other
}

// TestSealedPayloadIsBoundToItsMessage copies a sealed payload into other messages with good signatures. There it must
// not open.
func TestSealedPayloadIsBoundToItsMessage(t *testing.T) {
	alice, bob, mallory := seedKey(t, 1), seedKey(t, 2), seedKey(t, 4)
	e := sealedBy(t, alice, Draft{ID: "m", Thread: "t", Recipient: bob.DID(), Payload: Offer{RequestID: "r", Plan: "secret"}})
	payload := func(from, to string) map[string]string {
		return map[string]string{"payload": strings.Replace(string(e.Payload), from, to, 1)}
	}
	for name, c := range map[string]struct {
		signer, opener didkey.Key
		changes        map[string]string
	}{
		"signed by another sender":           {mallory, bob, nil},
		"with another id":                    {alice, bob, map[string]string{"id": `"n"`}},
		"in another thread":                  {alice, bob, map[string]string{"thread": `{"id":"u"}`}},
		"without a thread":                   {alice, bob, map[string]string{"thread": ""}},
		"of another type":                    {alice, bob, map[string]string{"type": `"CANCEL"`}},
		"of another request":                 {alice, bob, payload(`"r"`, `"q"`)},
		"without a request_id":               {alice, bob, payload(`"request_id":"r",`, ``)},
		"to another recipient":               {alice, mallory, map[string]string{"recipient": `{"id":"` + string(mallory.DID()) + `"}`}},
		"to another, opened by the first":    {alice, bob, map[string]string{"recipient": `{"id":"` + string(mallory.DID()) + `"}`}},
		"without a recipient":                {alice, bob, map[string]string{"recipient": ""}},
		"opened by another":                  {alice, mallory, nil},
		"opened by its sender":               {alice, alice, nil},
		"in a payload with another member":   {alice, bob, payload(`{"request_id"`, `{"plan":"clear","request_id"`)},
		"without the version":                {alice, bob, payload(`"v1.`, `"`)},
		"of another version":                 {alice, bob, payload(`"v1.`, `"v2.`)},
		"not a string":                       {alice, bob, payload(`"`+e.PayloadString("sealed")+`"`, `{}`)},
		"with padding":                       {alice, bob, payload(e.PayloadString("sealed"), e.PayloadString("sealed")+"=")},
		"with a line break":                  {alice, bob, payload(e.PayloadString("sealed"), e.PayloadString("sealed")[:50]+`\n`+e.PayloadString("sealed")[50:])},
		"truncated":                          {alice, bob, payload(e.PayloadString("sealed"), e.PayloadString("sealed")[:len(e.PayloadString("sealed"))-4])},
		"with nothing but the ephemeral key": {alice, bob, payload(e.PayloadString("sealed"), e.PayloadString("sealed")[:3+43])},
		"empty":                              {alice, bob, payload(e.PayloadString("sealed"), "v1.")},
		"with another ephemeral key":         {alice, bob, payload(e.PayloadString("sealed")[:9], "v1.AAAAAA")},
		"with the ephemeral key of order 1":  {alice, bob, payload(e.PayloadString("sealed")[:46], "v1."+base64.RawURLEncoding.EncodeToString(make([]byte, 32))[:42]+e.PayloadString("sealed")[45:46])},
		"with a sealed member that is null":  {alice, bob, map[string]string{"payload": `{"request_id":"r","sealed":null}`}},
	} {
		moved := resigned(t, e, c.signer, c.changes)
		if err := moved.Verify(); err != nil || !moved.Sealed() {
			t.Fatalf("%s: sealed %v, %v", name, moved.Sealed(), err)
		}
		if opened, err := moved.Open(c.opener); err != ErrOpen || opened != nil {
			t.Errorf("%s: opens as %+v, %v", name, opened, err)
		}
	}
	// The members that the ciphertext is not bound to may change: ts and meta, for instance.
	moved := resigned(t, e, alice, map[string]string{"ts": `"2026-02-02T13:00:00Z"`, "meta": `{"ttl":5}`})
	if _, err := moved.Open(bob); err != nil {
		t.Errorf("signed again with another ts and ttl: %v", err)
	}
}

// TestOpenVerifies checks that Open refuses a message without a good signature.
func TestOpenVerifies(t *testing.T) {
	alice, bob := seedKey(t, 1), seedKey(t, 2)
	e := sealedBy(t, alice, Draft{ID: "m", Recipient: bob.DID(), Payload: Request{Intent: "i"}})
	forged, err := Parse(bytes.Replace(e.canonical, []byte(`"ttl":86400`), []byte(`"ttl":86401`), 1), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := forged.Open(bob); err != ErrOpen {
		t.Errorf("opened without a good signature: %v", err)
	}
}

// sealRaw returns a signed message with any bytes as its sealed plaintext. Only the sender can make such a message.
func sealRaw(tb testing.TB, sender didkey.Key, recipient didkey.DID, typ Type, clear, plaintext string) *Envelope {
	tb.Helper()
	place := func(payload string) Draft {
		return Draft{ID: "m", Thread: "t", Recipient: recipient, Payload: Raw{typ, []byte(payload)}}
	}
	e, err := place(clear).Sign(sender, noon)
	if err != nil {
		tb.Fatal(err)
	}
	public, err := recipient.X25519()
	if err != nil {
		tb.Fatal(err)
	}
	ciphertext, err := e.encrypt(public, []byte(plaintext))
	if err != nil {
		tb.Fatal(err)
	}
	sealed := join([]byte(clear), []byte(`{"sealed":"v1.`+base64.RawURLEncoding.EncodeToString(ciphertext)+`"}`))
	if e, err = place(string(sealed)).Sign(sender, noon); err != nil {
		tb.Fatal(err)
	}
	return e
}

// TestOpenIsStrict checks that Open parses the plaintext of a good ciphertext as strictly as any other input.
func TestOpenIsStrict(t *testing.T) {
	alice, bob := seedKey(t, 1), seedKey(t, 2)
	const request, failure = `{"request_id":"r","intent":"i"}`, `{"code":"C","message":"sealed"}`
	for _, c := range []struct {
		typ                    Type
		clear, plaintext, want string // want is empty: Open must fail
	}{
		{TypeRequest, request, "{\t\"title\" : 1.0 }\n  ", `{"intent":"i","request_id":"r","title":1}`},
		{TypeRequest, request, `{}`, `{"intent":"i","request_id":"r"}`},
		{TypeRequest, request, `{"Intent":1,"status":2,"message":3,"code":4}`, `{"Intent":1,"code":4,"intent":"i","message":3,"request_id":"r","status":2}`},
		{TypeRequest, request, `{"a":` + nested(MaxDepth-1) + `}`, `{"a":` + nested(MaxDepth-1) + `,"intent":"i","request_id":"r"}`},
		{TypeRequest, request, `{"a":` + nested(MaxDepth) + `}`, ""},
		{TypeRequest, request, `{"intent":"i"}`, ""},
		{TypeRequest, request, `{"\u0069ntent":"other"}`, ""},
		{TypeRequest, `{"intent":"i"}`, `{"request_id":"t"}`, ""},
		{TypeCancel, `{}`, `{"request_id":"r"}`, ""},
		{TypeResult, `{"status":"s"}`, `{"status":"s"}`, ""},
		{TypeRequest, request, `{"sealed":1}`, ""},
		{TypeRequest, request, `{"a":1,"a":1}`, ""},
		{TypeRequest, request, `{"a":1,"\u0061":1}`, ""},
		{TypeRequest, request, `{"a":"` + "\xff" + `"}`, ""},
		{TypeRequest, request, `{"a":"\ud800"}`, ""},
		{TypeRequest, request, `{"a":1e400}`, ""},
		{TypeRequest, request, `{"a":1} {}`, ""},
		{TypeRequest, request, "\xef\xbb\xbf{}", ""},
		{TypeRequest, request, `["a"]`, ""},
		{TypeRequest, request, `null`, ""},
		{TypeRequest, request, `   `, ""},
		{TypeRequest, request, ``, ""},
		{TypeError, failure, `{"message":"why"}`, `{"code":"C","message":"why"}`},
		{TypeError, failure, `{"message":""}`, ""},
		{TypeError, failure, `{"message":5}`, ""},
		{TypeError, failure, `{"code":"D","message":"why"}`, ""},
		{TypeError, failure, `{}`, ""},
		{TypeError, `{"code":"C","message":"not sealed"}`, `{"message":"why"}`, ""},
		{TypeError, `{"code":"C"}`, `{"message":"why"}`, ""},
		{TypeRequest, `{"request_id":"r","intent":"i","message":"sealed"}`, `{}`, ""},
		{TypeRequest, `{"request_id":"r","intent":"i","title":"clear"}`, `{}`, ""},
	} {
		e := sealRaw(t, alice, bob.DID(), c.typ, c.clear, c.plaintext)
		opened, err := e.Open(bob)
		switch {
		case c.want == "" && (err != ErrOpen || opened != nil):
			t.Errorf("%s in %s opens: %v, %v", c.plaintext, c.clear, opened, err)
		case c.want != "" && (err != nil || string(opened.Payload) != c.want):
			t.Errorf("%s in %s: %+v, %v; want %s", c.plaintext, c.clear, opened, err, c.want)
		}
	}
}

// brokenOpener is an Opener that has an identity but no key.
type brokenOpener struct{ didkey.Key }

func (brokenOpener) X25519() (ecdh.KeyExchanger, error) {
	return nil, errors.New("the hardware key is not connected")
}

// TestErrOpenHidesTheReason checks that Open returns the same error for all failures.
func TestErrOpenHidesTheReason(t *testing.T) {
	bob := seedKey(t, 2)
	e := sealedBy(t, seedKey(t, 1), Draft{Recipient: bob.DID(), Payload: Request{Intent: "i"}})
	if _, err := e.Open(brokenOpener{bob}); err != ErrOpen {
		t.Errorf("without a key: %v", err)
	}
	plain, err := Draft{Recipient: bob.DID(), Payload: Request{Intent: "i"}}.Sign(bob, noon)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := plain.Open(bob); err != ErrOpen {
		t.Errorf("a plain message: %v", err)
	}
	for _, word := range []string{"secret", "base64", "JSON", "authentication", "key"} {
		if strings.Contains(ErrOpen.Error(), word) {
			t.Errorf("the error reveals a reason: %s", word)
		}
	}
}

// TestManifestIsNeverSealed checks that a MANIFEST may have a member named sealed.
func TestManifestIsNeverSealed(t *testing.T) {
	key := seedKey(t, 1)
	e, err := Draft{Payload: Raw{TypeManifest, []byte(`{"id":"m","sealed":"v1."}`)}, Recipient: key.DID()}.Sign(key, noon)
	if err != nil || e.Sealed() {
		t.Errorf("sealed %v, %v", e.Sealed(), err)
	}
}

// TestSigningAndSealingCannotBeConfused checks what makes it safe to use one key for signing and for sealing. Only
// canonical JSON objects with a type are signed, also while sealing. So no ciphertext can be used as a signed message.
// A plaintext that is itself a signed envelope opens as a payload, not as a message.
func TestSigningAndSealingCannotBeConfused(t *testing.T) {
	alice, bob := seedKey(t, 1), seedKey(t, 2)
	inner := sealedBy(t, alice, Draft{ID: "inner", Recipient: bob.DID(), Payload: Request{Intent: "i"}})
	var signed [][]byte
	spy := spySigner{alice, func(message []byte) { signed = append(signed, slices.Clone(message)) }}
	for range 20 {
		d := Draft{Seal: true, Thread: "t", Recipient: bob.DID(), Payload: Raw{TypeResult, fmt.Appendf(nil, `{"status":"s","output":%s}`, inner.canonical)}}
		if _, err := d.Sign(spy, noon); err != nil {
			t.Fatal(err)
		}
	}
	for _, message := range signed {
		canonical, err := Canonicalize(message)
		if err != nil || !bytes.Equal(canonical, message) || !bytes.HasPrefix(message, []byte(`{"`)) ||
			string(member(message, "type")) != `"RESULT"` || member(message, "sig") != nil {
			t.Errorf("the signer was given %q, which is not a canonical message without sig", message)
		}
	}
	if len(signed) != 20 {
		t.Errorf("%d signatures for 20 messages", len(signed))
	}
	nested := sealRaw(t, alice, bob.DID(), TypeResult, `{"status":"s"}`, string(inner.canonical))
	opened, err := nested.Open(bob)
	if err != nil || opened.ID != "m" || opened.Type != TypeResult || opened.PayloadString("id") != "inner" {
		t.Errorf("an envelope as plaintext: %+v, %v", opened, err)
	}
	// The private scalar must be the same for Ed25519 and X25519. The secret that makes signatures unpredictable is the
	// other half of the hash.
	private, err := alice.X25519()
	if err != nil {
		t.Fatal(err)
	}
	public, err := alice.DID().X25519()
	if err != nil || !private.PublicKey().Equal(public) || bytes.Equal(public.Bytes(), alice.DID().PublicKey()) {
		t.Errorf("the X25519 private key does not belong to the public key: %v", err)
	}
}

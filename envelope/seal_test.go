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

// sealedBy signs a draft with its payload sealed.
func sealedBy(tb testing.TB, sender didkey.Key, d Draft) *Envelope {
	tb.Helper()
	d.Seal = true
	e, err := d.Sign(sender, noon)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

// TestSeal seals each type of message and opens it again: what opens is what a plain message would have said, and what
// relays ask for is what is left to see.
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
			t.Errorf("sealed is %s, want %s", e.Payload, clear)
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
			t.Errorf("the opened message is not the one that was sent: %+v", opened)
		}
		if _, err := opened.Open(bob); err != ErrOpen {
			t.Errorf("opened twice: %v", err)
		}
		if again := sealedBy(t, alice, d); bytes.Equal(again.Payload, e.Payload) {
			t.Error("two sealings are the same")
		}
	}
}

// TestSealRefuses holds what cannot be sealed to a refusal before anything is signed.
func TestSealRefuses(t *testing.T) {
	key := seedKey(t, 1)
	for want, d := range map[string]Draft{
		"INVALID_REQUEST: a broadcast cannot be sealed":           {Payload: Request{Intent: "i"}},
		"INVALID_REQUEST: a MANIFEST is for everybody":            {Payload: Manifest{ID: "m"}, Recipient: key.DID()},
		"INVALID_REQUEST: the payload has a member \"sealed\"":    {Payload: Raw{TypeRequest, []byte(`{"request_id":"r","intent":"i","sealed":1}`)}, Recipient: key.DID(), Thread: "t"},
		"INVALID_REQUEST: the recipient could not open":           {Payload: Failure{Code: "C"}, Recipient: key.DID(), Thread: "t"},
		"INVALID_REQUEST: the recipient could not open this":      {Payload: Request{Intent: "i", Params: json.RawMessage(nested(MaxDepth))}, Recipient: key.DID()},
		"INVALID_DID: recipient.id: not an Ed25519":               {Payload: Request{Intent: "i"}, Recipient: "did:key:z6Mk"},
		"INVALID_DID: recipient.id: the key is a low-order point": {Payload: Request{Intent: "i"}, Recipient: "did:key:z6MkeTG3bFFSLYVU7VqhgZxqr6YzpaGrQtFMh1uvqGy1vDnP"},
		"INVALID_REQUEST: payload must be an object":              {Payload: Raw{TypeCancel, []byte(`[]`)}, Recipient: key.DID(), Thread: "t"},
		"PAYLOAD_TOO_LARGE: the body is too large":                {Payload: Request{Intent: "i", Title: strings.Repeat("x", 100_000)}, Recipient: key.DID()},
	} {
		d.Seal = true
		signed := false
		e, err := d.Sign(spySigner{key, func([]byte) { signed = true }}, noon)
		if err == nil || !strings.HasPrefix(err.Error(), want) || e != nil {
			t.Errorf("%v, %v; want %s", e, err, want)
		}
		if signed && !strings.HasPrefix(want, "PAYLOAD") {
			t.Errorf("signed, though %v", err)
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

// TestSealedTextIsPadded holds that small differences in length do not show.
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
	// {"title":"…"} has 12 characters more than the title, and no title is {}.
	want := map[int]int{256: 245, 512: 256, 768: 99}
	if !maps.Equal(lengths, want) {
		t.Errorf("plaintexts by length: %v, want %v", lengths, want)
	}
}

// resigned returns e by signer with members replaced, as raw JSON; an empty value takes one out.
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

// TestSealedStaysInItsPlace puts a sealed payload into other messages, well signed, where it must not open.
func TestSealedStaysInItsPlace(t *testing.T) {
	alice, bob, mallory := seedKey(t, 1), seedKey(t, 2), seedKey(t, 4)
	e := sealedBy(t, alice, Draft{ID: "m", Thread: "t", Recipient: bob.DID(), Payload: Offer{RequestID: "r", Plan: "secret"}})
	payload := func(from, to string) map[string]string {
		return map[string]string{"payload": strings.Replace(string(e.Payload), from, to, 1)}
	}
	for name, c := range map[string]struct {
		signer, opener didkey.Key
		changes        map[string]string
	}{
		"another's, signed as one's own":     {mallory, bob, nil},
		"one's own, with another id":         {alice, bob, map[string]string{"id": `"n"`}},
		"in another thread":                  {alice, bob, map[string]string{"thread": `{"id":"u"}`}},
		"in the thread of its request":       {alice, bob, map[string]string{"thread": ""}},
		"of another type":                    {alice, bob, map[string]string{"type": `"CANCEL"`}},
		"of another request":                 {alice, bob, payload(`"r"`, `"q"`)},
		"of no request":                      {alice, bob, payload(`"request_id":"r",`, ``)},
		"to another":                         {alice, mallory, map[string]string{"recipient": `{"id":"` + string(mallory.DID()) + `"}`}},
		"to another, opened by the former":   {alice, bob, map[string]string{"recipient": `{"id":"` + string(mallory.DID()) + `"}`}},
		"to nobody":                          {alice, bob, map[string]string{"recipient": ""}},
		"opened by another":                  {alice, mallory, nil},
		"opened by its sender":               {alice, alice, nil},
		"in a payload with another member":   {alice, bob, payload(`{"request_id"`, `{"plan":"clear","request_id"`)},
		"without the version":                {alice, bob, payload(`"v1.`, `"`)},
		"of another version":                 {alice, bob, payload(`"v1.`, `"v2.`)},
		"as no string":                       {alice, bob, payload(`"`+e.PayloadString("sealed")+`"`, `{}`)},
		"with padding":                       {alice, bob, payload(e.PayloadString("sealed"), e.PayloadString("sealed")+"=")},
		"with a line break":                  {alice, bob, payload(e.PayloadString("sealed"), e.PayloadString("sealed")[:50]+`\n`+e.PayloadString("sealed")[50:])},
		"cut":                                {alice, bob, payload(e.PayloadString("sealed"), e.PayloadString("sealed")[:len(e.PayloadString("sealed"))-4])},
		"without anything but the key":       {alice, bob, payload(e.PayloadString("sealed"), e.PayloadString("sealed")[:3+43])},
		"empty":                              {alice, bob, payload(e.PayloadString("sealed"), "v1.")},
		"with another ephemeral key":         {alice, bob, payload(e.PayloadString("sealed")[:9], "v1.AAAAAA")},
		"with the ephemeral key of order 1":  {alice, bob, payload(e.PayloadString("sealed")[:46], "v1."+base64.RawURLEncoding.EncodeToString(make([]byte, 32))[:42]+e.PayloadString("sealed")[45:46])},
		"unsealed, with a member of no kind": {alice, bob, map[string]string{"payload": `{"request_id":"r","sealed":null}`}},
	} {
		moved := resigned(t, e, c.signer, c.changes)
		if err := moved.Verify(); err != nil || !moved.Sealed() {
			t.Fatalf("%s: sealed %v, %v", name, moved.Sealed(), err)
		}
		if opened, err := moved.Open(c.opener); err != ErrOpen || opened != nil {
			t.Errorf("%s: opens as %+v, %v", name, opened, err)
		}
	}
	// What is not in its place may change: the sender's own name, the time, the ttl.
	moved := resigned(t, e, alice, map[string]string{"ts": `"2026-02-02T13:00:00Z"`, "meta": `{"ttl":5}`})
	if _, err := moved.Open(bob); err != nil {
		t.Errorf("posted again later: %v", err)
	}
}

// TestOpenVerifies holds that nothing is opened that its sender has not signed.
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

// sealRaw seals any bytes in the place of a message, as only its sender can.
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

// TestOpenIsStrict holds what comes out of a good ciphertext to the rules for what comes from elsewhere.
func TestOpenIsStrict(t *testing.T) {
	alice, bob := seedKey(t, 1), seedKey(t, 2)
	const request, failure = `{"request_id":"r","intent":"i"}`, `{"code":"C","message":"sealed"}`
	for _, c := range []struct {
		typ                    Type
		clear, plaintext, want string // empty: does not open
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

// brokenOpener has an identity and no key.
type brokenOpener struct{ didkey.Key }

func (brokenOpener) X25519() (ecdh.KeyExchanger, error) {
	return nil, errors.New("the token was pulled out")
}

// TestErrOpenTellsNothing holds that all failures are one and the same value.
func TestErrOpenTellsNothing(t *testing.T) {
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
			t.Errorf("the error tells of %s", word)
		}
	}
}

// TestManifestIsNeverSealed holds that a directory entry may call a member as it likes.
func TestManifestIsNeverSealed(t *testing.T) {
	key := seedKey(t, 1)
	e, err := Draft{Payload: Raw{TypeManifest, []byte(`{"id":"m","sealed":"v1."}`)}, Recipient: key.DID()}.Sign(key, noon)
	if err != nil || e.Sealed() {
		t.Errorf("sealed %v, %v", e.Sealed(), err)
	}
}

// TestSigningAndSealingAreApart holds what lets one key do both. Only canonical JSON objects that name their type are
// ever signed, also while sealing, so no sealed bytes can pass for something signed; and a plaintext that is itself a
// signed envelope comes out as a payload and not as a message.
func TestSigningAndSealingAreApart(t *testing.T) {
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
			t.Errorf("signed %q", message)
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
	// The scalar is the same and must be; what makes signatures unpredictable is the hash's other half.
	private, err := alice.X25519()
	if err != nil {
		t.Fatal(err)
	}
	public, err := alice.DID().X25519()
	if err != nil || !private.PublicKey().Equal(public) || bytes.Equal(public.Bytes(), alice.DID().PublicKey()) {
		t.Errorf("the public halves do not belong together: %v", err)
	}
}

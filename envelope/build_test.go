package envelope_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/testvectors"
)

// signed returns the envelope that draft becomes. It fails the test unless a relay would accept the envelope unchanged.
func signed(t testing.TB, draft envelope.Draft) *envelope.Envelope {
	t.Helper()
	e, err := draft.Sign(testKey(t, 1), noon)
	if err != nil {
		t.Fatalf("%+v: %v", draft, err)
	}
	again := parse(t, string(e.Canonical()))
	if err := again.Verify(); err != nil {
		t.Fatalf("%s: %v", e.Canonical(), err)
	}
	if !reflect.DeepEqual(e, again) {
		t.Errorf("Sign returned %+v, but a relay parses %+v", e, again)
	}
	return again
}

func TestSignEveryPayload(t *testing.T) {
	number, when := 0.1, noon.Add(time.Hour)
	raw := json.RawMessage(`{"a":[1,"<&>"]}`)
	types := envelope.Types()
	for _, c := range []struct {
		payload envelope.Payload
		typ     envelope.Type
	}{
		{envelope.Request{RequestID: "r", Intent: "i", Title: "t", Description: "d", Params: raw,
			Constraints: &envelope.Constraints{MaxCostUSD: &number, MaxLatencyMS: 1 << 53, Deadline: &when}}, envelope.TypeRequest},
		{envelope.Offer{RequestID: "r", Plan: "p", Price: &envelope.Price{Amount: 1e21, Currency: "USD"}, ETASeconds: 1.5,
			ValidUntil: &when}, envelope.TypeOffer},
		{envelope.Accept{RequestID: "r", AcceptedAt: &when, Terms: &envelope.Terms{PriceUSD: &number, Deadline: &when}}, envelope.TypeAccept},
		{envelope.Result{RequestID: "r", Status: "success", Output: raw, Artifacts: json.RawMessage(`[]`),
			Metrics: json.RawMessage(`0`)}, envelope.TypeResult},
		{envelope.Failure{RequestID: "r", Code: envelope.AgentTimeout, Message: "m", Details: raw}, envelope.TypeError},
		{envelope.Cancel{RequestID: "r", Reason: "\u2028 </script> \x00 \U0001f600"}, envelope.TypeCancel},
		{envelope.Manifest{ID: "m", Name: "n", Description: "d", Version: "v", Intents: []envelope.Intent{{ID: "i", Name: "n",
			InputSchema: raw, OutputSchema: raw}}, Pricing: &envelope.Pricing{Model: "metered", Currency: "USD", FixedPrice: 1,
			MeteredUnit: "u", MeteredRate: 0.5}, PrivacyPolicy: "p", SupportedLanguages: []string{"en", "zh"},
			Auth: &envelope.Auth{Methods: []string{"did"}, PublicKey: testKey(t, 1).DID().Multibase()}}, envelope.TypeManifest},
	} {
		e := signed(t, envelope.Draft{Payload: c.payload})
		if e.Type != c.typ {
			t.Errorf("%T became a message of type %s", c.payload, e.Type)
		}
		read := reflect.New(reflect.TypeOf(c.payload))
		if err := e.DecodePayload(read.Interface()); err != nil || !reflect.DeepEqual(read.Elem().Interface(), c.payload) {
			t.Errorf("%T was decoded as %+v, %v", c.payload, read.Elem(), err)
		}
		types = slices.DeleteFunc(types, func(typ envelope.Type) bool { return typ == c.typ })
	}
	if len(types) > 0 {
		t.Errorf("no payload type builds %v", types)
	}
}

func TestDraftFields(t *testing.T) {
	full := signed(t, envelope.Draft{
		Payload: envelope.Offer{RequestID: "r"}, ID: "m", TS: noon.Add(1234567 * time.Microsecond).In(time.FixedZone("", 3600)),
		SenderName: "N", SenderURL: "U", Recipient: testKey(t, 2).DID(), Thread: "th", TTL: time.Minute, Relays: []string{"https://a"},
	})
	if full.ID != "m" || !full.TS.Equal(noon.Add(1234*time.Millisecond)) || full.Thread != "th" || full.RequestID != "r" ||
		full.Sender != (envelope.Party{ID: testKey(t, 1).DID(), Name: "N", URL: "U"}) || full.Recipient != testKey(t, 2).DID() ||
		full.TTL != time.Minute || !slices.Equal(full.Relays, []string{"https://a"}) {
		t.Errorf("got %+v", full)
	}
	bare := signed(t, envelope.Draft{Payload: envelope.Request{Intent: "i"}})
	if !strings.HasPrefix(bare.ID, "msg_") || !bare.TS.Equal(noon) || bare.Thread != bare.RequestID ||
		!strings.HasPrefix(bare.RequestID, "thread_") || bare.TTL != 24*time.Hour || bare.Recipient != "" || bare.Relays != nil {
		t.Errorf("got %+v", bare)
	}
	if e := signed(t, envelope.Draft{Payload: envelope.Request{RequestID: "no id", Intent: "i"}}); !strings.HasPrefix(e.Thread, "thread_") {
		t.Errorf("the thread of a REQUEST with an unsuitable request_id is %q; want a new thread id", e.Thread)
	}
	if none := signed(t, envelope.Draft{Payload: envelope.Request{Intent: "i"}, Relays: []string{}}); none.Relays == nil {
		t.Error("an empty list of relays became nil, which means any relay")
	}
	if e := signed(t, envelope.Draft{Payload: envelope.Cancel{RequestID: "r"}}); e.Thread != "r" {
		t.Errorf("the thread is %q; want the request_id", e.Thread)
	}
	if got := envelope.FormatTime(noon.Add(-1).In(time.FixedZone("", -7200))); got != "2026-02-02T11:59:59.999Z" {
		t.Errorf("FormatTime = %s", got)
	}
}

func TestSignRefuses(t *testing.T) {
	for name, draft := range map[string]envelope.Draft{
		"no payload":        {},
		"fractional TTL":    {Payload: envelope.Request{Intent: "i"}, TTL: 1500 * time.Millisecond},
		"negative TTL":      {Payload: envelope.Request{Intent: "i"}, TTL: -time.Second},
		"bad id":            {Payload: envelope.Request{Intent: "i"}, ID: "a b"},
		"bad thread":        {Payload: envelope.Request{Intent: "i"}, Thread: "_"},
		"no thread":         {Payload: envelope.Offer{Plan: "p"}},
		"thread, MANIFEST":  {Payload: envelope.Manifest{ID: "m"}, Thread: "t"},
		"year 10000":        {Payload: envelope.Request{Intent: "i"}, TS: noon.AddDate(8000, 0, 0)},
		"invalid JSON":      {Payload: envelope.Request{Intent: "i", Params: json.RawMessage(`{`)}},
		"duplicate members": {Payload: envelope.Request{Intent: "i", Params: json.RawMessage(`{"a":1,"a":2}`)}},
		"lone surrogate":    {Payload: envelope.Request{Intent: "i", Params: json.RawMessage(`"\ud800"`)}},
		"infinite number":   {Payload: envelope.Request{Intent: "i", Params: json.RawMessage(`1e999`)}},
	} {
		if e, err := draft.Sign(testKey(t, 1), noon); e != nil || codeOf(t, err) != rejected {
			t.Errorf("%s: %v, %v", name, e, err)
		}
	}
	huge := envelope.Draft{Payload: envelope.Request{Intent: strings.Repeat("i", envelope.DefaultMaxBytes)}}
	if _, err := huge.Sign(testKey(t, 1), noon); codeOf(t, err) != tooLarge {
		t.Errorf("huge: %v", err)
	}
	if _, err := (envelope.Draft{Payload: envelope.Cancel{RequestID: "r"}}).Sign(brokenSigner{}, noon); !errors.Is(err, errBroken) {
		t.Errorf("Sign does not return the signer's error: %v", err)
	}
}

var errBroken = errors.New("the signer has no key")

type brokenSigner struct{}

func (brokenSigner) DID() didkey.DID             { return "did:key:z6Mk" }
func (brokenSigner) Sign([]byte) ([]byte, error) { return nil, errBroken }

func TestSignJSON(t *testing.T) {
	me, other := string(testKey(t, 1).DID()), string(testKey(t, 2).DID())
	for _, c := range []struct {
		name, text string
		want       envelope.Code
		contains   string // text in the canonical form
	}{
		{"fills", `{"type":"REQUEST","payload":{"request_id":"r"}}`, ok, `"sender":{"id":"` + me + `"}`},
		{"fills the time", `{"type":"REQUEST","payload":{"request_id":"r"}}`, ok, `"ts":"2026-02-02T12:00:00.000Z"`},
		{"fills the version", `{"type":"REQUEST","payload":{"request_id":"r"}}`, ok, `"version":"1.0"`},
		{"keeps", body(t), ok, `"id":"msg_1"`},
		{"keeps the time", body(t), ok, `"ts":"2026-02-02T12:00:00Z"`},
		{"keeps the sender's name", body(t, "sender", `{"id":"`+me+`","name":"N"}`), ok, `"name":"N"`},
		{"keeps unknown members", body(t, "x", "[1.50]"), ok, `"x":[1.5]`},
		{"keeps names that need escapes", body(t, `\u0001\"\\`, "1", "<&\u2028>", "2"), ok, `"\u0001\"\\":1,"<&` + "\u2028" + `>":2`},
		{"replaces a signature", body(t, "sig", `{"no":"string"}`), ok, `"sig":"`},
		{"unwraps", `{"envelope":` + body(t) + `}`, ok, `"id":"msg_1"`},
		{"another key's did", body(t, "sender", `{"id":"`+other+`"}`), badDID, ""},
		{"sender without id", body(t, "sender", `{"name":"N"}`), badDID, ""},
		{"sender null", body(t, "sender", "null"), badDID, ""},
		{"null is not absent", body(t, "version", "null"), badVersion, ""},
		{"a list", `[]`, rejected, ""},
		{"invalid JSON", `{`, rejected, ""},
		{"empty", ``, rejected, ""},
		{"no type", `{"payload":{"request_id":"r"}}`, rejected, ""},
		{"folded name", body(t, "Sig", "1"), rejected, ""},
		{"duplicate", body(t, "payload", `{"request_id":"r","a":1,"a":2}`), rejected, ""},
	} {
		e, err := envelope.SignJSON(testKey(t, 1), []byte(c.text), noon)
		if codeOf(t, err) != c.want {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
			continue
		}
		if err != nil {
			continue
		}
		if err := parse(t, string(e.Canonical())).Verify(); err != nil || !strings.Contains(string(e.Canonical()), c.contains) {
			t.Errorf("%s: %s, %v", c.name, e.Canonical(), err)
		}
	}
}

func TestValidID(t *testing.T) {
	form := regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:~-]{0,127}$`)
	for c := range 256 {
		for _, s := range []string{string([]byte{byte(c)}), string([]byte{'a', byte(c)}), string([]byte{'a', byte(c), 'a'})} {
			if envelope.ValidID(s) != (form.MatchString(s) && !strings.HasSuffix(s, "\n")) {
				t.Errorf("ValidID(%q) = %v", s, envelope.ValidID(s))
			}
		}
	}
	for n := range 131 {
		if envelope.ValidID(strings.Repeat("a", n)) != (n >= 1 && n <= 128) {
			t.Errorf("an id of %d characters: ValidID = %v", n, envelope.ValidID(strings.Repeat("a", n)))
		}
	}
}

func TestNewID(t *testing.T) {
	form := regexp.MustCompile(`^msg_[0-7][0-9a-hjkmnp-tv-z]{25}$`)
	rapid.Check(t, func(t *rapid.T) {
		at := time.UnixMilli(rapid.Int64Range(0, 1<<48-1).Draw(t, "ms"))
		id, again := envelope.NewID("msg", at), envelope.NewID("msg", at)
		if !form.MatchString(id) || !envelope.ValidID(id) || id == again {
			t.Fatalf("%q, %q", id, again)
		}
		var ms int64
		for _, c := range id[4:14] {
			ms = ms<<5 | int64(strings.IndexRune("0123456789abcdefghjkmnpqrstvwxyz", c))
		}
		if ms != at.UnixMilli() {
			t.Fatalf("%q contains %d ms; want %d", id, ms, at.UnixMilli())
		}
		if earlier := envelope.NewID("msg", at.Add(-time.Millisecond)); at.UnixMilli() > 0 && earlier >= id {
			t.Fatalf("%q is older than %q, but does not sort before it", earlier, id)
		}
	})
	// The last 16 characters hold the 80 random bits. Each character must take all 32 values.
	seen := map[int]map[byte]bool{}
	for range 2000 {
		id := envelope.NewID("m", noon)
		for i := len("m_") + 10; i < len(id); i++ {
			if seen[i] == nil {
				seen[i] = map[byte]bool{}
			}
			seen[i][id[i]] = true
		}
	}
	for i, chars := range seen {
		if len(chars) != 32 {
			t.Errorf("character %d takes only %d of 32 values", i, len(chars))
		}
	}
}

func TestPublicNaughtyStrings(t *testing.T) {
	for _, text := range testvectors.PublicList[string](t, "strings/blns.json", "") {
		e := signed(t, envelope.Draft{Payload: envelope.Offer{RequestID: "r", Plan: text}, SenderName: text})
		var offer envelope.Offer
		if err := e.DecodePayload(&offer); err != nil || offer.Plan != text || e.PayloadString("plan") != text || e.Sender.Name != text {
			t.Errorf("%q was decoded as %q, %q and %q (%v)",
				text, offer.Plan, e.PayloadString("plan"), e.Sender.Name, err)
		}
		if _, err := (envelope.Draft{Payload: envelope.Cancel{RequestID: "r"}, ID: text}).Sign(testKey(t, 1), noon); text != "" &&
			(err == nil) != envelope.ValidID(text) {
			t.Errorf("as an id %q: %v", text, err)
		}
	}
}

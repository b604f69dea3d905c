package envelope_test

import (
	"crypto/sha256"
	"encoding/base64"
	"os"
	"strings"
	"testing"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

var goodCall = envelope.Call{Body: sha256.Sum256([]byte(`{"a":1}`)), Read: envelope.Read{
	Audience: "https://relay.example", Method: "POST", Target: "/jobs/x?y=%20", TS: goodRead.TS, Nonce: goodRead.Nonce}}

// goodHash is the member body of goodCall.
const goodHash = "AVq9f1zFei3ZS3WQ8ErYCEJzkF7jPsXOvq5iJ2qX-GI"

// refusedCall returns the error of parsing and verifying a call token, or nil.
func refusedCall(token string) error {
	call, err := envelope.ParseCall(token)
	if err != nil {
		return err
	}
	return call.Verify()
}

func TestCall(t *testing.T) {
	key := readKey(t)
	token, err := goodCall.Sign(key)
	if err != nil {
		t.Fatal(err)
	}
	call, err := envelope.ParseCall(token)
	if err != nil {
		t.Fatal(err)
	}
	if err := call.Verify(); err != nil {
		t.Fatal(err)
	}
	if call.Reader != key.DID() || call.Audience != goodCall.Audience || call.Method != goodCall.Method ||
		call.Target != goodCall.Target || !call.TS.Equal(goodCall.TS) || call.Nonce != goodCall.Nonce ||
		call.Body != goodCall.Body {
		t.Errorf("ParseCall = %+v", call)
	}
	brokenToken(t, goodCall, func(s string) string {
		if !strings.Contains(s, `"body":"`+goodHash+`"`) || !strings.Contains(s, `"typ":"agora-call"`) {
			t.Errorf("the token is %s", s)
		}
		return s
	})
	fresh := goodCall
	fresh.Nonce = ""
	one, err := fresh.Sign(key)
	if err != nil {
		t.Fatal(err)
	}
	other, err := fresh.Sign(key)
	if err != nil || one == other {
		t.Errorf("two calls without a nonce have the same token: %v", err)
	}
}

// TestCallsAreStrict checks the form of call tokens. What they share with read tokens is in TestReadsAreStrict.
func TestCallsAreStrict(t *testing.T) {
	lastChanged := goodHash[:42] + "J" // the same hash with other spare bits
	for name, change := range map[string]func(string) string{
		"the typ of reads":       replaced(`agora-call`, `agora-read`),
		"another typ":            replaced(`agora-call`, `agora-write`),
		"no body":                replaced(`"body":"`+goodHash+`",`, ``),
		"an empty body":          replaced(goodHash, ``),
		"a body that is null":    replaced(`"`+goodHash+`"`, `null`),
		"a body in hexadecimal":  replaced(goodHash, strings.Repeat("0a", 32)),
		"a short body":           replaced(goodHash, goodHash[:42]),
		"a body of 33 bytes":     replaced(goodHash, goodHash[:43]+"A"),
		"a padded body":          replaced(goodHash, goodHash+"="),
		"other spare bits":       replaced(goodHash, lastChanged),
		"the standard alphabet":  replaced(goodHash, strings.ReplaceAll(goodHash, "-", "+")),
		"a line break in body":   replaced(goodHash, goodHash[:20]+`\n`+goodHash[20:]),
		"a body twice":           replaced(`"body"`, `"body":"`+goodHash+`","body"`),
		"a folded member":        replaced(`"body"`, `"Body"`),
		"an unknown member":      replaced(`"body"`, `"about":"me","body"`),
		"another member instead": replaced(`"body"`, `"hash"`),
		"no nonce":               replaced(`"nonce":"`+goodCall.Nonce+`",`, ``),
	} {
		for _, token := range []string{brokenToken(t, goodCall, change), signedAgain(t, goodCall, change)} {
			if err := refusedCall(token); codeOf(t, err) != envelope.CodeUnauthorized {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	other := replaced(goodHash, "B"+goodHash[1:])
	if err := refusedCall(brokenToken(t, goodCall, other)); codeOf(t, err) != envelope.CodeUnauthorized {
		t.Errorf("a body that was changed after signing: %v", err)
	}
	if err := refusedCall(signedAgain(t, goodCall, other)); err != nil {
		t.Errorf("a token that was signed after the change: %v", err)
	}
}

// TestCallsAreNotReads checks that a read token is refused as a call token, and a call token as a read token.
func TestCallsAreNotReads(t *testing.T) {
	same := func(s string) string { return s }
	read, call := brokenToken(t, goodRead, same), brokenToken(t, goodCall, same)
	if err := refusedRead(read); err != nil {
		t.Fatal(err)
	}
	if err := refusedCall(call); err != nil {
		t.Fatal(err)
	}
	toRead, toCall := replaced("agora-call", "agora-read"), replaced("agora-read", "agora-call")
	withBody := replaced(`"did"`, `"body":"`+goodHash+`","did"`)
	for name, err := range map[string]error{
		"a call as a read":                        refusedRead(call),
		"a read as a call":                        refusedCall(read),
		"a call with the typ of reads":            refusedRead(signedAgain(t, goodCall, toRead)),
		"a call with the typ of reads, as a call": refusedCall(signedAgain(t, goodCall, toRead)),
		"a read with the typ of calls":            refusedCall(signedAgain(t, goodRead, toCall)),
		"a read with the typ of calls, as a read": refusedRead(signedAgain(t, goodRead, toCall)),
		"a read with a body":                      refusedRead(signedAgain(t, goodRead, withBody)),
		"a read with a body, as a call":           refusedCall(signedAgain(t, goodRead, withBody)),
	} {
		if codeOf(t, err) != envelope.CodeUnauthorized {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCallExample checks that GATEWAYS has a valid token as its example.
func TestCallExample(t *testing.T) {
	page, err := os.ReadFile("../docs/GATEWAYS.md")
	if err != nil {
		t.Fatal(err)
	}
	key, err := didkey.FromSeed([]byte(strings.Repeat("\x01", 32)))
	if err != nil {
		t.Fatal(err)
	}
	example := envelope.Call{Body: sha256.Sum256([]byte(`{"price":5}`)), Read: envelope.Read{
		Audience: "https://relay.example", Method: "POST", Target: "/jobs/offers",
		TS: goodRead.TS, Nonce: "Zm9ydHktdHdvIGJ5dGVz"}}
	token, err := example.Sign(key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(text), `"sig":"`)
	_, after, _ := strings.Cut(rest, `",`)
	for _, want := range []string{"\n    " + before + after + "\n", "\n    Authorization: Agora " + token + "\n"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("docs/GATEWAYS.md lacks %s", want)
		}
	}
}

// FuzzParseToken checks that every accepted token has one meaning: the token with the canonical form of its JSON is
// accepted too, and means the same. No text is both a read token and a call token.
func FuzzParseToken(f *testing.F) {
	for _, change := range []func(string) string{
		func(s string) string { return s }, replaced("{", "{ "), replaced(`"nonce"`, `"no\u006ece"`),
		replaced(`"typ"`, `"Typ"`), replaced("T12", "T24"), func(s string) string { return s + "\n" },
	} {
		f.Add(brokenToken(f, goodRead, change))
		f.Add(brokenToken(f, goodCall, change))
	}
	f.Add(brokenToken(f, goodCall, replaced(goodHash, goodHash[:42]+"J")))
	f.Add(brokenToken(f, goodCall, replaced("agora-call", "agora-read")))
	f.Add("")
	f.Add("e30")
	parseRead := func(token string) (*envelope.Call, error) {
		read, err := envelope.ParseRead(token)
		if err != nil {
			return nil, err
		}
		return &envelope.Call{Read: *read}, nil
	}
	f.Fuzz(func(t *testing.T, token string) {
		accepted := 0
		for _, parse := range []func(string) (*envelope.Call, error){parseRead, envelope.ParseCall} {
			call, err := parse(token)
			if err == nil {
				accepted++
				hasOneMeaning(t, token, call, parse)
			} else if codeOf(t, err) != envelope.CodeUnauthorized {
				t.Errorf("%v", err)
			}
		}
		if accepted > 1 {
			t.Errorf("%s is both a read and a call", token)
		}
	})
}

// hasOneMeaning checks a token that parse has accepted as call.
func hasOneMeaning(t *testing.T, token string, call *envelope.Call, parse func(string) (*envelope.Call, error)) {
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || base64.RawURLEncoding.EncodeToString(text) != token {
		t.Fatalf("%q is a second spelling of %q", token, text)
	}
	canonical, err := envelope.Canonicalize(text)
	if err != nil {
		t.Fatal(err)
	}
	again, err := parse(base64.RawURLEncoding.EncodeToString(canonical))
	if err != nil && len(token) < envelope.MaxReadToken/4 {
		t.Fatalf("%s is refused in canonical form: %v", text, err)
	}
	if err == nil && (again.Reader != call.Reader || again.Target != call.Target || again.Method != call.Method ||
		again.Audience != call.Audience || !again.TS.Equal(call.TS) || again.Nonce != call.Nonce || again.Body != call.Body ||
		(again.Verify() == nil) != (call.Verify() == nil)) {
		t.Errorf("%+v differs from its canonical form: %+v", call, again)
	}
	if _, err := envelope.Parse(text, 0); err == nil {
		t.Errorf("%s is accepted as a message too", text)
	}
}

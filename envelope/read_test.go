package envelope_test

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

func readKey(t testing.TB) didkey.Key {
	t.Helper()
	key, err := didkey.FromSeed([]byte(strings.Repeat("r", 32)))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

var goodRead = envelope.Read{Audience: "https://relay.example", Method: "GET", Target: "/events?since=a&recipient=b%20<c>",
	TS: time.Date(2026, 2, 2, 12, 0, 0, 0, time.UTC), Nonce: "0123456789-_abcdXYZ"}

func TestRead(t *testing.T) {
	key := readKey(t)
	token, err := goodRead.Sign(key)
	if err != nil {
		t.Fatal(err)
	}
	read, err := envelope.ParseRead(token)
	if err != nil {
		t.Fatal(err)
	}
	if err := read.Verify(); err != nil {
		t.Fatal(err)
	}
	if read.Reader != key.DID() || read.Audience != goodRead.Audience || read.Method != "GET" || read.Target != goodRead.Target ||
		!read.TS.Equal(goodRead.TS) || read.Nonce != goodRead.Nonce || string(read.Once()) != string(key.DID())+"\n"+goodRead.Nonce {
		t.Errorf("ParseRead = %+v", read)
	}
	fresh := goodRead
	fresh.Nonce = ""
	one, err := fresh.Sign(key)
	if err != nil {
		t.Fatal(err)
	}
	other, err := fresh.Sign(key)
	if err != nil || one == other {
		t.Errorf("two reads without a nonce have the same token: %v", err)
	}
}

// broken returns a read token whose JSON was changed after it was signed.
func broken(t testing.TB, change func(string) string) string {
	t.Helper()
	return brokenToken(t, goodRead, change)
}

// signable is a Read or a Call.
type signable interface {
	Sign(envelope.Signer) (string, error)
}

// brokenToken returns the token of r, whose JSON was changed after it was signed.
func brokenToken(t testing.TB, r signable, change func(string) string) string {
	t.Helper()
	token, err := r.Sign(readKey(t))
	if err != nil {
		t.Fatal(err)
	}
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString([]byte(change(string(text))))
}

// signedAgain returns a token whose JSON was changed and then signed again. If it cannot be signed, it is only changed.
func signedAgain(t testing.TB, r signable, change func(string) string) string {
	t.Helper()
	text, err := base64.RawURLEncoding.DecodeString(brokenToken(t, r, change))
	if err != nil {
		t.Fatal(err)
	}
	var token map[string]any
	if canonical, err := envelope.Canonicalize(text); err != nil || json.Unmarshal(canonical, &token) != nil {
		return base64.RawURLEncoding.EncodeToString(text)
	}
	if sig, _ := token["sig"].(string); len(sig) == 86 {
		delete(token, "sig")
		unsigned, err := json.Marshal(token)
		if err == nil {
			unsigned, err = envelope.Canonicalize(unsigned)
		}
		if err != nil {
			t.Fatal(err)
		}
		signature, err := readKey(t).Sign(unsigned)
		if err != nil {
			t.Fatal(err)
		}
		token["sig"] = base64.RawURLEncoding.EncodeToString(signature)
	}
	if text, err = json.Marshal(token); err != nil {
		t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

func replaced(old, new string) func(string) string {
	return func(s string) string {
		if !strings.Contains(s, old) {
			panic(old + " is not in " + s)
		}
		return strings.Replace(s, old, new, 1)
	}
}

// refusedRead returns the error of parsing and verifying a token, or nil.
func refusedRead(token string) error {
	read, err := envelope.ParseRead(token)
	if err != nil {
		return err
	}
	return read.Verify()
}

func TestReadsAreStrict(t *testing.T) {
	for name, change := range map[string]func(string) string{
		"another typ":           replaced(`"typ":"agora-read"`, `"typ":"agora-write"`),
		"an unknown member":     replaced(`{"aud"`, `{"about":"me","aud"`),
		"a type":                replaced(`"typ"`, `"type":"REQUEST","typ"`),
		"a member twice":        replaced(`{"aud"`, `{"aud":"https://relay.example","aud"`),
		"a folded member":       replaced(`"nonce"`, `"Nonce"`),
		"a member missing":      replaced(`"method":"GET",`, ``),
		"a number":              replaced(`"nonce":"0123456789-_abcdXYZ"`, `"nonce":1234567890123456`),
		"a short nonce":         replaced(`0123456789-_abcdXYZ`, `0123456789-_abc`),
		"a long nonce":          replaced(`0123456789-_abcdXYZ`, strings.Repeat("a", 65)),
		"a nonce with a dot":    replaced(`0123456789-_abcdXYZ`, `0123456789-_abcd.`),
		"a ts with a comma":     replaced(`12:00:00.000Z`, `12:00:00,000Z`),
		"a ts that is a word":   replaced(`2026-02-02T12:00:00.000Z`, `today`),
		"not a did:key":         replaced(`did:key:z6Mk`, `did:web:z6Mk`),
		"a did with a fragment": replaced(`","method"`, `#x","method"`),
		"a padded sig":          replaced(`","target"`, `==","target"`),
		"an array":              func(s string) string { return "[" + s + "]" },
		"two objects":           func(s string) string { return s + s },
		"empty":                 func(string) string { return "" },
		"nested arrays":         func(string) string { return strings.Repeat("[", 5000) },
		"invalid UTF-8":         replaced(`since=a`, "since=\xff"),
	} {
		for _, token := range []string{broken(t, change), signedAgain(t, goodRead, change)} {
			if err := refusedRead(token); codeOf(t, err) != envelope.CodeUnauthorized {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	for _, change := range []func(string) string{replaced(`since=a`, `since=b`), replaced(`https://relay.example`, `https://relay.invalid`)} {
		if err := refusedRead(broken(t, change)); codeOf(t, err) != envelope.CodeUnauthorized {
			t.Errorf("a token that was changed after signing: %v", err)
		}
		if err := refusedRead(signedAgain(t, goodRead, change)); err != nil {
			t.Errorf("a token that was signed after the change: %v", err)
		}
	}
	good := broken(t, func(s string) string { return s })
	// The length of the JSON modulo 3 is 1, so the last character of the base64url has spare bits.
	spaced := broken(t, func(s string) string { return s + strings.Repeat(" ", 3-(len(s)+2)%3) })
	trailing := spaced[:len(spaced)-1] + string(rune(spaced[len(spaced)-1]+1))
	if len(spaced)%4 != 2 || refusedRead(spaced) != nil {
		t.Fatalf("%s: %v", spaced, refusedRead(spaced))
	}
	for name, token := range map[string]string{
		"padding": good + "=", "a line break": good[:8] + "\n" + good[8:], "a line break at the end": good + "\r\n", "a space": " " + good,
		"the standard alphabet": strings.ReplaceAll(broken(t, replaced("since=a", "since=\u00ff\u00fe??>>")), "_", "/") + "/",
		"empty":                 "", "trailing bits": trailing,
	} {
		if err := refusedRead(token); codeOf(t, err) != envelope.CodeUnauthorized {
			t.Errorf("%s: %v", name, err)
		}
	}
	long := goodRead
	long.Target = "/" + strings.Repeat("x", envelope.MaxReadToken)
	token, err := long.Sign(readKey(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := refusedRead(token); codeOf(t, err) != envelope.CodeUnauthorized {
		t.Errorf("too long: %v", err)
	}
	// The JSON of a token need not be canonical. The signature covers its RFC 8785 form.
	if err := refusedRead(broken(t, replaced(`{"aud"`, "{ \n\"aud\""))); err != nil {
		t.Errorf("a token with whitespace: %v", err)
	}
}

// TestBadReadTokensAreCheapToRefuse checks that a text with more strings than a token, or with nested values, is
// refused before it is canonicalized. Canonicalizing takes an allocation for each of its values.
func TestBadReadTokensAreCheapToRefuse(t *testing.T) {
	for name, text := range map[string]string{
		"many members": "{" + strings.Repeat(`"a":"",`, 700) + `"a":""}`,
		"a long list":  `{"aud":[` + strings.Repeat("0,", 2500) + "0]}",
	} {
		token := base64.RawURLEncoding.EncodeToString([]byte(text))
		if allocs := testing.AllocsPerRun(5, func() {
			if err := refusedRead(token); codeOf(t, err) != envelope.CodeUnauthorized {
				t.Errorf("%s: %v", name, err)
			}
		}); allocs > 20 {
			t.Errorf("%s: %v allocations", name, allocs)
		}
	}
	// A quotation mark inside a value does not count as a string.
	quoted := goodRead
	quoted.Target = "/events?" + strings.Repeat(`"`, 40)
	token, err := quoted.Sign(readKey(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := refusedRead(token); err != nil {
		t.Error(err)
	}
}

// TestReadTokenIsNotAMessage checks that a read token is not valid as a message, nor a message as a token, even if it
// is correctly signed.
func TestReadTokenIsNotAMessage(t *testing.T) {
	key := readKey(t)
	token, err := goodRead.Sign(key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := envelope.Parse(text, 0); err == nil {
		t.Error("a token was accepted as a message")
	}
	e, err := envelope.SignJSON(key, []byte(`{"type":"REQUEST","typ":"agora-read","payload":{"intent":"x","request_id":"r"},`+
		`"did":"`+string(key.DID())+`","aud":"https://relay.example","method":"GET","target":"/","nonce":"0123456789abcdef"}`), goodRead.TS)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Verify(); err != nil {
		t.Fatal(err)
	}
	if err := refusedRead(base64.RawURLEncoding.EncodeToString(e.Canonical())); codeOf(t, err) != envelope.CodeUnauthorized {
		t.Errorf("a message was accepted as a token: %v", err)
	}
}

package a2a_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/jsontext"
)

func newKey(t testing.TB, n byte) didkey.Key {
	t.Helper()
	key, err := didkey.FromSeed([]byte(strings.Repeat(string(rune('a'+n)), 32)))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func manifest(name string) envelope.Manifest {
	return envelope.Manifest{Name: name, Intents: []envelope.Intent{{ID: "translation.en_zh", Name: "English to Chinese"}, {ID: "sum"}}}
}

const gateway = "https://relay.example/a2a"

// signed returns an endpoint and its signed card.
func signed(t testing.TB, name string, access a2a.Access) (a2a.Endpoint, []byte) {
	t.Helper()
	key := newKey(t, 0)
	e := a2a.NewEndpoint(gateway, key.DID())
	card := e.FromManifest(manifest(name), access)
	card.Capabilities.Extensions = []a2a.Extension{a2a.ProofExtension(key.DID())}
	text, err := e.Sign(card, access, key)
	if err != nil {
		t.Fatal(err)
	}
	return e, text
}

func TestCardOfManifest(t *testing.T) {
	e, text := signed(t, "Übersetzer 🦊", a2a.Keys)
	c, canonical, err := e.CheckCard(text, a2a.Keys)
	if err != nil || string(canonical) != string(text) {
		t.Fatalf("%v, %s", err, canonical)
	}
	got := string(jsontext.Compact(c.Skills))
	want := `[{"id":"translation.en_zh","name":"English to Chinese","description":"English to Chinese","tags":["translation","en_zh"]},` +
		`{"id":"sum","name":"sum","description":"sum","tags":["sum"]}]`
	if got != want || c.Description != "Übersetzer 🦊" || c.Version != "1" || len(c.Signatures) != 2 {
		t.Errorf("got %s", text)
	}
	if did := e.DID.Multibase(); e.Base() != gateway+"/"+did+"/" || e.CardURL() != gateway+"/"+did+"/.well-known/agent-card.json" ||
		c.SupportedInterfaces[0] != (a2a.Interface{URL: gateway + "/" + did + "/rpc", ProtocolBinding: "JSONRPC", ProtocolVersion: "1.0"}) {
		t.Errorf("got %s %s %v", e.Base(), e.CardURL(), c.SupportedInterfaces)
	}
	if a2a.ModeOf(manifest("x")) != a2a.ModeParams || a2a.ModeOf(envelope.Manifest{Intents: []envelope.Intent{{ID: "a2a.message"}}}) != a2a.ModeMessage {
		t.Error("wrong mode")
	}
}

// a card without the DID's signature, with another URL, or with an empty, false, null or numeric value is refused.
func TestRefusedCards(t *testing.T) {
	e, text := signed(t, "Echo", a2a.Public)
	var plain map[string]any
	if err := json.Unmarshal(text, &plain); err != nil {
		t.Fatal(err)
	}
	change := func(name string, value any) []byte {
		changed := map[string]any{}
		for n, v := range plain {
			changed[n] = v
		}
		if changed[name] = value; value == nil {
			delete(changed, name)
		}
		return jsontext.Compact(changed)
	}
	params := func(value string) []byte {
		return []byte(strings.Replace(string(text), `"params":{`, `"params":{"x":`+value+`,`, 1))
	}
	other := a2a.NewEndpoint("https://evil.example/a2a", e.DID)
	stolen := a2a.NewEndpoint(gateway, newKey(t, 1).DID())
	foreign, err := other.Sign(other.FromManifest(manifest("Echo"), a2a.Public), a2a.Public, newKey(t, 0))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stolen.Sign(stolen.FromManifest(manifest("x"), a2a.Public), a2a.Public, newKey(t, 0)); err == nil {
		t.Error("signed a card of another DID")
	}
	for name, c := range map[string]struct {
		text []byte
		want string
	}{
		"no signature":       {change("signatures", nil), "signatures must have 1"},
		"changed":            {change("name", "Evil"), "signatures[0] is not a JWS of did:key"},
		"not ASCII":          {change("name", "É"), "signatures must have 2"},
		"URL":                {foreign, "supportedInterfaces must be [{"},
		"no streaming":       {change("capabilities", map[string]any{"pushNotifications": true}), "streaming and pushNotifications"},
		"requirement":        {change("securitySchemes", map[string]any{"key": map[string]any{"httpAuthSecurityScheme": map[string]any{"scheme": "Bearer"}}}), `access "public"`},
		"empty text":         {change("version", ""), "card.version is an empty text"},
		"empty list":         {change("skills", []any{}), "card.skills is an empty array"},
		"empty object":       {params(`{}`), "params.x is an empty object"},
		"false":              {params(`[false]`), "params.x[0] is false"},
		"null":               {params(`null`), "params.x is null"},
		"number":             {params(`1`), "params.x is a number"},
		"unknown":            {change("preferredTransport", "GRPC"), "SDKs of A2A do not know"},
		"case":               {[]byte(strings.Replace(string(text), `"name":"Echo"`, `"Name":"Echo"`, 1)), "SDKs of A2A do not know"},
		"no description":     {change("description", nil), "card.description is missing"},
		"skill without tags": {change("skills", []any{map[string]any{"id": "a", "name": "a", "description": "a"}}), "card.skills[0]: id, name, description or tags is missing"},
		"extension":          {change("capabilities", map[string]any{"streaming": true, "pushNotifications": true, "extensions": []any{map[string]any{"description": "x"}}}), "extensions[0].uri is missing"},
		"too large":          {change("description", strings.Repeat("x", a2a.MaxCard)), "32768 bytes"},
		"no JSON":            {[]byte("{"), "not valid JSON"},
	} {
		_, _, err := e.CheckCard(c.text, a2a.Public)
		if err == nil || !strings.Contains(err.Error(), c.want) || envelope.CodeOf(err) != envelope.CodeInvalidRequest {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	if _, _, err := e.CheckCard(text, a2a.Keys); err == nil {
		t.Error("a public card was accepted for keys")
	}
}

func TestVerifyCard(t *testing.T) {
	e, text := signed(t, "Écho", a2a.Public)
	if err := a2a.VerifyCard(text, e.DID); err != nil {
		t.Error(err)
	}
	for i := range 2 { // each of both signatures is enough
		var card map[string]any
		if err := json.Unmarshal(text, &card); err != nil {
			t.Fatal(err)
		}
		card["signatures"] = card["signatures"].([]any)[i:][:1]
		if err := a2a.VerifyCard(jsontext.Compact(card), e.DID); err != nil {
			t.Errorf("signature %d: %v", i, err)
		}
	}
	if err := a2a.VerifyCard(text, newKey(t, 1).DID()); err != a2a.ErrUnsigned {
		t.Errorf("another DID: %v", err)
	}
	if err := a2a.VerifyCard([]byte(strings.Replace(string(text), "Écho", "Ècho", 1)), e.DID); err != a2a.ErrUnsigned {
		t.Errorf("changed: %v", err)
	}
}

// the algorithms of the JavaScript and the Python SDK accept a card, ASCII or not, and no changed one. Both SDKs
// accept a card if one of its signatures is over the bytes that they make of the card.
func TestOtherLanguagesVerify(t *testing.T) {
	for _, language := range [][]string{{"node", "testdata/payload.mjs"}, {"python3", "testdata/payload.py"}} {
		if _, err := exec.LookPath(language[0]); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal("needs " + language[0])
			}
			t.Skip("needs " + language[0])
		}
		var cards [][]byte
		for _, name := range []string{"Echo <&>", "Übersetzer \u007f\u2028 🦊 \u4e2d \\ \"x\"\n"} {
			_, text := signed(t, name, a2a.Keys)
			cards = append(cards, text, bytes.Replace(text, []byte(`"version":"1"`), []byte(`"version":"2"`), 1))
		}
		run := exec.Command(language[0], language[1])
		run.Stdin = bytes.NewReader(bytes.Join(cards, []byte("\n")))
		out, err := run.Output()
		if err != nil {
			t.Fatalf("%s: %v", language[0], err)
		}
		for i, payload := range bytes.Split(out, []byte("\n")) {
			if genuine := i%2 == 0; anySignature(t, cards[i], payload) != genuine {
				t.Errorf("%s makes of %s: %s", language[0], cards[i], payload)
			}
		}
	}
}

// anySignature reports whether one of the card's signatures is a JWS over payload.
func anySignature(t *testing.T, card, payload []byte) bool {
	t.Helper()
	var read struct{ Signatures []a2a.Signature }
	if err := json.Unmarshal(card, &read); err != nil {
		t.Fatal(err)
	}
	did := newKey(t, 0).DID()
	return slices.ContainsFunc(read.Signatures, func(s a2a.Signature) bool {
		signature, err := base64.RawURLEncoding.DecodeString(s.Signature)
		if err != nil {
			t.Fatal(err)
		}
		text := s.Protected + "." + base64.RawURLEncoding.EncodeToString(payload)
		return ed25519.Verify(did.PublicKey(), []byte(text), signature)
	})
}

// TestRewrite checks that the card of any server becomes a card that SDKs accept.
func TestRewrite(t *testing.T) {
	key := newKey(t, 0)
	e := a2a.NewEndpoint(gateway, key.DID())
	for name, card := range map[string]string{
		"1.0": `{"name":"Ä","description":"","version":"2","supportedInterfaces":[{"url":"http://0.0.0.0/","protocolBinding":"JSONRPC","protocolVersion":"1.0"}],` +
			`"capabilities":{"streaming":false,"extensions":[{"uri":"u","required":false,"params":{"a":{},"b":[""],"c":"d"}},{"uri":""}]},` +
			`"skills":[{"id":"s","tags":[],"x":1}],"signatures":[{"protected":"a","signature":"b"}],"securitySchemes":{"o":{}},"provider":null}`,
		"0.3": `{"name":"Ä","url":"http://0.0.0.0/","protocolVersion":"0.3.0","capabilities":{"stateTransitionHistory":true},"defaultInputModes":["text"],"skills":[]}`,
	} {
		u, err := a2a.ReadCard([]byte(card))
		if err != nil || len(u.Interfaces) != 1 {
			t.Fatalf("%s: %+v, %v", name, u, err)
		}
		text, err := e.Sign(e.Rewrite(u, a2a.Keys), a2a.Keys, key)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := a2a.VerifyCard(text, key.DID()); err != nil || name == "1.0" && !strings.Contains(string(text), `[{"params":{"c":"d"},"uri":"u"}]`) {
			t.Errorf("%s: %s, %v", name, text, err)
		}
	}
}

func TestJWKS(t *testing.T) {
	e, _ := signed(t, "Echo", a2a.Public)
	want := fmt.Sprintf(`{"keys":[{"alg":"EdDSA","crv":"Ed25519","kid":"%s#%s","kty":"OKP","use":"sig","x":"%s"}]}`,
		e.DID, e.DID.Multibase(), base64.RawURLEncoding.EncodeToString(e.DID.PublicKey()))
	if got := string(e.JWKS()); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// a proof verifies; a changed message, artifact, state or DID breaks it.
func TestProof(t *testing.T) {
	key := newKey(t, 0)
	request, err := a2a.ParseMessage("", []byte(`{"contextId":"c","messageId":"m","metadata":{},"parts":[{"text":"Hi"}],"role":"ROLE_USER","x":[]}`))
	if err != nil {
		t.Fatal(err)
	}
	p := a2a.Proven{Task: "tsk_1", Turn: 1, State: a2a.Completed, Request: request,
		Artifacts: []a2a.Artifact{{ArtifactID: "a", Parts: []a2a.Part{a2a.TextPart("Hello")}}},
		Message:   &a2a.Message{MessageID: "s", Role: a2a.Agent, Parts: []a2a.Part{a2a.TextPart("done")}}}
	proof, err := p.Sign(key)
	if err != nil {
		t.Fatal(err)
	}
	if proof, err = a2a.ParseProof("", jsontext.Compact(proof)); err != nil {
		t.Fatal(err)
	}
	same := p
	same.Request = request.In("other", "tsk_1", []string{"tsk_0"}) // the relay sets these
	if err := same.Verify(proof, key.DID()); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(p *a2a.Proven){
		"request":        func(p *a2a.Proven) { p.Request.MessageID = "n"; p.Request = remade(t, p.Request, `"Hi"`, `"Ho"`) },
		"unknown member": func(p *a2a.Proven) { p.Request = remade(t, p.Request, `"x":[]`, `"x":[1]`) },
		"artifacts": func(p *a2a.Proven) {
			p.Artifacts = []a2a.Artifact{{ArtifactID: "a", Parts: []a2a.Part{a2a.TextPart("Bye")}}}
		},
		"second artifact": func(p *a2a.Proven) { p.Artifacts = append(p.Artifacts, a2a.Artifact{ArtifactID: "b"}) },
		"message":         func(p *a2a.Proven) { m := *p.Message; m.MessageID = "t"; p.Message = &m },
		"state":           func(p *a2a.Proven) { p.State = a2a.Failed },
		"task":            func(p *a2a.Proven) { p.Task = "tsk_2" },
		"turn":            func(p *a2a.Proven) { p.Turn = 2 },
		"no message":      func(p *a2a.Proven) { p.Message = nil },
	} {
		changed := p
		if change(&changed); changed.Verify(proof, key.DID()) == nil {
			t.Errorf("%s: the proof still verifies", name)
		}
	}
	if p.Verify(proof, newKey(t, 1).DID()) == nil {
		t.Error("the proof verifies under another DID")
	}
}

func remade(t *testing.T, m a2a.Message, old, with string) a2a.Message {
	t.Helper()
	m, err := a2a.ParseMessage("", []byte(strings.Replace(string(jsontext.Compact(m)), old, with, 1)))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// each row of the table of errors holds in both encodings.
func TestErrors(t *testing.T) {
	rows := 0
	for _, info := range a2a.Codes() {
		rows++
		e := a2a.Errorf(info.Code, "text <%d>", info.Code)
		detail := ""
		if info.Reason != "" {
			detail = `"%s":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","domain":"a2a-protocol.org","reason":"` + info.Reason + `"}],`
		}
		field := func(name string) string {
			if detail == "" {
				return ""
			}
			return fmt.Sprintf(detail, name)
		}
		rpc := fmt.Sprintf(`{"error":{"code":%d,%s"message":"text <%d>"},"id":7,"jsonrpc":"2.0"}`, info.Code, field("data"), info.Code)
		if got := string(e.RPCBody(json.RawMessage("7"))); got != rpc {
			t.Errorf("got %s, want %s", got, rpc)
		}
		plain := fmt.Sprintf(`{"error":{"code":%d,%s"message":"text <%d>","status":"%s"}}`, info.HTTP, field("details"), info.Code, info.Status)
		if got := string(e.HTTPBody()); got != plain || e.Status() != info.HTTP {
			t.Errorf("got %s, want %s", got, plain)
		}
		for _, body := range [][]byte{e.RPCBody(json.RawMessage("7")), e.HTTPBody()} {
			var read struct{ Error json.RawMessage }
			if err := json.Unmarshal(body, &read); err != nil {
				t.Fatal(err)
			}
			if got := a2a.ReadError(read.Error, info.HTTP); got.Message != e.Message || got.Status() != info.HTTP || info.Reason != "" && got.Code != info.Code {
				t.Errorf("%s was read as %+v", body, got)
			}
		}
	}
	if rows != 14 {
		t.Errorf("%d rows", rows)
	}
	invalid := a2a.Invalid("message.parts", "must not be empty")
	if got := string(invalid.RPCBody(json.RawMessage(`"a"`))); got != `{"error":{"code":-32602,"data":[{"@type":"type.googleapis.com/google.rpc.BadRequest",`+
		`"fieldViolations":[{"field":"message.parts","description":"must not be empty"}]}],"message":"message.parts must not be empty"},"id":"a","jsonrpc":"2.0"}` {
		t.Error(got)
	}
	if got := string(a2a.NoTask("tsk_1").HTTPBody()); !strings.Contains(got, `"metadata":{"taskId":"tsk_1"}`) {
		t.Error(got)
	}
	front := a2a.Front(http.StatusTooManyRequests, "slow down")
	if got := string(front.HTTPBody()); got != string(front.RPCBody(json.RawMessage("7"))) || front.Status() != 429 ||
		got != `{"error":{"code":429,"message":"slow down","status":"RESOURCE_EXHAUSTED"},"id":null,"jsonrpc":"2.0"}` {
		t.Error(got)
	}
}

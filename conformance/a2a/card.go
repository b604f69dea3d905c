package a2a

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"strings"
	"unicode/utf16"

	"github.com/agora-relay/agora/conformance/kit"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// a2aCardChecks test the card.
var a2aCardChecks = []a2aCheck{
	{Number: "a2a.card.form", Title: "The card has all members that the specification requires",
		Cites: `A2A 1.0 4.4.1, 8.2`,
		Run: func(h *a2aProbe) {
			a := h.card(nil)
			h.Want(a.Err == nil && a.Status == http.StatusOK && a.Members != nil, a, "status 200 and a JSON object")
			for _, name := range []string{"name", "description", "version"} {
				h.Want(a.Text(name) != "", a, "the card has %s", name)
			}
			for _, name := range []string{"supportedInterfaces", "skills", "defaultInputModes", "defaultOutputModes"} {
				list, _ := a.List(name)
				h.Want(len(list) > 0, a, "the card has %s", name)
			}
			h.Want(a.Object("capabilities").Members != nil, a, "the card has capabilities")
			skills, _ := a.List("skills")
			for _, raw := range skills {
				skill := kit.ParseRow(raw)
				tags, _ := skill.List("tags")
				named := skill.Text("id") != "" && skill.Text("name") != "" && skill.Text("description") != ""
				h.Want(named && len(tags) > 0, skill, "a skill has id, name, description and tags")
			}
		}},
	{Number: "a2a.card.cache", Title: "A card with an ETag is answered with 304 to who has it", Cites: `A2A 1.0 8.6; A-3`,
		Run: func(h *a2aProbe) {
			first := h.card(nil)
			tag := first.Header.Get("ETag")
			if tag == "" {
				h.End(kit.NotTested, "the card has no ETag")
			}
			again := h.card(http.Header{"If-None-Match": {tag}})
			h.Want(again.Status == http.StatusNotModified && len(again.Body) == 0, again, "status 304 without a body")
			other := h.card(http.Header{"If-None-Match": {`"another"`}})
			h.Want(other.Status == http.StatusOK && string(other.Body) == string(first.Body), other, "the same card again")
		}},
	{Number: "a2a.card.signature", Title: "The card has a signature that verifies over the card that is served",
		Cites: `A2A 1.0 8.4; A-4, A-5`, Needs: needsSignatures, Run: a2aSignature},
}

// card reads the card.
func (h *a2aProbe) card(header http.Header) kit.Answer {
	return h.GatewayProbe.Ask("", http.MethodGet, cardTarget, h.server.Bearer, header, nil)
}

func a2aSignature(h *a2aProbe) {
	a := h.card(nil)
	signatures, _ := a.List("signatures")
	h.Expect("one of %d signatures is a JWS over the RFC 8785 form of the card without signatures", len(signatures))
	payloads, err := a2aPayloads(a.Body)
	if err != nil {
		h.Failf("the card is not I-JSON: %v", err)
	}
	why := "none"
	for _, raw := range signatures[:min(len(signatures), 16)] {
		s := kit.ParseRow(raw)
		var protected struct{ Alg, Kid, Jku string }
		text, err := base64.RawURLEncoding.DecodeString(s.Text("protected"))
		if err != nil || json.Unmarshal(text, &protected) != nil {
			why = "a protected header that is not base64url of JSON"
			continue
		}
		key := h.keyOf(protected.Kid, protected.Jku)
		if key == nil {
			why = fmt.Sprintf("the key %q at %q cannot be read", protected.Kid, protected.Jku)
			continue
		}
		signature, _ := base64.RawURLEncoding.DecodeString(s.Text("signature"))
		for _, payload := range payloads {
			if key([]byte(s.Text("protected")+"."+base64.RawURLEncoding.EncodeToString(payload)), signature) {
				return
			}
		}
		why = "the signature with the key " + protected.Kid + " is not one over this card"
	}
	h.Failf("no valid signature: %s", why)
}

// keyOf returns the verification with a key; nil: there is none. A did:key is the key itself. It must be the one at the
// end of the server's address, if that is one. Other keys come from jku, at the server's own origin.
func (h *a2aProbe) keyOf(kid, jku string) func(text, signature []byte) bool {
	at := h.server.client.BaseURL
	did, err := didkey.Parse("did:key:" + at[strings.LastIndex(at, "/")+1:])
	if err == nil && !strings.HasPrefix(kid, string(did)+"#") {
		return nil
	}
	if name, _, _ := strings.Cut(kid, "#"); strings.HasPrefix(name, "did:key:") {
		did, err := didkey.Parse(name)
		if err != nil {
			return nil
		}
		return func(text, signature []byte) bool { return ed25519.Verify(did.PublicKey(), text, signature) }
	}
	root, _ := h.server.client.AtRoot()
	target, ok := strings.CutPrefix(jku, root.BaseURL)
	if !ok || !strings.HasPrefix(target, "/") {
		return nil
	}
	keys, _ := root.Do(h.Ctx, http.MethodGet, target, nil, nil).List("keys")
	for _, raw := range keys {
		if k := kit.ParseRow(raw); k.Text("kid") == kid {
			return jwk(k)
		}
	}
	return nil
}

// jwk returns the verification with a JWK: EdDSA with Ed25519, or ES256. nil: it is another one.
func jwk(k kit.Answer) func(text, signature []byte) bool {
	x, _ := base64.RawURLEncoding.DecodeString(k.Text("x"))
	y, _ := base64.RawURLEncoding.DecodeString(k.Text("y"))
	switch {
	case k.Text("crv") == "Ed25519" && len(x) == ed25519.PublicKeySize:
		return func(text, signature []byte) bool { return ed25519.Verify(x, text, signature) }
	case k.Text("crv") == "P-256" && len(x) == 32 && len(y) == 32:
		public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), append(append([]byte{4}, x...), y...))
		if err != nil {
			return nil
		}
		return func(text, signature []byte) bool {
			hash := sha256.Sum256(text)
			return len(signature) == 64 && ecdsa.Verify(public, hash[:], new(big.Int).SetBytes(signature[:32]),
				new(big.Int).SetBytes(signature[32:]))
		}
	}
	return nil
}

// a2aPayloads returns what SDKs sign: the RFC 8785 form of a card without signatures, the same without what is empty,
// and both with the characters above U+007E escaped.
func a2aPayloads(card []byte) (all [][]byte, err error) {
	text, err := envelope.Canonicalize(card)
	if err != nil {
		return nil, err
	}
	var members map[string]any
	if err := json.Unmarshal(text, &members); err != nil {
		return nil, err
	}
	delete(members, "signatures")
	for _, value := range []any{members, withoutEmpty(members)} {
		plain := kit.Canonical(value)
		all = append(all, plain, escapeASCII(plain))
	}
	return all, nil
}

// withoutEmpty returns a value without what is empty, false or null; nil if nothing is left.
func withoutEmpty(value any) any {
	switch v := value.(type) {
	case map[string]any:
		kept := map[string]any{}
		for name, inner := range v {
			if inner = withoutEmpty(inner); inner != nil {
				kept[name] = inner
			}
		}
		if len(kept) > 0 {
			return kept
		}
		return nil
	case []any:
		var kept []any
		for _, inner := range v {
			if inner = withoutEmpty(inner); inner != nil {
				kept = append(kept, inner)
			}
		}
		if len(kept) > 0 {
			return kept
		}
		return nil
	}
	if value == "" || value == false {
		return nil
	}
	return value
}

// escapeASCII writes each UTF-16 unit above U+007E of a JSON text as \uXXXX, as Python's json does.
func escapeASCII(text []byte) (escaped []byte) {
	for _, r := range string(text) {
		if r <= '~' {
			escaped = append(escaped, byte(r))
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			escaped = fmt.Appendf(escaped, `\u%04x`, unit)
		}
	}
	return escaped
}

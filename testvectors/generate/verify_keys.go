package main

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/mr-tron/base58"
)

const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

func signatureOf(k key, message []byte) string {
	return base64.RawURLEncoding.EncodeToString(ed25519.Sign(k.private, message))
}

// signatures returns cases with another spelling of the signature, or with another signature.
func signatures() []bodyCase {
	spelled := func(name, reason string, spell func(sig string) string) bodyCase {
		return bodyCase{name, badSignature, reason, func(d draft) string { return d.withSig(spell(d.sig())) }}
	}
	raw := func(sig string) []byte {
		bytes, _ := base64.RawURLEncoding.DecodeString(sig)
		return bytes
	}
	cases := []bodyCase{
		spelled("sig-missing", "There is no signature.", func(string) string { return "" }),
		spelled("sig-null", "The signature is not a string.", func(string) string { return "null" }),
		spelled("sig-object", "The signature is not a string.", func(sig string) string { return `{"sig":"` + sig + `"}` }),
		spelled("sig-list", "The signature is not a string.", func(sig string) string { return `["` + sig + `"]` }),
		spelled("sig-number", "The signature is not a string.", func(string) string { return "5" }),
		spelled("sig-empty", "The signature is empty.", func(string) string { return `""` }),
		spelled("sig-padded", "The signature is padded.", func(sig string) string { return quote(sig + "==") }),
		spelled("sig-half-padded", "The signature is padded.", func(sig string) string { return quote(sig + "=") }),
		spelled("sig-85-characters", "The signature lacks a character.", func(sig string) string { return quote(sig[:85]) }),
		spelled("sig-87-characters", "The signature has a character too many.",
			func(sig string) string { return quote(sig + "A") }),
		spelled("sig-63-bytes", "The signature lacks a byte.", func(sig string) string { return quote(base64.RawURLEncoding.EncodeToString(raw(sig)[:63])) }),
		spelled("sig-66-bytes", "The signature has two bytes too many.", func(sig string) string { return quote(base64.RawURLEncoding.EncodeToString(append(raw(sig), 0, 0))) }),
		spelled("sig-hex", "The signature is in hexadecimal digits.", func(sig string) string { return quote(hex.EncodeToString(raw(sig))) }),
		spelled("sig-base58", "The signature is in base58.", func(sig string) string { return quote(base58.Encode(raw(sig))) }),
		spelled("sig-multibase", "The signature has a multibase prefix.", func(sig string) string { return quote("u" + sig) }),
		spelled("sig-leading-space", "The signature begins with a space.",
			func(sig string) string { return quote(" " + sig) }),
		spelled("sig-trailing-line-feed", "The signature ends with a line feed.",
			func(sig string) string { return `"` + sig + `\n"` }),
		spelled("sig-line-feed-inside", "The signature has a line feed inside.", func(sig string) string { return `"` + sig[:40] + `\n` + sig[40:] + `"` }),
		spelled("sig-line-feeds-for-characters", "The last four of the 86 characters are line feeds.", func(sig string) string { return `"` + sig[:82] + `\n\n\n\n"` }),
		spelled("sig-zeros", "The signature is all zeros.", func(string) string { return quote(strings.Repeat("A", 86)) }),
		spelled("sig-malleated", "S is not below the group order.", func(sig string) string {
			return quote(base64.RawURLEncoding.EncodeToString(addOrder(raw(sig))))
		}),
		spelled("sig-first-bit", "One bit of R is wrong.", func(sig string) string { return quote(flip(raw(sig), 0)) }),
		spelled("sig-s-bit", "One bit of S is wrong.", func(sig string) string { return quote(flip(raw(sig), 32)) }),
		spelled("sig-halves-swapped", "R and S are swapped.", func(sig string) string {
			return quote(base64.RawURLEncoding.EncodeToString(slices.Concat(raw(sig)[32:], raw(sig)[:32])))
		}),
		{"sig-standard-alphabet", badSignature, "The signature has + and / instead of - and _.", func(d draft) string {
			for i := 0; ; i++ { // until the signature contains one of them
				if next := d.with("n", fmt.Sprint(i)); strings.ContainsAny(next.sig(), "-_") {
					return next.withSig(quote(strings.NewReplacer("-", "+", "_", "/").Replace(next.sig())))
				}
			}
		}},
	}
	for _, bits := range []int{1, 8, 15} { // the last character holds two bits of the signature and four spare bits
		cases = append(cases, spelled(fmt.Sprintf("sig-spare-bits-%d", bits), "The spare bits of the last character are not zero.", func(sig string) string {
			last := strings.IndexByte(alphabet, sig[85])
			return quote(sig[:85] + alphabet[last+bits:][:1])
		}))
	}
	return append(cases, otherSignatures...)
}

// otherSignatures are valid signatures, but of another text or by another key.
var otherSignatures = []bodyCase{
	{"signed-by-another", badSignature, "The signature is by another key.", func(d draft) string {
		d.key = bob
		return d.signed()
	}},
	{"signed-something-else", badSignature, "The signature is of another message.", func(d draft) string { return d.withSig(quote(d.with("id", `"msg_2"`).sig())) }},
	{"signed-before-a-member-was-changed", badSignature, "A member was changed after signing.", func(d draft) string { return strings.Replace(d.signed(), `"ttl":300`, `"ttl":301`, 1) }},
	{"signed-before-a-member-was-added", badSignature, "A member was added after signing.", func(d draft) string { return d.with("x", "1").withSig(quote(d.sig())) }},
	{"signed-before-a-member-was-lost", badSignature, "A member was removed after signing.", func(d draft) string { return d.with("meta", "").withSig(quote(d.sig())) }},
	{"signed-before-ts-was-respelled", badSignature, "The ts was spelled in another way after signing.", func(d draft) string {
		return strings.Replace(d.signed(), noon, "2026-02-02T12:00:00.000Z", 1)
	}},
	{"signed-before-hop-was-raised", badSignature, "The hop was changed after signing.", func(d draft) string {
		return strings.Replace(d.with("meta", `{"ttl":300,"hop":0}`).signed(), `"hop":0`, `"hop":1`, 1)
	}},
	{"signed-with-sig-empty", badSignature, "The signed text had an empty member sig.", func(d draft) string {
		return d.withSig(quote(signatureOf(d.key, canonical([]byte(d.withSig(`""`))))))
	}},
	{"signed-with-wrapper", badSignature, "The signed text had the wrapper around it.", func(d draft) string {
		return wrapped(d.withSig(quote(signatureOf(d.key, canonical([]byte(wrapped(d.text())))))))
	}},
	{"signed-as-spelled", badSignature, "The signed text was not canonical.", func(d draft) string { return d.withSig(quote(signatureOf(d.key, []byte(d.text())))) }},
	{"signed-with-line-feed", badSignature, "The signed text ended with a line feed.", func(d draft) string {
		return d.withSig(quote(signatureOf(d.key, append(canonical([]byte(d.text())), '\n'))))
	}},
	{"signed-html-escaped", badSignature, "The signed text had < as an escape.", func(d draft) string {
		d = d.with("x", `"<"`)
		return d.withSig(quote(signatureOf(d.key, bytes.Replace(canonical([]byte(d.text())), []byte("<"), []byte(`\u003c`), 1))))
	}},
	{"signed-prehash", badSignature, "The signature is Ed25519ph.", func(d draft) string { return d.withSig(quote(prehashed(d, ""))) }},
	{"signed-with-context", badSignature, "The signature is Ed25519ctx.", func(d draft) string { return d.withSig(quote(prehashed(d, "agora"))) }},
}

// senders returns cases with senders that must be refused. Most have a signature that verifies under the sender's key.
func senders() []bodyCase {
	cases := []bodyCase{
		{"sender-off-curve", badDID, "No point of the curve has this y coordinate.", func(d draft) string {
			return d.with("sender", party(spell(append([]byte{2}, make([]byte, 31)...)))).signed()
		}},
	}
	public := slices.Clone(alice.private.Public().(ed25519.PublicKey))
	coded := append([]byte{0xed, 0x01}, public...)
	for _, c := range []struct{ name, did, reason string }{
		{"base16", "did:key:f" + hex.EncodeToString(coded), "The sender's key is spelled in base16."},
		{"base64url", "did:key:u" + base64.RawURLEncoding.EncodeToString(coded), "The sender's key is spelled in base64url."},
		{"fragment", alice.did + "#" + alice.did[8:], "The sender's id has a fragment."},
		{"query", alice.did + "?x=1", "The sender's id has a query."},
		{"leading-space", " " + alice.did, "The sender's id starts with a space."},
		{"trailing-space", alice.did + " ", "The sender's id ends with a space."},
		{"trailing-nul", alice.did + `\u0000`, "The sender's id ends with a NUL."},
		{"upper-case-scheme", "DID" + alice.did[3:], "The sender's scheme is in upper case."},
		{"no-scheme", alice.did[8:], "The sender's id is a bare multibase key."},
		{"did-web", "did:web:alice.example", "The sender is not a did:key."},
		{"hex", hex.EncodeToString(public), "The sender's id is a bare key."},
		{"x25519", "did:key:z" + base58.Encode(append([]byte{0xec, 0x01}, public...)), "The multicodec of the sender's key is that of another kind of key."},
		{"33-bytes", spell(append(slices.Clone(public), 0)), "The sender's key has 33 bytes."},
		{"leading-one", "did:key:z1" + alice.did[9:], "There is a zero byte before the sender's key."},
		{"very-long", "did:key:z6Mk" + strings.Repeat("z", 5000), "The sender's id is too long, and is refused before it is decoded."},
	} {
		cases = append(cases, bodyCase{"sender-" + c.name, badDID, c.reason, func(d draft) string {
			return d.with("sender", `{"id":"`+c.did+`"}`).signed()
		}})
	}
	for sign := range byte(2) {
		suffix := []string{"", "-sign"}[sign]
		for _, point := range smallOrder {
			cases = append(cases, forged("sender-low-order-"+point.name+suffix, withSign(unhex(point.y), sign),
				"The sender's key is of small order, so everybody can sign with it."))
		}
		for n := range byte(2) {
			cases = append(cases, forged(fmt.Sprintf("sender-p-plus-%d%s", n, suffix), withSign(abovePrime(n), sign),
				"The sender's key is of small order and not encoded canonically."))
		}
	}
	return cases
}

// forged returns a message whose signature verifies under a key of small order, made without a private key. S is zero
// and R is a point of small order. A counter in the message is increased until the verification equation holds.
func forged(name string, public []byte, reason string) bodyCase {
	return bodyCase{name, badDID, reason, func(d draft) string {
		d = d.with("sender", party(spell(public)))
		for i := 0; ; i++ {
			next := d.with("n", fmt.Sprint(i))
			for _, point := range smallOrder {
				for sign := range byte(2) {
					sig := slices.Concat(withSign(unhex(point.y), sign), make([]byte, 32))
					if ed25519.Verify(public, canonical([]byte(next.text())), sig) {
						return next.withSig(quote(base64.RawURLEncoding.EncodeToString(sig)))
					}
				}
			}
		}
	}}
}

func prehashed(d draft, context string) string {
	message, options := canonical([]byte(d.text())), &ed25519.Options{Context: context}
	if context == "" {
		digest := sha512.Sum512(message)
		message, options.Hash = digest[:], crypto.SHA512
	}
	sig, err := d.key.private.Sign(nil, message, options)
	if err != nil {
		panic(err)
	}
	return base64.RawURLEncoding.EncodeToString(sig)
}

// addOrder returns a signature with the group order added to S. Verifiers that do not check S accept it too.
func addOrder(sig []byte) []byte {
	order := unhex("edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010")
	carry := 0
	for i, b := range order {
		carry += int(sig[32+i]) + int(b)
		sig[32+i] = byte(carry)
		carry >>= 8
	}
	return sig
}

func flip(sig []byte, at int) string {
	sig[at] ^= 1
	return base64.RawURLEncoding.EncodeToString(sig)
}

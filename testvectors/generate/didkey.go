package main

import (
	"crypto/ed25519"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/mr-tron/base58"
	"github.com/multiformats/go-multibase"

	"github.com/agora-relay/agora/testvectors"
)

// good, goodHex and goodSeed are the key of the all-zero seed, as published in the did:key method.
const (
	good     = "did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp"
	goodHex  = "3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29"
	goodSeed = "0000000000000000000000000000000000000000000000000000000000000000"
)

func didkeys() []testvectors.DIDKeyVector {
	return slices.Concat(goodKeys(), badForms(), aliases(), badPoints())
}

// goodKeys returns vectors of published keys in their published spellings, and of valid keys with unusual coordinates.
func goodKeys() (vectors []testvectors.DIDKeyVector) {
	accept := func(name, did, public, seed string) {
		vectors = append(vectors, testvectors.DIDKeyVector{Name: name, DID: did, Expect: testvectors.Accept,
			PublicKeyHex: public, SeedHex: seed})
	}
	accept("zero-seed", good, goodHex, goodSeed)
	accept("seed-2", "did:key:z6MknGc3ocHs3zdPiJbnaaqDi58NGb4pk1Sp9WxWufuXSdxf",
		"7422b9887598068e32c4448a949adb290d0f4e35b9e01b0ee5f1a1e600fe2674",
		"0000000000000000000000000000000000000000000000000000000000000002")
	accept("without-seed", "did:key:z6MkrJVnaZkeFzdQyMZu1cgjg7k1pZZ6pvBQ7XJPt4swbTQ2",
		"b00d8d938e7f773d51565aad36a623f5344f7f5d1960f9cf3e8e12620ea2810f", "")
	for i, test := range []struct{ seed, public string }{ // RFC 8032, section 7.1
		{"9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60", "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"},
		{"4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb", "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"},
		{"c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7", "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025"},
	} {
		accept(fmt.Sprintf("rfc8032-%d", i+1), spell(unhex(test.public)), test.public, test.seed)
	}
	for _, k := range []key{alice, bob, carol, mallory} {
		public := hex.EncodeToString(k.private.Public().(ed25519.PublicKey))
		accept("seed-of-"+hex.EncodeToString(k.seed[:1]), k.did, public, hex.EncodeToString(k.seed))
	}
	for _, y := range []struct{ name, y string }{
		{"base-point", "5866666666666666666666666666666666666666666666666666666666666666"},
		{"smallest-y", "0300000000000000000000000000000000000000000000000000000000000000"},
		{"largest-y", "eaffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"}, // p - 3
	} {
		accept(y.name, spell(unhex(y.y)), y.y, "")
		negative := withSign(unhex(y.y), 1)
		accept(y.name+"-negative", spell(negative), hex.EncodeToString(negative), "")
	}
	return vectors
}

func badForms() []testvectors.DIDKeyVector {
	raw := unhex(goodHex)
	codec := func(prefix ...byte) string { return "did:key:z" + base58.Encode(append(prefix, raw...)) }
	var vectors []testvectors.DIDKeyVector
	for _, c := range []struct{ name, did, reason string }{
		{"empty", "", "The text is empty."},
		{"prefix-only", "did:key:", "There is no key."},
		{"prefix-z6Mk-only", "did:key:z6Mk", "The key is cut off."},
		{"no-scheme", good[4:], "The scheme is missing."},
		{"no-prefix", good[8:], "A bare multibase key is not a DID."},
		{"upper-case-scheme", "DID" + good[3:], "The scheme is not in lower case."},
		{"upper-case-method", "did:KEY" + good[7:], "The method is not in lower case."},
		{"mixed-case-scheme", "Did" + good[3:], "The scheme is not in lower case."},
		{"all-upper-case", strings.ToUpper(good), "The case of a base58 character matters."},
		{"all-lower-case", strings.ToLower(good), "The case of a base58 character matters."},
		{"other-method", "did:kex" + good[7:], "The method is not key."},
		{"method-web", "did:web:relay.example", "The method is not key."},
		{"55-characters", good[:55], "One character is missing."},
		{"57-characters", good + "1", "There is one character too many."},
		{"leading-one", "did:key:z1" + good[9:], "A leading 1 in base58 is a zero byte before the key."},
		{"leading-space", " " + good, "White space around the DID is not allowed."},
		{"leading-space-56", " " + good[:55], "The text starts with a space."},
		{"trailing-space", good + " ", "White space around the DID is not allowed."},
		{"trailing-space-56", good[:55] + " ", "A space is not a base58 character."},
		{"trailing-line-feed", good + "\n", "A line feed is part of the text."},
		{"trailing-line-feed-56", good[:55] + "\n", "A line feed is not a base58 character."},
		{"trailing-carriage-return", good + "\r", "A carriage return is part of the text."},
		{"trailing-tab", good + "\t", "A tab is part of the text."},
		{"trailing-nul", good + "\x00", "A NUL is part of the text."},
		{"nul-56", good[:55] + "\x00", "A NUL is not a base58 character."},
		{"inner-space", good[:9] + " " + good[9:], "The text has a space inside."},
		{"inner-line-feed", good[:30] + "\n" + good[30:], "The text has a line feed inside."},
		{"inner-delete", good[:30] + "\x7f" + good[31:], "A control character is not a base58 character."},
		{"zero-width-space", good + "\u200b", "An invisible character follows the DID."},
		{"no-break-space", "\u00a0" + good, "A no-break space comes first."},
		{"byte-order-mark", "\ufeff" + good, "A byte order mark comes first."},
		{"fragment", good + "#" + good[8:], "A DID URL with a fragment names a key, not an agent."},
		{"empty-fragment", good + "#", "Even an empty fragment makes it a DID URL."},
		{"path", good + "/path", "A DID URL with a path is not a DID."},
		{"query", good + "?versionId=1", "A DID URL with a query is not a DID."},
		{"parameter", good + ";service=agent", "A DID URL with a parameter is not a DID."},
		{"version", "did:key:1.1:" + good[8:], "A version before the key is not allowed."},
		{"percent-encoded", "did:key:%7A" + good[9:], "Percent-encoding is a second spelling of the same key."},
		{"percent-encoded-colon", "did:key%3A" + good[8:], "Percent-encoding is a second spelling of the same key."},
		{"angle-brackets", "<" + good + ">", "The DID is in angle brackets."},
		{"base58-zero", good[:55] + "0", "0 is not a base58 character."},
		{"base58-upper-o", good[:55] + "O", "O is not a base58 character."},
		{"base58-upper-i", good[:55] + "I", "I is not a base58 character."},
		{"base58-lower-l", good[:55] + "l", "l is not a base58 character."},
		{"cyrillic-m", strings.Replace(good, "6Mk", "6\u041ck", 1), "The M is a Cyrillic letter that only looks like M."},
		{"full-width-z", strings.Replace(good, ":z", ":\uff5a", 1),
			"The z is a full-width letter, which is another character."},
		{"double-z", "did:key:z" + good[8:], "The multibase prefix occurs twice."},
		{"no-multibase-prefix", "did:key:" + good[9:], "The multibase prefix is missing."},
		{"31-byte-key", spell(raw[:31]), "The key has 31 bytes."},
		{"33-byte-key", spell(append(slices.Clone(raw), 0)), "The key has 33 bytes."},
		{"64-byte-key", spell(slices.Concat(raw, raw)), "The key has 64 bytes."},
		{"no-key-bytes", spell(nil), "The key has no bytes."},
		{"overflow", "did:key:z6Mk" + strings.Repeat("z", 44),
			"The text is as long as a good one, but decodes to 35 bytes instead of 34."},
		{"one-byte-codec", codec(0xed), "The multicodec is the byte ed alone, but must be the two bytes ed 01."},
		{"swapped-codec", codec(0x01, 0xed), "The multicodec's bytes are swapped."},
		{"overlong-codec", codec(0xed, 0x81, 0x00), "The varint of the multicodec is longer than needed."},
		{"x25519", codec(0xec, 0x01), "The multicodec is x25519-pub."},
		{"secp256k1", codec(0xe7, 0x01), "The multicodec is secp256k1-pub."},
		{"ed25519-private", codec(0x80, 0x26), "The multicodec is ed25519-priv."},
		{"sr25519", codec(0xef, 0x01), "The multicodec is sr25519-pub."},
		{"bls12-381", codec(0xeb, 0x01), "The multicodec is bls12_381-g2-pub."},
		{"p256", codec(0x80, 0x24), "The multicodec is p256-pub."},
		{"ed448", codec(0x83, 0x24), "The multicodec is ed448-pub."},
		{"rsa", codec(0x85, 0x24), "The multicodec is rsa-pub."},
		{"no-codec", "did:key:z" + base58.Encode(raw), "There is no multicodec."},
		{"two-dids", good + "," + good, "There are two DIDs."},
		{"very-long", "did:key:z6Mk" + strings.Repeat("z", 20_000), "The text is too long, and is refused before it is decoded."},
		{"very-long-ones", "did:key:z" + strings.Repeat("1", 20_000) + good[9:], "The text is too long, and is refused before it is decoded."},
	} {
		vectors = append(vectors, badKey(c.name, c.did, c.reason))
	}
	return vectors
}

// aliases returns vectors that spell one key in every other multibase encoding that writes text.
func aliases() (vectors []testvectors.DIDKeyVector) {
	names := make([]string, 0, len(multibase.Encodings))
	for name, base := range multibase.Encodings {
		if base != multibase.Base58BTC && base != multibase.Identity {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		text, err := multibase.Encode(multibase.Encodings[name], append([]byte{0xed, 0x01}, unhex(goodHex)...))
		if err != nil {
			panic(err)
		}
		vectors = append(vectors, badKey("multibase-"+name, "did:key:"+text, "The key is good, but its multibase encoding is not base58btc."))
	}
	return vectors
}

func badPoints() (vectors []testvectors.DIDKeyVector) {
	for sign := range byte(2) {
		suffix := []string{"", "-sign"}[sign]
		for _, point := range smallOrder {
			vectors = append(vectors, badKey("low-order-"+point.name+suffix, spell(withSign(unhex(point.y), sign)),
				"The key is of small order, so one signature is valid for many messages."))
		}
		for n := range byte(19) {
			vectors = append(vectors, badKey(fmt.Sprintf("p-plus-%d%s", n, suffix), spell(withSign(abovePrime(n), sign)),
				"The y coordinate is not below p, so it is a second spelling of a smaller one."))
		}
		for _, y := range []byte{2, 7, 8, 11, 12, 13, 17, 20, 22} {
			raw := make([]byte, 32)
			raw[0] = y
			vectors = append(vectors, badKey(fmt.Sprintf("off-curve-%d%s", y, suffix), spell(withSign(raw, sign)),
				"No point of the curve has this y coordinate."))
		}
	}
	return vectors
}

func badKey(name, did, reason string) testvectors.DIDKeyVector {
	return testvectors.DIDKeyVector{Name: name, DID: did, Expect: testvectors.Reject, Reason: reason}
}

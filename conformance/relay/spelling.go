package relay

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
	"github.com/agora-relay/agora/didkey"
)

// Functions that write the same JSON and the same keys in other ways.

func indented(body string) string {
	var out bytes.Buffer
	if err := json.Indent(&out, []byte(body), "", "\t"); err != nil {
		panic(err) // cannot happen: body was built by this package
	}
	return out.String()
}

// membersReversed writes the members of an object in descending order of their names.
func membersReversed(body string) string {
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(body), &members); err != nil {
		panic(err)
	}
	var parts []string
	for name, value := range members {
		parts = append(parts, fmt.Sprintf("%q:%s", name, value))
	}
	slices.Sort(parts)
	slices.Reverse(parts)
	return "{" + strings.Join(parts, ",") + "}"
}

// respell returns a change that replaces sender.id by as(key). key has the 34 bytes that the did encodes.
func respell(as func(key []byte) string) func(kit.Message) {
	return func(m kit.Message) {
		sender := m["sender"].(map[string]any)
		sender["id"] = as(keyBytes(sender["id"].(string)))
	}
}

// keyBytes returns the 34 bytes that a valid did encodes: the multicodec prefix and the public key.
func keyBytes(did string) []byte { return append([]byte{0xed, 1}, didkey.DID(did).PublicKey()...) }

func hexDID(key []byte) string { return "did:key:f" + hex.EncodeToString(key) }

func base58DID(key []byte) string { return "did:key:z" + base58(key) }

const base58Alphabet = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

// base58 returns data in base58-btc.

func base58(data []byte) string {
	n, base, digit := new(big.Int).SetBytes(data), big.NewInt(58), new(big.Int)
	var text []byte
	for n.Sign() > 0 {
		n.DivMod(n, base, digit)
		text = append(text, base58Alphabet[digit.Int64()])
	}
	for _, b := range data {
		if b != 0 {
			break
		}
		text = append(text, base58Alphabet[0])
	}
	slices.Reverse(text)
	return string(text)
}

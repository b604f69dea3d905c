package conformance

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
)

// second is how long a check waits that must see nothing arrive.
const second = time.Second

// Other spellings of the same JSON and the same keys.

func indented(body string) string {
	var out bytes.Buffer
	if err := json.Indent(&out, []byte(body), "", "\t"); err != nil {
		panic(err) // the body is ours
	}
	return out.String()
}

// membersReversed writes the members of an object from the last to the first.
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

// respell replaces the sender's identifier by another text made of the same 34 bytes.
func respell(as func(key []byte) string) func(message) {
	return func(m message) {
		sender := m["sender"].(map[string]any)
		sender["id"] = as(keyBytes(sender["id"].(string)))
	}
}

// keyBytes returns the multicodec prefix and the key of a valid did.
func keyBytes(did string) []byte { return append([]byte{0xed, 1}, didkey.DID(did).PublicKey()...) }

func hexDID(key []byte) string { return "did:key:f" + hex.EncodeToString(key) }

func base58DID(key []byte) string { return "did:key:z" + base58(key) }

const base58Alphabet = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

// base58 writes bytes in base58-btc.
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

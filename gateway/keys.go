package gateway

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"regexp"
	"strings"
	"time"

	"github.com/agora-relay/agora/relay"
)

// Kind says what a key is for. Its text is the first characters of the key.
type Kind string

// The kinds of keys.
const (
	HubAgent  Kind = "ca_"
	HubStream Kind = "cs_" // for one stream; kept in memory only
	Channel   Kind = "ck_"
	Member    Kind = "cm_"
	Inbox     Kind = "sk_"
	Callback  Kind = "tok_"
	ToolUser  Kind = "mt_" // an MCP client, for one delivery
	Principal Kind = "cj_"
	A2ACaller Kind = "aa_" // a caller of one A2A endpoint
	A2AHook   Kind = "ah_" // a hook of an agent, which gets pushes of A2A servers
	Operator  Kind = "op_"
)

// hex reports whether keys of this kind are hexadecimal, as the programs of the hub expect.
func (k Kind) hex() bool { return k == HubAgent || k == HubStream }

// NewKey returns a new key: 128 random bits for the hub, 256 for everything else.
func NewKey(k Kind) string {
	var random [32]byte
	rand.Read(random[:]) // never returns an error (crypto/rand)
	if k.hex() {
		return string(k) + hex.EncodeToString(random[:16])
	}
	return string(k) + base64.RawURLEncoding.EncodeToString(random[:])
}

// keyForm also has the ids of A2A tasks. An anonymous caller has no key: everybody who knows the id of its task can do
// with the task what the caller can.
var keyForm = regexp.MustCompile(`(?:c[as]_[0-9a-f]{32}|(?:ck|cm|sk|tok|mt|cj|aa|ah|op)_[A-Za-z0-9_-]{43}|tsk_[a-z2-7]{26})`)

// Redact replaces each key in a text, such as a path, by "…", and each id of an A2A task. Logs must not contain them.
func Redact(text string) string {
	if !strings.Contains(text, "_") {
		return text
	}
	return keyForm.ReplaceAllString(text, "…")
}

// Holder says to whom a key belongs, and for what the key may be used.
type Holder struct {
	Kind    Kind
	Owner   int64     // the number of the agent, channel, member, inbox, principal or caller; 0: the operator
	Only    string    // the only operation that the key may still do; empty: every operation
	Expires time.Time // zero: never
}

var keyTable = Table{Name: "gate_key", Key: 1, Columns: []string{"hash", "kind", "owner", "only_for", "expires"}}

// AddKey stores the hash of a key. The key itself is not stored anywhere, so it can be shown only once.
func AddKey(tx relay.ExtTx, key string, h Holder) error {
	hash := sha256.Sum256([]byte(key))
	expires := int64(0)
	if !h.Expires.IsZero() {
		expires = h.Expires.UnixNano()
	}
	_, err := tx.Exec("INSERT INTO gate_key (hash, kind, owner, only_for, expires, sum) VALUES (?, ?, ?, ?, ?, ?)",
		hash[:], string(h.Kind), h.Owner, h.Only, expires, keySum(hash[:], h.Kind, h.Owner, h.Only, expires))
	return err
}

func keySum(hash []byte, k Kind, owner int64, only string, expires int64) int64 {
	return Sum("gate_key", hash, string(k), owner, only, expires)
}

// LimitKeys restricts the holder's keys that may do everything: from now on they may do only one operation, and only
// until expires. A key that expires earlier keeps its own time.
func LimitKeys(tx relay.ExtTx, k Kind, owner int64, only string, expires time.Time) error {
	type present struct {
		hash    []byte
		expires int64
	}
	var keys []present
	err := tx.Query(func(scan func(...any) error) error {
		var p present
		err := scan(&p.hash, &p.expires)
		keys = append(keys, p)
		return err
	}, "SELECT hash, expires FROM gate_key WHERE kind = ? AND owner = ? AND only_for = ''", string(k), owner)
	if err != nil {
		return err
	}
	for _, p := range keys {
		until := expires.UnixNano()
		if p.expires > 0 {
			until = min(until, p.expires)
		}
		_, err := tx.Exec("UPDATE gate_key SET only_for = ?, expires = ?, sum = ? WHERE hash = ?",
			only, until, keySum(p.hash, k, owner, only, until), p.hash)
		if err != nil {
			return err
		}
	}
	return nil
}

// DropKeys removes those keys of a holder that may do only this operation. If only is empty, it removes those that may
// do everything.
func DropKeys(tx relay.ExtTx, k Kind, owner int64, only string) error {
	_, err := tx.Exec("DELETE FROM gate_key WHERE kind = ? AND owner = ? AND only_for = ?", string(k), owner, only)
	return err
}

// FindKey returns the holder of a key. found is false if the key is unknown or has expired. The key is looked up by its
// hash, so the time that this takes tells nothing about other keys.
func FindKey(q relay.Querier, key string, now time.Time) (h Holder, found bool, err error) {
	hash := sha256.Sum256([]byte(key))
	err = q.Query(func(scan func(...any) error) error {
		var stored []byte
		var kind string
		var expires int64
		if err := scan(&stored, &kind, &h.Owner, &h.Only, &expires); err != nil {
			return err
		}
		h.Kind = Kind(kind)
		if expires != 0 {
			h.Expires = time.Unix(0, expires).UTC()
		}
		found = subtle.ConstantTimeCompare(stored, hash[:]) == 1 && (expires == 0 || now.Before(h.Expires))
		return nil
	}, "SELECT hash, kind, owner, only_for, expires FROM gate_key WHERE hash = ?", hash[:])
	return h, found, err
}

// HasKey reports whether a holder has a key that may do only this operation or, if only is empty, one that may do
// everything. A key that has expired counts until it is removed.
func HasKey(q relay.Querier, k Kind, owner int64, only string) (found bool, err error) {
	err = q.Query(func(func(...any) error) error { found = true; return nil },
		"SELECT 1 FROM gate_key WHERE kind = ? AND owner = ? AND only_for = ? LIMIT 1", string(k), owner, only)
	return found, err
}

// sweepKeys removes up to limit keys that have expired.
func sweepKeys(tx relay.ExtTx, now time.Time, limit int) (removed int64, err error) {
	return tx.Exec("DELETE FROM gate_key WHERE hash IN "+
		"(SELECT hash FROM gate_key WHERE expires > 0 AND expires <= ? ORDER BY expires LIMIT ?)", now.UnixNano(), limit)
}

// Package witness lets relays watch each other's logs (docs/PROOFS.md, LOG §5). A witness signs a checkpoint only if it
// continues the one that the witness has signed before. So a relay that shows two histories, or goes back, is noticed.
//
// Witness is the side that signs. Client is the side that asks. The formats are C2SP's, so other witnesses and logs
// work too.
package witness

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay"
)

// Extension has the table of the logs that a witness has cosigned.
var Extension = relay.Extension{Name: "witness", Migrations: []string{
	"CREATE TABLE witness_log (hash TEXT NOT NULL PRIMARY KEY, relay TEXT NOT NULL, checkpoint TEXT NOT NULL, " +
		"evidence TEXT NOT NULL)"}}

// Limits for each relay that is watched (LOG L-19, L-20).
const (
	maxLogs     = 16
	maxEvidence = 16
)

// Witness signs the checkpoints of some relays.
type Witness struct {
	relay *relay.Relay
	key   didkey.Key
	name  string
	about Key
	of    map[didkey.DID]bool
	now   func() time.Time
	log   *slog.Logger
}

// Key is how the well-known document of a relay describes its witness. Sig is the relay's signature.
type Key struct {
	VKey string `json:"vkey"`
	Sig  string `json:"sig"`
}

// statement returns what the relay signs about its witness.
func statement(vkey string) []byte { return []byte("agora-witness/1\n" + vkey + "\n") }

// nameOf returns the names of the witnesses of a relay, without the epoch.
func nameOf(did didkey.DID) string { return string(did) + "/witness/" }

// identity returns the key and the name of the witness of a relay with this key in this epoch (LOG L-21).
func identity(relay didkey.Key, epoch uint32) (key didkey.Key, name string, err error) {
	seed, err := relay.Derive(fmt.Sprintf("agora witness %08x", epoch))
	if err == nil {
		key, err = didkey.FromSeed(seed)
	}
	return key, fmt.Sprintf("%s%08x", nameOf(relay.DID()), epoch), err
}

// New returns the witness of a relay with this key, for the logs of some other relays. Its name and its key belong to
// the epoch of the relay's database: after a restore, when it has forgotten what it has signed, it is another witness
// (LOG L-21). It logs the forks that it is shown. now is the clock; nil: time.Now.
func New(
	r *relay.Relay, relayKey didkey.Key, of []didkey.DID, log *slog.Logger, now func() time.Time,
) (*Witness, error) {
	key, name, err := identity(relayKey, r.Epoch())
	if err != nil {
		return nil, err
	}
	w := &Witness{relay: r, key: key, name: name, of: map[didkey.DID]bool{}, now: time.Now, log: log}
	if now != nil {
		w.now = now
	}
	for _, did := range of {
		w.of[did] = true
	}
	w.about.VKey = proof.VerifierKey(w.name, key.DID())
	signature, err := relayKey.Sign(statement(w.about.VKey))
	w.about.Sig = base64.RawURLEncoding.EncodeToString(signature)
	return w, err
}

// Key describes w for the well-known document.
func (w *Witness) Key() Key { return w.about }

// Conflict is the error of Add if the log has another size than the request says, by what the witness has signed.
type Conflict struct{ Size int64 }

func (c *Conflict) Error() string {
	return fmt.Sprintf("the witness knows this log with %d leaves", c.Size)
}

// Inconsistent is the error of Add if the checkpoint does not continue the log that the witness has signed.
type Inconsistent struct{ err error }

func (i *Inconsistent) Error() string { return i.err.Error() }

// state is what the witness remembers of a log.
type state struct {
	checkpoint proof.Checkpoint // of size 0: none
	evidence   []json.RawMessage
	news       json.RawMessage // evidence that keepFork has added; nil: none
}

// errUnknown is the refusal of logs that the witness does not sign.
var errUnknown = envelope.Errorf(envelope.CodeNotFound, "this relay is no witness of this log; its operator can name "+
	"the log's relay with --peer")

// Add checks a submission and signs its checkpoint. It returns the line of its signature. Before it answers, what it
// has signed is stored. Errors: *Conflict; *Inconsistent; refusals with CodeNotFound (an unknown log), CodeForbidden
// (it is not signed by its relay, or there are too many logs), CodeInvalidRequest.
func (w *Witness) Add(ctx context.Context, from relay.Peer, body []byte) (line string, err error) {
	var s proof.Submission
	var cosignature proof.Signature
	if err := w.relay.Gate().Checking(from, func() (err error) {
		if s, err = w.parse(body); err == nil {
			cosignature, err = s.Checkpoint.Cosign(w.name, w.key, w.now())
		}
		return err
	}); err != nil {
		return "", err
	}
	var refusal error
	var fork json.RawMessage
	err = w.relay.Update(ctx, from, func(tx relay.ExtTx) error {
		known, err := read(tx, s.Checkpoint.Origin)
		if err != nil {
			return err
		}
		if refusal = known.check(s); refusal != nil {
			err := known.keepFork(tx, s.Checkpoint)
			fork = known.news
			return err
		}
		if known.checkpoint.Size == 0 {
			if err := checkLogs(tx, s.Checkpoint.Origin.DID); err != nil {
				return err
			}
		}
		known.checkpoint = s.Checkpoint
		known.checkpoint.Signatures = append(known.checkpoint.Signatures, cosignature)
		return write(tx, known)
	})
	if err == nil && fork != nil {
		w.log.Error("a relay has shown two histories of its log; the evidence is in the database, and here",
			"relay", s.Checkpoint.Origin.DID, "evidence", string(fork))
	}
	return cosignature.String(), cmp.Or(err, refusal)
}

// parse checks what can be checked without the database. Only the relay's signature stays: anybody can add others.
func (w *Witness) parse(body []byte) (s proof.Submission, err error) {
	s, err = proof.ParseSubmission(string(body))
	switch {
	case errors.Is(err, proof.ErrOrigin):
		return s, errUnknown
	case err != nil:
		return s, envelope.Errorf(envelope.CodeInvalidRequest, "%v", err)
	case !w.of[s.Checkpoint.Origin.DID]:
		return s, errUnknown
	}
	if _, err := s.Checkpoint.Verify(); err != nil {
		return s, envelope.Errorf(envelope.CodeForbidden, "%v", err)
	}
	if s.Old > s.Checkpoint.Size {
		return s, envelope.Errorf(envelope.CodeInvalidRequest, "the checkpoint has %d leaves, fewer than the old size",
			s.Checkpoint.Size)
	}
	s.Checkpoint = s.Checkpoint.Only()
	return s, nil
}

// check returns why the witness, which knows k of the log, does not sign.
func (k *state) check(s proof.Submission) error {
	c, last := &s.Checkpoint, &k.checkpoint
	switch {
	case s.Old != last.Size || k.forks(c):
		return &Conflict{last.Size}
	case s.Old > 0:
		if err := c.Extends(last.Size, last.Root, s.Path); err != nil {
			return &Inconsistent{err}
		}
	case len(s.Path) > 0:
		return &Inconsistent{errors.New("a first checkpoint has no consistency proof")}
	}
	return nil
}

// forks reports whether c and the last checkpoint are of two trees with one size.
func (k *state) forks(c *proof.Checkpoint) bool {
	return c.Size == k.checkpoint.Size && c.Root != k.checkpoint.Root
}

// checkLogs refuses another log of a relay if the witness knows as many as it may (LOG L-19).
func checkLogs(tx relay.ExtTx, of didkey.DID) error {
	n := 0
	err := tx.Query(func(scan func(...any) error) error { return scan(&n) },
		"SELECT count(*) FROM witness_log WHERE relay = ?", string(of))
	if err == nil && n >= maxLogs {
		err = envelope.Errorf(envelope.CodeForbidden, "this witness already knows %d logs of this relay", maxLogs)
	}
	return err
}

// keepFork stores evidence against the relay if c shows a fork (LOG L-20).
func (k *state) keepFork(tx relay.ExtTx, c proof.Checkpoint) error {
	if !k.forks(&c) {
		return nil
	}
	last := k.checkpoint.Only()
	text, err := json.Marshal(proof.Evidence{Type: proof.EvidenceType, Kind: proof.KindFork,
		Checkpoints: []string{last.String(), c.String()}})
	if err != nil || slices.ContainsFunc(k.evidence, func(e json.RawMessage) bool { return bytes.Equal(e, text) }) {
		return err
	}
	n := 0
	err = tx.Query(func(scan func(...any) error) error {
		var list []byte
		var all []json.RawMessage
		err := scan(&list)
		if err == nil {
			err = json.Unmarshal(list, &all)
		}
		n += len(all)
		return err
	}, "SELECT evidence FROM witness_log WHERE relay = ?", string(c.Origin.DID))
	if err != nil || n >= maxEvidence {
		return err
	}
	k.evidence, k.news = append(k.evidence, text), text
	return write(tx, *k)
}

// Checkpoint returns the last checkpoint that the witness has signed of the log whose origin has this SHA-256, in hex,
// with its signature and that of the log's relay. Errors: CodeNotFound.
func (w *Witness) Checkpoint(ctx context.Context, from relay.Peer, hash string) (text string, err error) {
	err = w.relay.View(ctx, from, func(q relay.Querier) error {
		return q.Query(func(scan func(...any) error) error { return scan(&text) },
			"SELECT checkpoint FROM witness_log WHERE hash = ?", hash)
	})
	if err == nil && text == "" {
		err = envelope.Errorf(envelope.CodeNotFound, "this witness has signed no checkpoint of such a log")
	}
	return text, err
}

// HashOf returns the name of a log in the paths of a witness.
func HashOf(o proof.Origin) string {
	sum := sha256.Sum256([]byte(o.String()))
	return hex.EncodeToString(sum[:])
}

func read(tx relay.ExtTx, o proof.Origin) (s state, err error) {
	err = tx.Query(func(scan func(...any) error) error {
		var checkpoint, evidence string
		err := scan(&checkpoint, &evidence)
		if err == nil {
			s.checkpoint, err = proof.ParseCheckpoint(checkpoint)
		}
		if err == nil {
			err = json.Unmarshal([]byte(evidence), &s.evidence)
		}
		return err
	}, "SELECT checkpoint, evidence FROM witness_log WHERE hash = ?", HashOf(o))
	return s, err
}

func write(tx relay.ExtTx, s state) error {
	evidence, err := json.Marshal(s.evidence)
	if err != nil {
		return err
	}
	o := s.checkpoint.Origin
	_, err = tx.Exec("INSERT INTO witness_log (hash, relay, checkpoint, evidence) VALUES (?, ?, ?, ?) "+
		"ON CONFLICT (hash) DO UPDATE SET checkpoint = excluded.checkpoint, evidence = excluded.evidence",
		HashOf(o), string(o.DID), s.checkpoint.String(), string(evidence))
	return err
}

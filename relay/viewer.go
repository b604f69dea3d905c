package relay

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// Who may see what (PROTOCOL §8). One rule decides for storage, for waiting polls and for records: Viewer.Sees.

// Visibility is to whom a relay shows what has a recipient.
type Visibility string

const (
	ToAll     Visibility = "open"    // to everybody; the zero value means it too
	ToParties Visibility = "parties" // to its sender and its recipient, who prove themselves by signed reads
)

// Viewer is who reads. The zero Viewer sees everything.
type Viewer struct {
	Limited bool       // to broadcasts and
	DID     didkey.DID // what this one has sent or is to get; empty: nobody's
}

// Sees reports whether v may see a message.
func (v Viewer) Sees(sender, recipient didkey.DID) bool {
	return !v.Limited || recipient == "" || v.DID != "" && (v.DID == sender || v.DID == recipient)
}

// IsParty reports whether v may see the record of t.
func (v Viewer) IsParty(t thread.Thread) bool { return !v.Limited || v.DID != "" && t.IsParty(v.DID) }

// record returns what v, a party of t, may see of it at now. An agent sees its own steps and its client's, and the clock
// as these alone would have moved it: what others offered, and when, is between them and the client.
func (v Viewer) record(rules thread.Rules, t thread.Thread, now time.Time) thread.Thread {
	if !v.Limited || v.DID == t.Client || v.DID == t.Recipient {
		return t
	}
	seen := t
	seen.State, seen.OffersMade, seen.Transitions = thread.Open, 0, nil
	seen.Offers = slices.DeleteFunc(slices.Clone(t.Offers), func(o thread.Offer) bool { return o.Agent != v.DID })
	for _, s := range t.Transitions {
		if s.By != "" && s.By != v.DID && s.By != t.Client {
			continue
		}
		if s.From == thread.Pending && s.By != v.DID && s.Type != envelope.TypeAccept {
			// What ends an open thread later than v's own deadline shows that others have offered.
			if seen = rules.At(seen, s.At); seen.TimedOut() {
				return seen
			}
		}
		seen.State, seen.Transitions = s.To, append(seen.Transitions, s)
		if s.Type == envelope.TypeOffer {
			seen.OffersMade++
		}
	}
	return rules.At(seen, now)
}

// counts reports whether v hears of the envelope of a step of the record t, which v sees. An open thread's client may
// end it by a message to another agent; a record does not say to whom.
func (v Viewer) counts(t thread.Thread, s thread.Transition) bool {
	return s.ID != "" && (!v.Limited || v.DID == t.Client || v.DID == t.Recipient || v.DID == t.Agent ||
		s.By == v.DID || s.Type == envelope.TypeRequest)
}

// receipt returns what the sender of e may know of its thread: the state that e has brought about, if he is one of its
// parties then. Copies are anybody's, and who is not chosen and takes his offer back has no part in what came of it.
func (v Viewer) receipt(r Receipt, e *envelope.Envelope) Receipt {
	withdrawn := e.Type == envelope.TypeError && r.State != thread.Failed // an ERROR of a party ends the thread
	if v.Limited && (r.Duplicate || withdrawn) {
		r.State = ""
	}
	return r
}

// viewer returns what p may see.
func (r *Relay) viewer(p Peer) Viewer { return Viewer{Limited: r.reads == ToParties, DID: p.Reader} }

// mayPoll refuses a poll on an inbox that is not p's own. An empty answer would tell its reader that there is nothing.
func (r *Relay) mayPoll(p *Poll) error {
	v := r.viewer(p.Peer)
	if !v.Limited || p.Recipient == "" || p.Recipient == v.DID {
		return nil
	}
	return unauthorized(envelope.ReasonUnsigned, "this relay shows an inbox to its owner only; sign the read with the "+
		"recipient's key (PROTOCOL §8), or leave recipient out for broadcasts")
}

func unauthorized(reason, message string) *envelope.Error {
	e := envelope.Errorf(envelope.CodeUnauthorized, "%s", message)
	e.Details = map[string]any{envelope.DetailReason: reason}
	return e
}

// ReadSkew is how far a token's ts may be from the relay's clock.
const ReadSkew = time.Minute

// VerifyRead returns who signed a token, once: whether it is meant for this relay, this request and this time comes
// first, its signature second, and only then is it remembered. The wire has admitted the request.
// Refusals: CodeUnauthorized; CodeUnavailable if the token cannot be remembered for now.
func (r *Relay) VerifyRead(ctx context.Context, token, method, target string) (didkey.DID, error) {
	now := r.now()
	read, err := r.meant(token, method, target, now)
	if err != nil {
		return "", err
	}
	if err := read.VerifyWith(r.keys.Parse); err != nil {
		return "", err
	}
	if err := r.useRead(ctx, sha256.Sum256(read.Once()), read.TS, now); err != nil {
		return "", err
	}
	r.presence.note(read.Reader, now)
	return read.Reader, nil
}

// meant reads a token and checks that it is for this relay, this request and this time. Its signature is not checked.
func (r *Relay) meant(token, method, target string, now time.Time) (*envelope.Read, error) {
	read, err := envelope.ParseRead(token)
	if err != nil {
		return nil, err
	}
	if read.Audience != r.origin {
		e := unauthorized(envelope.ReasonAudience, "the token is for another relay; its aud must be this one's public origin, "+
			"as /.well-known/agora.json has it in url")
		e.Details[envelope.DetailAudience] = r.origin
		return nil, e
	}
	if read.Method != method || read.Target != target {
		return nil, unauthorized(envelope.ReasonRequest, "the token is for another request; its method and target must be this one's, "+
			"path and query as sent")
	}
	if !r.tokens.isFresh(read.TS, now) {
		return nil, outOfTime(now)
	}
	return read, nil
}

// MarkPresent notes that the signer of a token was here, at a relay that shows everything to everybody. A token that
// does not hold does nothing. No token is remembered, so one may be used again within its minute; that only says again
// what its signer has said. A signature is verified once a minute for each signer. One network marks 1024 signers at
// most, so that nobody fills the memory alone. The wire has admitted the request.
func (r *Relay) MarkPresent(p Peer, token, method, target string) {
	now := r.now()
	read, err := r.meant(token, method, target, now)
	if err != nil || !r.presence.wants(read.Reader, site(p.Addr), now) || read.VerifyWith(r.keys.Parse) != nil {
		return
	}
	r.presence.noteFrom(read.Reader, site(p.Addr), now)
}

func outOfTime(now time.Time) error {
	e := unauthorized(envelope.ReasonTime, "the token's ts is not within a minute of the relay's clock, or before the relay was started; sign anew, and compare clocks")
	e.Details[envelope.DetailNow] = envelope.FormatTime(now)
	return e
}

// cursorCipher hides what a cursor says: how many events there are is nobody's business where one sees few of them.
// Each is one block of AES under a key that only the relay has.
func cursorCipher(key didkey.Key) (cipher.Block, error) {
	// A signature is the one secret that any signer can give. What is signed is no JSON, hence no message.
	secret, err := key.Sign([]byte("agora cursor key"))
	if err != nil {
		return nil, err
	}
	hash := sha256.Sum256(secret)
	return aes.NewCipher(hash[:])
}

// networkTag returns what tells p's network from others in the quota of an inbox: an IPv4 address or the /56 of an IPv6
// one, encrypted, because nobody needs to know from the database who has posted. Only a relay that hides mail tells
// networks apart: there a refusal must not depend on what others have sent. 0 for the relay's own machine.
func (r *Relay) networkTag(p Peer) int64 {
	if r.reads != ToParties || p.Local {
		return 0
	}
	addr := p.Addr.Unmap()
	if prefix, err := addr.Prefix(min(addr.BitLen(), 56)); err == nil {
		addr = prefix.Addr()
	}
	block := addr.As16()
	r.cursors.Encrypt(block[:], block[:])
	return int64(binary.BigEndian.Uint64(block[:])) | 1 // never 0
}

// Where in the block of a sealed cursor what begins: the epoch, the number with 48 bits, random bits, and zeros, which a
// block that somebody has made up hardly has.
const sealedSeq, sealedSalt, sealedZeros = 4, 10, 14

func (r *Relay) seal(c Cursor, salt [sealedZeros - sealedSalt]byte) string {
	var block [aes.BlockSize]byte
	binary.BigEndian.PutUint64(block[sealedSalt-8:], uint64(c.Seq))
	binary.BigEndian.PutUint32(block[:], c.Epoch)
	copy(block[sealedSalt:], salt[:])
	r.cursors.Encrypt(block[:], block[:])
	return hex.EncodeToString(block[:])
}

// FormatCursor returns the cursor of an answer as readers get it; see Cursor.String for a relay that shows everything.
// Two of one place differ, but for one chance in 2³², or equal ones would show that nothing came between, and different ones that something did.
func (r *Relay) FormatCursor(c Cursor) string {
	if r.reads != ToParties || c == (Cursor{}) {
		return c.String()
	}
	var salt [sealedZeros - sealedSalt]byte
	rand.Read(salt[:]) // never fails (crypto/rand)
	return r.seal(c, salt)
}

// FormatReceipt returns the cursor of a receipt, which is the same for a duplicate.
func (r *Relay) FormatReceipt(c Cursor) string {
	if r.reads != ToParties {
		return c.String()
	}
	return r.seal(c, [sealedZeros - sealedSalt]byte{})
}

// ParseCursor reads what FormatCursor returned. One that was handed out while the relay showed everything, or by
// another relay, is refused like one of another database: by its number one could count.
func (r *Relay) ParseCursor(text string) (Cursor, error) {
	if r.reads != ToParties || text == "0" {
		return ParseCursor(text)
	}
	block, err := hex.DecodeString(text)
	if err != nil || len(block) != aes.BlockSize || hex.EncodeToString(block) != text {
		if _, err := ParseCursor(text); err != nil {
			return Cursor{}, err
		}
		return Cursor{}, ErrUnknownCursor
	}
	r.cursors.Decrypt(block, block)
	if block[sealedZeros] != 0 || block[sealedZeros+1] != 0 {
		return Cursor{}, ErrUnknownCursor
	}
	epoch := binary.BigEndian.Uint32(block)
	copy(block, []byte{sealedSeq - 1: 0}) // the number's upper bytes
	return Cursor{epoch, Seq(binary.BigEndian.Uint64(block[sealedSalt-8:]))}, nil
}

// hideThread makes a refusal by the rules of threads what it were if those that its sender has no part in were not
// there, and the others as he sees them. It asks the store whatever the refusal was, so that none is answered sooner.
func (r *Relay) hideThread(ctx context.Context, p Peer, err error, entry Entry) error {
	e := entry.Envelope
	if r.reads != ToParties || e.Type == envelope.TypeRequest || e.Type == envelope.TypeManifest {
		return err
	}
	code := envelope.CodeOf(err)
	switch code {
	case envelope.CodeThreadNotFound, envelope.CodeForbidden, envelope.CodeInvalidTransition, envelope.CodeInvalidRequest:
	default:
		return err
	}
	own, failed := r.threadsOf(ctx, &work{peer: p}, thread.Key{ID: e.Thread}, e.Sender.ID, entry.Received)
	if failed != nil {
		return failed
	}
	for i, t := range own {
		own[i] = Viewer{Limited: true, DID: e.Sender.ID}.record(r.policy.Rules, t, entry.Received)
	}
	if _, _, refusal := r.policy.Rules.Apply(own, e, entry.Received); refusal != nil {
		return refusal
	}
	if code == envelope.CodeInvalidTransition {
		return err // one of his own admits it by now; when it came, it did not
	}
	return thread.ErrNotFound // one of his own admits it, but another was meant
}

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

// This file decides who may see what (PROTOCOL §8). Viewer.Sees decides about messages, both stored ones and those that
// wake polls. Viewer.visibleThread decides about the records of threads.

// Visibility says to whom a relay shows messages that have a recipient.
type Visibility string

const (
	ToAll     Visibility = "open"    // to everybody; the zero value means the same
	ToParties Visibility = "parties" // to sender and recipient, which prove their identity with signed reads
)

// Viewer is a reader. The zero Viewer sees everything.
type Viewer struct {
	Limited bool       // sees only broadcasts, and the messages of DID
	DID     didkey.DID // who has sent these messages or receives them; empty: anonymous
}

// Sees reports whether v may see a message with this sender and recipient.
func (v Viewer) Sees(sender, recipient didkey.DID) bool {
	return !v.Limited || recipient == "" || v.DID != "" && (v.DID == sender || v.DID == recipient)
}

// IsParty reports whether v may see the record of t.
func (v Viewer) IsParty(t thread.Thread) bool { return !v.Limited || v.DID != "" && t.IsParty(v.DID) }

// visibleThread returns what v, a party of t, may see of t at now. An agent sees its own steps and those of the client.
// It sees the state and the timeout as if no other agent had offered. What other agents have offered, and when, is only
// for them and the client.
func (v Viewer) visibleThread(rules thread.Rules, t thread.Thread, now time.Time) thread.Thread {
	if !v.Limited || v.DID == t.Client || v.DID == t.Recipient {
		return t
	}
	seen := t
	seen.State, seen.OffersMade, seen.Transitions = thread.Open, 0, nil
	seen.Offers = slices.DeleteFunc(slices.Clone(t.Offers), func(o thread.Offer) bool { return o.Agent != v.DID })
	for _, step := range t.Transitions {
		if step.By != "" && step.By != v.DID && step.By != t.Client {
			continue
		}
		if step.From == thread.Pending && step.By != v.DID && step.Type != envelope.TypeAccept {
			// A step after v's own deadline shows that another agent has offered. v must not learn that, so v sees a
			// timeout.
			if seen = rules.At(seen, step.At); seen.TimedOut() {
				return seen
			}
		}
		seen.State, seen.Transitions = step.To, append(seen.Transitions, step)
		if step.Type == envelope.TypeOffer {
			seen.OffersMade++
		}
	}
	return rules.At(seen, now)
}

// countsTransition reports whether v may know about the envelope of a step of t. v may see t. While a thread is
// pending, its client may end it by a message to another agent. The record does not say to whom that message was sent.
func (v Viewer) countsTransition(t thread.Thread, step thread.Transition) bool {
	return step.ID != "" && (!v.Limited || v.DID == t.Client || v.DID == t.Recipient || v.DID == t.Agent ||
		step.By == v.DID || step.Type == envelope.TypeRequest)
}

// visibleReceipt returns what the sender of e may know about its thread. That is the state after e, if the sender is
// then a party. A duplicate has no state, because anybody may post a copy. If an agent withdraws an offer that was not
// accepted, there is no state either, because the agent is not a party any more.
func (v Viewer) visibleReceipt(r Receipt, e *envelope.Envelope) Receipt {
	withdrawn := e.Type == envelope.TypeError && r.State != thread.Failed // an ERROR of a party would end the thread
	if v.Limited && (r.Duplicate || withdrawn) {
		r.State = ""
	}
	return r
}

// viewer returns what p may see.
func (r *Relay) viewer(p Peer) Viewer { return Viewer{Limited: r.reads == ToParties, DID: p.Reader} }

// checkInbox refuses a poll on the inbox of another agent. An empty answer would look as if the inbox were empty.
func (r *Relay) checkInbox(p *Poll) error {
	v := r.viewer(p.Peer)
	if !v.Limited || p.Recipient == "" || p.Recipient == v.DID {
		return nil
	}
	return unauthorized(envelope.ReasonUnsigned, "this relay shows an inbox only to its owner; sign the read with the "+
		"recipient's key (PROTOCOL §8), or leave out recipient to read broadcasts")
}

func unauthorized(reason, message string) *envelope.Error {
	e := envelope.Errorf(envelope.CodeUnauthorized, "%s", message)
	e.Details = map[string]any{envelope.DetailReason: reason}
	return e
}

// ReadSkew is how far the ts of a token may be from the relay's clock.
const ReadSkew = time.Minute

// VerifyRead returns who signed a token. It accepts each token once. First it checks that the token is for this relay,
// this request and this time. Then it verifies the signature. Only after that it records that the token is used. The
// transport must have admitted the request, see Gate. Refusals: CodeUnauthorized; CodeForbidden for a banned signer;
// CodeUnavailable if the relay cannot record the use of the token.
func (r *Relay) VerifyRead(ctx context.Context, token, method, target string) (didkey.DID, error) {
	now := r.now()
	read, err := r.parseRead(token, method, target, now)
	if err != nil {
		return "", err
	}
	if err := r.acceptOnce(ctx, read, now); err != nil {
		return "", err
	}
	r.presence.mark(read.Reader, now)
	return read.Reader, nil
}

// VerifyCall returns who signed the call token of a request to a gateway. It accepts each token once, also on an open
// relay. target is the request's path and query as sent, and body its body as sent. The checks are the same as in
// VerifyRead. VerifyCall also checks, before the signature, that the token is for this body. The transport must have
// admitted the request, see Gate. Refusals: as VerifyRead.
func (r *Relay) VerifyCall(ctx context.Context, token, method, target string, body []byte) (didkey.DID, error) {
	now := r.now()
	call, err := envelope.ParseCall(token)
	if err != nil {
		return "", err
	}
	if err := r.checkToken(&call.Read, method, target, now); err != nil {
		return "", err
	}
	if call.Body != sha256.Sum256(body) {
		return "", unauthorized(envelope.ReasonBody, "the token is for another body; "+
			"set body to the SHA-256 of the body as it is sent, in unpadded base64url")
	}
	if err := r.acceptOnce(ctx, &call.Read, now); err != nil {
		return "", err
	}
	return call.Reader, nil
}

// parseRead parses a read token and checks all but its signature and whether it was used.
func (r *Relay) parseRead(token, method, target string, now time.Time) (*envelope.Read, error) {
	read, err := envelope.ParseRead(token)
	if err != nil {
		return nil, err
	}
	return read, r.checkToken(read, method, target, now)
}

// checkToken checks that a token is for this relay, this request and this time. A relay without an origin accepts no
// token.
func (r *Relay) checkToken(read *envelope.Read, method, target string, now time.Time) error {
	if r.origin == "" || read.Audience != r.origin {
		e := unauthorized(envelope.ReasonAudience, "the token is for another relay; "+
			"set aud to the public origin of this relay, which is the url in /.well-known/agora.json")
		e.Details[envelope.DetailAudience] = r.origin
		return e
	}
	if read.Method != method || read.Target != target {
		return unauthorized(envelope.ReasonRequest, "the token is for another request; "+
			"set method and target to those of this request, with path and query as they are sent")
	}
	if !r.localNonces.acceptsTime(read.TS, now) {
		return readTimeError(now)
	}
	return nil
}

// acceptOnce verifies the signature of a token. Then it records that the token is used. It refuses a token that was
// used before.
func (r *Relay) acceptOnce(ctx context.Context, read *envelope.Read, now time.Time) error {
	if err := read.VerifyWith(r.keys.Parse); err != nil {
		return err
	}
	if err := r.gate.CheckAgent(read.Reader); err != nil {
		return err
	}
	return r.markReadUsed(ctx, sha256.Sum256(read.Once()), read.TS, now)
}

// MarkPresent marks the signer of a token as online. It is for a relay that shows everything to everybody. An invalid
// token has no effect. A token of a banned signer has none either. Tokens are not recorded as used, so the same token
// may be used again within its minute. That only repeats that its signer is online. For each signer that is not banned,
// a signature is verified at most once a minute. One network can mark at most 1024 signers in five minutes, so that it
// cannot fill the memory alone. The transport must have admitted the request, see Gate.
func (r *Relay) MarkPresent(p Peer, token, method, target string) {
	now := r.now()
	read, err := r.parseRead(token, method, target, now)
	if err != nil || !r.presence.wouldMark(read.Reader, p.Site(), now) ||
		read.VerifyWith(r.keys.Parse) != nil || r.gate.CheckAgent(read.Reader) != nil {
		return
	}
	r.presence.markFromNetwork(read.Reader, p.Site(), now)
}

// VerifyPresent returns who signed a token, for a stream of a relay that shows everything to everybody. The stream then
// keeps its reader online. Unlike MarkPresent, it verifies every signature, because a stream lasts longer than a minute.
// It returns "" for an invalid token. The transport must have admitted the request, see Gate.
func (r *Relay) VerifyPresent(token, method, target string) didkey.DID {
	read, err := r.parseRead(token, method, target, r.now())
	if err != nil || read.VerifyWith(r.keys.Parse) != nil {
		return ""
	}
	return read.Reader
}

func readTimeError(now time.Time) error {
	e := unauthorized(envelope.ReasonTime, "the token's ts is not within a minute of the relay's clock, or is before "+
		"the start of the relay; compare your clock with details.now, and sign a new token")
	e.Details[envelope.DetailNow] = envelope.FormatTime(now)
	return e
}

// newCursorCipher returns the cipher that hides the content of cursors. A reader who sees only few of the events must
// not learn how many there are. Each cursor is one block of AES under a key that only the relay has.
func newCursorCipher(key didkey.Key) (cipher.Block, error) {
	secret, err := key.Derive("agora cursor key")
	if err != nil {
		return nil, err
	}
	return aes.NewCipher(secret)
}

// networkTag returns a number for p's network, for the quota of an inbox. A network is an IPv4 address or the /56 of an
// IPv6 address. The number is encrypted, so that the database does not show who has posted. Only a private relay
// distinguishes networks: there a refusal must not depend on what others have sent. networkTag returns 0 for an open
// relay and for the relay's own machine.
func (r *Relay) networkTag(p Peer) int64 {
	if r.reads != ToParties || p.Local {
		return 0
	}
	addr := p.Addr.Unmap()
	if prefix, err := addr.Prefix(min(addr.BitLen(), 56)); err == nil {
		addr = prefix.Addr()
	}
	block := addr.As16()
	r.cursorCipher.Encrypt(block[:], block[:])
	return int64(binary.BigEndian.Uint64(block[:])) | 1 // never 0
}

// Offsets in the block of an encrypted cursor. The epoch comes first, then the sequence number with 48 bits, random
// bits, and zeros. A block that a client has made up hardly ever has the zeros.
const seqOffset, saltOffset, zerosOffset = 4, 10, 14

func (r *Relay) encryptCursor(c Cursor, salt [zerosOffset - saltOffset]byte) string {
	var block [aes.BlockSize]byte
	binary.BigEndian.PutUint64(block[saltOffset-8:], uint64(c.Seq))
	binary.BigEndian.PutUint32(block[:], c.Epoch)
	copy(block[saltOffset:], salt[:])
	r.cursorCipher.Encrypt(block[:], block[:])
	return hex.EncodeToString(block[:])
}

// FormatCursor returns the text of a cursor in an answer. An open relay uses Cursor.String. A private relay returns
// different text for the same position each time, except with a chance of 1 in 2³². So readers cannot compare cursors
// to learn whether hidden events came in between.
func (r *Relay) FormatCursor(c Cursor) string {
	if r.reads != ToParties || c == (Cursor{}) {
		return c.String()
	}
	var salt [zerosOffset - saltOffset]byte
	rand.Read(salt[:]) // never fails (crypto/rand)
	return r.encryptCursor(c, salt)
}

// FormatReceipt returns the text of the cursor in a receipt. It is the same for a duplicate.
func (r *Relay) FormatReceipt(c Cursor) string {
	if r.reads != ToParties {
		return c.String()
	}
	return r.encryptCursor(c, [zerosOffset - saltOffset]byte{})
}

// ParseCursor parses a text that FormatCursor or FormatReceipt returned. A private relay refuses the cursors of other
// relays, and those from the time when it was an open relay, like the cursor of another database. The number in such a
// cursor could be used to count hidden events.
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
	r.cursorCipher.Decrypt(block, block)
	if block[zerosOffset] != 0 || block[zerosOffset+1] != 0 {
		return Cursor{}, ErrUnknownCursor
	}
	epoch := binary.BigEndian.Uint32(block)
	copy(block, []byte{seqOffset - 1: 0}) // clear the epoch, which overlaps the upper bytes of the number
	return Cursor{epoch, Seq(binary.BigEndian.Uint64(block[saltOffset-8:]))}, nil
}

// hideForeignThreads changes a refusal by the rules of threads so that it reveals nothing about threads of which the
// sender is not a party. The result is the refusal that the sender would get if only its own threads existed, as the
// sender sees them. It asks the store for each of these refusals, so that none is answered sooner than another.
func (r *Relay) hideForeignThreads(ctx context.Context, p Peer, err error, entry Entry) error {
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
	own, lookupErr := r.newReader(p).threadsOf(ctx, thread.Key{ID: e.Thread}, e.Sender.ID, entry.Received)
	if lookupErr != nil {
		return lookupErr
	}
	for i, t := range own {
		own[i] = Viewer{Limited: true, DID: e.Sender.ID}.visibleThread(r.policy.Rules, t, entry.Received)
	}
	if _, _, refusal := r.policy.Rules.Apply(own, e, entry.Received); refusal != nil {
		return refusal
	}
	if code == envelope.CodeInvalidTransition {
		return err // one of the sender's own threads admits it by now, but did not when it came
	}
	return thread.ErrNotFound // one of the sender's own threads admits it, but it was for another thread
}

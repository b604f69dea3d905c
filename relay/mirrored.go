package relay

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// This file is what the core does with messages that were copied from another relay (RELAYS §5). Package mirror reads
// them there.

// MaxMirrored is the size in bytes of the largest message that is copied.
const MaxMirrored = 16 << 10

// MirrorNetwork is the network that stores keep for a copied message. No address has it, because networkTag is odd or
// 0.
const MirrorNetwork = 2

// ErrNotCopied is the error of CheckMirrored for a message of a kind that relays do not copy.
var ErrNotCopied = errors.New("this kind of message is not copied from other relays")

// CheckMirrored does for a message of another relay what Check does for a post. of is the DID of that relay. Of all
// messages, only some broadcasts are copied: MANIFESTs with payload.relays, and REQUESTs whose home is that relay
// (RELAYS R-19). The time of a copy has other limits than the time of a post, see replay.Window.CheckMirrored. The
// limits of senders and addresses are not applied: the caller limits how much it copies. Errors: ErrNotCopied,
// CodePayloadTooLarge, and those of Check.
func (r *Relay) CheckMirrored(of didkey.DID, body []byte) (Checked, error) {
	if err := r.draining(); err != nil {
		return Checked{}, err
	}
	from := Peer{Local: true}
	var entry Entry
	err := r.gate.Checking(from, func() (err error) {
		entry, err = r.checkCopy(of, body)
		return err
	})
	if err == nil {
		err = r.screenNow(from, entry.Envelope)
	}
	if err != nil {
		return Checked{}, err
	}
	return Checked{entry}, nil
}

func (r *Relay) checkCopy(of didkey.DID, body []byte) (Entry, error) {
	e, err := envelope.Parse(body, min(r.maxBody, MaxMirrored))
	if err != nil {
		return Entry{}, err
	}
	if !isCopied(e, of) {
		return Entry{}, ErrNotCopied
	}
	return r.checkEnvelope(Entry{Envelope: e, Received: r.now(), Mirrored: true, Unseen: true}, of)
}

// isCopied reports whether e is one of the messages that are copied from the relay of.
func isCopied(e *envelope.Envelope, of didkey.DID) bool {
	switch {
	case e.Recipient != "":
		return false
	case e.Type == envelope.TypeRequest:
		return e.Home != nil && e.Home.DID == of
	case e.Type == envelope.TypeManifest:
		var payload struct {
			Relays json.RawMessage `json:"relays"`
		}
		return e.DecodePayload(&payload) == nil && payload.Relays != nil
	}
	return false
}

// checkTime checks the time of e at its arrival.
func (r *Relay) checkTime(e Entry) error {
	window := r.policy.WindowOf(e.Envelope.Type)
	if e.Mirrored {
		return window.CheckMirrored(e.Envelope.TS, e.Envelope.TTL, e.Received)
	}
	return window.Check(e.Envelope.TS, e.Envelope.TTL, e.Received)
}

// screenNow asks the Screen about a message that is stored later.
func (r *Relay) screenNow(from Peer, e *envelope.Envelope) error {
	if r.screening == nil {
		return nil
	}
	settled, err := r.screen(context.Background(), from, e)
	settled()
	return err
}

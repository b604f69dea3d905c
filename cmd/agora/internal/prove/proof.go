package prove

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
)

// ProofCmd is the command proof.
type ProofCmd struct {
	Get    proofGetCmd    `cmd:"" help:"Get the proof of a message from a relay."`
	Verify proofVerifyCmd `cmd:"" help:"Check a proof offline."`
}

type proofGetCmd struct {
	cli.Reader
	Sender cli.DIDText `arg:"" help:"The sender of the message."`
	ID     cli.IDText  `arg:"" help:"The id of the message."`
}

func (proofGetCmd) Help() string {
	return "Prints the proof, after checking that it is valid and that this relay has made it. Keep it with the " +
		"message: agora proof " +
		"verify checks both offline. A relay that keeps a log has the proof as long as it remembers the message's " +
		"id.\n\n" +
		cli.ExampleTitle + "agora proof get alice msg_1 > msg_1.proof"
}

func (c proofGetCmd) Run(env cli.Environment) error {
	relay, _, err := c.Identity(env)
	if err != nil {
		return err
	}
	text, _, err := relay.Proof(env.Ctx, didkey.DID(c.Sender), string(c.ID))
	if err != nil {
		return err
	}
	_, err = io.WriteString(env.Stdout, text)
	return err
}

type proofVerifyCmd struct {
	Event   string   `placeholder:"FILE" help:"The message for which the proof must be."`
	Relay   string   `placeholder:"DID" help:"The relay that must have made the proof."`
	Witness []string `placeholder:"KEY" sep:"none" help:"Verifier key of a witness: its signature, if there is one, must be valid. May be repeated."`
	File    string   `arg:"" optional:"" default:"-" help:"The proof; - is standard input."`
}

func (proofVerifyCmd) Help() string {
	return "A proof shows that a relay has a message in its log, which it cannot take back. Prints one line of JSON: " +
		"{\"ok\":true,\"relay\":…,\"index\":…,…}, or {\"ok\":false,\"message\":…} and exits with 1. Needs no network. " +
		"Compare relay with the relay that you mean, or give --relay. Without --event, only the hash of the message is " +
		"known.\n\nExamples:\n  agora proof verify message.proof\n" +
		"  agora proof verify --event message.json --relay did:key:z6Mk… message.proof"
}

func (c proofVerifyCmd) Validate() error {
	if _, err := didkey.Parse(c.Relay); c.Relay != "" && err != nil {
		return fmt.Errorf("--relay: %w", err)
	}
	_, err := c.witnesses()
	return err
}

func (c proofVerifyCmd) witnesses() (all []*proof.Witness, err error) {
	for _, key := range c.Witness {
		w, err := proof.ParseWitness(key)
		if err != nil {
			return nil, fmt.Errorf("--witness: %w", err)
		}
		all = append(all, w)
	}
	return all, nil
}

// provedLine is what agora proof verify prints about a valid proof.
type provedLine struct {
	OK       bool         `json:"ok"`
	Relay    didkey.DID   `json:"relay"`
	Log      string       `json:"log"` // origin
	Index    int64        `json:"index"`
	Size     int64        `json:"size"`
	Received string       `json:"received,omitempty"`
	Event    string       `json:"event,omitempty"`   // hash in hex
	Request  string       `json:"request,omitempty"` // hash in hex
	Began    string       `json:"began,omitempty"`   // of leaf 0
	Previous string       `json:"previous,omitempty"`
	Cosigned []cosignedBy `json:"cosigned,omitempty"`
}

type cosignedBy struct {
	Witness string `json:"witness"`
	At      string `json:"at"`
}

func (c proofVerifyCmd) Run(env cli.Environment) error {
	text, err := env.Input(c.File, "the proof to check")
	if err != nil {
		return err
	}
	if bytes.HasPrefix(text, []byte("{")) {
		return reportInvalid(env, errors.New("this is no proof, but JSON; agora audit checks files that --save-proofs has written"))
	}
	var message *envelope.Envelope
	if c.Event != "" {
		body, err := env.Input(c.Event, "the message of the proof")
		if err != nil {
			return err
		}
		if message, err = (VerifyCmd{}).check(unwrapFollowed(body), time.Time{}); err != nil {
			return reportInvalid(env, fmt.Errorf("the message: %w", err))
		}
	}
	v, err := c.verify(string(text), message)
	if err != nil {
		return reportInvalid(env, err)
	}
	line := provedLine{OK: true, Relay: v.Origin.DID, Log: v.Origin.String(), Index: v.Index, Size: v.Size}
	if v.Index == 0 {
		line.Began, line.Previous = envelope.FormatTime(v.Start.Began), v.Start.Previous.String()
	} else {
		line.Received, line.Event = envelope.FormatTime(v.Leaf.Received), hex.EncodeToString(v.Leaf.Event[:])
	}
	if v.Leaf.Request != (proof.Hash{}) {
		line.Request = hex.EncodeToString(v.Leaf.Request[:])
	}
	for _, w := range v.Cosigned {
		line.Cosigned = append(line.Cosigned, cosignedBy{w.Witness.Name, envelope.FormatTime(w.At)})
	}
	return env.PrintJSON(line)
}

// verify checks a proof against the flags. message may be nil.
func (c proofVerifyCmd) verify(text string, message *envelope.Envelope) (*proof.Verified, error) {
	witnesses, err := c.witnesses()
	if err != nil {
		return nil, err
	}
	p, err := proof.Parse(text)
	if err != nil {
		return nil, err
	}
	v, err := p.Verify(witnesses...)
	if err != nil {
		return nil, err
	}
	relay := cmp.Or(didkey.DID(c.Relay), v.Origin.DID)
	if message != nil {
		return v, v.CheckMessage(message, relay)
	}
	return v, v.CheckRelay(relay)
}

// reportInvalid prints why a proof or evidence is not valid.
func reportInvalid(env cli.Environment, err error) error {
	return errors.Join(cli.ErrReported, env.PrintJSON(struct {
		OK      bool   `json:"ok"`
		Message string `json:"message"`
	}{false, err.Error()}))
}

// isEvidence reports whether body is evidence against a relay or a client.
func isEvidence(body []byte) bool {
	var head struct{ Typ string }
	return json.Unmarshal(body, &head) == nil && head.Typ == proof.EvidenceType
}

// verifyEvidence checks evidence against a relay or a client.
func verifyEvidence(env cli.Environment, body []byte) error {
	e, err := proof.ParseEvidence(body)
	var found proof.Finding
	if err == nil {
		found, err = e.Verify()
	}
	if err != nil {
		return reportInvalid(env, err)
	}
	return env.PrintJSON(struct {
		OK       bool       `json:"ok"`
		Evidence proof.Kind `json:"evidence"`
		Relay    didkey.DID `json:"relay,omitempty"`
		Client   didkey.DID `json:"client,omitempty"`
		Message  string     `json:"message"`
	}{true, found.Kind, found.Relay, found.Client, found.Text})
}

// Package prove has the commands about what signatures and proofs show: canonicalize, sign and verify for a message, a deal
// or evidence, and proof and audit for the log of a relay.
package prove

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/replay"
)

type CanonicalizeCmd struct {
	File string `arg:"" optional:"" default:"-" help:"JSON to read; - is standard input."`
}

func (CanonicalizeCmd) Help() string {
	return "Prints the canonical form: exactly the bytes that are signed, without a newline at the end. Refuses JSON " +
		"that is not I-JSON (RFC 7493), such as an object that has a member twice.\n\n" +
		"Example:\n  echo '{\"b\":1.0,\"a\":[ ]}' | agora canonicalize"
}

func (c CanonicalizeCmd) Run(env cli.Environment) error {
	text, err := env.Input(c.File, "JSON")
	if err != nil {
		return err
	}
	canonical, err := envelope.Canonicalize(text)
	if err != nil {
		return err
	}
	_, err = env.Exact.Write(canonical)
	return err
}

type SignCmd struct {
	Key  string `needed:"" env:"AGORA_KEY" placeholder:"FILE" help:"Your key file."`
	File string `arg:"" optional:"" default:"-" help:"The envelope; - is standard input."`
}

func (SignCmd) Help() string {
	return "Adds version, id, ts and sender if they are missing, signs the envelope and prints its canonical form.\n\n" +
		"Example:\n" +
		"  echo '{\"type\":\"REQUEST\",\"thread\":{\"id\":\"t1\"}," +
		"\"payload\":{\"request_id\":\"r1\",\"intent\":\"echo\"}}' |\n" +
		"    agora sign --key alice.key"
}

func (c SignCmd) Run(env cli.Environment) error {
	key, err := didkey.Load(c.Key)
	if err != nil {
		return err
	}
	text, err := env.Input(c.File, "the envelope to sign")
	if err != nil {
		return err
	}
	e, err := envelope.SignJSON(key, text, time.Now())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.Exact, "%s\n", e.Canonical())
	return err
}

type VerifyCmd struct {
	Fresh bool   `help:"Also check that a relay would accept it now: its ts is within five minutes of the clock, and its ttl has not ended."`
	Now   string `placeholder:"TIME" help:"Check the same as --fresh, but for this RFC 3339 time instead of the current time."`
	JSON  bool   `xor:"form" help:"Print a chain as one line of JSON, also on a terminal."`
	Text  bool   `xor:"form" help:"Print a chain as text, also if standard output is not a terminal."`
	File  string `arg:"" optional:"" default:"-" help:"The envelope, a chain of messages, or evidence; - is standard input."`
}

func (VerifyCmd) Help() string {
	return "Prints one line of JSON: {\"ok\":true,\"id\":…,\"sender\":…}, or " +
		"{\"ok\":false,\"error\":CODE,\"message\":…} and exits with 1. Checks the form and the signature, however old the " +
		"message is. Checks the time only with --fresh or --now. Does not check whether the message fits its thread. Also " +
		"accepts the lines that agora follow prints for sealed messages.\n\n" +
		"If the file has a chain, checks that: a JSON list of two to four messages, REQUEST, OFFER, ACCEPT and RESULT, of " +
		"which each names by its hash the one before it. They prove a deal without any relay. Prints each message with a " +
		"tick or a cross, and then the deal: what was asked, the price, who was chosen, and what was delivered. If " +
		"standard output is not a terminal, this is one line of JSON. Exits with 1 if there is a cross.\n\n" +
		"If the file has evidence (\"typ\":\"agora-evidence/1\"), checks that, and says what it shows: " +
		"{\"ok\":true,\"evidence\":KIND,\"relay\":DID,\"message\":…}, or with \"client\" if it is against a client " +
		"that has " +
		"accepted two agents for one job.\n\n" +
		"Examples:\n  agora verify message.json\n  agora verify --fresh message.json\n" +
		"  agora verify --now 2026-02-02T15:31:00Z message.json\n" +
		"  jq -s . request.json offer.json accept.json result.json | agora verify --text"
}

func (c VerifyCmd) Validate() error {
	if _, ok := envelope.ParseTime(c.Now); c.Now != "" && !ok {
		return fmt.Errorf("--now must be an RFC 3339 time such as 2026-02-02T15:31:00Z")
	}
	return nil
}

func (c VerifyCmd) Run(env cli.Environment) error {
	body, err := env.Input(c.File, "the envelope to check")
	if err != nil {
		return err
	}
	switch {
	case isEvidence(body):
		return verifyEvidence(env, body)
	case isChain(body):
		return c.verifyChain(env, body)
	}
	e, err := c.check(unwrapFollowed(body), time.Now())
	if refused, ok := errors.AsType[*envelope.Error](err); ok {
		return errors.Join(cli.ErrReported, env.PrintJSON(struct {
			OK      bool          `json:"ok"`
			Error   envelope.Code `json:"error"`
			Message string        `json:"message"`
		}{false, refused.Code, refused.Message}))
	}
	if err != nil {
		return err
	}
	return env.PrintJSON(struct {
		OK     bool       `json:"ok"`
		ID     string     `json:"id"`
		Sender didkey.DID `json:"sender"`
	}{true, e.ID, e.Sender.ID})
}

// unwrapFollowed returns the signed envelope if body is a line that agora follow prints for a decrypted message, or a
// line that --save-proofs has written. It returns any other body unchanged.
func unwrapFollowed(body []byte) []byte {
	var line struct {
		Envelope, Opened json.RawMessage
		cli.SavedProof
	}
	switch err := json.Unmarshal(body, &line); {
	case err == nil && line.Envelope != nil && line.Opened != nil:
		return line.Envelope
	case err == nil && line.Event != nil && line.Proof != "":
		return line.Event
	}
	return body
}

// check makes the checks that a relay makes before it uses its database. It checks the time only if a flag asks for
// that.
func (c VerifyCmd) check(body []byte, now time.Time) (*envelope.Envelope, error) {
	e, err := envelope.Parse(body, 0)
	if err != nil {
		return nil, err
	}
	clock := "this machine's clock"
	if asOf, ok := envelope.ParseTime(c.Now); ok {
		now, clock = asOf, "--now"
	}
	if c.Fresh || c.Now != "" {
		if err := (replay.Window{}).Check(e.TS, e.TTL, now); err != nil {
			return nil, explainNotFresh(err, e, clock, now)
		}
	}
	return e, e.Verify()
}

// explainNotFresh explains why a message is not fresh: its ts, the time of the check, and their difference.
func explainNotFresh(err error, e *envelope.Envelope, clock string, now time.Time) error {
	refused, ok := errors.AsType[*envelope.Error](err)
	if !ok {
		return err
	}
	what := "the message is not fresh"
	if refused.Code == envelope.CodeExpired {
		what = fmt.Sprintf("the message has expired, %v after its ts", e.TTL)
	}
	return envelope.Errorf(refused.Code, "%s: its ts is %s", what, cli.FormatDifference(e.TS, clock, now))
}

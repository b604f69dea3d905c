package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// sendCmd posts one message. Each kind of message is a verb below it.
type sendCmd struct {
	Request  sendRequest  `cmd:"" help:"Ask for a service: opens a thread."`
	Offer    sendOffer    `cmd:"" help:"Offer to do what a REQUEST asks."`
	Accept   sendAccept   `cmd:"" help:"Accept an offer."`
	Result   sendResult   `cmd:"" help:"Deliver."`
	Error    sendError    `cmd:"" help:"End a thread, or take back an offer."`
	Cancel   sendCancel   `cmd:"" help:"Take back your request."`
	Manifest sendManifest `cmd:"" help:"Announce what you can do."`
	Raw      sendRaw      `cmd:"" default:"withargs" help:"Post an envelope that is signed already (the default)."`
}

func (sendCmd) Help() string {
	return "Signs one message, posts it and prints the relay's receipt as one line of JSON. Messages within a thread take " +
		"its request_id and their recipient from the relay's record of it.\n\n" +
		"Examples:\n" +
		"  agora send request --key alice.key --intent echo --params '{\"text\":\"hi\"}'\n" +
		"  agora send offer --key bob.key --thread THREAD --price 0.01\n" +
		"  agora sign --key alice.key draft.json | agora send"
}

const example = "Example:\n  "

// wait bounds what a verb waits for a relay that does not answer.
const wait = 30 * time.Second

// sender are the flags of every message that is made here.
type sender struct {
	identified
	TTL time.Duration `default:"24h" placeholder:"DURATION" help:"How long the relay shall keep it (default: ${default})."`
}

// post signs and posts a message and prints its receipt.
func (s sender) post(env environment, draft func(context.Context, *client.Client, didkey.DID) (envelope.Draft, error)) error {
	c, me, err := s.client(env)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(env.ctx, wait)
	defer cancel()
	d, err := draft(ctx, c, me)
	if err != nil {
		return err
	}
	d.TTL = s.TTL
	e, receipt, err := c.Post(ctx, d)
	return report(env, e, receipt, err)
}

// report prints a receipt. Where nobody can say whether the relay took the message, it prints the envelope, so that it
// can be posted again.
func report(env environment, e *envelope.Envelope, receipt client.Receipt, err error) error {
	if errors.Is(err, client.ErrUnknownOutcome) && e != nil {
		return fmt.Errorf("%w; posting the same bytes again is safe: agora send <<'END'\n%s\nEND", err, e.Canonical())
	}
	if err != nil {
		return err
	}
	return env.printJSON(struct {
		OK bool `json:"ok"`
		client.Receipt
		RequestID string `json:"requestId,omitempty"`
	}{true, receipt, e.RequestID})
}

type sendRequest struct {
	sender
	Intent      string     `required:"" help:"The service wanted, such as translation.en_zh."`
	To          string     `placeholder:"DID" help:"The only agent who may offer; leave it out to ask everybody."`
	Params      string     `placeholder:"JSON" help:"What the service works on."`
	Title       string     `help:"A line for people."`
	Description string     `help:"More for people."`
	MaxCost     *float64   `placeholder:"USD" help:"The most you would pay."`
	Deadline    *time.Time `placeholder:"TIME" help:"When the result is no longer of use, RFC 3339."`
	Thread      string     `placeholder:"ID" help:"The new thread's id (default: a new random one)."`
}

func (sendRequest) Help() string {
	return example + `agora send request --key alice.key --intent translation.en_zh --params '{"text":"Hello"}' --max-cost 0.01`
}

func (c sendRequest) Run(env environment) error {
	return c.post(env, func(context.Context, *client.Client, didkey.DID) (envelope.Draft, error) {
		r := envelope.Request{Intent: c.Intent, Title: c.Title, Description: c.Description, Params: rawJSON(c.Params)}
		if c.MaxCost != nil || c.Deadline != nil {
			r.Constraints = &envelope.Constraints{MaxCostUSD: c.MaxCost, Deadline: c.Deadline}
		}
		return envelope.Draft{Payload: r, Recipient: didkey.DID(c.To), Thread: c.Thread}, nil
	})
}

func rawJSON(text string) json.RawMessage {
	if text == "" {
		return nil
	}
	return json.RawMessage(text)
}

// threaded are the flags of a message within a thread.
type threaded struct {
	sender
	Thread string `required:"" placeholder:"ID" help:"The thread's id."`
	Client string `placeholder:"DID" help:"Whose thread, if several have this id (default: yours, or the oldest)."`
}

// reply drafts a message for the thread: payload gets its request_id, and the recipient is the counterpart where
// there is only one.
func (t threaded) reply(env environment, payload func(requestID string) envelope.Payload) error {
	return t.post(env, func(ctx context.Context, c *client.Client, me didkey.DID) (envelope.Draft, error) {
		record, err := t.find(ctx, c, me)
		if err != nil {
			return envelope.Draft{}, err
		}
		d := envelope.Draft{Payload: payload(record.RequestID), Thread: t.Thread, Recipient: record.Client}
		if me == record.Client {
			d.Recipient = ""
			if agents := record.Agents(); len(agents) == 1 {
				d.Recipient = agents[0]
			}
		}
		return d, nil
	})
}

func (t threaded) find(ctx context.Context, c *client.Client, me didkey.DID) (*client.Thread, error) {
	if t.Client != "" {
		return c.Thread(ctx, t.Thread, didkey.DID(t.Client))
	}
	record, err := c.Thread(ctx, t.Thread, me)
	var refused *envelope.Error
	if errors.As(err, &refused) && refused.Code == envelope.CodeThreadNotFound {
		return c.Thread(ctx, t.Thread, "")
	}
	return record, err
}

type sendOffer struct {
	threaded
	Price    *float64       `placeholder:"AMOUNT" help:"What it costs."`
	Currency string         `default:"USD" help:"ISO 4217 (default: ${default})."`
	Plan     string         `help:"How you would do it."`
	ETA      time.Duration  `placeholder:"DURATION" help:"How long it will take."`
	ValidFor *time.Duration `placeholder:"DURATION" help:"How long the offer stands."`
}

func (sendOffer) Help() string {
	return example + `agora send offer --key bob.key --thread THREAD --price 0.005 --eta 2s --valid-for 5m`
}

func (c sendOffer) Run(env environment) error {
	return c.reply(env, func(id string) envelope.Payload {
		o := envelope.Offer{RequestID: id, Plan: c.Plan, ETASeconds: c.ETA.Seconds()}
		if c.Price != nil {
			o.Price = &envelope.Price{Amount: *c.Price, Currency: c.Currency}
		}
		if c.ValidFor != nil {
			until := time.Now().Add(*c.ValidFor)
			o.ValidUntil = &until
		}
		return o
	})
}

type sendAccept struct {
	threaded
	Agent string `placeholder:"DID" help:"Whose offer; needed only where several agents have offered."`
}

func (sendAccept) Help() string {
	return example + `agora send accept --key alice.key --thread THREAD`
}

func (c sendAccept) Run(env environment) error {
	return c.post(env, func(ctx context.Context, relay *client.Client, me didkey.DID) (envelope.Draft, error) {
		record, err := relay.Thread(ctx, c.Thread, me)
		if err != nil {
			return envelope.Draft{}, err
		}
		agent := didkey.DID(c.Agent)
		if agents := record.Agents(); agent == "" && len(agents) == 1 {
			agent = agents[0]
		} else if agent == "" && len(agents) > 1 {
			return envelope.Draft{}, fmt.Errorf("%d agents have offered; choose one with --agent (agora thread %s shows them)", len(agents), c.Thread)
		}
		now := time.Now()
		return envelope.Draft{Payload: envelope.Accept{RequestID: record.RequestID, AcceptedAt: &now}, Thread: c.Thread, Recipient: agent}, nil
	})
}

type sendResult struct {
	threaded
	Output string `placeholder:"JSON" help:"What was made."`
	Status string `default:"success" help:"How it went (default: ${default})."`
}

func (sendResult) Help() string {
	return example + `agora send result --key bob.key --thread THREAD --output '{"translation":"你好"}'`
}

func (c sendResult) Run(env environment) error {
	return c.reply(env, func(id string) envelope.Payload {
		return envelope.Result{RequestID: id, Status: c.Status, Output: rawJSON(c.Output)}
	})
}

type sendError struct {
	threaded
	Code    string `required:"" help:"Such as INTENT_NOT_SUPPORTED, INSUFFICIENT_BUDGET, TIMEOUT or INTERNAL_ERROR."`
	Message string `required:"" help:"A sentence for people."`
}

func (sendError) Help() string {
	return example + `agora send error --key bob.key --thread THREAD --code UNAVAILABLE --message 'Back at nine'`
}

func (c sendError) Run(env environment) error {
	return c.reply(env, func(id string) envelope.Payload {
		return envelope.Failure{RequestID: id, Code: envelope.AgentCode(c.Code), Message: c.Message}
	})
}

type sendCancel struct {
	threaded
	Reason string `help:"Why."`
}

func (sendCancel) Help() string {
	return example + `agora send cancel --key alice.key --thread THREAD --reason 'found it myself'`
}

func (c sendCancel) Run(env environment) error {
	return c.reply(env, func(id string) envelope.Payload { return envelope.Cancel{RequestID: id, Reason: c.Reason} })
}

type sendManifest struct {
	sender
	File string `arg:"" optional:"" default:"-" help:"The capability manifest as JSON; - is standard input."`
}

func (sendManifest) Help() string {
	return example + `agora send manifest --key bob.key manifest.json`
}

func (c sendManifest) Run(env environment) error {
	text, err := env.input(c.File)
	if err != nil {
		return err
	}
	return c.post(env, func(context.Context, *client.Client, didkey.DID) (envelope.Draft, error) {
		var m envelope.Manifest
		if err := json.Unmarshal(text, &m); err != nil {
			return envelope.Draft{}, fmt.Errorf("the manifest is not the JSON object that the protocol describes: %w", err)
		}
		return envelope.Draft{Payload: m}, nil
	})
}

type sendRaw struct {
	remote
	File string `arg:"" optional:"" default:"-" help:"The signed envelope; - is standard input."`
}

func (sendRaw) Help() string {
	return example + `agora send signed.json`
}

func (c sendRaw) Run(env environment) error {
	body, err := env.input(c.File)
	if err != nil {
		return err
	}
	e, err := envelope.Parse(body, 0)
	if err != nil {
		return err
	}
	relay, err := c.client(env)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(env.ctx, wait)
	defer cancel()
	receipt, err := relay.PostEnvelope(ctx, e)
	return report(env, e, receipt, err)
}

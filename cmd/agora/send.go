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
	"github.com/agora-relay/agora/thread"
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
	TTL lifetime `default:"24h" placeholder:"DURATION" help:"How long the relay shall keep it (default: ${default})."`
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
	d.TTL = time.Duration(s.TTL)
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
	Intent      string   `required:"" help:"The service wanted, such as translation.en_zh."`
	To          didText  `placeholder:"DID" help:"The only agent who may offer; leave it out to ask everybody."`
	Params      jsonText `placeholder:"JSON" help:"What the service works on."`
	Title       string   `help:"A line for people."`
	Description string   `help:"More for people."`
	MaxCost     *float64 `placeholder:"USD" help:"The most you would pay."`
	Deadline    *moment  `placeholder:"TIME" help:"When the result is no longer of use, RFC 3339."`
	Thread      idText   `placeholder:"ID" help:"The new thread's id (default: a new random one)."`
	Seal        bool     `help:"Only --to can read the payload, its intent aside; see docs/SEALING.md."`
}

func (c sendRequest) Validate() error {
	if c.Intent == "" || c.MaxCost != nil && *c.MaxCost < 0 {
		return fmt.Errorf("--intent must not be empty, nor --max-cost negative")
	}
	if c.Seal && c.To == "" {
		return fmt.Errorf("--seal needs --to DID: the payload is encrypted to that agent's key")
	}
	return nil
}

func (sendRequest) Help() string {
	return example + `agora send request --key alice.key --intent translation.en_zh --params '{"text":"Hello"}' --max-cost 0.01`
}

func (c sendRequest) Run(env environment) error {
	return c.post(env, func(context.Context, *client.Client, didkey.DID) (envelope.Draft, error) {
		r := envelope.Request{Intent: c.Intent, Title: c.Title, Description: c.Description, Params: json.RawMessage(c.Params)}
		if c.MaxCost != nil || c.Deadline != nil {
			r.Constraints = &envelope.Constraints{MaxCostUSD: c.MaxCost, Deadline: (*time.Time)(c.Deadline)}
		}
		return envelope.Draft{Payload: r, Recipient: didkey.DID(c.To), Thread: string(c.Thread), Seal: c.Seal}, nil
	})
}

// threaded are the flags of a message within a thread.
type threaded struct {
	sender
	Thread idText  `required:"" placeholder:"ID" help:"The thread's id."`
	Client didText `placeholder:"DID" help:"Whose thread, if several have this id (default: yours, or the oldest)."`
	Seal   bool    `xor:"sealing" help:"Only the recipient can read the payload. In a sealed thread every message is."`
	Plain  bool    `xor:"sealing" help:"The thread is not sealed: say so where the relay no longer has its REQUEST."`
}

// reply drafts a message for the thread: payload gets its request_id, and the recipient is the counterpart where
// there is only one.
func (t threaded) reply(env environment, payload func(requestID string) envelope.Payload) error {
	return t.post(env, func(ctx context.Context, c *client.Client, me didkey.DID) (envelope.Draft, error) {
		record, err := t.find(ctx, c, me)
		if err != nil {
			return envelope.Draft{}, err
		}
		d := envelope.Draft{Payload: payload(record.RequestID), Thread: string(t.Thread), Recipient: record.Client}
		if me == record.Client {
			d.Recipient = ""
			if agents := record.Agents(); len(agents) == 1 {
				d.Recipient = agents[0]
			}
		}
		d.Seal, err = t.sealing(record, me, d.Recipient)
		return d, err
	})
}

// find returns the relay's record of the thread, or what is known of it to those whom its REQUEST only invites.
func (t threaded) find(ctx context.Context, c *client.Client, me didkey.DID) (*client.Thread, error) {
	record, err := t.record(ctx, c, me)
	if !isCode(err, envelope.CodeThreadNotFound) {
		return record, err
	}
	request, none := c.Invitation(ctx, string(t.Thread), didkey.DID(t.Client))
	if none != nil {
		return nil, err
	}
	return &client.Thread{Thread: thread.Thread{ID: request.Thread, Client: request.Sender.ID, RequestID: request.RequestID},
		Events: []*envelope.Envelope{request}}, nil
}

func isCode(err error, code envelope.Code) bool {
	var refused *envelope.Error
	return errors.As(err, &refused) && refused.Code == code
}

func (t threaded) record(ctx context.Context, c *client.Client, me didkey.DID) (*client.Thread, error) {
	if t.Client != "" {
		return c.Thread(ctx, string(t.Thread), didkey.DID(t.Client))
	}
	record, err := c.Thread(ctx, string(t.Thread), me)
	if isCode(err, envelope.CodeThreadNotFound) {
		return c.Thread(ctx, string(t.Thread), "")
	}
	return record, err
}

type sendOffer struct {
	threaded
	Price    *float64      `placeholder:"AMOUNT" help:"What it costs."`
	Currency string        `default:"USD" help:"ISO 4217 (default: ${default})."`
	Plan     string        `help:"How you would do it."`
	ETA      time.Duration `placeholder:"DURATION" help:"How long it will take."`
	ValidFor *lifetime     `placeholder:"DURATION" help:"How long the offer stands."`
}

func (c sendOffer) Validate() error {
	if c.Price != nil && *c.Price < 0 || c.ETA < 0 {
		return fmt.Errorf("--price and --eta must not be negative")
	}
	return nil
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
			until := time.Now().Add(time.Duration(*c.ValidFor))
			o.ValidUntil = &until
		}
		return o
	})
}

type sendAccept struct {
	threaded
	Agent      didText  `placeholder:"DID" help:"Whose offer; needed only where several agents have offered."`
	MaxCost    *float64 `placeholder:"USD" help:"Of a REQUEST that cannot be read back, as it is sealed or gone: the most you would pay."`
	Deadline   *moment  `placeholder:"TIME" help:"Likewise: when the result is no longer of use, RFC 3339."`
	AllowPlain bool     `help:"A plain offer to a sealed REQUEST too."`
}

func (sendAccept) Help() string {
	return example + `agora send accept --key alice.key --thread THREAD`
}

func (c sendAccept) Run(env environment) error {
	return c.post(env, func(ctx context.Context, relay *client.Client, me didkey.DID) (envelope.Draft, error) {
		record, err := c.find(ctx, relay, me)
		if err != nil {
			return envelope.Draft{}, err
		}
		if record.Client != me {
			return envelope.Draft{}, fmt.Errorf("only %s, who asked, accepts offers in thread %s", record.Client, c.Thread)
		}
		standing, err := c.choose(record)
		if err != nil {
			return envelope.Draft{}, err
		}
		call, err := relay.Resume(ctx, record.ID)
		if err != nil {
			return envelope.Draft{}, err
		}
		if err := c.prepare(call, record.Request() != nil); err != nil {
			return envelope.Draft{}, err
		}
		for offer, err := range call.Offers(ctx) {
			if err != nil {
				return envelope.Draft{}, err
			}
			if offer.Agent == standing.Agent && offer.Envelope.ID == standing.ID {
				d, err := call.Acceptance(offer)
				if c.Plain && offer.Envelope.Sealed() {
					return d, errors.New("the offer is sealed, so --plain is refused")
				}
				d.Seal = (d.Seal || c.Seal) && !c.Plain
				return d, err
			}
		}
		return envelope.Draft{}, fmt.Errorf("thread %s has an accepted offer already", c.Thread)
	})
}

// choose returns the newest standing offer of the agent that is meant.
func (c sendAccept) choose(record *client.Thread) (thread.Offer, error) {
	if record.State != thread.Pending {
		return thread.Offer{}, fmt.Errorf("thread %s is %s; offers are accepted while it is PENDING", c.Thread, record.State)
	}
	agents := map[didkey.DID]thread.Offer{}
	for _, o := range record.Offers {
		agents[o.Agent] = o
	}
	if standing, ok := agents[didkey.DID(c.Agent)]; ok {
		return standing, nil
	}
	switch {
	case c.Agent != "":
		return thread.Offer{}, fmt.Errorf("no offer of %s stands in thread %s", c.Agent, c.Thread)
	case len(agents) == 0:
		return thread.Offer{}, fmt.Errorf("nobody has offered in thread %s yet", c.Thread)
	case len(agents) > 1:
		return thread.Offer{}, fmt.Errorf("%d agents have offered; choose one with --agent (agora thread %s shows them)", len(agents), c.Thread)
	}
	return record.Offers[len(record.Offers)-1], nil
}

type sendResult struct {
	threaded
	Output jsonText `placeholder:"JSON" help:"What was made."`
	Status string   `default:"success" help:"How it went (default: ${default})."`
}

func (sendResult) Help() string {
	return example + `agora send result --key bob.key --thread THREAD --output '{"translation":"你好"}'`
}

func (c sendResult) Run(env environment) error {
	return c.reply(env, func(id string) envelope.Payload {
		return envelope.Result{RequestID: id, Status: c.Status, Output: json.RawMessage(c.Output)}
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
		return envelope.Draft{Payload: envelope.Raw{Type: envelope.TypeManifest, JSON: text}}, nil
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
	relay, err := c.connect(env, nil)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(env.ctx, wait)
	defer cancel()
	receipt, err := relay.PostEnvelope(ctx, e)
	return report(env, e, receipt, err)
}

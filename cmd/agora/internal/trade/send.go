package trade

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// SendCmd posts one message. Each type of message has its own subcommand.
type SendCmd struct {
	Request  sendRequest  `cmd:"" help:"Ask for a service. This opens a thread."`
	Offer    sendOffer    `cmd:"" help:"Offer to do what a REQUEST asks for."`
	Accept   sendAccept   `cmd:"" help:"Accept an offer."`
	Result   sendResult   `cmd:"" help:"Deliver what was asked for."`
	Error    sendError    `cmd:"" help:"Report an error: ends a thread, or takes back an offer."`
	Cancel   sendCancel   `cmd:"" help:"Take back your request."`
	Manifest sendManifest `cmd:"" help:"Announce what you can do."`
	Raw      sendRaw      `cmd:"" default:"withargs" help:"Post an envelope that is signed already (the default)."`
}

func (SendCmd) Help() string {
	return "Signs one message, posts it and prints the relay's receipt: a readable form on a terminal, otherwise one " +
		"line of JSON. Messages within a thread take their recipient and request_id from the signed messages that the " +
		"relay still has: an OFFER from the REQUEST, an ACCEPT from your REQUEST and the OFFER, a RESULT from your OFFER " +
		"and the ACCEPT. If the relay no longer has these messages, or several threads have the same id, name the " +
		"recipient and the request with flags. With several relays a REQUEST goes to the first one where its " +
		"recipient reads, a " +
		"MANIFEST to all of them, and a message within a thread to the relay that has the thread.\n\n" +
		"Examples:\n" +
		"  agora send request --key alice.key --intent echo --params '{\"text\":\"hi\"}'\n" +
		"  agora send offer --key bob.key --thread THREAD --price 0.01\n" +
		"  agora sign --key alice.key draft.json | agora send"
}

// relayTimeout is how long a command waits for a relay that does not answer.
const relayTimeout = 30 * time.Second

// Sender are the flags that all messages have.
type sender struct {
	cli.NetworkPoster
	receiptFlags
	TTL cli.Lifetime `placeholder:"DURATION" help:"How long the relay keeps the message (default: 24h)."` // 0: envelope.DraftTTL
}

// post signs and posts a message that begins a thread, or belongs to none, and prints its receipt.
func (s sender) post(env cli.Environment, d envelope.Draft) error {
	return s.postTo(env, func(_ context.Context, relays cli.Relays, _ didkey.DID) (cli.Relays, envelope.Draft, error) {
		return relays, d, nil
	})
}

// postTo signs and posts the message that draft returns, at the relay that draft returns, and prints its receipt.
func (s sender) postTo(
	env cli.Environment, draft func(context.Context, cli.Relays, didkey.DID) (cli.Relays, envelope.Draft, error),
) error {
	key, err := didkey.Load(s.Key)
	if err != nil {
		return err
	}
	relays, err := s.Connect(env, key)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(env.Ctx, relayTimeout)
	defer cancel()
	at, d, err := draft(ctx, relays, key.DID())
	if err != nil {
		return err
	}
	d.TTL = time.Duration(s.TTL)
	e, receipt, err := at.Post(ctx, d)
	return s.report(env, e, receipt, err)
}

type sendRequest struct {
	sender
	Intent      string          `required:"" complete:"intent" help:"The service you want, such as translation.en_zh."`
	To          cli.DIDText     `placeholder:"DID" help:"The only agent that may offer. By default every agent may."`
	Params      cli.JSONInput   `placeholder:"JSON" help:"The input of the service: JSON, @FILE, or - for standard input."`
	Title       string          `help:"A title for people to read."`
	Description string          `help:"A longer description for people to read."`
	MaxCost     *float64        `placeholder:"USD" help:"The most you would pay."`
	Deadline    *cli.FutureTime `placeholder:"TIME" help:"The time after which the result is of no use, in RFC 3339."`
	Thread      cli.IDText      `placeholder:"ID" help:"The new thread's id (default: a new random one)."`
	Seal        bool            `help:"Encrypt the payload for --to. Only the intent stays readable; see docs/SEALING.md."`
}

func (c sendRequest) Validate() error {
	if c.Intent == "" {
		return fmt.Errorf("--intent must not be empty")
	}
	if c.MaxCost != nil && *c.MaxCost < 0 {
		return fmt.Errorf("--max-cost must not be negative")
	}
	if c.Seal && c.To == "" {
		return fmt.Errorf("--seal needs --to DID: the payload is encrypted to that agent's key")
	}
	return nil
}

func (sendRequest) Help() string {
	return cli.ExampleTitle +
		`agora send request --key alice.key --intent translation.en_zh --params '{"text":"Hello"}' --max-cost 0.01`
}

func (c sendRequest) Run(env cli.Environment) error {
	params, err := c.Params.Read(env, "the params")
	if err != nil {
		return err
	}
	r := envelope.Request{Intent: c.Intent, Title: c.Title, Description: c.Description, Params: params}
	if c.MaxCost != nil || c.Deadline != nil {
		r.Constraints = &envelope.Constraints{MaxCostUSD: c.MaxCost, Deadline: (*time.Time)(c.Deadline)}
	}
	return c.post(env, envelope.Draft{Payload: r, Recipient: didkey.DID(c.To), Thread: string(c.Thread), Seal: c.Seal})
}

// threaded are the flags that all messages within a thread have.
type threaded struct {
	sender
	Thread    cli.IDText  `required:"" complete:"thread" placeholder:"ID" help:"The thread's id."`
	Client    cli.DIDText `placeholder:"DID" help:"The agent that opened the thread. Needed if several threads have this id, or the relay no longer has the REQUEST."`
	RequestID cli.IDText  `name:"request-id" placeholder:"ID" help:"The request_id of the REQUEST. Needed if the relay no longer has the REQUEST."`
	Seal      bool        `xor:"sealing" help:"Encrypt the payload for the recipient. In a sealed thread all messages are sealed without this flag."`
	Plain     bool        `xor:"sealing" help:"Do not seal. Needed if the REQUEST was not sealed and the relay no longer has it."`
}

// addressed adds the flag --to, for messages that an agent can send to the client, and the client to an agent.
type addressed struct {
	threaded
	To cli.DIDText `placeholder:"DID" help:"The agent that gets the message, if you opened the thread. Needed if the relay no longer has your ACCEPT."`
}

// post signs and posts a message of the thread, at the relay that has the thread, and prints its receipt.
func (t threaded) post(
	env cli.Environment, draft func(context.Context, *client.Client, didkey.DID) (envelope.Draft, error),
) error {
	return t.postTo(env, func(ctx context.Context, relays cli.Relays, me didkey.DID) (cli.Relays, envelope.Draft, error) {
		at, one := relays.(*client.Client)
		if n, many := relays.(*client.Network); many && !one {
			var err error
			if at, err = n.At(ctx, string(t.Thread), didkey.DID(t.Client)); err != nil {
				return nil, envelope.Draft{}, err
			}
		}
		d, err := draft(ctx, at, me)
		return at, d, err
	})
}

// reply posts a message of this type in the thread. agent is the agent that a flag names, "" if none does.
func (t threaded) reply(
	env cli.Environment, typ envelope.Type, agent cli.DIDText, payload func(requestID string) envelope.Payload,
) error {
	return t.post(env, func(ctx context.Context, c *client.Client, me didkey.DID) (envelope.Draft, error) {
		r, err := t.find(ctx, c, me, typ, didkey.DID(agent))
		if err != nil {
			return envelope.Draft{}, err
		}
		d := envelope.Draft{Payload: payload(r.requestID), Thread: string(t.Thread), Recipient: r.recipient}
		d.Seal, err = t.shouldSeal(r)
		return r.record().Join(d), err
	})
}

type sendOffer struct {
	threaded
	Price    *float64      `placeholder:"AMOUNT" help:"The price of the service."`
	Currency string        `default:"USD" help:"The currency of the price, an ISO 4217 code (default: ${default})."`
	Plan     string        `help:"How you would do the work."`
	ETA      time.Duration `placeholder:"DURATION" help:"How long the work will take."`
	ValidFor *cli.Lifetime `placeholder:"DURATION" help:"How long the offer is valid."`
}

func (c sendOffer) Validate() error {
	if c.Price != nil && *c.Price < 0 || c.ETA < 0 {
		return fmt.Errorf("--price and --eta must not be negative")
	}
	return nil
}

func (sendOffer) Help() string {
	return cli.ExampleTitle + `agora send offer --key bob.key --thread THREAD --price 0.005 --eta 2s --valid-for 5m`
}

func (c sendOffer) Run(env cli.Environment) error {
	return c.reply(env, envelope.TypeOffer, "", func(id string) envelope.Payload {
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
	Agent      cli.DIDText     `placeholder:"DID" aliases:"to" help:"The agent whose offer you accept. Needed if several agents have offered, or the relay no longer has your REQUEST."`
	MaxCost    *float64        `placeholder:"USD" help:"The most you would pay. Needed if your REQUEST is sealed, or the relay no longer has it."`
	Deadline   *cli.FutureTime `placeholder:"TIME" help:"The time after which the result is of no use, in RFC 3339. Only with --max-cost."`
	AllowPlain bool            `help:"Accept a plain offer to a sealed REQUEST too."`
}

func (sendAccept) Help() string {
	return cli.ExampleTitle + `agora send accept --key alice.key --thread THREAD`
}

func (c sendAccept) Run(env cli.Environment) error {
	return c.post(env, func(ctx context.Context, relay *client.Client, me didkey.DID) (envelope.Draft, error) {
		r, err := c.find(ctx, relay, me, envelope.TypeAccept, didkey.DID(c.Agent))
		if err != nil {
			return envelope.Draft{}, err
		}
		chosen, err := c.choose(ctx, relay, r, env.People(me))
		if err != nil {
			return envelope.Draft{}, err
		}
		call, err := relay.ResumeKnown(ctx, client.Known{
			Thread: string(c.Thread), RequestID: r.requestID, Recipient: didkey.DID(c.Agent)})
		if err != nil {
			return envelope.Draft{}, err
		}
		if err := c.prepare(call, r.request() != nil); err != nil {
			return envelope.Draft{}, err
		}
		for offer, err := range call.Offers(ctx) {
			if err != nil {
				return envelope.Draft{}, err
			}
			if offer.Agent == chosen.Sender.ID && offer.Envelope.ID == chosen.ID {
				d, err := call.Acceptance(offer)
				if c.Plain && offer.Envelope.Sealed() {
					return d, errors.New("the offer is sealed, so --plain is refused")
				}
				d.Seal = (d.Seal || c.Seal) && !c.Plain
				return d, err
			}
		}
		return envelope.Draft{}, fmt.Errorf("an offer was already accepted in thread %s", c.Thread)
	})
}

// Choose returns the OFFER to accept: the newest one of the chosen agent.
func (c sendAccept) choose(
	ctx context.Context, relay *client.Client, r role, p cli.People,
) (*envelope.Envelope, error) {
	record, err := relay.Thread(ctx, string(c.Thread), r.me)
	if err != nil {
		return nil, err
	}
	if record.TimedOut() {
		return nil, fmt.Errorf("thread %s timed out at %s; ask again with a new thread", c.Thread,
			envelope.FormatTime(record.Transitions[len(record.Transitions)-1].At))
	}
	if record.State != thread.Pending {
		return nil, fmt.Errorf("thread %s is %s; offers can be accepted only while it is PENDING", c.Thread, record.State)
	}
	f := finder{threaded: c.threaded, ctx: ctx, relay: relay, me: r.me}
	offers, err := f.offers(r, didkey.DID(c.Agent))
	switch {
	case err != nil:
		return nil, err
	case len(offers) == 0 && c.Agent != "":
		return nil, fmt.Errorf("thread %s has no open offer of %s", c.Thread, c.Agent)
	case len(offers) == 0:
		return nil, fmt.Errorf("there is no offer in thread %s yet", c.Thread)
	case len(offers) > 1:
		var agents []string
		for _, offer := range offers {
			agents = append(agents, p.Who(offer.Sender.ID))
		}
		return nil, fmt.Errorf("%d agents have offered; choose one with --agent: %s (agora thread %s shows their offers)",
			len(offers), strings.Join(agents, ", "), c.Thread)
	case r.request() == nil && c.Agent == "":
		return nil, f.missing(envelope.TypeAccept)
	}
	return offers[0], nil
}

type sendResult struct {
	threaded
	Output cli.JSONInput `placeholder:"JSON" help:"The result of the service: JSON, @FILE, or - for standard input."`
	Status string        `default:"success" help:"The status of the result (default: ${default})."`
}

func (sendResult) Help() string {
	return cli.ExampleTitle + `agora send result --key bob.key --thread THREAD --output '{"translation":"你好"}'`
}

func (c sendResult) Run(env cli.Environment) error {
	output, err := c.Output.Read(env, "the output")
	if err != nil {
		return err
	}
	return c.reply(env, envelope.TypeResult, "", func(id string) envelope.Payload {
		return envelope.Result{RequestID: id, Status: c.Status, Output: output}
	})
}

type sendError struct {
	addressed
	Code    string `required:"" help:"The error code, such as INTENT_NOT_SUPPORTED, INSUFFICIENT_BUDGET, TIMEOUT or INTERNAL_ERROR."`
	Message string `required:"" help:"What went wrong, as a sentence for people."`
}

func (sendError) Help() string {
	return cli.ExampleTitle + `agora send error --key bob.key --thread THREAD --code UNAVAILABLE --message 'Back at nine'`
}

func (c sendError) Run(env cli.Environment) error {
	return c.reply(env, envelope.TypeError, c.To, func(id string) envelope.Payload {
		return envelope.Failure{RequestID: id, Code: envelope.AgentCode(c.Code), Message: c.Message}
	})
}

type sendCancel struct {
	addressed
	Reason string `help:"Why you cancel, for people to read."`
}

func (sendCancel) Help() string {
	return cli.ExampleTitle + `agora send cancel --key alice.key --thread THREAD --reason 'found it myself'`
}

func (c sendCancel) Run(env cli.Environment) error {
	return c.reply(env, envelope.TypeCancel, c.To, func(id string) envelope.Payload {
		return envelope.Cancel{RequestID: id, Reason: c.Reason}
	})
}

type sendManifest struct {
	sender
	File string `arg:"" optional:"" default:"-" help:"The capability manifest as JSON; - is standard input."`
}

func (sendManifest) Help() string {
	return cli.ExampleTitle + `agora send manifest --key bob.key manifest.json`
}

func (c sendManifest) Run(env cli.Environment) error {
	text, err := env.Input(c.File, "the manifest")
	if err != nil {
		return err
	}
	if _, err := envelope.Canonicalize(text); err != nil {
		return fmt.Errorf("the manifest in %s is not JSON: %w", c.File, err)
	}
	return c.post(env, envelope.Draft{Payload: envelope.Raw{Type: envelope.TypeManifest, JSON: text}})
}

type sendRaw struct {
	cli.Remotes
	cli.Proving
	receiptFlags
	File string `arg:"" optional:"" default:"-" help:"The signed envelope; - is standard input."`
}

func (sendRaw) Help() string {
	return cli.ExampleTitle + `agora send signed.json`
}

func (c sendRaw) Run(env cli.Environment) error {
	body, err := env.Input(c.File, "a signed envelope")
	if errors.Is(err, fs.ErrNotExist) {
		if mistyped := MistypedMessage([]string{"send", c.File}); mistyped != nil {
			return mistyped
		}
	}
	if err != nil {
		return err
	}
	e, err := envelope.Parse(body, 0)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(env.Ctx, relayTimeout)
	defer cancel()
	receipt, err := c.postEnvelope(ctx, env, e)
	return c.report(env, e, receipt, err)
}

// postEnvelope posts an envelope at the first relay, or a MANIFEST at all. The first receipt counts.
func (c sendRaw) postEnvelope(ctx context.Context, env cli.Environment,
	e *envelope.Envelope) (first client.Receipt, err error) {
	urls := c.Relay
	if e.Type != envelope.TypeManifest {
		urls = urls[:1]
	}
	stored := false
	for _, url := range urls {
		relay, failed := c.ConnectTo(env, cli.Remote{Relay: url, Private: c.Private}, nil)
		if failed != nil {
			return first, failed
		}
		receipt, failed := relay.PostEnvelope(ctx, e)
		if failed == nil && !stored {
			stored, first = true, receipt
		}
		err = failed
	}
	if stored {
		return first, nil
	}
	return first, err
}

// Messages are the names of the subcommands of send.
var Messages = []string{"request", "offer", "accept", "result", "error", "cancel", "manifest", "raw"}

// MistypedMessage returns an error if the word after send is neither a message nor a file.
func MistypedMessage(args []string) error {
	if len(args) == 0 || args[0] != "send" {
		return nil
	}
	for i, word := range args[1:] {
		letters := strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
		if word == "" || !letters || i > 0 && strings.HasPrefix(args[i], "-") { // the value of a flag
			continue
		}
		if _, err := os.Stat(word); err == nil || slices.Contains(Messages, word) {
			return nil
		}
		return fmt.Errorf("there is no message %q, and no file with that name; a message is one of %s%s", word,
			strings.Join(Messages, ", "), cli.DidYouMean(word, Messages))
	}
	return nil
}

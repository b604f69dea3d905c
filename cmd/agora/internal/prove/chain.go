package prove

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
)

// chainReport is what agora verify prints about a chain.
type chainReport struct {
	OK      bool        `json:"ok"`
	Message string      `json:"message,omitempty"` // why there is no deal
	Links   []chainLink `json:"links,omitempty"`
	*chainDeal
}

// chainLink is a message of a chain. OK: it is valid, and answers the message before it.
type chainLink struct {
	Type envelope.Type `json:"type"`
	ID   string        `json:"id"`
	Hash string        `json:"hash"` // content hash
	OK   bool          `json:"ok"`
}

// chainDeal is what a valid chain proves.
type chainDeal struct {
	Client   didkey.DID      `json:"client"`
	Agent    didkey.DID      `json:"agent"`
	Home     *envelope.Home  `json:"home"`
	Request  json.RawMessage `json:"request"` // payload
	Price    *envelope.Price `json:"price,omitempty"`
	Accepted bool            `json:"accepted"`
	Result   json.RawMessage `json:"result,omitempty"` // payload
}

// isChain reports whether body is a JSON list.
func isChain(body []byte) bool { return bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("[")) }

// verifyChain checks a chain of messages. Each may be a line of agora follow or of --save-proofs.
func (c VerifyCmd) verifyChain(env cli.Environment, body []byte) error {
	if c.Fresh || c.Now != "" {
		return errors.New("--fresh and --now are for one message, and this is a list; leave them out")
	}
	messages, err := parseChain(body)
	if err != nil {
		return reportInvalid(env, err)
	}
	report := checkChain(messages)
	if c.JSON || !c.Text && !env.StdoutIsTerminal {
		err = env.PrintJSON(report)
	} else {
		err = report.print(env)
	}
	if err == nil && !report.OK {
		err = cli.ErrReported
	}
	return err
}

// checkChain checks messages and says what they prove. Messages after a wrong one are not in the report.
func checkChain(messages []*envelope.Envelope) (r chainReport) {
	deal, err := proof.VerifyChain(messages)
	checked := len(messages)
	if err != nil {
		checked = 0
	}
	if wrong, ok := errors.AsType[*proof.ChainError](err); ok {
		checked = wrong.Index + 1
	}
	for i, m := range messages[:checked] {
		isLast := i == checked-1
		r.Links = append(r.Links, chainLink{m.Type, m.ID, envelope.Hash(m.Hash()).String(), err == nil || !isLast})
	}
	if err != nil {
		r.Message = err.Error()
		return r
	}
	r.OK = true
	r.chainDeal = &chainDeal{Client: deal.Request.Sender.ID, Agent: deal.Offer.Sender.ID, Home: deal.Request.Home,
		Request: deal.Request.Payload, Price: deal.Price(), Accepted: deal.Accept != nil}
	if deal.Result != nil {
		r.Result = deal.Result.Payload
	}
	return r
}

// parseChain reads a JSON list of messages.
func parseChain(body []byte) ([]*envelope.Envelope, error) {
	if len(body) > proof.MaxEvidence {
		return nil, fmt.Errorf("a chain has at most %d bytes", proof.MaxEvidence)
	}
	var texts []json.RawMessage
	if err := json.Unmarshal(body, &texts); err != nil {
		return nil, fmt.Errorf("a chain is a JSON list of messages: %w", err)
	}
	for i, text := range texts {
		texts[i] = unwrapFollowed(text)
	}
	return proof.ParseMessages(texts)
}

// print prints a chain for people: a line for each message, and then the deal or why there is none.
func (r chainReport) print(env cli.Environment) error {
	var rows [][]string
	for i, link := range r.Links {
		row := []string{"✓", string(link.Type), link.ID, "is signed by its sender"}
		if i > 0 {
			row[3] += fmt.Sprintf(", and answers the %s", r.Links[i-1].Type)
		}
		if !link.OK {
			row[0], row[3] = "✗", "see below"
		}
		rows = append(rows, row)
	}
	if err := env.PrintRows(rows); err != nil {
		return err
	}
	if !r.OK {
		_, err := fmt.Fprintf(env.Stdout, "No deal is proved: %s\n", cli.Printable(r.Message))
		return err
	}
	facts := [][]string{
		{"Asked", said(r.Request, "intent", "params") + ", by " + string(r.Client)},
		{"Offered", r.price() + ", by " + string(r.Agent)},
		{"Chosen", "nobody yet"},
		{"Delivered", "nothing yet"},
		{"Decided by", r.Home.URL + ", " + string(r.Home.DID)},
	}
	if r.Accepted {
		facts[2][1] = "this agent"
	}
	if r.Result != nil {
		facts[3][1] = said(r.Result, "status", "output")
	}
	if _, err := fmt.Fprintln(env.Stdout); err != nil {
		return err
	}
	return env.PrintRows(facts)
}

// price returns the price for people.
func (d chainDeal) price() string {
	if d.Price == nil {
		return "without a price that can be read"
	}
	return strings.TrimRight(fmt.Sprintf("for %s %s", strconv.FormatFloat(d.Price.Amount, 'f', -1, 64),
		d.Price.Currency), " ")
}

// maxSaid is how many columns a payload takes in a line for people.
const maxSaid = 160

// said returns two members of a payload for people: a word, and what is with it.
func said(payload json.RawMessage, word, with string) string {
	members := map[string]json.RawMessage{}
	var name string
	if err := errors.Join(json.Unmarshal(payload, &members), json.Unmarshal(members[word], &name)); err != nil {
		name = "?"
	}
	return cli.WithoutEnd(strings.TrimRight(name+" "+string(members[with]), " "), maxSaid)
}

package trade

import (
	"errors"
	"fmt"
	"io"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// receiptFlags are the flags that choose how a receipt is printed.
type receiptFlags struct {
	JSON bool `help:"Print the receipt as one line of JSON, also on a terminal."`
}

// report prints a receipt. If it is unknown whether the relay stored the message, report prints the envelope instead,
// so that the user can post it again.
func (f receiptFlags) report(env cli.Environment, e *envelope.Envelope, receipt client.Receipt, err error) error {
	if errors.Is(err, client.ErrUnknownOutcome) && e != nil {
		env.Explain(err)
		fmt.Fprintf(env.Stderr, "agora: it is safe to post the same bytes again: agora send <<'END'\n%s\nEND\n",
			e.Canonical())
		return cli.ErrReported
	}
	if err != nil {
		return err
	}
	if env.StdoutIsTerminal && !f.JSON {
		return showReceipt(env.Stdout, env.People(e.Sender.ID), e, receipt)
	}
	return env.PrintJSON(struct {
		OK bool `json:"ok"`
		client.Receipt
		RequestID string     `json:"requestId,omitempty"`
		Recipient didkey.DID `json:"recipient,omitempty"`
		Sealed    bool       `json:"sealed,omitempty"`
	}{true, receipt, e.RequestID, e.Recipient, e.Sealed()})
}

// showReceipt prints a receipt for people.
func showReceipt(w io.Writer, p cli.People, e *envelope.Envelope, r client.Receipt) error {
	to := "everybody"
	if e.Recipient != "" {
		to = p.Whole(e.Recipient)
	}
	if e.Sealed() {
		to += "  (sealed: only the recipient can read it)"
	}
	text := fmt.Sprintf("%s  %s\n  to      %s\n", e.Type, e.ID, to)
	if r.Thread != nil {
		text += fmt.Sprintf("  thread  %s  %s\n", cli.Printable(r.Thread.ID), cli.Printable(r.Thread.State))
	}
	if e.RequestID != "" {
		text += fmt.Sprintf("  request %s\n", cli.Printable(e.RequestID)) // the other side may have chosen it
	}
	text += fmt.Sprintf("  kept    until %s\n", cli.ShownTime(r.ExpiresAt))
	if r.Proved != nil {
		text += fmt.Sprintf("  proved  leaf %d of the relay's log\n", r.Proved.Index)
	}
	if r.Duplicate {
		text += "  the relay already had this message\n"
	}
	_, err := io.WriteString(w, text)
	return err
}

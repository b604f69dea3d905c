package trade

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/thread"
)

// The offers of agora ask: waiting for them, showing them, and choosing one.

// tooExpensive is the error if no offer is acceptable, and this is the lowest price.
type tooExpensive struct{ price float64 }

func (e *tooExpensive) Error() string {
	return "the cheapest offer costs " + formatAmount(e.price) + " USD"
}

// chooseOffer waits for offers, shows them, and accepts one. It returns nil if run must look at the thread again.
func (a *asking) chooseOffer(ctx context.Context) error {
	accepted, err := a.collect(ctx)
	if err != nil {
		return err
	}
	record, err := a.look(ctx)
	if err != nil {
		return err
	}
	switch {
	case record.State != thread.Pending:
		return nil
	case accepted:
		return askError{OutcomeFailed, fmt.Errorf("the relay shows that an offer in the thread %s was accepted, "+
			"but also claims that none was; do not trust this relay", a.thread)}
	}
	var open []client.Offer
	for _, o := range client.Newest(a.offers) {
		if record.IsOpen(o) {
			open = append(open, o)
		} else {
			a.passed[o.Envelope.Hash()] = true
		}
	}
	a.status.Clear()
	inTime := time.Now().Before(a.offersUntil)
	switch {
	case len(open) == 0 && inTime:
		return nil // they were taken back
	case len(open) == 0:
		return askError{OutcomeNoOffer, fmt.Errorf("there was no offer within %s%s", cli.FormatDuration(a.Wait), a.hint())}
	case a.Choose:
		return a.letPick(ctx, open)
	}
	best, ok := a.Best.Best(open, func(o client.Offer) bool { return a.objection(o) == nil })
	switch {
	case ok:
		a.showOffers(open, &best)
		return a.accept(ctx, best)
	case inTime && a.limited:
		return nil // a better one may come
	}
	a.showOffers(open, nil)
	return askError{OutcomeNoneGood, a.noneGood(open)}
}

// objection returns why an offer cannot be accepted; nil: it can.
func (a *asking) objection(o client.Offer) error {
	if a.passed[o.Envelope.Hash()] && !a.Choose {
		return errors.New("the agent has taken it back")
	}
	_, err := a.call.Acceptance(o)
	return err
}

// Reason returns an objection as a text about the flags.
func (a *asking) reason(objection error) string {
	text := strings.TrimPrefix(objection.Error(), client.ErrUnacceptable.Error()+": ")
	text = strings.ReplaceAll(text, "max_cost_usd", "--max-cost")
	if !a.limited {
		text = strings.ReplaceAll(text, "--max-cost is 0", "--max-cost is not given")
	}
	return text
}

// collect waits for offers and puts them into a.offers. It ends when --wait is over, or --settle after an offer that
// can be accepted. Without a limit for the price, every offer counts: then the command only shows what it would cost.
// accepted is true if an offer was already accepted.
func (a *asking) collect(ctx context.Context) (accepted bool, err error) {
	until, silent := a.offersUntil, time.Now().Add(Silence)
	first := !a.hinted && !a.Choose && silent.Before(until)
	if first { // then the person learns why it is so quiet
		until = silent
	}
	within, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	a.offers = nil
	a.status.Set("waiting for offers")
	var settle *time.Timer
	for offer, err := range a.call.Offers(within) {
		switch {
		case ctx.Err() != nil:
			return false, ctx.Err()
		case err != nil && within.Err() != nil:
			if first && len(a.offers) == 0 {
				a.explainSilence()
			}
			return false, nil
		case err != nil:
			return false, a.fromThread(ctx, err)
		}
		a.offers = append(a.offers, offer)
		good := a.objection(offer) == nil
		if a.passed[offer.Envelope.Hash()] || !good && a.limited {
			a.status.Change(fmt.Sprintf("waiting for offers (%d so far)", len(a.offers)))
			continue
		}
		if a.To != "" || good && !a.Choose && a.Best == client.First || len(a.offers) >= maxShown {
			return false, nil
		}
		if settle == nil {
			settle = time.AfterFunc(a.Settle, cancel)
			defer settle.Stop()
		}
		a.status.Change(fmt.Sprintf("waiting for more offers (%d so far)", len(a.offers)))
	}
	return true, nil
}

// noneGood returns the error for offers of which none is acceptable.
func (a *asking) noneGood(offers []client.Offer) error {
	cheapest, ok := client.Cheapest.Best(offers, func(o client.Offer) bool {
		amount, ok := o.Amount()
		return ok && amount > 0 && strings.EqualFold(o.Price.Currency, "USD")
	})
	if !ok {
		return errors.New("no offer can be accepted: " + a.reason(a.objection(offers[0])))
	}
	amount, _ := cheapest.Amount()
	if a.limited {
		return fmt.Errorf("no offer can be accepted: %w", &tooExpensive{amount})
	}
	return fmt.Errorf("no offer is free, and nothing is paid without --max-cost: %w", &tooExpensive{amount})
}

// maxShown is how many offers are shown at most.
const maxShown = 100

// showOffers prints a table of the offers. It marks the one that is chosen, and those that cannot be accepted.
func (a *asking) showOffers(offers []client.Offer, chosen *client.Offer) {
	if a.Quiet {
		return
	}
	rows := [][]string{{"", "agent", "price", "ETA", "until", "plan"}}
	var reasons []string
	for i, o := range offers {
		mark, number := " ", strconv.Itoa(i+1)
		if chosen != nil && o.Envelope == chosen.Envelope {
			mark = "*"
		} else if why := a.objection(o); why != nil {
			mark = "-"
			reasons = append(reasons, fmt.Sprintf("- %s: %s", number, a.reason(why)))
		}
		rows = append(rows, []string{mark + " " + number, a.who(o.Agent), PriceOf(o), EtaOf(o), UntilOf(o, time.Now()),
			o.Plan})
	}
	for _, line := range TableLines(rows) {
		fmt.Fprintln(a.env.Stderr, line)
	}
	if chosen == nil {
		for _, line := range reasons[:min(len(reasons), maxReasons)] {
			fmt.Fprintln(a.env.Stderr, cli.Printable(line))
		}
	}
}

// maxReasons is for how many offers the command says why they cannot be accepted.
const maxReasons = 5

// TableLines returns the rows of a table as lines of at most cli.ScreenWidth columns. The last column gets the room that
// the others leave.
func TableLines(rows [][]string) (lines []string) {
	widths := make([]int, len(rows[0]))
	for i, row := range rows {
		rows[i] = slices.Clone(row)
		for j, cell := range row {
			rows[i][j] = cli.Printable(cell)
			widths[j] = max(widths[j], cli.Columns(rows[i][j]))
		}
	}
	for _, row := range rows {
		line := ""
		for j, cell := range row {
			if j == len(row)-1 {
				line = strings.TrimRight(line+cli.WithoutEnd(cell, max(cli.ScreenWidth-cli.Columns(line), 0)), " ")
				break
			}
			line += cell + strings.Repeat(" ", widths[j]-cli.Columns(cell)+2)
		}
		lines = append(lines, line)
	}
	return lines
}

// who returns the name of an agent for tables and progress: its name in the address book, or else its DID in short.
func (a *asking) who(did didkey.DID) string { return cmp.Or(a.people.Name(did), cli.ShortDID(did)) }

// PriceOf returns the price of an offer for people.
func PriceOf(o client.Offer) string {
	switch amount, ok := o.Amount(); {
	case !ok:
		return "?"
	case amount == 0:
		return "free"
	default:
		return formatAmount(amount) + " " + cli.WithoutEnd(cli.Printable(o.Price.Currency), 6)
	}
}

// formatAmount returns an amount of money.
func formatAmount(amount float64) string {
	if amount >= 1e-6 && amount < 1e12 {
		return strconv.FormatFloat(amount, 'f', -1, 64)
	}
	return strconv.FormatFloat(amount, 'g', -1, 64)
}

// EtaOf returns how long the agent says that it needs.
func EtaOf(o client.Offer) string {
	const longest = 9999 * time.Hour
	switch eta := o.ETASeconds; {
	case eta <= 0:
		return "-"
	case eta >= longest.Seconds():
		return ">" + cli.FormatDuration(longest)
	case eta < 1:
		return "<1s"
	default:
		return cli.FormatDuration(time.Duration(eta * float64(time.Second)).Round(time.Second))
	}
}

// UntilOf returns how long the offer is valid.
func UntilOf(o client.Offer, now time.Time) string {
	if o.ValidUntil == nil {
		return "-"
	}
	return cli.ShownLeft(*o.ValidUntil, now)
}

// letPick shows the offers and lets the person choose one. It returns nil if run must look at the thread again.
func (a *asking) letPick(ctx context.Context, offers []client.Offer) error {
	a.showOffers(offers, nil)
	for _, o := range offers {
		a.passed[o.Envelope.Hash()] = true
	}
	for {
		answer, err := a.answerTo(ctx, "Accept which offer? "+choices(offers))
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(answer)
		switch {
		case answer == "":
			a.offersUntil = time.Now().Add(a.Wait)
			return nil
		case answer == "q":
			return askError{OutcomeNoneGood, errors.New("you have chosen no offer")}
		case err != nil || n < 1 || n > len(offers):
			a.env.Say("there is no offer %s; answer with a number from 1 to %d, Enter or q", cli.Printable(answer), len(offers))
			continue
		}
		if why := a.objection(offers[n-1]); why != nil {
			a.env.Say("this offer cannot be accepted: %s", a.reason(why))
			continue
		}
		return a.accept(ctx, offers[n-1])
	}
}

// maxPriced is how many offers the question names with their price. The table has all of them.
const maxPriced = 5

// choices returns the possible answers with their prices.
func choices(offers []client.Offer) string {
	var all []string
	for i, o := range offers[:min(len(offers), maxPriced)] {
		all = append(all, fmt.Sprintf("%d = %s", i+1, PriceOf(o)))
	}
	if len(offers) > maxPriced {
		all = append(all, fmt.Sprintf("… %d", len(offers)))
	}
	return "[" + strings.Join(all, ", ") + "; Enter to wait for more, q to quit] "
}

// answerTo asks a question at the terminal, and returns the line that the person types then. What was typed before does
// not count: it was no answer to this question, and the answer may cost something. The end of the input counts as q.
func (a *asking) answerTo(ctx context.Context, question string) (string, error) {
	if a.typed == nil {
		a.typed = bufio.NewReader(a.env.Stdin)
	}
	if a.env.DropTyped != nil {
		if err := a.env.DropTyped(); err != nil {
			return "", fmt.Errorf("what was typed before the question cannot be dropped: %w", err)
		}
		a.typed.Reset(a.env.Stdin)
	}
	fmt.Fprint(a.env.Stderr, question)
	read := make(chan string, 1)
	go func() { // ends with the line, or with the process
		line, err := a.typed.ReadString('\n')
		if err != nil && line == "" {
			line = "q"
		}
		read <- strings.TrimSpace(line)
	}()
	select {
	case line := <-read:
		return line, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

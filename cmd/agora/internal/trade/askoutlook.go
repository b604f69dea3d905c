package trade

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
)

// What agora ask knows from the directory. Agents that decline a broadcast do so silently, so the command says what may
// be wrong before and while it waits. It continues in any case: an agent may serve what it does not announce.

// Silence is how long the command waits for a first offer before it says why there may be none.
const Silence = 5 * time.Second

// maxNameShown is how many columns the name of an announced service takes.
const maxNameShown = 40

// foresee looks into the directory, and says at once if nobody is likely to offer.
func (a *asking) foresee(ctx context.Context, opts client.RequestOptions) {
	o, err := a.market.Outlook(ctx, opts)
	if err != nil { // the request says what is wrong with the relay
		a.log.Debug("the directory was not read", "error", err)
		return
	}
	a.outlook = &o
	if why := a.doubt(); why != "" {
		a.hinted = true
		wait := a.Wait
		if a.Timeout > 0 {
			wait = min(wait, a.Timeout)
		}
		a.note("%s; waiting %s for an offer anyway", why, cli.FormatDuration(wait))
	}
}

// doubt returns why it is not likely that somebody offers; "": it is likely, or nothing is known.
func (a *asking) doubt() string {
	switch o := a.outlook; {
	case o == nil:
	case o.Nobody() && a.To != "":
		return fmt.Sprintf("%s does not announce %s%s", a.To, a.Intent, a.nearest())
	case o.Nobody():
		return fmt.Sprintf("nobody announces %s%s", a.Intent, a.nearest())
	case o.TooDear():
		return fmt.Sprintf("the cheapest agent announces %s USD for %s, and --max-cost is %s",
			formatAmount(*o.Price), a.Intent, formatAmount(*a.MaxCost))
	case a.To != "" && o.Online == 0:
		return string(a.To) + " is offline: the relay has not heard from it for five minutes"
	}
	return ""
}

// nearest returns the most similar names that are announced.
func (a *asking) nearest() string {
	if len(a.outlook.Nearest) == 0 {
		return ""
	}
	var names []string
	for _, name := range a.outlook.Nearest {
		names = append(names, cli.WithoutEnd(cli.Printable(name), maxNameShown))
	}
	return "; the nearest names are " + strings.Join(names, ", ")
}

// explainSilence says why there may be no offer, once.
func (a *asking) explainSilence() {
	a.hinted = true
	a.note("no offer after %s%s", cli.FormatDuration(Silence), a.hint())
}

// hint says what to do if nobody offers, and why nobody may.
func (a *asking) hint() string {
	text := "; agora agents shows who is there; an agent that declines says why only if you ask it with --to DID"
	if a.To != "" {
		text = "; agora agents DID shows whether the agent is online"
	}
	switch why := a.doubt(); {
	case why != "":
		text += "; " + why
	case a.To == "" && a.outlook != nil:
		text += fmt.Sprintf("; agents that announce %s: %d, online: %d; perhaps the --params are not what they need",
			a.Intent, a.outlook.Agents, a.outlook.Online)
	}
	return text
}

package trade

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// ThreadsCmd is agora threads.
type ThreadsCmd struct {
	cli.Identified
	State []string `enum:"PENDING,ACTIVE,COMPLETED,ERROR" placeholder:"STATE" help:"Only threads in this state: PENDING, ACTIVE, COMPLETED or ERROR. May be repeated."`
	Limit int      `default:"20" placeholder:"N" help:"The newest N threads, at most 200 (default: ${default})."`
	cli.Listing
}

// mostThreads is the greatest --limit. Each thread is a request to the relay.
const mostThreads = 200

func (c ThreadsCmd) Validate() error {
	if c.Limit < 1 || c.Limit > mostThreads {
		return errors.New("--limit must be from 1 to 200")
	}
	return nil
}

func (ThreadsCmd) Help() string {
	return "Lists the threads that you have opened, that name you, or in which you have made an offer. The newest comes " +
		"first: the one in which something happened last. The state is what the relay says. Threads whose messages have all " +
		"expired are not listed.\n\n" + cli.FormatHelp(threadRow{}) +
		"Examples:\n  agora threads\n  agora threads --state PENDING --state ACTIVE\n" +
		"  agora threads --format '{{.Thread}} {{.State}}'"
}

// threadRow is a thread of mine.
type threadRow struct {
	Thread   string       `json:"thread"`
	State    thread.State `json:"state"`
	At       time.Time    `json:"at"` // of the last step, by the relay's clock
	Deadline *time.Time   `json:"deadline,omitempty"`
	Intent   string       `json:"intent,omitempty"`
	Role     string       `json:"role"` // client or agent
	Client   didkey.DID   `json:"client"`
	Agent    didkey.DID   `json:"agent,omitempty"` // the accepted agent, or else the one that the REQUEST names
	Offers   int          `json:"offers"`          // open offers
}

func (c ThreadsCmd) Run(env cli.Environment) error {
	if err := c.Format.Check(threadRow{}); err != nil {
		return err
	}
	relay, me, err := c.Client(env)
	if err != nil {
		return err
	}
	own, err := OwnThreads(env.Ctx, relay, me, ownPages)
	if err != nil {
		return err
	}
	rows, err := c.read(env.Ctx, relay, me, own)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		env.Say("%s", c.emptyResult())
	}
	slices.SortStableFunc(rows, func(a, b threadRow) int { return b.At.Compare(a.At) })
	p, now := env.People(me), time.Now()
	p.Short = env.StdoutIsTerminal
	return cli.Show(env, c.Listing, []string{"STATE", "AGE", "INTENT", "WITH", "THREAD"}, rows, func(r threadRow) []string {
		return []string{string(r.State), cli.Age(now.Sub(r.At)), r.Intent, r.with(p), r.Thread}
	}, 2)
}

func (c ThreadsCmd) emptyResult() string {
	if len(c.State) > 0 {
		return "none of your threads at this relay is " + strings.Join(c.State, " or ")
	}
	return "you have no threads at this relay; agora ask opens one"
}

// with says with whom I am in the thread.
func (r threadRow) with(p cli.People) string {
	switch {
	case r.Role == "agent":
		return p.Who(r.Client)
	case r.Agent != "":
		return p.Who(r.Agent)
	case r.Offers > 0:
		return cli.Count(int64(r.Offers), "offer")
	}
	return "everybody"
}

const (
	ownPage  = 200 // how many messages OwnThreads reads at once
	ownPages = 5   // how many pages agora threads reads in each direction
)

// ownThread is a thread of mine, as far as the messages from me and to me show it.
type ownThread struct {
	thread.Key
	At     time.Time // of the newest message, as its sender claims
	Intent string    // empty: unknown
}

// OwnThreads returns the threads of me, the newest first. It finds them by the newest messages from me and to me, and
// reads at most this many pages of each.
func OwnThreads(ctx context.Context, relay *client.Client, me didkey.DID, pages int) ([]ownThread, error) {
	found := map[thread.Key]ownThread{}
	for _, filter := range []client.Filter{{Sender: me}, {Recipient: me}} {
		before := ""
		for range pages {
			page, err := relay.EventsBefore(ctx, filter, before, ownPage)
			if err != nil {
				return nil, err
			}
			for _, e := range page.Events {
				key, ok := threadOf(e)
				if !ok {
					continue
				}
				known := found[key]
				if e.Type == envelope.TypeRequest {
					known.Intent = e.PayloadString("intent")
				}
				found[key] = ownThread{key, latest(known.At, e.TS), known.Intent}
			}
			if before = page.Cursor; !page.HasMore {
				break
			}
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b ownThread) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Client, b.Client))
	}), nil
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// threadOf returns the thread to which a message belongs, if the message shows who its client is.
func threadOf(e *envelope.Envelope) (key thread.Key, ok bool) {
	key.ID = e.Thread
	switch e.Type {
	case envelope.TypeRequest, envelope.TypeAccept:
		key.Client = e.Sender.ID
	case envelope.TypeOffer, envelope.TypeResult:
		key.Client = e.Recipient
	}
	return key, key.ID != "" && key.Client != ""
}

// readers is how many threads are read at the same time.
const readers = 8

// read returns the rows of the first threads of own that are in one of the states, at most --limit of them. It leaves
// out threads that the relay does not show any more.
func (c ThreadsCmd) read(
	ctx context.Context, relay *client.Client, me didkey.DID, own []ownThread,
) (rows []threadRow, err error) {
	for batch := range slices.Chunk(own[:min(len(own), mostThreads)], readers) {
		found, failed := make([]*threadRow, len(batch)), make([]error, len(batch))
		var all sync.WaitGroup
		for i, one := range batch {
			all.Go(func() { found[i], failed[i] = readThread(ctx, relay, me, one) })
		}
		all.Wait()
		if err := errors.Join(failed...); err != nil {
			return nil, err
		}
		for _, row := range found {
			if row == nil || len(c.State) > 0 && !slices.Contains(c.State, string(row.State)) {
				continue
			}
			if rows = append(rows, *row); len(rows) == c.Limit {
				return rows, nil
			}
		}
	}
	return rows, nil
}

// readThread returns the row of a thread; nil: the relay does not show it.
func readThread(
	ctx context.Context, relay *client.Client, me didkey.DID, own ownThread,
) (*threadRow, error) {
	t, err := relay.Thread(ctx, own.ID, own.Client)
	if envelope.CodeOf(err) == envelope.CodeThreadNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	row := &threadRow{Thread: t.ID, State: t.State, Deadline: deadline(t), Intent: own.Intent, Role: "agent", Client: t.Client,
		Agent: cmp.Or(t.Agent, t.Recipient), Offers: len(t.Offers)}
	if t.Client == me {
		row.Role = "client"
	}
	if n := len(t.Transitions); n > 0 {
		row.At = t.Transitions[n-1].At
	}
	if request := t.Request(); request != nil {
		row.Intent = request.PayloadString("intent")
	}
	return row, nil
}

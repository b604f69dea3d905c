package a2a

import (
	"context"
	"encoding/base64"
	"fmt"
	"math"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/relay"
)

// This file answers GetTask, ListTasks and CancelTask.

// getTask answers GetTask.
func (p *operation) getTask() error {
	params, err := wire.ParseTaskParams(p.params)
	if err != nil {
		return err
	}
	var text taskText
	if err := p.view(func(q relay.Querier) error {
		t, err := p.findTask(q, params.ID)
		if err != nil {
			return err
		}
		text, err = newText(q, t, view{length(params.HistoryLength), true})
		return err
	}); err != nil {
		return err
	}
	return p.writeTask(text)
}

// writeTask answers with a task.
func (p *operation) writeTask(t taskText) error {
	return p.write("", p.texts(p.r.Context(), p.from, t), func() string { return "" }, nil)
}

// page is what ListTasks asks for.
type page struct {
	wire.List
	context int64 // 0: every one
	since   int64
	at, n   int64 // the last task of the page before
}

// listTasks answers ListTasks.
func (p *operation) listTasks() error {
	list, err := wire.ParseList(p.params)
	if err != nil {
		return err
	}
	g := page{List: list, at: math.MaxInt64, n: math.MaxInt64}
	if list.PageToken != "" {
		if g.at, g.n, err = parseToken(list.PageToken); err != nil {
			return err
		}
	}
	if since, ok := envelope.ParseTime(list.After); ok {
		g.since = since.UnixNano()
	}
	var texts []taskText
	var total int64
	if err := p.view(func(q relay.Querier) error {
		texts, total = nil, 0
		if seesNothing, err := p.narrow(q, &g); err != nil || seesNothing {
			return err
		}
		texts, total, err = p.tasksOf(q, g)
		return err
	}); err != nil {
		return err
	}
	token := ""
	if len(texts) > g.PageSize {
		texts = texts[:g.PageSize]
		end := texts[g.PageSize-1]
		token = formatToken(end.statusAt, end.n)
	}
	return p.write(`{"tasks":[`, p.texts(p.r.Context(), p.from, texts...), func() string {
		return fmt.Sprintf(`],"nextPageToken":%q,"pageSize":%d,"totalSize":%d}`, token, g.PageSize, total)
	}, nil)
}

// narrow finds the conversation that a list is restricted to. seesNothing is true if the caller has no such tasks. An
// anonymous caller sees only a conversation that the relay has named, because it can know only its own.
func (p *operation) narrow(q relay.Querier, g *page) (seesNothing bool, err error) {
	if g.ContextID == "" {
		return p.caller.anonymous(), nil
	}
	c, err := sharedContext(q, p.endpoint.n, p.caller.id, g.ContextID)
	g.context = c.n
	return c.n == 0, err
}

// tasksOf returns the tasks of a page and the next one, and how many tasks the list has.
func (p *operation) tasksOf(q relay.Querier, g page) (texts []taskText, total int64, err error) {
	total, err = gateway.Number(q, "SELECT COUNT(*) FROM a2a_task WHERE endpoint = ? AND caller = ? AND status_at >= ? "+
		"AND (CAST(? AS BIGINT) = 0 OR context = ?) AND (CAST(? AS TEXT) = '' OR state = ?)",
		p.endpoint.n, p.caller.id, g.since, g.context, g.context, string(g.Status), string(g.Status))
	if err != nil {
		return nil, 0, err
	}
	tasks, err := list(q, (*task).fields, "SELECT "+taskColumns+" FROM a2a_task WHERE endpoint = ? AND caller = ? "+
		"AND status_at >= ? AND (status_at, n) < (?, ?) AND (CAST(? AS BIGINT) = 0 OR context = ?) "+
		"AND (CAST(? AS TEXT) = '' OR state = ?) ORDER BY status_at DESC, n DESC LIMIT ?",
		p.endpoint.n, p.caller.id, g.since, g.at, g.n, g.context, g.context, string(g.Status), string(g.Status), g.PageSize+1)
	for _, t := range tasks {
		if err == nil {
			var text taskText
			text, err = newText(q, t, view{g.HistoryLength, g.IncludeArtifacts})
			texts = append(texts, text)
		}
	}
	return texts, total, err
}

// formatToken returns the pageToken of the page after a task.
func formatToken(at, n int64) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d.%d", at, n))
}

// parseToken reads a pageToken. Errors: BadParams.
func parseToken(token string) (at, n int64, err error) {
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		_, err = fmt.Sscanf(string(text), "%d.%d", &at, &n)
	}
	if err != nil || formatToken(at, n) != token {
		return 0, 0, wire.Invalid("pageToken", "is not one of this relay; use nextPageToken of the page before")
	}
	return at, n, nil
}

// cancelTask answers CancelTask.
func (p *operation) cancelTask() error {
	params, err := wire.ParseTaskParams(p.params)
	if err != nil {
		return err
	}
	var t task
	var text taskText
	find := func(q relay.Querier) (err error) {
		if t, err = p.findTask(q, params.ID); err == nil && t.ended != 0 {
			err = wire.Errorf(wire.TaskNotCancelable, "This task has ended.")
			err.(*wire.Error).Metadata = map[string]string{"taskId": t.id}
		}
		return err
	}
	if err := p.view(find); err != nil {
		return err
	}
	err = p.end(p.background(), p.from, t, outcome{state: wire.Canceled}, "the caller has canceled the task", find)
	if err != nil {
		return err
	}
	if err := p.view(func(q relay.Querier) error {
		if t, err = taskByNumber(q, t.n); err != nil {
			return err
		}
		text, err = newText(q, t, view{historyLength, true})
		return err
	}); err != nil {
		return err
	}
	return p.writeTask(text)
}

// end ends a task, and cancels the thread of its turn if that is open. reason is for the agent. check is run first in
// the same transaction; it may be nil. A task that has ended stays as it is.
func (g *Gateway) end(
	ctx context.Context, from relay.Peer, t task, out outcome, reason string, check func(relay.Querier) error,
) error {
	return g.deliveries.End(ctx, from, reason, func(q relay.Querier) ([]deliver.Delivery, error) {
		u, err := turnOf(q, t)
		if err != nil {
			return nil, err
		}
		e, err := endpointByNumber(q, u.endpoint)
		return []deliver.Delivery{u.delivery(e)}, err
	}, func(o *gateway.Op) error {
		if check != nil {
			if err := check(o); err != nil {
				return err
			}
		}
		now, err := taskByNumber(o, t.n)
		if err != nil || now.n == 0 || now.ended != 0 {
			return err
		}
		if now.turn != t.turn {
			return envelope.NotStored("the task has got another message meanwhile; try again", fullRetry/60)
		}
		u, err := turnOf(o, now)
		if err != nil {
			return err
		}
		return g.finish(o, now, u, out)
	})
}

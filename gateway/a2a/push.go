package a2a

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/agora-relay/agora/gateway"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
)

// This file keeps push configurations: where a caller wants the events of a task to be sent (docs/A2A.md, "Push").

// runPush answers the operations with push configurations.
func (p *operation) runPush() error {
	switch p.method.Name {
	case "CreateTaskPushNotificationConfig":
		return p.createPush()
	case "ListTaskPushNotificationConfigs":
		return p.listPushes()
	case "GetTaskPushNotificationConfig":
		return p.getPush()
	}
	return p.deletePush()
}

// checkPush checks the URL of a configuration, and gives the configuration an id if it has none. path is the path of its
// members in errors.
func (p *operation) checkPush(path string, c *wire.Push) error {
	if c.ID == "" {
		c.ID = gateway.NewID("pc_")
	}
	if _, own := p.hookKey(c.URL); own {
		return nil
	}
	if _, err := p.Outgoing.Check(c.URL); err != nil {
		return wire.Invalid(path+"url", "is refused: %v", err)
	}
	return nil
}

// createPush answers CreateTaskPushNotificationConfig. The task may have ended.
func (p *operation) createPush() error {
	c, err := wire.ParsePush(p.params)
	if err == nil {
		err = p.checkPush("", &c)
	}
	if err != nil {
		return err
	}
	if err := p.update(func(o *gateway.Op) error {
		t, err := p.findTask(o, c.TaskID)
		if err != nil {
			return err
		}
		return p.setPush(o, t, c, 0)
	}); err != nil {
		return err
	}
	return p.writeValue(c)
}

// writeValue answers with a value.
func (p *operation) writeValue(v any) error {
	return p.write(string(jsontext.Compact(v)), func(func([]byte, error) bool) {}, func() string { return "" }, nil)
}

// setPush stores a configuration, in place of one with the same id. It gets the events that come after the events of t.
// begins is the number of the first event, and the task is sent in its place; 0: there is none.
func (p *operation) setPush(o *gateway.Op, t task, c wire.Push, begins int64) error {
	all, err := pushesOf(o, t.n)
	if err != nil {
		return err
	}
	x := push{task: t.n, id: c.ID, version: 1, begins: begins, done: t.seq, until: t.seq}
	save := insertPush
	if i := slices.IndexFunc(all, func(x push) bool { return x.id == c.ID }); i >= 0 {
		x, save = all[i], updatePush
		x.version++
		x.begins = cmp.Or(begins, x.begins)
		if err := p.pushes.RestartLane(o.ExtTx, x.n); err != nil {
			return err
		}
		o.Then(func() { p.pushes.Wake(x.n) })
	} else {
		most := maxPushes
		if p.caller.anonymous() {
			most = 1
		}
		if len(all) >= most {
			return gateway.LimitReached(limitPushes, time.Hour, "this task has %d push configurations, which is the limit for "+
				"this caller; delete one first", most)
		}
		if x.n, err = gateway.Next(o.ExtTx, pushCounter); err != nil {
			return err
		}
	}
	c.ID, c.TaskID = "", ""
	x.config = p.Secrets.Encrypt(configPlace(x.n), jsontext.Compact(c))
	return save(o.ExtTx, x)
}

// configOf returns what the caller has stored.
func (g *Gateway) configOf(x push) (c wire.Push, err error) {
	text, err := g.Secrets.Decrypt(configPlace(x.n), x.config)
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	return c, err
}

// shownPush returns a configuration as its caller sees it.
func (g *Gateway) shownPush(t task, x push) (wire.Push, error) {
	c, err := g.configOf(x)
	c.ID, c.TaskID = x.id, t.id
	return c, err
}

// listPushes answers ListTaskPushNotificationConfigs, in the order in which they were created.
func (p *operation) listPushes() error {
	params, err := wire.ParsePushParams(p.params, false)
	if err != nil {
		return err
	}
	var shown []wire.Push
	if err := p.view(func(q relay.Querier) error {
		shown = nil
		t, err := p.findTask(q, params.TaskID)
		if err != nil {
			return err
		}
		all, err := pushesOf(q, t.n)
		slices.SortFunc(all, func(a, b push) int { return cmp.Compare(a.n, b.n) })
		for _, x := range all {
			if err == nil {
				var c wire.Push
				c, err = p.shownPush(t, x)
				shown = append(shown, c)
			}
		}
		return err
	}); err != nil {
		return err
	}
	return p.write(`{"configs":[`, func(yield func([]byte, error) bool) {
		comma := ""
		for _, c := range shown {
			if !yield(append([]byte(comma), jsontext.Compact(c)...), nil) {
				return
			}
			comma = ","
		}
	}, func() string { return `],"nextPageToken":""}` }, nil)
}

// getPush answers GetTaskPushNotificationConfig. Errors: TaskNotFound.
func (p *operation) getPush() error {
	params, err := wire.ParsePushParams(p.params, true)
	if err != nil {
		return err
	}
	var shown wire.Push
	if err := p.view(func(q relay.Querier) error {
		t, err := p.findTask(q, params.TaskID)
		if err != nil {
			return err
		}
		x, err := pushByID(q, t.n, params.ID)
		if err == nil && x.n == 0 {
			err = wire.Errorf(wire.TaskNotFound, "This task has no push configuration with this id.")
		}
		if err == nil {
			shown, err = p.shownPush(t, x)
		}
		return err
	}); err != nil {
		return err
	}
	return p.writeValue(shown)
}

// deletePush answers DeleteTaskPushNotificationConfig. It succeeds if there is no such configuration.
func (p *operation) deletePush() error {
	params, err := wire.ParsePushParams(p.params, true)
	if err != nil {
		return err
	}
	if err := p.update(func(o *gateway.Op) error {
		t, err := p.findTask(o, params.TaskID)
		if err != nil {
			return err
		}
		x, err := pushByID(o, t.n, params.ID)
		if err != nil || x.n == 0 {
			return err
		}
		return p.dropPush(o, x)
	}); err != nil {
		return err
	}
	return p.writeValue(struct{}{})
}

// dropPush removes a configuration and its job.
func (g *Gateway) dropPush(o *gateway.Op, x push) error {
	o.Then(func() { g.pushes.Wake(x.n) })
	if err := g.pushes.RemoveLane(o.ExtTx, x.n); err != nil {
		return err
	}
	return gateway.Exec(o.ExtTx, "DELETE FROM a2a_push WHERE n = ?", x.n)
}

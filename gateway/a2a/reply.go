package a2a

import (
	"time"

	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/relay"
)

// This file answers SendMessage.

// answer answers SendMessage: at once, or when the turn has ended or has waited long enough.
func (p *operation) answer(ref int64, c wire.Configuration, keep func([]byte)) error {
	waited := false
	if !c.ReturnImmediately {
		waited = p.await(ref)
	}
	var t task
	var text taskText
	err := p.Relay.View(p.background(), p.from, func(q relay.Querier) error {
		u, err := turnByNumber(q, ref)
		if err != nil {
			return err
		}
		if t, err = taskByNumber(q, u.task); err != nil {
			return err
		}
		text, err = newText(q, t, view{length(c.HistoryLength), true})
		return err
	})
	if err != nil {
		return err
	}
	if waited && t.direct && t.turn == 1 {
		return p.writeDirect(text, keep)
	}
	return p.write(`{"task":`, p.texts(p.r.Context(), p.from, text), func() string { return "}" }, keep)
}

// writeDirect answers with only the message of the agent.
func (p *operation) writeDirect(t taskText, keep func([]byte)) error {
	var e event
	if err := p.view(func(q relay.Querier) (err error) {
		e, err = eventAt(q, t.n, t.statusSeq)
		return err
	}); err != nil {
		return err
	}
	return p.write(`{"message":`+t.message(e.body)+"}", func(func([]byte, error) bool) {}, func() string { return "" }, keep)
}

// await waits until a turn has ended or waits for its caller, at most as long as a blocking call waits. It returns false if
// the client cannot wait, because it has too many waiting requests. It never fails, because the message is stored.
func (p *operation) await(ref int64) bool {
	slot, err := p.Relay.OpenStream(p.from, p.signer)
	if err != nil {
		return false
	}
	defer slot.Close()
	var u turn
	if p.view(func(q relay.Querier) (err error) {
		u, err = turnByNumber(q, ref)
		return err
	}) != nil {
		return false
	}
	changes := p.news.Follow(u.task)
	defer changes.Close()
	timeout := time.NewTimer(p.options.Wait)
	defer timeout.Stop()
	for {
		var t task
		news := changes.Next() // before the view, which is of one moment, so that no change is missed
		if err := p.view(func(q relay.Querier) (err error) {
			t, err = taskByNumber(q, u.task)
			return err
		}); err != nil || isDone(t.state) {
			return err == nil
		}
		select {
		case <-news:
		case <-timeout.C:
			return true
		case <-slot.Ended():
			return true
		case <-p.r.Context().Done():
			return true
		}
	}
}

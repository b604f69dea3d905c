package a2a

import (
	"errors"
	"net/http"
	"strings"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
)

// This file takes the messages of callers.

// sending is a message of a caller that is about to be stored.
type sending struct {
	wire.Send
	work         work // as it was when the REQUEST was signed
	conversation conversation
	shared       bool // another task with this contextId belongs to the conversation
	checked      relay.Checked
}

// sendMessage answers SendMessage and SendStreamingMessage.
func (p *operation) sendMessage() error {
	s := sending{}
	var err error
	if s.Send, err = wire.ParseSend(p.params); err != nil {
		return err
	}
	f := p.endpoint.known()
	if err := p.useExtensions(f); err != nil {
		return err
	}
	if err := f.checkParts(s.Message); err != nil {
		return err
	}
	if s.Configuration.Push != nil {
		if err := p.checkPush("configuration.taskPushNotificationConfig.", s.Configuration.Push); err != nil {
			return err
		}
	}
	repeat, given, err := gateway.ParseRepeat(p.r, "A2A "+string(p.endpoint.did)+" "+p.method.Name, p.caller.payer, p.params)
	if err != nil {
		return err
	}
	if given {
		end, err := p.answers.Begin(p.r.Context(), repeat)
		if err != nil {
			return err
		}
		defer end()
	}
	var stored gateway.Stored
	if given {
		stored, err = p.findRepeat(repeat)
		if err != nil {
			return err
		}
	}
	if stored.Ref == 0 {
		if stored.Ref, err = p.take(&s, repeat, given); err != nil {
			return err
		}
	} else {
		p.w.Header().Set("Idempotent-Replay", "true")
	}
	switch {
	case p.method.Stream:
		return p.streamTurn(stored.Ref)
	case stored.Status != 0:
		return p.write(string(stored.Body), func(func([]byte, error) bool) {}, func() string { return "" }, nil)
	}
	return p.answer(stored.Ref, s.Configuration, func(result []byte) {
		if given {
			p.keep(repeat, result)
		}
	})
}

// findRepeat returns what is stored for a repeated request. The Ref is 0 if the request is new.
func (p *operation) findRepeat(r gateway.Repeat) (stored gateway.Stored, err error) {
	err = p.view(func(q relay.Querier) error {
		stored, _, err = p.answers.Find(q, r)
		return err
	})
	return stored, err
}

// keep stores the answer to a request with an Idempotency-Key.
func (p *operation) keep(r gateway.Repeat, result []byte) {
	err := p.Update(p.background(), self, func(o *gateway.Op) error {
		return p.answers.Finish(o.ExtTx, r, http.StatusOK, result)
	})
	if err != nil && p.Relay.Health() == nil {
		p.Log.Error("an answer cannot be kept for its Idempotency-Key; a repeated request gets the task as it is then", "err", err)
	}
}

// checkParts refuses a message with a part of a type that the agent does not take.
func (f facts) checkParts(m wire.Message) error {
	for _, part := range m.Parts {
		if media := part.Media(); !f.takes(media) {
			return wire.Errorf(wire.ContentTypeNotSupported, "This agent takes no %q; its card says that it takes %s.", media,
				strings.Join(f.Modes, ", "))
		}
	}
	return nil
}

// takes reports whether one of the card's modes matches a media type. A mode without a slash is a kind of parts.
func (f facts) takes(media string) bool {
	media, _, _ = strings.Cut(strings.ToLower(media), ";")
	media = strings.TrimSpace(media)
	for _, mode := range f.Modes {
		mode = strings.ToLower(mode)
		kind, all := strings.CutSuffix(mode, "/*")
		switch {
		case mode == media, mode == "*/*", mode == "file", all && strings.HasPrefix(media, kind+"/"),
			mode == "text" && strings.HasPrefix(media, "text/"), mode == "data" && media == wire.JSONType:
			return true
		}
	}
	return false
}

// take stores a message as a new turn, and returns the turn's number. The rows and the REQUEST are one Update, if there is
// room for the REQUEST.
func (p *operation) take(s *sending, repeat gateway.Repeat, given bool) (ref int64, err error) {
	if err := p.prepare(s); err != nil {
		return 0, err
	}
	if s.checked, err = p.seal(s.work); err != nil {
		return 0, err
	}
	admitted := s.Message.TaskID != "" || !p.caller.anonymous()
	err = p.update(func(o *gateway.Op) error {
		if given {
			stored, found, err := p.answers.Find(o, repeat)
			if err != nil || found {
				ref = stored.Ref
				return err
			}
		}
		if !admitted {
			if err := p.newTasks.Take(p.from, p.Relay.Now); err != nil {
				return err
			}
			admitted = true // the function may be run twice
		}
		n, err := p.store(o, s)
		if ref = n; err != nil || !given {
			return err
		}
		return p.answers.Add(o.ExtTx, repeat, n)
	})
	return ref, err
}

// prepare finds the task and the conversation of a message, and what its REQUEST says. It changes nothing.
func (p *operation) prepare(s *sending) error {
	return p.view(func(q relay.Querier) (err error) {
		w := work{endpoint: p.endpoint, caller: p.caller.shown}
		if s.Message.TaskID == "" {
			w.task = task{id: gateway.NewID("tsk_"), endpoint: p.endpoint.n, caller: p.caller.id, payer: p.caller.payer}
		} else if w.task, err = p.findTask(q, s.Message.TaskID); err != nil {
			return err
		}
		if s.conversation, s.shared, err = p.converse(q, s.Message.ContextID, w.task); err != nil {
			return err
		}
		if err := w.task.takesTurn(s.Message.ContextID, s.conversation.name); err != nil {
			return err
		}
		references, err := p.ownTasks(q, s.Message.ReferenceTaskIDs)
		if err != nil {
			return err
		}
		w.context = s.conversation.id
		w.message = string(jsontext.Compact(s.Message.In("", "", references)))
		w.turn = turn{id: gateway.NewID("trn_"), endpoint: p.endpoint.n, number: w.task.turn + 1, payer: p.caller.payer,
			message: w.task.seq + 1, options: string(jsontext.Compact(options{s.Configuration.AcceptedOutputModes,
				p.extensions(), s.Metadata}))}
		s.work = w
		return s.work.loadHistory(q)
	})
}

// takesTurn refuses another message for a task that does not wait for one. The zero task takes one.
func (t task) takesTurn(given, name string) error {
	switch {
	case t.n == 0:
		return nil
	case given != "" && given != name:
		return wire.Invalid("message.contextId", "is not the context of this task; leave it out")
	case t.state.Terminal():
		return wire.Errorf(wire.UnsupportedOperation, "This task has ended; send the message without taskId.")
	case t.open:
		return wire.Errorf(wire.UnsupportedOperation, "The agent still works on this task; send the message when the task waits "+
			"for input.")
	}
	return nil
}

// converse returns the conversation of a message. The number is 0 if it is new. shared says whether another task with
// this contextId belongs to the conversation: two anonymous callers may choose the same contextId.
func (p *operation) converse(q relay.Querier, given string, t task) (c conversation, shared bool, err error) {
	if t.n != 0 {
		c, err = contextByNumber(q, t.context)
		return c, c.shared, err
	}
	if given != "" {
		if c, err = sharedContext(q, p.endpoint.n, p.caller.id, given); err != nil || c.n != 0 {
			return c, true, err
		}
	}
	c = conversation{id: gateway.NewID("cv_"), endpoint: p.endpoint.n, caller: p.caller.id, name: given}
	if c.shared = !p.caller.anonymous() || given == ""; given == "" {
		c.name = gateway.NewID("ctx_")
	}
	return c, c.shared, nil
}

// maxReferences is how many ids of other tasks a message may have.
const maxReferences = 100

// ownTasks returns those ids that are tasks of the caller.
func (p *operation) ownTasks(q relay.Querier, ids []string) (own []string, err error) {
	if len(ids) > maxReferences {
		return nil, wire.Invalid("message.referenceTaskIds", "must have at most %d elements", maxReferences)
	}
	for _, id := range ids {
		if _, err := p.findTask(q, id); err == nil {
			own = append(own, id)
		} else if _, unknown := errors.AsType[*wire.Error](err); !unknown {
			return nil, err
		}
	}
	return own, nil
}

// store stores a message as a turn.
func (p *operation) store(o *gateway.Op, s *sending) (n int64, err error) {
	w := s.work
	t, context, err := p.taskFor(o, s)
	if err != nil {
		return 0, err
	}
	if t.bytes+int64(len(w.message)) > p.taskBytes {
		return 0, envelope.TooLarge(int64(len(w.message)), int(max(p.taskBytes-t.bytes, 0)))
	}
	fresh := t.seq == w.task.seq && context == w.context // the signed REQUEST says what is stored now
	t.turn++
	t.open = true
	u := w.turn
	u.task, u.number, u.message, u.asked = t.n, t.turn, t.seq+1, o.Now
	if u.n, err = gateway.Next(o.ExtTx, turnCounter); err != nil {
		return 0, err
	}
	if err := t.add(o, event{kind: said, said: true, body: w.message}); err != nil {
		return 0, err
	}
	if s.Configuration.Push != nil {
		if err := p.setPush(o, t, *s.Configuration.Push, t.seq+1); err != nil {
			return 0, err
		}
	}
	if err := t.setStatus(o, wire.Submitted, nil, 0); err != nil {
		return 0, err
	}
	if t.turn == 1 {
		if err := insertTask(o.ExtTx, t); err != nil {
			return 0, err
		}
	}
	if err := p.save(o, t); err != nil {
		return 0, err
	}
	if u.state, err = p.hand(o, s.checked, u, fresh); err != nil {
		return 0, err
	}
	return u.n, insertTurn(o.ExtTx, u)
}

// taskFor returns the task of a message as it is now, and the cv_… of its conversation. A new task is not stored yet.
func (p *operation) taskFor(o *gateway.Op, s *sending) (t task, context string, err error) {
	if t = s.work.task; t.n != 0 {
		if t, err = taskByNumber(o, t.n); err != nil {
			return t, "", err
		}
		if t.endpoint != p.endpoint.n { // it was removed meanwhile
			return t, "", wire.NoTask(s.Message.TaskID)
		}
		return t, s.conversation.id, t.takesTurn("", "")
	}
	if err := checkTasks(o, p.endpoint, p.caller); err != nil {
		return t, "", err
	}
	if t.n, err = gateway.Next(o.ExtTx, taskCounter); err != nil {
		return t, "", err
	}
	c, err := p.storeContext(o, s.conversation)
	t.created, t.context = o.Now, c.n
	return t, c.id, err
}

// storeContext stores a conversation, unless it exists.
func (p *operation) storeContext(o *gateway.Op, c conversation) (conversation, error) {
	if c.shared {
		if known, err := sharedContext(o, c.endpoint, c.caller, c.name); err != nil || known.n != 0 {
			return known, err
		}
	}
	var err error
	if c.n, err = gateway.Next(o.ExtTx, contextCounter); err != nil {
		return c, err
	}
	return c, insertContext(o.ExtTx, c)
}

// hand appends the REQUEST of a turn, if there is room. It returns the state of the turn.
func (p *operation) hand(o *gateway.Op, checked relay.Checked, u turn, fresh bool) (state deliver.State, err error) {
	before, err := aheadOf(o, u.endpoint)
	if err != nil {
		return deliver.Waiting, err
	}
	if fresh && before.hasRoom(u.payer) {
		if err = p.deliveries.Append(o, checked); err == nil {
			return deliver.Sent, nil
		} else if !deliver.Refused(err) {
			return deliver.Waiting, err
		}
	}
	o.Then(p.deliveries.Wake)
	return deliver.Waiting, nil
}

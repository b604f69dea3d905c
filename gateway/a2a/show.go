package a2a

import (
	"context"
	"errors"

	"github.com/agora-relay/agora/gateway"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/jsontext"
	"github.com/agora-relay/agora/relay"
)

// This file writes tasks and events as JSON. A task can have megabytes of artifacts and messages, so its text is made from
// rows in pieces, and is never whole in memory.

// Bounds of a piece of a text.
const (
	pieceBytes = 32 << 10
	pieceRows  = 64
)

// quote returns a text as JSON.
func quote(text string) string { return string(jsontext.Compact(text)) }

// names are the ids that the messages of a task have. Callers and agents see different ones.
type names struct{ context, task string }

// message returns a message with its ids. body has none. An agent does not get the id of the task in the message that
// began it.
func (n names) message(body string) string {
	ids := ""
	if n.context != "" {
		ids = `"contextId":` + quote(n.context) + ","
	}
	if n.task != "" {
		ids += `"taskId":` + quote(n.task) + ","
	}
	return "{" + ids + body[1:]
}

// status returns the JSON of a status.
func (n names) status(e event) string {
	text := `{"state":` + quote(string(e.state))
	if e.said {
		text += `,"message":` + n.message(e.body)
	}
	return text + `,"timestamp":` + quote(gateway.Stamp(e.at)) + "}"
}

// update returns an event as a Stream object.
func (n names) update(e event) string {
	ids := `{"taskId":` + quote(n.task) + `,"contextId":` + quote(n.context)
	if e.kind == status {
		return `{"statusUpdate":` + ids + `,"status":` + n.status(e) + "}}"
	}
	text := `{"artifactUpdate":` + ids + `,"artifact":` + openArtifact(e) + e.parts + "]}"
	if e.flags&appended != 0 {
		text += `,"append":true`
	}
	if e.flags&last != 0 {
		text += `,"lastChunk":true`
	}
	return text + "}}"
}

// openArtifact returns the text of an artifact up to its parts.
func openArtifact(e event) string { return e.body[:len(e.body)-1] + `,"parts":[` }

// view says what of a task is shown.
type view struct {
	history   int  // how many of the newest messages; 0: none
	artifacts bool // all artifacts
}

// stage is what comes next in the text of a task.
type stage int

const (
	beginTask stage = iota
	beginArtifacts
	inArtifacts
	beginHistory
	inHistory
	endTask
	taskDone
)

// taskText makes the text of a task, in pieces. It shows the task as it was when the first piece was read.
type taskText struct {
	task
	names
	view
	stage
	place, at int64 // the artifact that is being written, 0: none; the last event that was written
	begun     bool  // the present list has an element
	inParts   bool  // the present artifact has begun
}

// next appends the next piece to text. more is false after the last one. q is another one for each piece.
func (t *taskText) next(q relay.Querier, text []byte) (_ []byte, more bool, err error) {
	for start := len(text); err == nil && t.stage != taskDone && len(text)-start < pieceBytes; {
		switch t.stage {
		case beginTask:
			var e event
			e, err = eventAt(q, t.n, t.statusSeq)
			text = append(text, `{"id":`+quote(t.id)+`,"contextId":`+quote(t.context())+`,"status":`+t.status(e)...)
			t.stage++
		case beginArtifacts:
			if t.stage = beginHistory; t.view.artifacts && t.task.artifacts > 0 {
				text = append(text, `,"artifacts":[`...)
				t.stage = inArtifacts
			}
		case inArtifacts:
			text, err = t.nextArtifacts(q, text)
		case beginHistory:
			text, err = t.beginHistory(q, text)
		case inHistory:
			text, err = t.nextMessages(q, text)
		case endTask:
			var metadata string
			metadata, err = proofOf(q, t.task)
			text = append(text, metadata+"}"...)
			t.stage++
		}
	}
	return text, t.stage != taskDone, err
}

// context returns the contextId.
func (t *taskText) context() string { return t.names.context }

// nextArtifacts appends some rows of the present artifact, or begins the next one.
func (t *taskText) nextArtifacts(q relay.Querier, text []byte) ([]byte, error) {
	if t.place == 0 || t.at == 0 {
		p, err := find(q, (*piece).fields, "SELECT "+artifactColumns+" FROM a2a_artifact WHERE task = ? AND place > ? "+
			"AND base <= ? ORDER BY place LIMIT 1", t.n, t.place, t.seq)
		if err != nil {
			return text, err
		}
		if p.place == 0 {
			t.begun, t.stage = false, beginHistory
			return append(text, ']'), nil
		}
		t.place, t.at = p.place, p.base-1
	}
	rows, more, err := someEvents(q, "SELECT "+eventColumns+" FROM a2a_event WHERE task = ? AND artifact = ? AND seq > ? "+
		"AND seq <= ? ORDER BY seq LIMIT ?", t.n, t.place, t.at, t.seq, pieceRows)
	for _, e := range rows {
		t.at = e.seq
		if t.begun {
			text = append(text, ',')
		}
		if !t.inParts {
			text = append(text, openArtifact(e)...)
		}
		text = append(text, e.parts...)
		t.begun, t.inParts = true, true
	}
	if !more {
		text = append(text, "]}"...)
		t.at, t.inParts = 0, false
	}
	return text, err
}

// beginHistory finds the first message to show.
func (t *taskText) beginHistory(q relay.Querier, text []byte) ([]byte, error) {
	if t.stage = endTask; t.history == 0 {
		return text, nil
	}
	first, err := gateway.Number(q, "SELECT COALESCE(MIN(seq), 0) FROM (SELECT seq FROM a2a_event WHERE task = ? AND said = 1 "+
		"AND seq <= ? ORDER BY seq DESC LIMIT ?) AS newest", t.n, t.seq, t.history)
	t.at, t.begun, t.stage = first-1, false, inHistory
	return append(text, `,"history":[`...), err
}

// nextMessages appends some messages of the history.
func (t *taskText) nextMessages(q relay.Querier, text []byte) ([]byte, error) {
	rows, more, err := messagesAfter(q, t.n, t.at, t.seq)
	for _, e := range rows {
		if t.at = e.seq; t.begun {
			text = append(text, ',')
		}
		text = append(text, t.message(e.body)...)
		t.begun = true
	}
	if !more {
		text = append(text, ']')
		t.stage = endTask
	}
	return text, err
}

// someEvents returns the events that a SELECT of eventColumns finds: at most pieceBytes, or one event.
func someEvents(q relay.Querier, text string, args ...any) (some []event, more bool, err error) {
	size := 0
	err = q.Query(func(scan gateway.Scanner) error {
		var e event
		if err := scan(e.fields()...); err != nil {
			return err
		}
		if size += int(e.size()); len(some) > 0 && size > pieceBytes {
			return errPieceFull
		}
		some = append(some, e)
		return nil
	}, text, args...)
	if errors.Is(err, errPieceFull) {
		return some, true, nil
	}
	return some, len(some) == pieceRows, err
}

// eventsAfter returns the next events of a task, without the messages of the caller. They are newer than a time.
func eventsAfter(q relay.Querier, task, after, newer int64) (some []event, more bool, err error) {
	return someEvents(q, "SELECT "+eventColumns+" FROM a2a_event WHERE task = ? AND seq > ? AND kind > 0 AND at > ? "+
		"ORDER BY seq LIMIT ?", task, after, newer, pieceRows)
}

var errPieceFull = errors.New("the piece is full")

// messagesAfter returns the next messages of a task, up to an event.
func messagesAfter(q relay.Querier, task, after, upTo int64) (some []event, more bool, err error) {
	return someEvents(q, "SELECT "+eventColumns+" FROM a2a_event WHERE task = ? AND said = 1 AND seq > ? AND seq <= ? "+
		"ORDER BY seq LIMIT ?", task, after, upTo, pieceRows)
}

// texts yields the text of tasks, one after the other, with commas between them.
func (g *Gateway) texts(ctx context.Context, from relay.Peer, all ...taskText) gateway.Elements {
	n := 0
	return gateway.Parts(ctx, g.Core, from, func() (text []byte, more bool, err error) {
		if n == len(all) {
			return nil, false, nil
		}
		var now taskText
		err = g.Relay.View(ctx, from, func(q relay.Querier) (err error) {
			now, text = all[n], nil
			text, more, err = now.next(q, text)
			return err
		})
		if err != nil {
			return nil, false, err
		}
		if all[n] = now; !more {
			if n++; n < len(all) {
				text = append(text, ',')
			}
		}
		return text, n < len(all), nil
	})
}

// newText returns the text of a task for its caller.
func newText(q relay.Querier, t task, v view) (taskText, error) {
	c, err := contextByNumber(q, t.context)
	return taskText{task: t, names: names{c.name, t.id}, view: v}, err
}

// length returns how many messages to show.
func length(given *int) int {
	if given == nil {
		return historyLength
	}
	return *given
}

// isDone reports whether a blocking call is answered in this state of a task.
func isDone(s wire.State) bool { return s.Terminal() || s.Interrupted() }

// ignoreFull returns nil for the end of a piece.
func ignoreFull(err error) error {
	if errors.Is(err, errPieceFull) {
		return nil
	}
	return err
}

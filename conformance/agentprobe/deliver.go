package agentprobe

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// sender is the sender of all messages.
const sender = "agora channel probe"

// delivery is one delivery to the agent, and what came of it. The service's mu guards everything below the tokens.
type delivery struct {
	channel, message, content string
	token, toolToken          string                // of the callback, and of the server of tools
	hold                      time.Duration         // the answers to the first events are delayed by this much
	answer                    func(*event, int) int // the status for an event and its number; nil: see callback
	sent, answered            time.Time             // when it was sent, and when the agent had answered
	status                    int                   // of the agent's answer; 0: there was none
	text                      string                // of the agent's answer
	err                       error                 // why there was none

	events []*event
	said   int // messages by the tool send_message
	saidAt time.Time
	open   int // events that are not answered yet
}

// want describes a delivery.
type want struct {
	channel, message string                // empty: the usual channel, and a new message
	mcp              string                // empty: the usual form
	hold             time.Duration         // see delivery
	answer           func(*event, int) int // see delivery
	change           func(map[string]any)  // changes the body; nil: nothing to change
}

// usualChannel is the channel of most deliveries.
const usualChannel = "ch_probe"

// newDelivery returns a delivery and its body (CHANNEL §2).
func (p *probe) newDelivery(w want) (*delivery, []byte) {
	p.next++
	d := &delivery{channel: w.channel, message: w.message, content: p.Content, hold: w.hold, answer: w.answer,
		token: "tok_" + rand.Text(), toolToken: "mt_" + rand.Text()}
	if d.channel == "" {
		d.channel = usualChannel
	}
	if d.message == "" {
		d.message = fmt.Sprintf("msg_%s_%d", strings.ToLower(rand.Text()[:8]), p.next)
	}
	body := map[string]any{
		"channel":  map[string]any{"id": d.channel, "name": "probe", "service": sender, "context": "A test of an agent."},
		"message":  map[string]any{"id": d.message, "sender": sender, "content": d.content},
		"callback": p.URL + "/channels/" + d.channel + "/inbox/" + d.token,
	}
	server := map[string]any{"url": p.URL + "/mcp/" + d.channel,
		"headers": map[string]any{"Authorization": "Bearer " + d.toolToken}}
	form := w.mcp
	if form == "" {
		form = p.MCP
	}
	switch form {
	case "object":
		body["mcp"] = server
	case "array":
		server["name"] = "agora"
		body["mcp"] = []any{server}
	case "empty":
		body["mcp"] = []any{}
	}
	if w.change != nil {
		w.change(body)
	}
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // the probe made the body from texts
	}
	p.service.add(d)
	p.sent = append(p.sent, d)
	return d, text
}

// deliver sends a delivery, and waits for the agent's answer to the request.
func (p *probe) deliver(ctx context.Context, w want) *delivery {
	d, body := p.newDelivery(w)
	p.send(ctx, d, body)
	return d
}

// send sends the body of a delivery.
func (p *probe) send(ctx context.Context, d *delivery, body []byte) {
	began := time.Now()
	p.service.mu.Lock()
	d.sent = began
	p.service.mu.Unlock()
	status, text, err := p.post(ctx, p.connection, body)
	p.service.mu.Lock()
	defer p.service.mu.Unlock()
	d.status, d.text, d.err, d.answered = status, text, err, time.Now()
}

// post sends a body to a URL of the agent. It returns the status and the text of the answer.
func (p *probe) post(ctx context.Context, to string, body []byte) (status int, text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.AnswerWithin)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "agora-channel-probe")
	response, err := p.http.Do(r)
	if err != nil {
		return 0, "", p.withoutSecret(err)
	}
	said, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return 0, "", p.withoutSecret(err)
	}
	p.service.mu.Lock()
	defer p.service.mu.Unlock()
	if response.StatusCode >= 300 && response.StatusCode < 400 {
		p.redirects = append(p.redirects, fmt.Sprintf("a request was answered with %d", response.StatusCode))
	}
	return response.StatusCode, strings.TrimSpace(string(said)), nil
}

// withoutSecret returns an error of a request without the URL, and says so if the agent took too long.
func (p *probe) withoutSecret(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %v", p.AnswerWithin)
	}
	if request, ok := errors.AsType[*url.Error](err); ok {
		return request.Err
	}
	return err
}

// acknowledged returns why the agent did not acknowledge the delivery; empty: it did.
func (d *delivery) acknowledged() string {
	switch {
	case d.err != nil:
		return "the delivery got no answer: " + shorten(d.err.Error())
	case d.status < 200 || d.status > 299:
		if d.text != "" {
			return fmt.Sprintf("the delivery was answered with %d, want 2xx: %s", d.status, shorten(d.text))
		}
		return fmt.Sprintf("the delivery was answered with %d, want 2xx", d.status)
	}
	return ""
}

// messages returns how many messages the agent has said. The caller holds the service's mu.
func (d *delivery) messages() int {
	n := d.said
	for _, e := range d.events {
		if e.kind == "message" && (e.status == 0 || e.status == http.StatusOK) {
			n++
		}
	}
	return n
}

// finished reports whether the agent seems to have ended its answer, and how long nothing may then happen to be sure.
// The caller holds the service's mu.
func (d *delivery) finished(quiet time.Duration) (ended bool, last time.Time, patience time.Duration) {
	patience, last = quiet, d.answered
	ended = d.said > 0
	for _, e := range d.events {
		ended = ended || e.kind == "message" || e.kind == "error"
		if e.kind == "lifecycle" && e.members["status"] == "idle" {
			ended, patience = true, quiet/4
		}
		if last = e.began; !e.ended.IsZero() {
			last = e.ended
		}
	}
	if d.saidAt.After(last) {
		last = d.saidAt
	}
	return ended && d.open == 0, last, patience
}

// settle waits until the agent has answered the delivery and nothing more comes, or until it has had enough time.
func (p *probe) settle(ctx context.Context, d *delivery) {
	for {
		p.service.mu.Lock()
		ended, last, patience := d.finished(p.Quiet)
		changed, left := p.service.changed, time.Until(d.sent.Add(p.Wait))
		p.service.mu.Unlock()
		if ended {
			left = min(time.Until(last.Add(patience)), left+patience)
		}
		if left <= 0 || d.err != nil || !pause(ctx, changed, left) {
			return
		}
	}
}

// pause waits for a change or the end of a time. It returns false if ctx has ended.
func pause(ctx context.Context, changed <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
		return false
	}
	return true
}

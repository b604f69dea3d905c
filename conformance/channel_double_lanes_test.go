package conformance_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Deliveries and callbacks of a double.

// doubleLane is a connection.
type doubleLane struct {
	channel         *doubleChannel
	name, url, mcp  string
	status          string
	queue           []*doubleRow
	dead            int
	ended           bool // it delivers nothing more
	gone            bool // its tokens are worth nothing
	hurry           bool // the next attempt need not wait
	woken           chan struct{}
	token, mcpToken string // of the first attempt, for a fault
}

type doubleRow struct {
	event    object
	url      string // when the message was posted, for a fault
	attempts int
}

func (l *doubleLane) notify() {
	select {
	case l.woken <- struct{}{}:
	default:
	}
}

func (d *channelDouble) newLane(ch *doubleChannel, name, url, mcp string) *doubleLane {
	lane := &doubleLane{channel: ch, name: name, url: url, mcp: mcp, status: "active", woken: make(chan struct{}, 1)}
	ch.lanes = append(ch.lanes, lane)
	d.work.Go(func() { d.run(lane) })
	return lane
}

// end ends a lane.
func (d *channelDouble) end(lane *doubleLane) {
	lane.ended, lane.queue = true, nil
	lane.notify()
}

// deliver queues an event for all connections but that of its sender. It returns how many get it.
func (d *channelDouble) deliver(ch *doubleChannel, event object, from *doubleLane, depth int) (n int) {
	deepest := 4
	if d.has("stops at depth 3") {
		deepest = 3
	}
	if depth > deepest && !d.has("never stops") {
		return 0
	}
	if from != nil {
		recent := 0
		for _, at := range ch.said {
			if time.Since(at) < time.Minute {
				recent++
			}
		}
		ch.said = append(ch.said, time.Now())
		if recent >= 60 && !d.has("lets agents say everything") {
			return 0
		}
	}
	for _, lane := range ch.lanes {
		if lane == from && !d.has("returns messages to their senders") || lane.status != "active" {
			continue
		}
		if n > 0 && d.has("delivers to one connection") {
			break
		}
		row := &doubleRow{event: event, url: lane.url}
		if d.has("delivers the newest message first") && len(lane.queue) > 1 {
			lane.queue = slices.Insert(lane.queue, 1, row)
		} else {
			lane.queue = append(lane.queue, row)
		}
		lane.notify()
		n++
	}
	return n
}

// run delivers what is in the queue of a lane.
func (d *channelDouble) run(lane *doubleLane) {
	for {
		d.mu.Lock()
		ended := lane.ended
		var row *doubleRow
		if len(lane.queue) > 0 {
			row = lane.queue[0]
		}
		d.mu.Unlock()
		if ended {
			return
		}
		pause := time.Hour
		if row != nil {
			if d.has("delivers at the same time") {
				d.mu.Lock()
				lane.queue = lane.queue[1:]
				d.mu.Unlock()
				d.work.Go(func() { d.attempt(lane, row) })
				continue
			}
			pause = d.attempt(lane, row)
		}
		timer := time.NewTimer(pause)
		for hurry := false; !hurry && pause > 0; {
			select {
			case <-timer.C:
				pause = 0
			case <-lane.woken:
				d.mu.Lock()
				hurry = row == nil || lane.hurry || lane.ended
				lane.hurry = false
				d.mu.Unlock()
			case <-d.ctx.Done():
				return
			}
		}
		timer.Stop()
	}
}

// attempt sends a row. It returns how long to wait before the next attempt of the lane.
func (d *channelDouble) attempt(lane *doubleLane, row *doubleRow) (pause time.Duration) {
	if d.has("has one lane for all") {
		d.oneLane.Lock()
		defer d.oneLane.Unlock()
	}
	d.toHost <- struct{}{}
	status, retryAfter := d.send(lane, row)
	<-d.toHost
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Contains(lane.queue, row) {
		return 0
	}
	row.attempts++
	retried := status == 0 || status == 408 || status == 425 || status == 429 || status >= 500 ||
		status == 400 && d.has("repeats what was refused")
	switch {
	case status >= 200 && status < 300:
		lane.queue = lane.queue[1:]
	case (status == 404 || status == 410) && !d.has("takes 404 as any failure"):
		lane.status = "revoked"
		lane.dead += len(lane.queue)
		lane.queue = nil
	case retried && !d.has("gives up at the first failure"):
		pause = time.Duration(float64(time.Second<<row.attempts) * (0.8 + 0.4*rand.Float64()))
		if retryAfter > 0 && !d.has("ignores Retry-After") {
			pause = retryAfter
		}
	default:
		lane.dead++
		lane.queue = lane.queue[1:]
	}
	return pause
}

// send makes one attempt. The status is 0 if no answer came.
func (d *channelDouble) send(lane *doubleLane, row *doubleRow) (status int, retryAfter time.Duration) {
	d.mu.Lock()
	if lane.hurry = false; lane.ended {
		d.mu.Unlock()
		return 0, 0
	}
	body, tokens := d.deliveryOf(lane, row)
	url := lane.url
	if d.has("keeps the URL of what is queued") {
		url = row.url
	}
	if d.has("drops the query") {
		url, _, _ = strings.Cut(url, "?")
	}
	if !d.has("opens callbacks late") {
		maps.Copy(d.tokens, tokens)
	}
	d.mu.Unlock()
	r, err := http.NewRequestWithContext(d.ctx, http.MethodPost, url, bytes.NewReader(encode(body)))
	if err != nil {
		panic(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", row.event["id"].(string))
	if d.has("sends a key") {
		r.Header.Set("Authorization", "Bearer x")
	}
	answer, err := d.client.Do(r)
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.Copy(d.tokens, tokens)
	if err != nil {
		return 0, 0
	}
	_ = answer.Body.Close() // it is not read
	seconds, err := strconv.Atoi(answer.Header.Get("Retry-After"))
	if err != nil {
		seconds = 0
	}
	return answer.StatusCode, time.Duration(seconds) * time.Second
}

// deliveryOf returns the body of a delivery, and its tokens.
func (d *channelDouble) deliveryOf(lane *doubleLane, row *doubleRow) (body object, tokens map[string]*doubleToken) {
	ch := lane.channel
	tok, mt := newKey("tok_"), newKey("mt_")
	if d.has("has one token for all attempts") && lane.token != "" {
		tok, mt = lane.token, lane.mcpToken
	}
	if d.has("ends the tokens of earlier attempts") {
		delete(d.tokens, lane.token)
	}
	lane.token, lane.mcpToken = tok, mt
	depth, _ := row.event["depth"].(int)
	token := &doubleToken{lane: lane, depth: depth}
	id := row.event["id"]
	if row.attempts > 0 && d.has("changes the id in each attempt") {
		id = newDoubleID("msg_")
	}
	server := object{"url": d.url + "/mcp/" + ch.id, "headers": object{"Authorization": "Bearer " + mt}}
	body = object{
		"channel":  object{"id": ch.id, "name": ch.name, "service": "a double", "context": ch.context},
		"message":  object{"id": id, "sender": row.event["sender"], "content": row.event["content"]},
		"callback": d.url + "/channels/" + ch.id + "/inbox/" + tok, "mcp": server,
	}
	switch {
	case lane.mcp == "none" && d.has("sends mcp to all"):
	case lane.mcp == "none":
		delete(body, "mcp")
	case lane.mcp == "array" && !d.has("sends one object to all"):
		body["mcp"] = []any{server}
		if !d.has("does not name its server") {
			server["name"] = "agora"
		}
	}
	if d.has("sends the whole event") {
		body["message"] = row.event
	}
	return body, map[string]*doubleToken{tok: token, mt: token}
}

// tokenIn returns what a token belongs to.
func (d *channelDouble) tokenIn(c *doubleCall, prefix, token string) (*doubleToken, error) {
	found := d.tokens[token]
	if found == nil || !strings.HasPrefix(token, prefix) ||
		found.lane.channel.id != c.channel && !d.has("takes tokens of other channels") {
		return nil, errors.New("unknown")
	}
	return found, nil
}

func (d *channelDouble) report(c *doubleCall) {
	token, err := d.tokenIn(c, "tok_", c.name)
	if err != nil && d.has("answers unknown callbacks with 401") {
		refuse(http.StatusUnauthorized)
	}
	if err != nil {
		refuse(http.StatusNotFound)
	}
	lane := token.lane
	if lane.gone || lane.status == "revoked" && !d.has("keeps the tokens of revoked connections") {
		refuse(http.StatusGone)
	}
	d.read(c)
	d.once(c, "POST /inbox "+c.name, func() (int, object) {
		d.checkEvent(c.body)
		if token.events++; token.events > 600 && !d.has("has no limits") {
			panic(doubleError{429, "RATE_LIMITED", "callbackEvents"})
		}
		return http.StatusOK, object{"seq": d.reported(token, c.body, "callback")["seq"]}
	})
}

// reported stores an event of an agent.
func (d *channelDouble) reported(token *doubleToken, members object, via string) object {
	lane := token.lane
	if d.has("drops unknown members") {
		members = maps.Clone(members)
		delete(members, "x")
	}
	if list, ok := members["x"].([]any); ok && d.has("keeps the spelling of numbers") {
		list[0] = json.RawMessage("1.50e1")
	}
	event := d.add(lane.channel, members, lane.name, "agent", via, token.depth+1)
	switch members["type"] {
	case "message":
		d.deliver(lane.channel, event, lane, token.depth+1)
	case "status", "lifecycle":
		lane.channel.shown[lane.name] = members["status"].(string)
	}
	if members["type"] != "message" && d.has("delivers all events") {
		d.deliver(lane.channel, event, lane, 0)
	}
	return event
}

// checkEvent refuses an event that is not right.
func (d *channelDouble) checkEvent(e object) {
	short := 256
	if d.has("takes short names") {
		short = 255
	}
	if d.has("checks no members") && slices.Contains([]any{"message", "tool_call", "tool_result", "error", "lifecycle"},
		e["type"]) {
		return
	}
	switch e["type"] {
	case "message":
		d.mustText(e, "content", 1, 32_768)
	case "tool_call":
		d.mustText(e, "name", 1, short)
		d.mustText(e, "id", 1, short)
		if _, ok := e["args"].(object); !ok && e["args"] != nil {
			refuse(http.StatusBadRequest)
		}
	case "tool_result":
		d.mustText(e, "id", 1, short)
		d.mustText(e, "content", 0, 65_536)
	case "error":
		d.mustText(e, "message", 1, 32_768)
		d.textIn(e, "code", 1, short)
	case "status":
		d.mustText(e, "status", 1, 500)
	case "lifecycle":
		d.mustText(e, "status", 1, 64)
	default:
		if !d.has("takes events of every type") {
			refuse(http.StatusBadRequest)
		}
	}
}

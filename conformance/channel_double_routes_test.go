package conformance_test

import (
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"time"
	"unicode"
)

// The routes of a double. They run while its mutex is held.

func (d *channelDouble) showChannel(c *doubleChannel) object {
	shown := object{"id": c.id, "name": c.name, "context": c.context, "createdAt": milliseconds(c.created)}
	if d.has("hides the context") {
		delete(shown, "context")
	}
	return object{"channel": shown}
}

func (d *channelDouble) create(c *doubleCall) {
	kinds := []string{"operator"}
	if d.has("lets channels create channels") {
		kinds = append(kinds, "channel")
	}
	d.caller(c, kinds...)
	d.read(c)
	ch := &doubleChannel{id: newDoubleID("ch_"), name: d.mustText(c.body, "name", 1, 80), created: time.Now(),
		shown: map[string]string{}, changed: make(chan struct{})}
	ch.context, _ = d.textIn(c.body, "context", 0, 2000)
	d.channels[ch.id] = ch
	d.created++
	key := newKey("ck_")
	d.keys[key] = doubleKey{kind: "channel", channel: ch}
	body := d.showChannel(ch)
	body["key"] = key
	if d.has("has other keys") {
		body["key"] = "key_" + key
	}
	d.answer(c, http.StatusCreated, body)
}

// managers returns who may manage a channel.
func (d *channelDouble) managers() []string {
	if d.has("lets members manage") {
		return []string{"operator", "channel", "member"}
	}
	return []string{"operator", "channel"}
}

func (d *channelDouble) show(c *doubleCall) {
	_, ch := d.caller(c, d.managers()...)
	d.answer(c, http.StatusOK, d.showChannel(ch))
}

func (d *channelDouble) patch(c *doubleCall) {
	_, ch := d.caller(c, d.managers()...)
	d.read(c)
	name, named := d.textIn(c.body, "name", 1, 80)
	if named && d.has("changes the name before it reads the context") {
		ch.name = name
	}
	context, changed := d.textIn(c.body, "context", 0, 2000)
	if named {
		ch.name = name
	}
	if changed {
		ch.context = context
	}
	d.answer(c, http.StatusOK, d.showChannel(ch))
}

func (d *channelDouble) deleteChannel(c *doubleCall) {
	_, ch := d.caller(c, d.managers()...)
	ch.ended = true
	delete(d.channels, ch.id)
	maps.DeleteFunc(d.keys, func(_ string, k doubleKey) bool {
		return k.channel == ch && !(d.has("keeps the keys of deleted channels") && k.kind == "channel")
	})
	for _, lane := range ch.lanes {
		d.end(lane)
		lane.gone = !d.has("keeps the tokens of deleted channels")
	}
	d.answer(c, http.StatusOK, object{})
}

var doubleName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// newName returns the name in a body, which must be free.
func (d *channelDouble) newName(c *doubleCall, ch *doubleChannel, members bool) string {
	name := d.mustText(c.body, "name", 1, 64)
	if !doubleName.MatchString(name) && !d.has("takes every name") {
		refuse(http.StatusBadRequest)
	}
	taken := slices.Contains(ch.members, name)
	if !members || !d.has("has two sets of names") {
		taken = taken || ch.lane(name) != nil
	}
	if taken && !d.has("replaces whoever has a name") {
		refuse(http.StatusConflict)
	}
	return name
}

func (ch *doubleChannel) lane(name string) *doubleLane {
	for _, lane := range ch.lanes {
		if lane.name == name {
			return lane
		}
	}
	return nil
}

func (d *channelDouble) addMember(c *doubleCall) {
	_, ch := d.caller(c, d.managers()...)
	d.read(c)
	name := d.newName(c, ch, true)
	if len(ch.members) == 200 && !d.has("has no limits") {
		panic(doubleError{429, "RATE_LIMITED", "members"})
	}
	ch.members = append(ch.members, name)
	key := newKey("cm_")
	d.keys[key] = doubleKey{kind: "member", channel: ch, name: name}
	d.answer(c, http.StatusCreated, object{"member": object{"name": name}, "key": key})
}

func (d *channelDouble) listMembers(c *doubleCall) {
	_, ch := d.caller(c, d.managers()...)
	list := []any{}
	for _, name := range ch.members {
		list = append(list, object{"name": name})
	}
	if d.has("lists one member") && len(list) > 1 {
		list = list[:1]
	}
	d.answer(c, http.StatusOK, object{"members": list})
}

func (d *channelDouble) deleteMember(c *doubleCall) {
	_, ch := d.caller(c, d.managers()...)
	if !slices.Contains(ch.members, c.name) {
		refuse(http.StatusNotFound)
	}
	ch.members = slices.DeleteFunc(ch.members, func(name string) bool { return name == c.name })
	maps.DeleteFunc(d.keys, func(_ string, k doubleKey) bool {
		return k.channel == ch && k.kind == "member" && k.name == c.name && !d.has("keeps the keys of deleted members")
	})
	d.answer(c, http.StatusOK, object{})
}

func (d *channelDouble) showLane(l *doubleLane) object {
	host, err := url.Parse(l.url)
	if err != nil {
		panic(err)
	}
	shown := object{"name": l.name, "host": host.Hostname(), "status": l.status, "queued": len(l.queue), "dead": l.dead,
		"mcp": l.mcp}
	if d.has("shows connection strings") {
		shown["url"] = l.url
	}
	if d.has("does not count what it tries") && len(l.queue) > 0 {
		shown["queued"] = len(l.queue) - 1
	}
	if d.has("shows no host") {
		delete(shown, "host")
	}
	return shown
}

// urlIn returns the member url of a body.
func (d *channelDouble) urlIn(body object) (text string, given bool) {
	text, given = d.textIn(body, "url", 1, 4096)
	if given && !d.has("calls any URL") {
		if _, err := d.urls.Check(text); err != nil {
			refuse(http.StatusBadRequest)
		}
	}
	return text, given
}

func (d *channelDouble) mcpIn(body object) (form string, given bool) {
	form, given = d.textIn(body, "mcp", 0, 100)
	if given && !slices.Contains([]string{"object", "array", "none"}, form) {
		if !d.has("takes every form of mcp") {
			refuse(http.StatusBadRequest)
		}
		form = "object"
	}
	return form, given
}

func (d *channelDouble) connect(c *doubleCall) {
	_, ch := d.caller(c, d.managers()...)
	d.read(c)
	name := d.newName(c, ch, false)
	address, given := d.urlIn(c.body)
	form, formed := d.mcpIn(c.body)
	if !given {
		refuse(http.StatusBadRequest)
	}
	if !formed {
		form = "object"
	}
	if len(ch.lanes) == 50 && !d.has("has no limits") {
		panic(doubleError{429, "RATE_LIMITED", "connections"})
	}
	lane := d.newLane(ch, name, address, form)
	d.answer(c, http.StatusCreated, object{"connection": d.showLane(lane)})
}

func (d *channelDouble) listConnections(c *doubleCall) {
	_, ch := d.caller(c, d.managers()...)
	list := []any{}
	for _, lane := range ch.lanes {
		list = append(list, d.showLane(lane))
	}
	d.answer(c, http.StatusOK, object{"connections": list})
}

func (d *channelDouble) put(c *doubleCall) {
	_, ch := d.caller(c, d.managers()...)
	lane := ch.lane(c.name)
	if lane == nil {
		refuse(http.StatusNotFound)
	}
	d.read(c)
	address, moved := d.urlIn(c.body)
	if moved && d.has("changes the URL before it reads mcp") {
		lane.url = address
	}
	form, formed := d.mcpIn(c.body)
	if moved {
		lane.url = address
	}
	if formed {
		lane.mcp = form
	} else if d.has("forgets mcp at a PUT") {
		lane.mcp = "object"
	}
	if !d.has("revokes for ever") {
		lane.status = "active"
	}
	lane.hurry = true
	lane.notify()
	d.answer(c, http.StatusOK, object{"connection": d.showLane(lane)})
}

func (d *channelDouble) disconnect(c *doubleCall) {
	_, ch := d.caller(c, d.managers()...)
	lane := ch.lane(c.name)
	if lane == nil {
		refuse(http.StatusNotFound)
	}
	if !d.has("goes on after DELETE") {
		d.end(lane)
	}
	lane.gone = !d.has("keeps the tokens of deleted connections")
	if !d.has("keeps the names of deleted connections") {
		ch.lanes = slices.DeleteFunc(ch.lanes, func(l *doubleLane) bool { return l == lane })
	}
	d.answer(c, http.StatusOK, object{})
}

// relayMembers are the members of an event that the relay sets.
var relayMembers = []string{"seq", "id", "ts", "sender", "kind", "depth", "via"}

// add stores an event. members has what the sender has sent.
func (d *channelDouble) add(ch *doubleChannel, members object, sender, kind, via string, depth int) object {
	d.seq++
	seq := len(ch.events) + 1
	if d.has("counts the events of all channels") {
		seq = d.seq
	}
	event := object{"seq": seq, "id": newDoubleID("msg_"), "ts": milliseconds(time.Now()), "sender": sender,
		"kind": kind, "depth": depth, "via": via}
	for name, value := range members {
		own := slices.Contains(relayMembers, name)
		tool := name == "id" && (members["type"] == "tool_call" || members["type"] == "tool_result")
		if !own || tool || d.has("believes what is sent") && name != "seq" {
			event[name] = value
		}
	}
	if d.has("does not say how an event came") {
		delete(event, "via")
	}
	ch.events = append(ch.events, event)
	if !d.has("tells nobody that there are events") {
		close(ch.changed)
		ch.changed = make(chan struct{})
	}
	return event
}

func (d *channelDouble) post(c *doubleCall) {
	kinds := []string{"member"}
	if d.has("lets managers post") {
		kinds = append(kinds, "channel", "operator")
	}
	caller, ch := d.caller(c, kinds...)
	d.read(c)
	d.once(c, "POST /messages "+ch.id+" "+caller.name, func() (int, object) {
		message := object{"type": "message", "content": d.mustText(c.body, "content", 1, 32_768)}
		if d.has("believes what is sent") {
			maps.Copy(message, c.body)
		}
		event := d.add(ch, message, caller.name, "member", "api", 0)
		return http.StatusCreated, object{"event": event, "deliveries": d.deliver(ch, event, nil, 0)}
	})
}

// numberIn returns a query parameter.
func (d *channelDouble) numberIn(query url.Values, name string, least, most, otherwise int) int {
	values, given := query[name]
	if !given {
		return otherwise
	}
	n, err := strconv.Atoi(values[0])
	if len(values) == 1 && err == nil && n >= least && n <= most &&
		!slices.ContainsFunc([]rune(values[0]), func(r rune) bool { return !unicode.IsDigit(r) }) {
		return n
	}
	if !d.has("ignores bad parameters") {
		refuse(http.StatusBadRequest)
	}
	return otherwise
}

func (d *channelDouble) listEvents(c *doubleCall) {
	_, ch := d.caller(c, "operator", "channel", "member")
	query, err := url.ParseQuery(c.URL.RawQuery)
	if err != nil && !d.has("ignores bad parameters") {
		refuse(http.StatusBadRequest)
	}
	usual := 50
	if d.has("shows 100 events") {
		usual = 100
	}
	after, limit := d.numberIn(query, "after", 0, 1<<40, 0), d.numberIn(query, "limit", 1, 200, usual)
	wait := d.numberIn(query, "wait", 0, 60, 0)
	deadline := time.After(time.Duration(wait) * time.Second)
	if d.has("does not wait") {
		wait = 0
	}
	for {
		list := []any{}
		cursor := after
		for _, event := range ch.events {
			seq := event["seq"].(int)
			if seq > after || seq == after && d.has("takes after as inclusive") {
				if len(list) == limit {
					break
				}
				list, cursor = append(list, event), seq
			}
		}
		if len(list) > 0 || wait == 0 {
			d.answer(c, http.StatusOK, object{"events": list, "cursor": cursor})
			return
		}
		changed := ch.changed
		d.mu.Unlock()
		select {
		case <-changed:
		case <-deadline:
			wait = 0
		case <-c.Context().Done():
			wait = 0
		}
		d.mu.Lock()
	}
}

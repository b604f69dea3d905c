package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// hubStreamChecks test the form of inbox streams, and when they begin and end.
var hubStreamChecks = []hubCheck{
	{number: "hub.stream.header",
		title: "A stream has the Content-Type text/event-stream and is not cached or buffered",
		cites: `HUB "The inbox stream"`, run: func(h *hubProbe) {
			s := h.open(h.one(), "")
			header := s.answer.header
			h.want(strings.HasPrefix(header.Get("Content-Type"), "text/event-stream") &&
				header.Get("Cache-Control") == "no-store" && header.Get("X-Accel-Buffering") == "no", s.answer,
				"Content-Type: text/event-stream, Cache-Control: no-store, X-Accel-Buffering: no; the header is %v",
				header)
		}},
	{number: "hub.stream.connected", title: "The first frame has exactly the bytes of the protocol",
		cites: `HUB "The inbox stream"; H-18`,
		run: func(h *hubProbe) {
			a := h.one()
			s := h.openRaw(a, "/agent/inbox", http.Header{"Authorization": {"Bearer " + a.key}})
			f := h.wantOpen(s)
			want := "retry: 3000\nevent: connected\n" +
				`data: {"agent_id":"` + a.id + `","message":"Inbox open."}` + "\n\n"
			h.expect("the bytes %q", want)
			if f.raw != want {
				h.failf("%q", f.raw)
			}
		}},
	{number: "hub.stream.message",
		title: "A message frame has exactly the bytes of the protocol: LF, one space, one line of compact JSON",
		cites: `HUB "The inbox stream"; H-18`, run: func(h *hubProbe) {
			alice, bob := h.two()
			s := h.open(bob, "")
			m := h.send(alice, bob, "first line\nsecond line "+astral)
			f, data, ok := h.messageWithin(s, promptLimit)
			if !ok {
				h.expect("a message on the stream")
				h.failf("nothing came")
			}
			h.wantMessageBytes(f, data, m)
		}},
	{number: "hub.stream.ping", title: "A quiet stream gets :ping and an empty line every 20 s",
		cites: `HUB "The inbox stream"; H-18`,
		wait:  23 * time.Second, run: func(h *hubProbe) {
			s := h.open(h.one(), "")
			opened := time.Now()
			f, ok := h.frameWithin(s, 23*time.Second)
			h.expect(`the bytes ":ping\n\n" about 20 s after the first frame`)
			if waited := time.Since(opened); !ok || f.raw != ":ping\n\n" || waited < 15*time.Second {
				h.failf("%q after %v", f.raw, waited.Round(time.Second/10))
			}
		}},
	{number: "hub.stream.order", title: "Messages come at once and in the order of id, also from several senders",
		cites: `HUB "The inbox stream"`, run: func(h *hubProbe) {
			alice, bob, carol := h.three()
			s := h.open(carol, "")
			h.inParallel(20, func(i int) answer {
				from := []*hubAgent{alice, bob}[i%2]
				return h.write(from.key, "/messages", letter(from, carol, fmt.Sprint(i)))
			})
			last := 0.0
			for i := range 20 {
				f, data, ok := h.messageWithin(s, promptLimit)
				h.expect("20 messages with growing ids")
				if !ok || data.number("id") <= last || string(data.members["id"]) != f.id {
					h.failf("message %d after the id %v: %s", i+1, last, excerpt([]byte(f.raw), 400))
				}
				last = data.number("id")
			}
			h.wantQuiet(s)
		}},
	{number: "hub.stream.replaced",
		title: "A newer stream ends the older one with the reason replaced, and gets the messages",
		cites: `HUB "The inbox stream"; H-16`, run: func(h *hubProbe) {
			alice, bob := h.two()
			older := h.open(bob, "")
			newer := h.open(bob, "")
			h.wantClosed(older, "replaced")
			newest := h.openRaw(bob, h.session(bob), nil)
			h.wantOpen(newest)
			h.wantClosed(newer, "replaced")
			h.wantOnly(newest, h.send(alice, bob, "to the newest stream"))
		}},
	{number: "hub.stream.online", title: "An agent is online while its stream is open", cites: `HUB "Endpoints"`,
		run: func(h *hubProbe) {
			a := h.newAgent() // an agent of the pool may be online because of a webhook
			h.wantOnline(a, false, promptLimit)
			s := h.open(a, "")
			h.wantOnline(a, true, promptLimit)
			s.close()
			h.wantOnline(a, false, promptLimit)
		}},
	{number: "hub.stream.pace", title: "A backlog is written with at most 32 KiB in 100 ms",
		cites: `HUB "The inbox stream"; H-19`,
		wait:  2 * time.Second, run: paceOfBacklog},
	{number: "hub.stream.stalled", title: "A client that takes no byte for 30 s is cut off",
		cites: `HUB "The inbox stream"; H-17`,
		wait:  stalledLimit, run: stalledReader},
}

// wantMessageBytes ends the check unless f has the bytes of the message m (HUB, "The inbox stream").
func (h *hubProbe) wantMessageBytes(f frame, data answer, m sentMessage) {
	var compact bytes.Buffer
	h.expect("the frame \"event: message\\nid: N\\ndata: {\"id\":N,\"trace_id\":…,\"sender_id\":…,\"envelope\":{…}," +
		"\"timestamp\":…}\\n\\n\" with compact JSON and its members in this order")
	if json.Compact(&compact, []byte(f.data)) != nil || compact.String() != f.data ||
		f.raw != "event: message\nid: "+f.id+"\ndata: "+f.data+"\n\n" || strings.Contains(f.raw, "\r") {
		h.failf("%q", f.raw)
	}
	want := fmt.Sprintf(`{"id":%s,"trace_id":%q,"sender_id":%q,"envelope":%s,"timestamp":%q}`, f.id, m.trace, m.from.id,
		data.members["envelope"], data.text("timestamp"))
	if f.data != want || !timeForm.MatchString(data.text("timestamp")) {
		h.failf("%q", f.raw)
	}
}

// session returns the target of a stream with a new session token of a.
func (h *hubProbe) session(a *hubAgent) string {
	data := h.wantData(h.write(a.key, "/agent/session", nil), http.StatusOK)
	return "/agent/inbox?session=" + data.text("session_token")
}

// peek sends GET and returns the status of the answer. It does not read a stream.
func (h *hubProbe) peek(target string) answer {
	ctx, cancel := context.WithTimeout(h.ctx, answerTimeout+rateLimitTimeout)
	defer cancel()
	body, a, _ := h.begin(ctx, h.relay.client.Transport, target, nil)
	if body != nil {
		_ = body.Close() // nothing was written
	}
	return a
}

// wantOnline ends the check unless the directory shows within a time whether a is online.
func (h *hubProbe) wantOnline(a *hubAgent, online bool, within time.Duration) {
	for deadline := time.Now().Add(within); ; h.sleep(second / 10) {
		entry := h.listed(a)
		if got, present := entry.flag("online"); present && got == online {
			return
		}
		if time.Now().After(deadline) {
			h.expect(`"online":%v`, online)
			h.failf("%s", excerpt(entry.body, 400))
		}
	}
}

// largeText is a text of about 20 KB.
var largeText = strings.Repeat(wide, 6_600)

// paceOfBacklog opens a stream with a backlog of about 200 KB. At any time the hub may have written 32 KiB for each
// 100 ms since the request, and 32 KiB more. The network can only delay that.
func paceOfBacklog(h *hubProbe) {
	alice, bob := h.two()
	var sent []sentMessage
	for range 10 {
		sent = append(sent, h.send(alice, bob, largeText))
	}
	s := h.open(bob, "")
	h.wantMessages(s, sent...)
	s.close()
	const most = 32 << 10
	for _, read := range s.reads {
		elapsed := read.at.Sub(s.opened)
		allowed := most * (int(elapsed/(100*time.Millisecond)) + 2)
		h.expect("at most %d bytes in the first %v", allowed, elapsed.Round(time.Millisecond))
		if read.bytes > allowed {
			h.failf("%d bytes", read.bytes)
		}
	}
	h.note("%d bytes in %v", s.reads[len(s.reads)-1].bytes,
		s.reads[len(s.reads)-1].at.Sub(s.opened).Round(time.Millisecond))
}

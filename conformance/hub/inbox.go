package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// hubStreamChecks test the form of inbox streams, and when they begin and end.
var hubStreamChecks = []hubCheck{
	{Number: "hub.stream.header",
		Title: "A stream has the Content-Type text/event-stream and is not cached or buffered",
		Cites: `HUB "The inbox stream"`, Run: func(h *hubProbe) {
			s := h.open(h.one(), "")
			header := s.answer.Header
			h.Want(strings.HasPrefix(header.Get("Content-Type"), "text/event-stream") &&
				header.Get("Cache-Control") == "no-store" && header.Get("X-Accel-Buffering") == "no", s.answer,
				"Content-Type: text/event-stream, Cache-Control: no-store, X-Accel-Buffering: no; the header is %v",
				header)
		}},
	{Number: "hub.stream.connected", Title: "The first frame has exactly the bytes of the protocol",
		Cites: `HUB "The inbox stream"; H-18`,
		Run: func(h *hubProbe) {
			a := h.one()
			s := h.openRaw(a, "/agent/inbox", http.Header{"Authorization": {"Bearer " + a.key}})
			f := h.wantOpen(s)
			want := "retry: 3000\nevent: connected\n" +
				`data: {"agent_id":"` + a.id + `","message":"Inbox open."}` + "\n\n"
			h.Expect("the bytes %q", want)
			if f.raw != want {
				h.Failf("%q", f.raw)
			}
		}},
	{Number: "hub.stream.message",
		Title: "A message frame has exactly the bytes of the protocol: LF, one space, one line of compact JSON",
		Cites: `HUB "The inbox stream"; H-18`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			s := h.open(bob, "")
			m := h.send(alice, bob, "first line\nsecond line "+kit.Astral)
			f, data, ok := h.messageWithin(s, kit.PromptLimit)
			if !ok {
				h.Expect("a message on the stream")
				h.Failf("nothing came")
			}
			h.wantMessageBytes(f, data, m)
		}},
	{Number: "hub.stream.ping", Title: "A quiet stream gets :ping and an empty line every 20 s",
		Cites: `HUB "The inbox stream"; H-18`,
		Wait:  23 * time.Second, Run: func(h *hubProbe) {
			s := h.open(h.one(), "")
			opened := time.Now()
			f, ok := h.frameWithin(s, 23*time.Second)
			h.Expect(`the bytes ":ping\n\n" about 20 s after the first frame`)
			if waited := time.Since(opened); !ok || f.raw != ":ping\n\n" || waited < 15*time.Second {
				h.Failf("%q after %v", f.raw, waited.Round(time.Second/10))
			}
		}},
	{Number: "hub.stream.order", Title: "Messages come at once and in the order of id, also from several senders",
		Cites: `HUB "The inbox stream"`, Run: func(h *hubProbe) {
			alice, bob, carol := h.three()
			s := h.open(carol, "")
			h.InParallel(20, func(i int) kit.Answer {
				from := []*hubAgent{alice, bob}[i%2]
				return h.Write(from.key, "/messages", letter(from, carol, fmt.Sprint(i)))
			})
			last := 0.0
			for i := range 20 {
				f, data, ok := h.messageWithin(s, kit.PromptLimit)
				h.Expect("20 messages with growing ids")
				if !ok || data.Number("id") <= last || string(data.Members["id"]) != f.id {
					h.Failf("message %d after the id %v: %s", i+1, last, kit.Excerpt([]byte(f.raw), 400))
				}
				last = data.Number("id")
			}
			h.wantQuiet(s)
		}},
	{Number: "hub.stream.replaced",
		Title: "A newer stream ends the older one with the reason replaced, and gets the messages",
		Cites: `HUB "The inbox stream"; H-16`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			older := h.open(bob, "")
			newer := h.open(bob, "")
			h.wantClosed(older, "replaced")
			newest := h.openRaw(bob, h.session(bob), nil)
			h.wantOpen(newest)
			h.wantClosed(newer, "replaced")
			h.wantOnly(newest, h.send(alice, bob, "to the newest stream"))
		}},
	{Number: "hub.stream.online", Title: "An agent is online while its stream is open", Cites: `HUB "Endpoints"`,
		Run: func(h *hubProbe) {
			a := h.newAgent() // an agent of the pool may be online because of a webhook
			h.wantOnline(a, false, kit.PromptLimit)
			s := h.open(a, "")
			h.wantOnline(a, true, kit.PromptLimit)
			s.close()
			h.wantOnline(a, false, kit.PromptLimit)
		}},
	{Number: "hub.stream.pace", Title: "A backlog is written with at most 32 KiB in 100 ms",
		Cites: `HUB "The inbox stream"; H-19`,
		Wait:  2 * time.Second, Run: paceOfBacklog},
	{Number: "hub.stream.stalled", Title: "A client that takes no byte for 30 s is cut off",
		Cites: `HUB "The inbox stream"; H-17`,
		Wait:  stalledLimit, Run: stalledReader},
}

// wantMessageBytes ends the check unless f has the bytes of the message m (HUB, "The inbox stream").
func (h *hubProbe) wantMessageBytes(f frame, data kit.Answer, m sentMessage) {
	var compact bytes.Buffer
	h.Expect("the frame \"event: message\\nid: N\\ndata: {\"id\":N,\"trace_id\":…,\"sender_id\":…,\"envelope\":{…}," +
		"\"timestamp\":…}\\n\\n\" with compact JSON and its members in this order")
	if json.Compact(&compact, []byte(f.data)) != nil || compact.String() != f.data ||
		f.raw != "event: message\nid: "+f.id+"\ndata: "+f.data+"\n\n" || strings.Contains(f.raw, "\r") {
		h.Failf("%q", f.raw)
	}
	want := fmt.Sprintf(`{"id":%s,"trace_id":%q,"sender_id":%q,"envelope":%s,"timestamp":%q}`, f.id, m.trace, m.from.id,
		data.Members["envelope"], data.Text("timestamp"))
	if f.data != want || !kit.TimeForm.MatchString(data.Text("timestamp")) {
		h.Failf("%q", f.raw)
	}
}

// session returns the target of a stream with a new session token of a.
func (h *hubProbe) session(a *hubAgent) string {
	data := h.wantData(h.Write(a.key, "/agent/session", nil), http.StatusOK)
	return "/agent/inbox?session=" + data.Text("session_token")
}

// peek sends GET and returns the status of the answer. It does not read a stream.
func (h *hubProbe) peek(target string) kit.Answer {
	ctx, cancel := context.WithTimeout(h.Ctx, kit.AnswerTimeout+kit.RateLimitTimeout)
	defer cancel()
	body, a, _ := h.begin(ctx, h.Relay.Client.Transport, target, nil)
	if body != nil {
		_ = body.Close() // nothing was written
	}
	return a
}

// wantOnline ends the check unless the directory shows within a time whether a is online.
func (h *hubProbe) wantOnline(a *hubAgent, online bool, within time.Duration) {
	for deadline := time.Now().Add(within); ; h.Sleep(time.Second / 10) {
		entry := h.listed(a)
		if got, present := entry.Flag("online"); present && got == online {
			return
		}
		if time.Now().After(deadline) {
			h.Expect(`"online":%v`, online)
			h.Failf("%s", kit.Excerpt(entry.Body, 400))
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
		h.Expect("at most %d bytes in the first %v", allowed, elapsed.Round(time.Millisecond))
		if read.bytes > allowed {
			h.Failf("%d bytes", read.bytes)
		}
	}
	h.Note("%d bytes in %v", s.reads[len(s.reads)-1].bytes,
		s.reads[len(s.reads)-1].at.Sub(s.opened).Round(time.Millisecond))
}

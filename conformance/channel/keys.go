package channel

import (
	"net/http"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
)

// channelRequest is a request to a channel.
type channelRequest struct {
	method, path string
	body         any
}

// ofManagers and ofMembers are requests that only the channel's key, or only a member's key, may make. The requests of
// ofManagers succeed in this order, if the channel has a member alice and a connection bot. Both keys may make the
// requests of ofReaders.
var (
	ofManagers = []channelRequest{
		{"GET", "", nil}, {"PATCH", "", kit.Message{"name": "kit-renamed"}}, {"GET", "/members", nil},
		{"POST", "/members", kit.Message{"name": "carol"}}, {"GET", "/connections", nil},
		{"POST", "/connections", kit.Message{"name": "other", "url": kit.ExampleURL}},
		{"PUT", "/connections/bot", kit.Message{"mcp": "none"}}, {"DELETE", "/connections/bot", nil},
		{"DELETE", "/members/carol", nil}, {"DELETE", "", nil},
	}
	ofReaders = []channelRequest{{"GET", "/events", nil}}
	ofMembers = []channelRequest{{"POST", "/messages", kit.Message{"content": "hello"}}}
)

func everyRequest() []channelRequest {
	return append(append(append([]channelRequest{}, ofManagers...), ofReaders...), ofMembers...)
}

// try sends a request of these lists with this Authorization. If it is empty, there is none.
func (h *channelProbe) try(c *channel, what string, r channelRequest, authorization ...string) kit.Answer {
	header := http.Header{}
	if len(authorization) > 0 && authorization[0] != "" {
		header["Authorization"] = authorization
	}
	return h.Ask(what, r.method, c.path(r.path), "", header, r.body)
}

// withBot creates a channel with the member alice and the connection bot.
func (h *channelProbe) withBot() *member {
	alice := h.talk()
	h.wantOK(h.connectTo(alice.channel, "bot", kit.ExampleURL), http.StatusCreated)
	return alice
}

// wantUntouched ends the check unless the channel of withBot is as it was created.
func (h *channelProbe) wantUntouched(alice *member) {
	h.Describe("the channel, after the refused requests")
	h.wantChannel(h.wantOK(h.Read(alice.channel.key, alice.path("")), http.StatusOK), alice.channel)
	h.wantMembers(h.connection(alice.channel, "bot"), connectionOf("bot", "object"))
	a := h.Read(alice.channel.key, alice.path("/members"))
	list, _ := a.List("members")
	h.entry(a, "members", "alice")
	h.Want(len(list) == 1, a, "one member")
	h.wantEvents(alice.channel, 0)
}

// channelKeyChecks test who may do what.
var channelKeyChecks = []channelCheck{
	{Number: "N-33", Title: "Without a key every request is refused with 401 and WWW-Authenticate: Bearer",
		Cites: `CHANNEL "The service"; GATEWAYS "Keys of callers"; G-25`, Needs: kit.NeedsOperator,
		Run: func(h *channelProbe) {
			alice := h.withBot()
			h.wantNoKey(h.Write("", "/channels", kit.Message{"name": "kit"}))
			for _, r := range everyRequest() {
				h.wantNoKey(h.try(alice.channel, "without a key", r))
				h.wantNoKey(h.try(unknownChannel, "without a key", r))
			}
			h.wantUntouched(alice)
		}},
	{Number: "N-34", Title: "An unknown key, another scheme and a malformed Authorization are refused with 401",
		Cites: `GATEWAYS "Keys of callers"; G-10`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			alice := h.withBot()
			key := alice.channel.key
			for _, authorization := range []string{"Bearer " + unknownChannelKey, "Bearer " + unknownMemberKey, "Bearer",
				"Bearer x", key, "Basic " + key, "Bearer " + key + "A", "Bearer " + key[:len(key)-1],
				"Bearer cm_" + key[3:], "Bearer " + key + " " + key, "Bearer op_" + strings.Repeat("A", 43)} {
				for _, r := range everyRequest() {
					h.wantNoKey(h.try(alice.channel, "with an invalid Authorization", r, authorization))
				}
				h.wantNoKey(h.Ask("with an invalid Authorization", http.MethodPost, "/channels", "",
					http.Header{"Authorization": {authorization}}, kit.Message{"name": "kit"}))
			}
			h.wantNoKey(h.try(alice.channel, "two Authorization headers", ofReaders[0], "Bearer "+key,
				"Bearer "+unknownChannelKey))
			h.wantUntouched(alice)
		}},
	{Number: "N-35", Title: "The scheme Bearer is case-insensitive",
		Cites: `GATEWAYS "Keys of callers"`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			alice := h.talk()
			for _, scheme := range []string{"bearer ", "BEARER ", "bEaReR "} {
				h.eventsOf(h.try(alice.channel, scheme, ofReaders[0], scheme+alice.channel.key))
				h.said(h.try(alice.channel, scheme, ofMembers[0], scheme+alice.key), 0)
			}
		}},
	{Number: "N-36", Title: "The channel's key and the operator's may do everything but post messages (403)",
		Cites: `CHANNEL "The service"; G-10`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			for _, own := range []bool{true, false} {
				alice := h.withBot()
				key := h.service.OperatorKey
				if own {
					key = alice.channel.key
				}
				h.wantForbidden(h.try(alice.channel, "", ofMembers[0], "Bearer "+key))
				h.wantUntouched(alice)
				h.eventsOf(h.try(alice.channel, "", ofReaders[0], "Bearer "+key))
				for _, r := range ofManagers {
					status := http.StatusOK
					if r.method == http.MethodPost {
						status = http.StatusCreated
					}
					h.wantOK(h.try(alice.channel, "", r, "Bearer "+key), status)
				}
			}
		}},
	{Number: "N-37", Title: "A member's key may post messages and read events, and do nothing else (403)",
		Cites: `CHANNEL "The service"; G-10`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			alice := h.withBot()
			for _, r := range ofManagers {
				h.wantForbidden(h.try(alice.channel, "with a member's key", r, "Bearer "+alice.key))
			}
			h.wantForbidden(h.Write(alice.key, "/channels", kit.Message{"name": "kit"}))
			h.wantUntouched(alice)
			h.eventsOf(h.try(alice.channel, "", ofReaders[0], "Bearer "+alice.key))
			h.wantOK(h.Remove(alice.channel.key, alice.path("/connections/bot")), http.StatusOK)
			h.said(h.try(alice.channel, "", ofMembers[0], "Bearer "+alice.key), 0)
		}},
	{Number: "N-38", Title: "Keys of another channel are refused with 403",
		Cites: `GATEWAYS "Keys of callers"; G-10`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			alice, mallory := h.withBot(), h.talk()
			for _, key := range []string{mallory.channel.key, mallory.key} {
				for _, r := range everyRequest() {
					h.wantForbidden(h.try(alice.channel, "with a key of another channel", r, "Bearer "+key))
				}
			}
			h.wantUntouched(alice)
		}},
	{Number: "N-39", Title: "Only the operator may create channels",
		Cites: `CHANNEL "The service"; G-10`, Needs: kit.NeedsOperator, Run: func(h *channelProbe) {
			alice := h.talk()
			h.wantForbidden(h.Write(alice.channel.key, "/channels", kit.Message{"name": "kit"}))
			h.wantForbidden(h.Write(alice.key, "/channels", kit.Message{"name": "kit"}))
			h.wantNoKey(h.Write(unknownChannelKey, "/channels", kit.Message{"name": "kit"}))
		}},
	{Number: "N-40", Title: "A token of a delivery is no key, and a key is no token of a callback",
		Cites: `GATEWAYS "Keys of callers"; G-10`, Needs: needsAgent, Run: func(h *channelProbe) {
			alice, _, d := h.exchange()
			tok := d.callback[strings.LastIndexByte(d.callback, '/')+1:]
			for _, token := range []string{tok, d.token} {
				for _, r := range everyRequest() {
					a := h.try(alice.channel, "with a token of a delivery", r, "Bearer "+token)
					h.Want(a.Status == http.StatusUnauthorized || a.Status == http.StatusForbidden, a,
						"refused: status 401 or 403")
				}
			}
			for _, key := range []string{alice.key, alice.channel.key, d.token} {
				h.wantUnknown(h.Write("", alice.path("/inbox/"+key), statusEvent("reading")))
			}
			h.wantEvents(alice.channel, 1)
		}},
}

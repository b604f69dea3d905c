package hub

import (
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
)

var sessionForm = regexp.MustCompile(`^cs_[0-9a-f]{32}$`)

// goodCultures and badCultures are texts that are cultures or not.
var (
	goodCultures = []any{"en", "fil", "zh-CN", "es-419", "zh-Hant", "zh-Hant-TW", "sr-Latn-RS", "uz-Cyrl-860"}
	badCultures  = []any{"", "e", "engl", "EN", "en-us", "en_US", "en-USA", "en-41", "en-4199", "zh-hant", "zh-HANT",
		"zh-TW-Hant", "zh-Hant-TW-x", "en-", "-en", " en", "en ", "en\n", "日本", nil, 1, true, []any{"en"},
		map[string]any{}}
)

// hubAddressChecks test the forms of addresses and cards.
var hubAddressChecks = []hubCheck{
	{Number: "hub.address.form", Title: "agent_id must be an address name@host; the host did.key is reserved",
		Cites: `HUB "Endpoints"; H-1`, Run: func(h *hubProbe) {
			for _, id := range []any{"", "bob", "@", "bob@", "@host", "a@b@c", "a b@host", "a@ho st", "a/b@host",
				"a:b@host", "ä@host", "a@hóst", "a\n@host", "a@host\n", " a@host", "a@host ",
				"a@ho%73t", "<a>@host", "a+b@host",
				"bob@did.key", strings.Repeat("a", 124) + "@host", nil, 1, true, []any{"a@b"}} {
				h.wantInvalid(h.Write("", "/register", kit.Message{"agent_id": id, "agent_card": card()}))
			}
			h.wantInvalid(h.Write("", "/register", kit.Message{"agent_card": card()}))
		}},
	{Number: "hub.address.bounds",
		Title: "An address of 128 characters is taken, with letters of both cases, digits and ._-",
		Cites: `HUB "Endpoints"; H-1`, Run: func(h *hubProbe) {
			id := "Kit._-09" + h.hub.address()
			id = strings.Repeat("K", 128-len(id)) + id
			long, _ := h.register(id)
			other := h.one()
			h.rowOf(long, h.send(other, long, "to a long address"))
			h.rowOf(other, h.send(long, other, "from a long address"))
			h.wantData(h.Read("", "/agents/"+id), http.StatusOK)
		}},
	{Number: "hub.address.case",
		Title: "Addresses are case-sensitive", Cites: `HUB "Endpoints"`, Run: func(h *hubProbe) {
			a := h.one()
			h.wantNoAgent(h.Read("", "/agents/"+strings.Replace(a.id, "kit", "KIT", 1)))
		}},
	{Number: "hub.address.short", Title: "In receiver_id and in paths, a name without @ means name@ and the hub's name",
		Cites: `HUB "Start a hub"`, Run: shortAddresses},
	{Number: "hub.card.strict", Title: "An unknown member of a card is refused, and so is a missing or malformed one",
		Cites: `HUB "Endpoints"; H-2`, Run: refusesCards(kit.Set("agent_card.x", 1), kit.Set("agent_card.chorus_version",
			"0.3"),
			kit.Set("agent_card.Card_version", "0.3"), kit.Without("agent_card"), kit.Set("agent_card", nil),
			kit.Set("agent_card", []any{}), kit.Set("agent_card", "card"), kit.Without("agent_card.card_version"),
			kit.Set("agent_card.card_version", "0.2"), kit.Set("agent_card.card_version", 0.3),
			kit.Without("agent_card.user_culture"), kit.Without("agent_card.supported_languages"))},
	{Number: "hub.card.languages", Title: "A card has 1 to 32 supported_languages, each of them a culture",
		Cites: `HUB "Endpoints"; H-1`, Run: func(h *hubProbe) {
			h.rotate(h.one(), kit.Set("agent_card.supported_languages", languages(32)))
			refusals := []func(kit.Message){kit.Set("agent_card.supported_languages", []any{}),
				kit.Set("agent_card.supported_languages", languages(33)), kit.Set("agent_card.supported_languages", "en"),
				kit.Set("agent_card.supported_languages", nil)}
			for _, bad := range badCultures {
				refusals = append(refusals, kit.Set("agent_card.supported_languages", []any{"en", bad}))
			}
			h.refuseCards(h.taken[0], refusals...)
		}},
	{Number: "hub.card.culture", Title: "A culture is a language, with a script and a region if it has them",
		Cites: `HUB "Endpoints"; H-1`, Run: func(h *hubProbe) {
			a := h.one()
			for _, culture := range goodCultures {
				h.rotate(a, kit.Set("agent_card.user_culture", culture),
					kit.Set("agent_card.supported_languages", goodCultures))
			}
			for _, bad := range badCultures {
				h.refuseCards(a, kit.Set("agent_card.user_culture", bad))
			}
		}},
}

func languages(n int) []any { return slices.Repeat([]any{"en"}, n) }

func shortAddresses(h *hubProbe) {
	if !h.hub.knowsName() {
		h.End(kit.Skipped, "server_name is %q, which is no host, so the hub's name is not known", h.hub.name)
	}
	alice, bob := h.two()
	name, _, _ := strings.Cut(bob.id, "@")
	listed := h.Read("", "/agents/"+name)
	h.Want(h.wantData(listed, http.StatusOK).Text("agent_id") == bob.id, listed, "the registration of %s", bob.id)
	invite := h.readAs("/invite/"+name, "application/json")
	h.Want(h.inviteJSON(invite).Text("agent_id") == bob.id, invite, "the agent_id %s", bob.id)
	body := letter(alice, bob, "to a short address")
	body["receiver_id"] = name
	row := h.rowOf(bob, h.sendBody(alice, bob, body))
	h.Want(row.Text("receiver_id") == bob.id, row, "the receiver_id %s", bob.id)
	h.wantInvalid(h.Write("", "/register", registration(name+"-new")))
	short := letter(alice, bob, "from a short address")
	kit.Set("envelope.sender_id", strings.Split(alice.id, "@")[0])(short)
	h.wantInvalid(h.Write(alice.key, "/messages", short))
}

// refusesCards returns a check that registers an agent again with each of these changes. The hub must refuse them.
func refusesCards(changes ...func(kit.Message)) func(*hubProbe) {
	return func(h *hubProbe) { h.refuseCards(h.one(), changes...) }
}

func (h *hubProbe) refuseCards(a *hubAgent, changes ...func(kit.Message)) {
	for _, change := range changes {
		body := registration(a.id)
		change(body)
		h.wantInvalid(h.Write(a.key, "/register", body))
	}
	h.Describe("the key of the agent, after %d refused registrations", len(changes))
	h.rows(h.Read(a.key, "/agent/messages?since="+a.seen))
}

// hubRegisterChecks test registration and the rotation of keys.
var hubRegisterChecks = []hubCheck{
	{Number: "hub.register.new",
		Title: "A free address gets 201 with its key and registration, whatever the Authorization is",
		Cites: `HUB "Registration and keys"; H-3`, Run: func(h *hubProbe) {
			id := h.hub.address()
			answered := h.Write(unknownKey, "/register", registration(id))
			data := h.wantData(answered, http.StatusCreated)
			h.keep(id, data)
			h.Want(data.Text("agent_id") == id, answered, "the agent_id")
			h.wantRegistration(answered, data.Object("registration"), id)
			listed := h.Read("", "/agents/"+id)
			h.wantRegistration(listed, h.wantData(listed, http.StatusOK), id)
		}},
	{Number: "hub.register.taken", Title: "A taken address without its key is refused with 409 ERR_AGENT_ID_TAKEN",
		Cites: `HUB "Registration and keys"; H-3`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			for _, key := range []string{"", unknownKey, bob.key} {
				h.wantTaken(h.Write(key, "/register", registration(alice.id)))
			}
			h.rows(h.Read(alice.key, "/agent/messages"))
		}},
	{Number: "hub.register.rotate",
		Title: "A registration with the current key gets 200 with a new key, and replaces the record",
		Cites: `HUB "Registration and keys"; H-3`, Run: func(h *hubProbe) {
			a := h.one()
			h.rotate(a, kit.Set("agent_card.user_culture", "ja"), kit.Set("agent_card.supported_languages", []any{"ja"}))
			h.rows(h.Read(a.key, "/agent/messages"))
			answered := h.Read("", "/agents/"+a.id)
			data := h.wantData(answered, http.StatusOK)
			h.Want(kit.SameJSON(data.Members["agent_card"], map[string]any{"card_version": "0.3", "user_culture": "ja",
				"supported_languages": []any{"ja"}}), answered, "the new card")
		}},
	{Number: "hub.register.old-key", Title: "After a rotation the old key can do nothing but repeat it",
		Cites: `HUB "Registration and keys"; H-4`, Run: func(h *hubProbe) {
			a := h.one()
			old := a.key
			h.rotate(a)
			for _, r := range keyedRequests {
				h.wantNoKey(h.askKeyed("with the old key", r.method, r.path, "Bearer "+old))
			}
			h.wantNoKey(h.Ask("with the old key", http.MethodDelete, "/agents/"+a.id, old, nil, nil))
			h.wantNoKey(h.Read(old, "/discover"))
		}},
	{Number: "hub.register.repeat", Title: "The old key can repeat the rotation until the new key is used",
		Cites: `HUB "Registration and keys"; H-4`, Run: func(h *hubProbe) {
			a := h.one()
			old := a.key
			h.rotate(a)
			first := a.key
			a.key = old
			h.rotate(a)
			h.Describe("two rotations with the same key; the second one replaces the key of the first one")
			h.wantNoKey(h.Read(first, "/agent/messages"))
			h.rows(h.Read(a.key, "/agent/messages"))
			h.wantTaken(h.Write(old, "/register", registration(a.id)))
		}},
	{Number: "hub.register.closes-stream", Title: "A rotation closes the stream with the reason rotated",
		Cites: `HUB "Registration and keys"; HUB "The inbox stream"`, Run: func(h *hubProbe) {
			a := h.one()
			s := h.open(a, "")
			h.rotate(a)
			h.wantClosed(s, "rotated")
		}},
	{Number: "hub.register.race", Title: "Of several registrations of a free address at the same time, one gets it",
		Cites: `HUB "Registration and keys"; H-3`, Run: func(h *hubProbe) {
			id := h.hub.address()
			answers := h.InParallel(8, func(int) kit.Answer { return h.Write("", "/register", registration(id)) })
			h.Expect("one 201 and seven 409")
			if countStatus(answers, http.StatusCreated) != 1 || countStatus(answers, http.StatusConflict) != 7 {
				h.Failf("%d times 201 and %d times 409", countStatus(answers, http.StatusCreated),
					countStatus(answers, http.StatusConflict))
			}
			for _, answered := range answers {
				if answered.Status == http.StatusCreated {
					h.rows(h.Read(h.keep(id, answered.Object("data")).key, "/agent/messages"))
				} else {
					h.wantTaken(answered)
				}
			}
		}},
	{Number: "hub.register.rotate-race", Title: "After several rotations at the same time, exactly one key works",
		Cites: `HUB "Registration and keys"; H-4`, Run: rotateAtTheSameTime},
}

// wantRegistration ends the check unless r is the registration of a new agent of the run.
func (h *hubProbe) wantRegistration(a, r kit.Answer, id string) {
	h.Want(r.Text("agent_id") == id && kit.SameJSON(r.Members["agent_card"], card()) &&
		kit.TimeForm.MatchString(r.Text("registered_at")), a,
		"a registration with the agent_id, the agent_card, and registered_at in milliseconds")
}

func rotateAtTheSameTime(h *hubProbe) {
	a := h.one()
	a.lost = true // until its key is known
	answers := h.InParallel(6, func(int) kit.Answer { return h.Write(a.key, "/register", registration(a.id)) })
	h.Expect("each rotation is answered with 200, or with 409 ERR_AGENT_ID_TAKEN")
	working := ""
	for _, answered := range answers {
		if answered.Status != http.StatusOK &&
			(answered.Status != http.StatusConflict || hubCode(answered) != "ERR_AGENT_ID_TAKEN") {
			h.Failf("%s", answered)
		}
		key := answered.Object("data").Text("api_key")
		if key == "" || h.Read(key, "/agent/messages?since="+a.seen).Status != http.StatusOK {
			continue
		}
		h.Expect("only the key of the last rotation works")
		if working != "" {
			h.Failf("two keys work")
		}
		working = key
	}
	h.Expect("the key of the last rotation works")
	if working == "" {
		h.Failf("no key works")
	}
	a.key, a.lost = working, false
}

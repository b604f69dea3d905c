package conformance

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
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
	{number: "hub.address.form", title: "agent_id must be an address name@host; the host did.key is reserved",
		cites: `HUB "Endpoints"; H-1`, run: func(h *hubProbe) {
			for _, id := range []any{"", "bob", "@", "bob@", "@host", "a@b@c", "a b@host", "a@ho st", "a/b@host",
				"a:b@host", "ä@host", "a@hóst", "a\n@host", "a@host\n", " a@host", "a@host ",
				"a@ho%73t", "<a>@host", "a+b@host",
				"bob@did.key", strings.Repeat("a", 124) + "@host", nil, 1, true, []any{"a@b"}} {
				h.wantInvalid(h.write("", "/register", message{"agent_id": id, "agent_card": card()}))
			}
			h.wantInvalid(h.write("", "/register", message{"agent_card": card()}))
		}},
	{number: "hub.address.bounds",
		title: "An address of 128 characters is taken, with letters of both cases, digits and ._-",
		cites: `HUB "Endpoints"; H-1`, run: func(h *hubProbe) {
			id := "Kit._-09" + h.hub.address()
			id = strings.Repeat("K", 128-len(id)) + id
			long, _ := h.register(id)
			other := h.one()
			h.rowOf(long, h.send(other, long, "to a long address"))
			h.rowOf(other, h.send(long, other, "from a long address"))
			h.wantData(h.read("", "/agents/"+id), http.StatusOK)
		}},
	{number: "hub.address.case",
		title: "Addresses are case-sensitive", cites: `HUB "Endpoints"`, run: func(h *hubProbe) {
			a := h.one()
			h.wantNoAgent(h.read("", "/agents/"+strings.Replace(a.id, "kit", "KIT", 1)))
		}},
	{number: "hub.address.short", title: "In receiver_id and in paths, a name without @ means name@ and the hub's name",
		cites: `HUB "Start a hub"`, run: shortAddresses},
	{number: "hub.card.strict", title: "An unknown member of a card is refused, and so is a missing or malformed one",
		cites: `HUB "Endpoints"; H-2`, run: refusesCards(set("agent_card.x", 1), set("agent_card.chorus_version", "0.3"),
			set("agent_card.Card_version", "0.3"), without("agent_card"), set("agent_card", nil),
			set("agent_card", []any{}), set("agent_card", "card"), without("agent_card.card_version"),
			set("agent_card.card_version", "0.2"), set("agent_card.card_version", 0.3),
			without("agent_card.user_culture"), without("agent_card.supported_languages"))},
	{number: "hub.card.languages", title: "A card has 1 to 32 supported_languages, each of them a culture",
		cites: `HUB "Endpoints"; H-1`, run: func(h *hubProbe) {
			h.rotate(h.one(), set("agent_card.supported_languages", languages(32)))
			refusals := []func(message){set("agent_card.supported_languages", []any{}),
				set("agent_card.supported_languages", languages(33)), set("agent_card.supported_languages", "en"),
				set("agent_card.supported_languages", nil)}
			for _, bad := range badCultures {
				refusals = append(refusals, set("agent_card.supported_languages", []any{"en", bad}))
			}
			h.refuseCards(h.taken[0], refusals...)
		}},
	{number: "hub.card.culture", title: "A culture is a language, with a script and a region if it has them",
		cites: `HUB "Endpoints"; H-1`, run: func(h *hubProbe) {
			a := h.one()
			for _, culture := range goodCultures {
				h.rotate(a, set("agent_card.user_culture", culture),
					set("agent_card.supported_languages", goodCultures))
			}
			for _, bad := range badCultures {
				h.refuseCards(a, set("agent_card.user_culture", bad))
			}
		}},
}

func languages(n int) []any { return slices.Repeat([]any{"en"}, n) }

func shortAddresses(h *hubProbe) {
	if !h.hub.knowsName() {
		h.end(Skipped, "server_name is %q, which is no host, so the hub's name is not known", h.hub.name)
	}
	alice, bob := h.two()
	name, _, _ := strings.Cut(bob.id, "@")
	listed := h.read("", "/agents/"+name)
	h.want(h.wantData(listed, http.StatusOK).text("agent_id") == bob.id, listed, "the registration of %s", bob.id)
	invite := h.readAs("/invite/"+name, "application/json")
	h.want(h.inviteJSON(invite).text("agent_id") == bob.id, invite, "the agent_id %s", bob.id)
	body := letter(alice, bob, "to a short address")
	body["receiver_id"] = name
	row := h.rowOf(bob, h.sendBody(alice, bob, body))
	h.want(row.text("receiver_id") == bob.id, row, "the receiver_id %s", bob.id)
	h.wantInvalid(h.write("", "/register", registration(name+"-new")))
	short := letter(alice, bob, "from a short address")
	set("envelope.sender_id", strings.Split(alice.id, "@")[0])(short)
	h.wantInvalid(h.write(alice.key, "/messages", short))
}

// refusesCards returns a check that registers an agent again with each of these changes. The hub must refuse them.
func refusesCards(changes ...func(message)) func(*hubProbe) {
	return func(h *hubProbe) { h.refuseCards(h.one(), changes...) }
}

func (h *hubProbe) refuseCards(a *hubAgent, changes ...func(message)) {
	for _, change := range changes {
		body := registration(a.id)
		change(body)
		h.wantInvalid(h.write(a.key, "/register", body))
	}
	h.describe("the key of the agent, after %d refused registrations", len(changes))
	h.rows(h.read(a.key, "/agent/messages?since="+a.seen))
}

// hubRegisterChecks test registration and the rotation of keys.
var hubRegisterChecks = []hubCheck{
	{number: "hub.register.new",
		title: "A free address gets 201 with its key and registration, whatever the Authorization is",
		cites: `HUB "Registration and keys"; H-3`, run: func(h *hubProbe) {
			id := h.hub.address()
			answered := h.write(unknownKey, "/register", registration(id))
			data := h.wantData(answered, http.StatusCreated)
			h.keep(id, data)
			h.want(data.text("agent_id") == id, answered, "the agent_id")
			h.wantRegistration(answered, data.object("registration"), id)
			listed := h.read("", "/agents/"+id)
			h.wantRegistration(listed, h.wantData(listed, http.StatusOK), id)
		}},
	{number: "hub.register.taken", title: "A taken address without its key is refused with 409 ERR_AGENT_ID_TAKEN",
		cites: `HUB "Registration and keys"; H-3`, run: func(h *hubProbe) {
			alice, bob := h.two()
			for _, key := range []string{"", unknownKey, bob.key} {
				h.wantTaken(h.write(key, "/register", registration(alice.id)))
			}
			h.rows(h.read(alice.key, "/agent/messages"))
		}},
	{number: "hub.register.rotate",
		title: "A registration with the current key gets 200 with a new key, and replaces the record",
		cites: `HUB "Registration and keys"; H-3`, run: func(h *hubProbe) {
			a := h.one()
			h.rotate(a, set("agent_card.user_culture", "ja"), set("agent_card.supported_languages", []any{"ja"}))
			h.rows(h.read(a.key, "/agent/messages"))
			answered := h.read("", "/agents/"+a.id)
			data := h.wantData(answered, http.StatusOK)
			h.want(sameJSON(data.members["agent_card"], map[string]any{"card_version": "0.3", "user_culture": "ja",
				"supported_languages": []any{"ja"}}), answered, "the new card")
		}},
	{number: "hub.register.old-key", title: "After a rotation the old key can do nothing but repeat it",
		cites: `HUB "Registration and keys"; H-4`, run: func(h *hubProbe) {
			a := h.one()
			old := a.key
			h.rotate(a)
			for _, r := range keyedRequests {
				h.wantNoKey(h.askKeyed("with the old key", r.method, r.path, "Bearer "+old))
			}
			h.wantNoKey(h.ask("with the old key", http.MethodDelete, "/agents/"+a.id, old, nil, nil))
			h.wantNoKey(h.read(old, "/discover"))
		}},
	{number: "hub.register.repeat", title: "The old key can repeat the rotation until the new key is used",
		cites: `HUB "Registration and keys"; H-4`, run: func(h *hubProbe) {
			a := h.one()
			old := a.key
			h.rotate(a)
			first := a.key
			a.key = old
			h.rotate(a)
			h.describe("two rotations with the same key; the second one replaces the key of the first one")
			h.wantNoKey(h.read(first, "/agent/messages"))
			h.rows(h.read(a.key, "/agent/messages"))
			h.wantTaken(h.write(old, "/register", registration(a.id)))
		}},
	{number: "hub.register.closes-stream", title: "A rotation closes the stream with the reason rotated",
		cites: `HUB "Registration and keys"; HUB "The inbox stream"`, run: func(h *hubProbe) {
			a := h.one()
			s := h.open(a, "")
			h.rotate(a)
			h.wantClosed(s, "rotated")
		}},
	{number: "hub.register.race", title: "Of several registrations of a free address at the same time, one gets it",
		cites: `HUB "Registration and keys"; H-3`, run: func(h *hubProbe) {
			id := h.hub.address()
			answers := h.inParallel(8, func(int) answer { return h.write("", "/register", registration(id)) })
			h.expect("one 201 and seven 409")
			if countStatus(answers, http.StatusCreated) != 1 || countStatus(answers, http.StatusConflict) != 7 {
				h.failf("%d times 201 and %d times 409", countStatus(answers, http.StatusCreated),
					countStatus(answers, http.StatusConflict))
			}
			for _, answered := range answers {
				if answered.status == http.StatusCreated {
					h.rows(h.read(h.keep(id, answered.object("data")).key, "/agent/messages"))
				} else {
					h.wantTaken(answered)
				}
			}
		}},
	{number: "hub.register.rotate-race", title: "After several rotations at the same time, exactly one key works",
		cites: `HUB "Registration and keys"; H-4`, run: rotateAtTheSameTime},
}

// wantRegistration ends the check unless r is the registration of a new agent of the run.
func (h *hubProbe) wantRegistration(a, r answer, id string) {
	h.want(r.text("agent_id") == id && sameJSON(r.members["agent_card"], card()) &&
		timeForm.MatchString(r.text("registered_at")), a,
		"a registration with the agent_id, the agent_card, and registered_at in milliseconds")
}

func rotateAtTheSameTime(h *hubProbe) {
	a := h.one()
	a.lost = true // until its key is known
	answers := h.inParallel(6, func(int) answer { return h.write(a.key, "/register", registration(a.id)) })
	h.expect("each rotation is answered with 200, or with 409 ERR_AGENT_ID_TAKEN")
	working := ""
	for _, answered := range answers {
		if answered.status != http.StatusOK &&
			(answered.status != http.StatusConflict || hubCode(answered) != "ERR_AGENT_ID_TAKEN") {
			h.failf("%s", answered)
		}
		key := answered.object("data").text("api_key")
		if key == "" || h.read(key, "/agent/messages?since="+a.seen).status != http.StatusOK {
			continue
		}
		h.expect("only the key of the last rotation works")
		if working != "" {
			h.failf("two keys work")
		}
		working = key
	}
	h.expect("the key of the last rotation works")
	if working == "" {
		h.failf("no key works")
	}
	a.key, a.lost = working, false
}

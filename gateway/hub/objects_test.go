package hub_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"unicode/utf16"
)

// with returns a copy of an object in which members are replaced; nil removes a member.
func with(o object, members object) object {
	copied := maps.Clone(o)
	for name, value := range members {
		if copied[name] = value; value == nil {
			delete(copied, name)
		}
	}
	return copied
}

const astral = "\U0001F600" // 1 character, 2 UTF-16 code units, 4 bytes

// TestEnvelopes checks H-1 and H-2 for envelopes: each rule on both sides of its limit, in UTF-16 code units.
func TestEnvelopes(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	f.register("a@b")
	f.register(strings.Repeat("a", 126) + "@b")
	valid := object{"chorus_version": "0.4", "sender_id": "a@b", "original_text": "hello", "sender_culture": "en"}
	null := json.RawMessage("null")
	for _, c := range []struct {
		name   string
		change object
		ok     bool
	}{
		{"as it is", nil, true},
		{"an unknown member", object{"extra": 1}, false}, // H-2
		{"an unknown member that is null", object{"extra": null}, false},
		{"a member in other letters", object{"Original_text": "x"}, false},
		{"a member with an empty name", object{"": 1}, false},
		{"a member whose name has a space", object{"sender_id original_text": 1}, false},

		{"another version", object{"chorus_version": "0.3"}, false},
		{"version 0.40", object{"chorus_version": "0.40"}, false},
		{"a version that is a number", object{"chorus_version": 0.4}, false},
		{"no version", object{"chorus_version": nil}, false},

		{"no sender", object{"sender_id": nil}, false},
		{"a short sender", object{"sender_id": "a"}, false},
		{"a sender with 128 characters", object{"sender_id": strings.Repeat("a", 126) + "@b"}, true},
		{"a sender with 129 characters", object{"sender_id": strings.Repeat("a", 127) + "@b"}, false},

		{"no text", object{"original_text": nil}, false},
		{"an empty text", object{"original_text": ""}, false},
		{"a text of 1", object{"original_text": "x"}, true},
		{"a text of 10,000 letters", object{"original_text": strings.Repeat("x", 10000)}, true},
		{"a text of 10,001 letters", object{"original_text": strings.Repeat("x", 10001)}, false},
		{"a text of 10,000 units in 30,000 bytes", object{"original_text": strings.Repeat("好", 10000)}, true},
		{"a text of 10,001 units in 30,003 bytes", object{"original_text": strings.Repeat("好", 10001)}, false},
		{"a text of 10,000 units in 5,000 characters", object{"original_text": strings.Repeat(astral, 5000)}, true},
		{"a text of 10,001 units in 5,001 characters", object{"original_text": strings.Repeat(astral, 5000) + "x"}, false},
		{"a text that is a number", object{"original_text": 1}, false},
		{"a text that is null", object{"original_text": null}, false},

		{"no culture", object{"sender_culture": nil}, false},
		{"a culture that is no tag", object{"sender_culture": "english"}, false},
		{"a culture with a region", object{"sender_culture": "zh-CN"}, true},

		{"a context of 9", object{"cultural_context": strings.Repeat("好", 9)}, false},
		{"a context of 10", object{"cultural_context": strings.Repeat("好", 10)}, true},
		{"a context of 500", object{"cultural_context": strings.Repeat("好", 500)}, true},
		{"a context of 501", object{"cultural_context": strings.Repeat("好", 501)}, false},
		{"a context of 10 in 5 characters", object{"cultural_context": strings.Repeat(astral, 5)}, true},
		{"a context of 502 in 251 characters", object{"cultural_context": strings.Repeat(astral, 251)}, false},
		{"a context that is null", object{"cultural_context": null}, false},
		{"a context that is empty", object{"cultural_context": ""}, false},

		{"an empty conversation", object{"conversation_id": ""}, true},
		{"a conversation of 64", object{"conversation_id": strings.Repeat(astral, 32)}, true},
		{"a conversation of 65", object{"conversation_id": strings.Repeat(astral, 32) + "x"}, false},
		{"a conversation that is a number", object{"conversation_id": 7}, false},

		{"turn 0", object{"turn_number": 0}, false},
		{"turn -1", object{"turn_number": -1}, false},
		{"turn 1", object{"turn_number": 1}, true},
		{"turn 1.0", object{"turn_number": json.RawMessage("1.0")}, true}, // an integer in JSON (RFC 8785)
		{"turn 1e2", object{"turn_number": json.RawMessage("1e2")}, true},
		{"turn 1.5", object{"turn_number": 1.5}, false},
		{"turn 2^53-1", object{"turn_number": json.RawMessage("9007199254740991")}, true},
		{"turn 2^53", object{"turn_number": json.RawMessage("9007199254740992")}, false},
		{"turn 1e30", object{"turn_number": json.RawMessage("1e30")}, false},
		{"a turn that is a string", object{"turn_number": "1"}, false},
		{"a turn that is null", object{"turn_number": null}, false},
	} {
		body := object{"receiver_id": "a@b", "envelope": with(valid, c.change)}
		f.wantValid(c.name, c.ok, "envelope", f.post("/messages", f.Operator, body))
	}
	for name, envelope := range map[string]any{"a list": []int{}, "a text": "{}", "null": null} {
		body := object{"receiver_id": "a@b", "envelope": envelope}
		f.wantValid("an envelope that is "+name, false, "envelope", f.post("/messages", f.Operator, body))
	}
}

// wantValid checks that an object is taken, or refused with a message that names it.
func (f *fixture) wantValid(name string, ok bool, object string, a answer) {
	f.t.Helper()
	switch {
	case ok && a.Status >= 200 && a.Status < 300:
	case !ok && a.Status == 400 && a.code() == "ERR_VALIDATION" && a.has(object):
	default:
		f.t.Errorf("%s: %v", name, a)
	}
}

// TestEnvelopeSize checks H-1 for the size of an envelope: at most 60,000 code units as compact JSON.
func TestEnvelopeSize(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	f.register("a@b")
	size := func(envelope object) (units, bytesLen int) {
		var text bytes.Buffer
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(envelope); err != nil {
			t.Fatal(err)
		}
		compact := strings.TrimSpace(text.String())
		return len(utf16.Encode([]rune(compact))), len(compact)
	}
	// A control character has 6 units in JSON.
	text := strings.Repeat("\x01", 9850) + strings.Repeat("好", 150)
	envelope := object{"chorus_version": "0.4", "sender_id": "a@b", "original_text": text, "sender_culture": "en",
		"cultural_context": strings.Repeat("好", 500)}
	for units, _ := size(envelope); units < 60000; units++ {
		envelope["original_text"] = strings.Replace(envelope["original_text"].(string), "好", "\\", 1) // has 2 units in JSON
	}
	units, bytesLen := size(envelope)
	if units != 60000 || bytesLen <= 60000 {
		t.Fatalf("the envelope has %d units and %d bytes", units, bytesLen)
	}
	post := func() answer {
		return f.post("/messages", f.Operator, object{"receiver_id": "a@b", "envelope": envelope})
	}
	f.wantValid("60,000 units in more bytes", true, "envelope", post())
	envelope["original_text"] = strings.Replace(envelope["original_text"].(string), "好", "\\", 1)
	f.wantValid("60,001 units", false, "envelope", post())
}

// TestCards checks H-1 and H-2 for cards.
func TestCards(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	valid := object{"card_version": "0.3", "user_culture": "zh-CN", "supported_languages": []string{"zh-CN"}}
	many := strings.Split(strings.Repeat("en ", 33)+"en", " ")
	null := json.RawMessage("null")
	for _, c := range []struct {
		name   string
		change object
		ok     bool
	}{
		{"as it is", nil, true},
		{"an unknown member", object{"skills": []string{}}, false}, // H-2
		{"an unknown member that is null", object{"skills": null}, false},
		{"another version", object{"card_version": "0.4"}, false},
		{"no version", object{"card_version": nil}, false},
		{"no culture", object{"user_culture": nil}, false},
		{"a culture that is null", object{"user_culture": null}, false},
		{"no languages", object{"supported_languages": nil}, false},
		{"languages that are null", object{"supported_languages": null}, false},
		{"languages that are a text", object{"supported_languages": "en"}, false},
		{"0 languages", object{"supported_languages": []string{}}, false},
		{"1 language", object{"supported_languages": many[:1]}, true},
		{"32 languages", object{"supported_languages": many[:32]}, true},
		{"33 languages", object{"supported_languages": many[:33]}, false},
		{"a language that is no tag", object{"supported_languages": []string{"en", "E"}}, false},
		{"a language that is a number", object{"supported_languages": []any{"en", 1}}, false},
		{"a language that is null", object{"supported_languages": []any{null}}, false},
	} {
		key := ""
		if !c.ok {
			key = f.Operator
		}
		a := f.post("/register", key, object{"agent_id": strings.ReplaceAll(c.name, " ", "_") + "@b",
			"agent_card": with(valid, c.change)})
		f.wantValid(c.name, c.ok, "agent_card", a)
	}
	for name, card := range map[string]any{"a list": []int{}, "null": null} {
		body := object{"agent_id": "a@b", "agent_card": card}
		f.wantValid("a card that is "+name, false, "agent_card", f.post("/register", "", body))
	}
	f.wantValid("no card", false, "agent_card", f.post("/register", "", object{"agent_id": "a@b"}))
}

// TestCultures checks H-1 for cultures.
func TestCultures(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	for culture, ok := range map[string]bool{
		"en": true, "haw": true, "e": false, "engl": false, "EN": false, "": false, "e1": false,
		"zh-CN": true, "zh-C": false, "zh-CHN": false, "zh-cn": false, "zh-": false, "zh_CN": false,
		"es-419": true, "es-41": false, "es-4190": false,
		"zh-Hant": true, "zh-hant": false, "zh-HANT": false, "zh-Han": false, "zh-Hants": false,
		"zh-Hant-TW": true, "sr-Latn-419": true, "zh-TW-Hant": false, "zh-TW-419": false,
		" en": false, "en ": false, "en\n": false,
	} {
		card := object{"card_version": "0.3", "user_culture": culture, "supported_languages": []string{"en"}}
		key := f.post("/register", "", object{"agent_id": "a@b", "agent_card": card})
		f.wantValid("culture "+culture, ok, "agent_card.user_culture", key)
		if ok {
			f.want(f.remove("/agents/a@b", key.text("api_key")), 200, "")
			f.Ahead.Add(int64(reserved))
		}
	}
}

// TestAddresses checks H-1 for addresses: in a registration, in receiver_id and in paths.
func TestAddresses(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	alice := f.register("alice@relay.example")
	for address, ok := range map[string]bool{
		"a@b": true, "A.b_c-1@d.E_f-2": true, ".@.": true, "-@_": true, "a@did.keys": true, "did.key@a": true,
		"@b": false, "a@": false, "@": false, "a": false, "": false, "a@b@c": false, "a b@c": false, " a@b": false,
		"a@b ": false, "a@b\n": false, "a@b\x01": false, "ä@b": false, "a@好": false, "a+b@c": false, "a/b@c": false,
		"a:b@c": false, "a@b:1": false, "<a>@b": false,
		"a@did.key": false, // reserved
		strings.Repeat("a", 100) + "@" + strings.Repeat("b", 27): true,
		strings.Repeat("a", 100) + "@" + strings.Repeat("b", 28): false,
	} {
		f.wantValid("register "+address, ok, "agent_id", f.post("/register", "", registrationOf(address)))
		if ok {
			f.send(alice, "alice@relay.example", address, "hello")
			f.want(f.get("/agents/"+address, ""), 200, "")
		}
	}
	// U+0000 is refused before the address is read, as in every text (G-35).
	f.wantValid("U+0000", false, "U+0000", f.post("/register", "", registrationOf("a@b\x00")))
	// Addresses are case-sensitive.
	f.want(f.get("/agents/ALICE@relay.example", ""), 404, "ERR_AGENT_NOT_FOUND")
	f.want(f.post("/messages", alice, messageTo("alice@Relay.example", "alice@relay.example", "x")), 404,
		"ERR_AGENT_NOT_FOUND")
	// A text without @ is an agent of this hub, in receiver_id and in paths, but not elsewhere.
	f.send(alice, "alice@relay.example", "alice", "short")
	if rows := f.history(alice, "?limit=10000"); rows[len(rows)-1]["receiver_id"] != "alice@relay.example" {
		t.Errorf("the message to alice is %v", rows[len(rows)-1])
	}
	for _, path := range []string{"/agents/alice", "/invite/alice"} {
		a := f.want(f.do(call{"GET", path, "", nil, map[string]string{"Accept": "application/json"}}), 200, "")
		if a.text("agent_id") != "alice@relay.example" {
			t.Errorf("GET %s: %v", path, a)
		}
	}
	f.want(f.post("/messages", alice, messageTo("alice", "alice", "x")), 400, "ERR_VALIDATION")
	for _, receiver := range []any{"", "a b", "a@b@c", "x/y", 1, nil, strings.Repeat("x", 128)} {
		body := messageTo("", "alice@relay.example", "x")
		body["receiver_id"] = receiver
		f.wantValid("a receiver", false, "receiver_id", f.post("/messages", alice, body))
	}
	if a := f.want(f.remove("/agents/alice", alice), 200, ""); a.text("agent_id") != "alice@relay.example" {
		t.Errorf("DELETE /agents/alice: %v", a)
	}
}

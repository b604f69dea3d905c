package hub

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/agora-relay/agora/envelope"
)

// This file checks envelopes, agent cards and the other objects in requests. Their texts are already in the form of
// RFC 8785. Lengths are UTF-16 code units.

// Limits of the objects.
const (
	maxAddress      = 128
	maxText         = 10_000
	minContext      = 10
	maxContext      = 500
	maxConversation = 64
	maxLanguages    = 32
	maxEnvelope     = 60_000
	maxTurn         = 1<<53 - 1
	reservedHost    = "did.key"
	envelopeVersion = "0.4"
	cardVersion     = "0.3"
)

var (
	addressForm = regexp.MustCompile(`^[a-zA-Z0-9._-]+@[a-zA-Z0-9._-]+$`)
	cultureForm = regexp.MustCompile(`^[a-z]{2,3}(-[A-Z][a-z]{3})?(-[A-Z]{2}|-[0-9]{3})?$`)
)

// isAddress reports whether text has the form name@host. An address with the reserved host has that form too, but
// cannot be registered.
func isAddress(text string) bool { return len(text) <= maxAddress && addressForm.MatchString(text) }

// units returns the length of a text in UTF-16 code units.
func units(text string) (n int) {
	for _, r := range text {
		n += utf16.RuneLen(r)
	}
	return n
}

// cut returns the longest beginning of a text that has at most limit code units.
func cut(text string, limit int) string {
	n := 0
	for i, r := range text {
		if n += utf16.RuneLen(r); n > limit {
			return text[:i]
		}
	}
	return text
}

// object is a JSON object that is being checked. Its methods remember the first error.
type object struct {
	name    string // of the object in messages; empty: the body
	members map[string]json.RawMessage
	err     error
}

// parseObject returns the object in text. name is its name in messages.
func parseObject(name string, text []byte) *object {
	o := &object{name: name}
	if len(text) == 0 || text[0] != '{' || json.Unmarshal(text, &o.members) != nil {
		o.err = invalid("%s must be an object", name)
	}
	return o
}

func (o *object) path(member string) string {
	if o.name == "" {
		return member
	}
	return o.name + "." + member
}

func (o *object) fail(member, format string, args ...any) {
	if o.err == nil {
		o.err = invalid(o.path(member)+": "+format, args...)
	}
}

// only refuses members that have other names.
func (o *object) only(names ...string) {
	for name := range o.members {
		if slices.Contains(names, name) || o.err != nil {
			continue
		}
		if !envelope.ValidID(name) {
			name = "(not shown)" // it may contain any characters
		}
		o.err = invalid("%s has the unknown member %s; it may have %s", o.name, name, strings.Join(names, ", "))
	}
}

// text returns a string member. If it is absent, it returns false, and remembers an error if it is required.
func (o *object) text(member string, required bool) (string, bool) {
	raw, ok := o.members[member]
	if !ok {
		if required {
			o.fail(member, "is missing")
		}
		return "", false
	}
	var text string
	if raw[0] != '"' || json.Unmarshal(raw, &text) != nil {
		o.fail(member, "must be a string")
		return "", false
	}
	return text, true
}

// sized checks that a string member has from least to most code units.
func (o *object) sized(member string, required bool, least, most int) {
	if text, ok := o.text(member, required); ok {
		if n := units(text); n < least || n > most {
			o.fail(member, "must have %d to %d UTF-16 code units, and has %d", least, most, n)
		}
	}
}

func (o *object) constant(member, want string) {
	if text, ok := o.text(member, true); ok && text != want {
		o.fail(member, "must be the string %q", want)
	}
}

func (o *object) culture(member string) string {
	text, ok := o.text(member, true)
	if ok && !cultureForm.MatchString(text) {
		o.fail(member, "must be a language tag such as en or zh-CN: the language in lower case, the region in upper case")
	}
	return text
}

func (o *object) address(member string) string {
	text, ok := o.text(member, true)
	if ok && !isAddress(text) {
		o.fail(member, "must be an address such as name@host, of at most %d letters, digits and ._-", maxAddress)
	}
	return text
}

// checkEnvelope checks a Chorus envelope and returns its sender.
func checkEnvelope(text []byte) (senderID string, err error) {
	o := parseObject("envelope", text)
	if o.err != nil {
		return "", o.err
	}
	o.only("chorus_version", "sender_id", "original_text", "sender_culture", "cultural_context", "conversation_id",
		"turn_number")
	o.constant("chorus_version", envelopeVersion)
	senderID = o.address("sender_id")
	o.sized("original_text", true, 1, maxText)
	o.culture("sender_culture")
	o.sized("cultural_context", false, minContext, maxContext)
	o.sized("conversation_id", false, 0, maxConversation)
	if raw, ok := o.members["turn_number"]; ok {
		var turn int64
		// The form of RFC 8785 has neither a fraction nor an exponent if the number is an integer below 10²¹.
		if json.Unmarshal(raw, &turn) != nil || turn < 1 || turn > maxTurn {
			o.fail("turn_number", "must be a whole number from 1 to 2^53-1")
		}
	}
	if o.err == nil && units(string(text)) > maxEnvelope {
		o.err = invalid("envelope: has more than %d UTF-16 code units as compact JSON", maxEnvelope)
	}
	return senderID, o.err
}

// checkCard checks an agent card and returns its culture.
func checkCard(text []byte) (culture string, err error) {
	o := parseObject("agent_card", text)
	if o.err != nil {
		return "", o.err
	}
	o.only("card_version", "user_culture", "supported_languages")
	o.constant("card_version", cardVersion)
	culture = o.culture("user_culture")
	var languages []json.RawMessage
	if json.Unmarshal(o.members["supported_languages"], &languages) != nil || len(languages) < 1 ||
		len(languages) > maxLanguages {
		o.fail("supported_languages", "must be a list of 1 to %d language tags", maxLanguages)
	}
	for _, raw := range languages {
		var language string
		if raw[0] != '"' || json.Unmarshal(raw, &language) != nil || !cultureForm.MatchString(language) {
			o.fail("supported_languages", "must contain language tags such as en or zh-CN")
		}
	}
	return culture, o.err
}

// languagesOf returns the languages of a stored card.
func languagesOf(card string) []string {
	var c struct {
		Languages []string `json:"supported_languages"`
	}
	if card != "" {
		_ = json.Unmarshal([]byte(card), &c) // it was checked before it was stored
	}
	if c.Languages == nil {
		c.Languages = []string{}
	}
	return c.Languages
}

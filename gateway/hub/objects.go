package hub

import (
	"encoding/json"
	"regexp"
	"unicode/utf16"

	"github.com/agora-relay/agora/gateway"
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

// object is a JSON object of a request.
type object struct{ *gateway.Object }

// newObject returns the object in text. name is its name in messages; empty: it is the body.
func newObject(name string, text []byte) object { return object{gateway.NewObject(name, text)} }

// sized checks that a string member has from least to most code units.
func (o object) sized(member string, required bool, least, most int) {
	if text, ok := o.Text(member, required); ok {
		if n := units(text); n < least || n > most {
			o.Fail(member, "must have %d to %d UTF-16 code units, and has %d", least, most, n)
		}
	}
}

func (o object) constant(member, want string) {
	if text, ok := o.Text(member, true); ok && text != want {
		o.Fail(member, "must be the string %q", want)
	}
}

func (o object) culture(member string) string {
	text, ok := o.Text(member, true)
	if ok && !cultureForm.MatchString(text) {
		o.Fail(member, "must be a language tag such as en or zh-CN: the language in lower case, the region in upper case")
	}
	return text
}

func (o object) address(member string) string {
	text, ok := o.Text(member, true)
	if ok && !isAddress(text) {
		o.Fail(member, "must be an address such as name@host, of at most %d letters, digits and ._-", maxAddress)
	}
	return text
}

// checkEnvelope checks a Chorus envelope and returns its sender.
func checkEnvelope(text []byte) (senderID string, err error) {
	o := newObject("envelope", text)
	if o.Err != nil {
		return "", o.Err
	}
	o.Only("chorus_version", "sender_id", "original_text", "sender_culture", "cultural_context", "conversation_id",
		"turn_number")
	o.constant("chorus_version", envelopeVersion)
	senderID = o.address("sender_id")
	o.sized("original_text", true, 1, maxText)
	o.culture("sender_culture")
	o.sized("cultural_context", false, minContext, maxContext)
	o.sized("conversation_id", false, 0, maxConversation)
	if raw, ok := o.Members["turn_number"]; ok {
		var turn int64
		// The form of RFC 8785 has neither a fraction nor an exponent if the number is an integer below 10²¹.
		if json.Unmarshal(raw, &turn) != nil || turn < 1 || turn > maxTurn {
			o.Fail("turn_number", "must be a whole number from 1 to 2^53-1")
		}
	}
	if o.Err == nil && units(string(text)) > maxEnvelope {
		o.Err = gateway.Invalid("envelope: has more than %d UTF-16 code units as compact JSON", maxEnvelope)
	}
	return senderID, o.Err
}

// checkCard checks an agent card and returns its culture.
func checkCard(text []byte) (culture string, err error) {
	o := newObject("agent_card", text)
	if o.Err != nil {
		return "", o.Err
	}
	o.Only("card_version", "user_culture", "supported_languages")
	o.constant("card_version", cardVersion)
	culture = o.culture("user_culture")
	var languages []json.RawMessage
	if json.Unmarshal(o.Members["supported_languages"], &languages) != nil || len(languages) < 1 ||
		len(languages) > maxLanguages {
		o.Fail("supported_languages", "must be a list of 1 to %d language tags", maxLanguages)
	}
	for _, raw := range languages {
		var language string
		if raw[0] != '"' || json.Unmarshal(raw, &language) != nil || !cultureForm.MatchString(language) {
			o.Fail("supported_languages", "must contain language tags such as en or zh-CN")
		}
	}
	return culture, o.Err
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

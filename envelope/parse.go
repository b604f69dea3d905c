package envelope

import (
	"bytes"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
)

// maxTTL is the longest ttl, in seconds, that fits into a time.Duration.
const maxTTL = math.MaxInt64 / int64(time.Second)

// Parse reads a body as posted or delivered: an envelope, or {"envelope": …} with an envelope inside. maxBytes limits
// the size of the body and of its canonical form, which can be longer (1e20 becomes 21 digits). 0 means
// DefaultMaxBytes. Parse checks everything in PROTOCOL §1 that needs neither a clock nor a key. It has no side effects.
// The envelope may keep a reference to body, so the caller must not modify body afterwards. Errors:
// CodePayloadTooLarge, CodeInvalidRequest, CodeUnsupportedVersion, CodeInvalidDID, CodeForbidden (meta.relay).
func Parse(body []byte, maxBytes int) (*Envelope, error) {
	if maxBytes <= 0 {
		maxBytes = DefaultMaxBytes
	}
	canonical, err := parseObject(body, maxBytes)
	if err != nil {
		return nil, err
	}
	if inner, ok := unwrap(canonical); ok {
		canonical = inner
	}
	if len(canonical) > maxBytes {
		return nil, TooLarge(int64(len(canonical)), maxBytes)
	}
	return decode(canonical)
}

// ParseObject returns the RFC 8785 form of a body of a gateway, which must be one JSON object (I-JSON, RFC 7493). It
// refuses what Parse refuses in any body: more than maxBytes bytes, more than MaxDepth levels of nesting, and more than
// MaxCostlyNumbers costly numbers. Unlike Parse, it also refuses U+0000 in any text, because PostgreSQL stores no text
// with it (G-35). The result can be longer than maxBytes, at most about five times as long. It may be body itself, so the
// caller must not modify body afterwards. Errors: CodePayloadTooLarge, CodeInvalidRequest.
func ParseObject(body []byte, maxBytes int) (canonical []byte, err error) {
	if canonical, err = parseObject(body, maxBytes); err == nil && hasNUL(canonical) {
		return nil, Errorf(CodeInvalidRequest, `a text in the body has the character U+0000 (\u0000); leave it out`)
	}
	return canonical, err
}

// hasNUL reports whether a JSON text in the form of RFC 8785 has U+0000 in a string. There it is always \u0000, after an
// even number of backslashes.
func hasNUL(canonical []byte) bool {
	escape := []byte(`\u0000`)
	for {
		i := bytes.Index(canonical, escape)
		if i < 0 {
			return false
		}
		before := bytes.TrimRight(canonical[:i], `\`)
		if (i-len(before))%2 == 0 {
			return true
		}
		canonical = canonical[i+len(escape):]
	}
}

// parseObject is ParseObject for a body that may have U+0000.
func parseObject(body []byte, maxBytes int) (canonical []byte, err error) {
	if len(body) > maxBytes {
		return nil, TooLarge(int64(len(body)), maxBytes)
	}
	if canonical, err = canonicalize(body); err != nil {
		return nil, err
	}
	if !isObject(canonical) {
		return nil, Errorf(CodeInvalidRequest, "the body must be one JSON object")
	}
	return canonical, nil
}

// canonicalize returns the RFC 8785 form of body. Most bodies are already canonical or nearly so. isCanonical and
// arrange handle these faster than Canonicalize does.
func canonicalize(body []byte) ([]byte, error) {
	if isCanonical(body) {
		return body, nil
	}
	if canonical, ok := arrange(body); ok {
		return canonical, nil
	}
	if Depth(body) > MaxDepth {
		return nil, Errorf(CodeInvalidRequest, "the JSON is nested deeper than %d levels", MaxDepth)
	}
	return Canonicalize(body)
}

// TooLarge returns the refusal of a body, or of an envelope's canonical form, of more than maxBytes bytes. size is how
// many bytes it has; 0: unknown.
func TooLarge(size int64, maxBytes int) *Error {
	has := "more"
	if size > 0 {
		has = strconv.FormatInt(size, 10) + " bytes"
	}
	return &Error{Code: CodePayloadTooLarge, Details: map[string]any{"maxBytes": maxBytes},
		Message: fmt.Sprintf("the body or its canonical form may have %d bytes, and has %s; store large data outside the "+
			"message and send a reference to it", maxBytes, has)}
}

// unwrap returns the envelope in {"envelope": …}, which is the form that existing SDKs post. If the object has other
// members too, it is not a wrapper but an envelope with an unknown member "envelope"; ok is then false.
func unwrap(canonical []byte) (inner []byte, ok bool) {
	const head = `{"envelope":`
	if !bytes.HasPrefix(canonical, []byte(head)) {
		return nil, false // names are sorted: this includes objects with a member before "envelope"
	}
	end := valueEnd(canonical, len(head))
	inner = canonical[len(head):end]
	return inner, isObject(inner) && end == len(canonical)-1
}

// wire holds the members of an envelope as canonical JSON. A nil member is absent.
type wire struct {
	version, id, ts, typ, sender, recipient, payload, thread, meta, sig []byte
}

func (w *wire) member(name string) *[]byte {
	switch name {
	case "version":
		return &w.version
	case "id":
		return &w.id
	case "ts":
		return &w.ts
	case "type":
		return &w.typ
	case "sender":
		return &w.sender
	case "recipient":
		return &w.recipient
	case "payload":
		return &w.payload
	case "thread":
		return &w.thread
	case "meta":
		return &w.meta
	case "sig":
		return &w.sig
	}
	return nil
}

var knownNames = []string{"version", "id", "ts", "type", "sender", "recipient", "payload", "thread", "meta", "sig"}

func decode(canonical []byte) (*Envelope, error) {
	var w wire
	for name, value := range members(canonical) {
		if field := w.member(name); field != nil {
			*field = value
			continue
		}
		for _, known := range knownNames {
			if strings.EqualFold(name, known) {
				return nil, Errorf(CodeInvalidRequest, "a member's name differs from %q only in upper and lower case; "+
					"rename it, because some parsers treat both as the same member", known)
			}
		}
	}
	e := &Envelope{canonical: canonical, TTL: DefaultTTL}
	for _, step := range []func(*wire) error{
		e.decodeHead, e.decodeParties, e.decodePayload, e.decodeThread, e.decodeMeta,
	} {
		if err := step(&w); err != nil {
			return nil, err
		}
	}
	e.sig, _ = stringValue(w.sig) // if sig is not a string, Verify refuses it as malformed
	return e, nil
}

func (e *Envelope) decodeHead(w *wire) error {
	if version, ok := stringValue(w.version); !ok || version != Version {
		return Errorf(CodeUnsupportedVersion, "version must be the string %q; "+
			"if the body is not a signed envelope yet, sign it first (agora sign)", Version)
	}
	var ok bool
	if e.ID, ok = stringValue(w.id); !ok || !ValidID(e.ID) {
		return Errorf(CodeInvalidRequest, "id %s", idRule)
	}
	typ, _ := stringValue(w.typ)
	if e.Type = Type(typ); !e.Type.Known() {
		return Errorf(CodeInvalidRequest, "type must be one of %s", TypeNames())
	}
	ts, _ := stringValue(w.ts)
	if e.TS, ok = ParseTime(ts); !ok {
		return Errorf(CodeInvalidRequest, "ts must be an RFC 3339 date-time such as 2026-02-02T15:30:00.000Z, "+
			"with T and Z in upper case and at most 9 fraction digits")
	}
	return nil
}

func (e *Envelope) decodeParties(w *wire) error {
	id, ok := stringValue(member(w.sender, "id"))
	if !isObject(w.sender) || !ok {
		return Errorf(CodeInvalidDID, "sender must be an object whose id is a did:key")
	}
	e.Sender.ID = didkey.DID(id)
	for name, value := range members(w.sender) {
		var field *string
		switch name {
		case "name":
			field = &e.Sender.Name
		case "url":
			field = &e.Sender.URL
		default:
			continue
		}
		if *field, ok = stringValue(value); !ok {
			return Errorf(CodeInvalidDID, "sender.%s must be a string", name)
		}
	}
	if w.recipient == nil {
		return nil
	}
	id, ok = stringValue(member(w.recipient, "id"))
	if !isObject(w.recipient) || !ok || id == "" {
		return Errorf(CodeInvalidDID, "recipient must be an object whose id is a did:key; leave it out to broadcast")
	}
	e.Recipient = didkey.DID(id)
	return nil
}

// maxRequestID is the maximum length of a request_id in bytes. Every record and every notice of a thread contains it.
const maxRequestID = 128

func (e *Envelope) decodePayload(w *wire) error {
	if !isObject(w.payload) {
		return Errorf(CodeInvalidRequest, "payload must be an object")
	}
	e.Payload = w.payload
	if value := member(w.payload, "request_id"); value != nil && e.Type != TypeManifest {
		var ok bool
		if e.RequestID, ok = stringValue(value); !ok || len(e.RequestID) > maxRequestID {
			return Errorf(CodeInvalidRequest, "payload.request_id must be a string of at most %d bytes", maxRequestID)
		}
	}
	return nil
}

func (e *Envelope) decodeThread(w *wire) error {
	if e.Type == TypeManifest {
		if w.thread != nil {
			return Errorf(CodeInvalidRequest, "a MANIFEST belongs to no thread; leave thread out")
		}
		return nil
	}
	if w.thread == nil {
		if e.Thread = e.RequestID; !ValidID(e.Thread) {
			return Errorf(CodeInvalidRequest, "thread.id, or else payload.request_id, %s", idRule)
		}
		return nil
	}
	var ok bool
	if e.Thread, ok = stringValue(member(w.thread, "id")); !isObject(w.thread) || !ok || !ValidID(e.Thread) {
		return Errorf(CodeInvalidRequest, "thread must be an object whose id %s", idRule)
	}
	return nil
}

func (e *Envelope) decodeMeta(w *wire) error {
	if w.meta == nil {
		return nil
	}
	if !isObject(w.meta) {
		return Errorf(CodeInvalidRequest, "meta must be an object")
	}
	for name, value := range members(w.meta) {
		switch name {
		case "ttl":
			seconds, ok := wholeNumber(value, maxTTL)
			if !ok || seconds < 1 {
				return Errorf(CodeInvalidRequest, "meta.ttl must be a whole number of seconds from 1 to %d", maxTTL)
			}
			e.TTL = time.Duration(seconds) * time.Second
		case "hop":
			hop, ok := wholeNumber(value, MaxHop)
			if !ok {
				return Errorf(CodeInvalidRequest, "meta.hop must be a whole number from 0 to %d", MaxHop)
			}
			e.Hop = int(hop)
		case "relay":
			var ok bool
			if e.Relays, ok = origins(value); !ok {
				return Errorf(CodeForbidden, "meta.relay must be an origin such as https://relay.example, or a list of them")
			}
		case "home":
			if e.Home = parseHome(value); e.Home == nil {
				return Errorf(CodeInvalidRequest, "meta.home must have exactly the did of a relay and its url, an origin such as "+
					"https://relay.example")
			}
		case "re", "continues":
			text, _ := stringValue(value)
			hash, ok := ParseHash(text)
			if !ok || name == "continues" && e.Type != TypeRequest {
				return Errorf(CodeInvalidRequest, "meta.%s must be the hash of a message, 64 hex digits in lower case; only a REQUEST "+
					"has continues", name)
			}
			if name == "re" {
				e.Re = hash
			} else {
				e.Continues = hash
			}
		}
	}
	return nil
}

// parseHome reads meta.home (RELAYS R-1); nil: it has another form.
func parseHome(value []byte) *Home {
	h, names := Home{}, 0
	for name, value := range members(value) {
		text, ok := stringValue(value)
		names++
		switch {
		case ok && name == "did":
			h.DID = didkey.DID(text)
		case ok && name == "url":
			h.URL = text
		default:
			return nil
		}
	}
	if names != 2 || !isObject(value) || !h.valid() {
		return nil
	}
	return &h
}

// valid reports whether h has a did:key and an origin.
func (h Home) valid() bool {
	_, err := didkey.Parse(string(h.DID))
	return err == nil && ValidOrigin(h.URL)
}

// ValidOrigin reports whether text is the origin of a URL, with http or https (RELAYS R-1).
func ValidOrigin(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && text == u.Scheme+"://"+u.Host
}

// origins reads meta.relay. If ok is true, list is not nil: an empty list means that no relay may accept the message.
func origins(value []byte) (list []string, ok bool) {
	if text, ok := stringValue(value); ok {
		return []string{text}, true
	}
	if len(value) == 0 || value[0] != '[' {
		return nil, false
	}
	list = []string{}
	for element := range elements(value) {
		text, ok := stringValue(element)
		if !ok {
			return nil, false
		}
		list = append(list, text)
	}
	return list, true
}

const idRule = "must be 1 to 128 letters, digits or ._:~- and start with a letter or a digit"

// ValidID reports whether s may be the id of a message or a thread: ^[A-Za-z0-9][A-Za-z0-9._:~-]{0,127}$.
func ValidID(s string) bool {
	if len(s) < 1 || len(s) > 128 {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c >= '0' && c <= '9', c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z':
		case i > 0 && strings.IndexByte("._:~-", c) >= 0:
		default:
			return false
		}
	}
	return true
}

// ParseTime parses an RFC 3339 date-time. It checks the form before it calls Go's parser, because that parser also
// accepts a comma before the fraction, an hour of one digit, an offset of 24 hours and any number of fraction digits.
func ParseTime(s string) (time.Time, bool) {
	const form = "0000-00-00T00:00:00"
	if len(s) <= len(form) || !matches(s[:len(form)], form) {
		return time.Time{}, false
	}
	rest := s[len(form):]
	if rest[0] == '.' {
		digits := 1
		for digits < len(rest) && rest[digits] >= '0' && rest[digits] <= '9' {
			digits++
		}
		if digits == 1 || digits > 1+9 {
			return time.Time{}, false
		}
		rest = rest[digits:]
	}
	offset := matches(rest, "+00:00") || matches(rest, "-00:00")
	if rest != "Z" && (!offset || rest[1:3] > "23" || rest[4:6] > "59") {
		return time.Time{}, false
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	return t, err == nil
}

// matches reports whether s has the same length as form, a digit wherever form has 0, and the same characters as form
// everywhere else.
func matches(s, form string) bool {
	if len(s) != len(form) {
		return false
	}
	for i := range len(s) {
		if form[i] == '0' && (s[i] < '0' || s[i] > '9') || form[i] != '0' && s[i] != form[i] {
			return false
		}
	}
	return true
}

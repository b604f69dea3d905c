package relay

import (
	"iter"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Filter selects events. All fields that are set must match exactly. The zero Filter selects everything.
type Filter struct {
	Recipient didkey.DID
	Broadcast bool // with Recipient: also events without a recipient
	Sender    didkey.DID
	Type      envelope.Type
	Thread    string
	Client    didkey.DID // with Thread: only the thread of this client
	Viewer    Viewer     // only events that this reader may see
}

// FilterInfo is a row of the table of filters.
type FilterInfo struct {
	Name string `json:"name"` // the parameter of GET /events, and the column of the event in both engines
	Text string `json:"text"` // what it selects, for PROTOCOL §5

	// Set parses the value of the parameter and stores it in f.
	// Errors: CodeInvalidDID, CodeInvalidRequest.
	Set func(f *Filter, text string) error `json:"-"`
	// plain says that engines store the value as it is. They give all other filters conditions by hand.
	plain bool
	get   func(*Filter) string            // empty: the filter selects every event
	of    func(*envelope.Envelope) string // the value of an event
}

// filterTable is the only list of filters (PROTOCOL §5). The parser of the parameters, Match, the conditions of the
// engines and the documents read it.
var filterTable = []FilterInfo{
	{Name: "recipient", Text: "the DID to which the event is addressed",
		Set: func(f *Filter, text string) (err error) { f.Recipient, err = ParseDID("recipient", text); return err },
		get: func(f *Filter) string { return string(f.Recipient) },
		of:  func(e *envelope.Envelope) string { return string(e.Recipient) }},
	{Name: "sender", Text: "the DID of the sender",
		Set: func(f *Filter, text string) (err error) { f.Sender, err = ParseDID("sender", text); return err },
		get: func(f *Filter) string { return string(f.Sender) },
		of:  func(e *envelope.Envelope) string { return string(e.Sender.ID) }},
	{Name: "type", Text: "a type of §4, or MANIFEST", plain: true,
		Set: func(f *Filter, text string) error {
			if f.Type = envelope.Type(text); !f.Type.Known() {
				return envelope.Errorf(envelope.CodeInvalidRequest, "type must be one of %s", envelope.TypeNames())
			}
			return nil
		},
		get: func(f *Filter) string { return string(f.Type) },
		of:  func(e *envelope.Envelope) string { return string(e.Type) }},
	{Name: "thread", Text: "the id of a thread; threads of several clients may have it",
		Set: func(f *Filter, text string) error {
			if f.Thread = text; !envelope.ValidID(text) {
				return envelope.Errorf(envelope.CodeInvalidRequest,
					"thread must be a thread's id, 1 to 128 letters, digits or ._:~-")
			}
			return nil
		},
		get: func(f *Filter) string { return f.Thread },
		of:  func(e *envelope.Envelope) string { return e.Thread }},
}

// ParseDID parses the DID in a parameter with this name. Errors: CodeInvalidDID.
func ParseDID(name, text string) (didkey.DID, error) {
	did, err := didkey.Parse(text)
	if err != nil {
		return "", envelope.Errorf(envelope.CodeInvalidDID, "%s: %v", name, err)
	}
	return did, nil
}

// FilterTable returns the row of every filter. Callers must not change it.
func FilterTable() []FilterInfo { return filterTable }

// Plain returns the column and the value of each condition that engines check without more: column = value.
func (f Filter) Plain() iter.Seq2[string, string] {
	return func(yield func(column, value string) bool) {
		for i := range filterTable {
			row := &filterTable[i]
			if value := row.get(&f); row.plain && value != "" && !yield(row.Name, value) {
				return
			}
		}
	}
}

// Match reports whether f selects e. It ignores Client, because only a store knows to which client's thread e belongs.
func (f *Filter) Match(e *envelope.Envelope) bool {
	return f.selects(e) && f.Viewer.Sees(e.Sender.ID, e.Recipient)
}

// selects reports whether e has the values that f wants.
func (f *Filter) selects(e *envelope.Envelope) bool {
	for i := range filterTable {
		row := &filterTable[i]
		if want := row.get(f); want != "" && want != row.of(e) && !(row.Name == "recipient" && f.Broadcast && e.Recipient == "") {
			return false
		}
	}
	return true
}

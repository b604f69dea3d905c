package envelope

import (
	"slices"
	"strings"
)

// State is the state of a thread (PROTOCOL §4). Package thread has the names.
type State string

// Role says who may send a message to a thread. Package thread decides who has a role.
type Role string

const (
	RoleOpener  Role = "opener"  // any identity; it becomes the client of a new thread
	RoleClient  Role = "client"  // the client of the thread
	RoleOfferer Role = "offerer" // the agent that the REQUEST names; any agent except the client if it names none
	RoleAgent   Role = "agent"   // the counterpart of the client: at last the accepted agent
	RoleParty   Role = "party"   // the client, the accepted agent, or an agent with an open offer
	RoleAnyone  Role = "anyone"  // any identity; the message belongs to no thread
)

// RequestIDRule says what payload.request_id of a message must be.
type RequestIDRule string

const (
	RequestIDNew      RequestIDRule = "new"      // any id; later messages repeat it
	RequestIDRequired RequestIDRule = "required" // the one of the REQUEST
	RequestIDOptional RequestIDRule = "optional" // the one of the REQUEST, or absent
	RequestIDIgnored  RequestIDRule = "ignored"
)

// TypeInfo is a row of the table of message types: what the protocol says about one type.
type TypeInfo struct {
	Type   Type          `json:"type"`
	By     Role          `json:"by"`
	Before []State       `json:"before"` // the states of a thread that allow the message; none: it belongs to no thread
	After  State         `json:"after"`  // the state after it
	Needs  []string      `json:"needs"`  // members of the payload that must be non-empty strings
	Clear  []string      `json:"clear"`  // members of the payload that relays read, so that sealing leaves them readable
	ID     RequestIDRule `json:"requestId"`
	// Number stands for the type in databases. It never changes. A new type gets a number that neither a type nor a
	// transition of package thread has.
	Number int `json:"number"`
}

// typeTable is the only list of types (PROTOCOL §1, §4; SEALING). The documents, the schemas and the packages in other
// languages get it through testvectors/protocol.json. A type that belongs to no thread stands at the end.
var typeTable = []TypeInfo{
	{TypeRequest, RoleOpener, []State{"OPEN"}, "PENDING", []string{"intent"}, []string{"request_id", "intent"}, RequestIDNew, 0},
	{TypeOffer, RoleOfferer, []State{"PENDING"}, "PENDING", nil, []string{"request_id"}, RequestIDRequired, 1},
	{TypeAccept, RoleClient, []State{"PENDING"}, "ACTIVE", nil, []string{"request_id"}, RequestIDRequired, 2},
	{TypeResult, RoleAgent, []State{"ACTIVE"}, "COMPLETED", []string{"status"}, []string{"request_id", "status"}, RequestIDRequired, 4},
	{TypeError, RoleParty, []State{"PENDING", "ACTIVE", "COMPLETED"}, "ERROR", []string{"code", "message"}, []string{"request_id", "code"}, RequestIDOptional, 5},
	{TypeCancel, RoleClient, []State{"PENDING", "ACTIVE"}, "ERROR", nil, []string{"request_id"}, RequestIDOptional, 3},
	{TypeManifest, RoleAnyone, nil, "", nil, nil, RequestIDIgnored, 8},
}

// TypeTable returns the row of every Type.
func TypeTable() []TypeInfo { return slices.Clone(typeTable) }

// Types returns every Type.
func Types() (types []Type) {
	for _, row := range typeTable {
		types = append(types, row.Type)
	}
	return types
}

// TypeNames returns the types as a comma-separated list for messages to people.
func TypeNames() string {
	var names []string
	for _, t := range Types() {
		names = append(names, string(t))
	}
	return strings.Join(names, ", ")
}

// Info returns the row of t. known is false, and the row is empty, if the table does not have t. Callers must not change
// the slices of the row.
func (t Type) Info() (row TypeInfo, known bool) {
	for _, row := range typeTable {
		if row.Type == t {
			return row, true
		}
	}
	return TypeInfo{}, false
}

// Known reports whether t is one of Types.
func (t Type) Known() bool {
	_, known := t.Info()
	return known
}

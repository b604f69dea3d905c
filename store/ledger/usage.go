package ledger

import (
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// Usage describes what a database holds.
type Usage struct {
	Events    int64 `json:"events"`    // that can be delivered
	Expired   int64 `json:"expired"`   // of which only the ids are remembered
	Removed   int64 `json:"removed"`   // by the operator
	BodyBytes int64 `json:"bodyBytes"` // of all bodies
	LastHour  int64 `json:"lastHour"`  // events that came in the hour before
	LastDay   int64 `json:"lastDay"`   // events that came in the 24 hours before

	Oldest *time.Time `json:"oldest"` // arrival of the oldest event that can be delivered; nil: there is none
	Newest *time.Time `json:"newest"`

	Types   []TypeUsage            `json:"types"`   // sorted by type
	Threads map[thread.State]int64 `json:"threads"` // how many threads have each state; it has every state

	Agents     int64 `json:"agents"`     // with a manifest that has not expired
	Identities int64 `json:"identities"` // that any row names

	DatabaseBytes int64     `json:"databaseBytes"` // size of the file, or of the tables and indexes
	FreeBytes     int64     `json:"freeBytes"`     // of the file, without content; 0 with PostgreSQL
	LogBytes      int64     `json:"logBytes"`      // size of the write-ahead log; 0 with PostgreSQL
	Seq           relay.Seq `json:"seq"`           // last number given to an event
}

// TypeUsage describes the events of one type that can be delivered.
type TypeUsage struct {
	Type   envelope.Type `json:"type"`
	Events int64         `json:"events"`
	Bytes  int64         `json:"bytes"`
}

// Ranking selects what Top counts.
type Ranking string

const (
	BySender Ranking = "sender" // the messages that each identity has sent
	ByInbox  Ranking = "inbox"  // the messages for each recipient
)

// Ranked is an identity and its messages that can be delivered.
type Ranked struct {
	DID     didkey.DID `json:"did"`
	Events  int64      `json:"events"`
	Bytes   int64      `json:"bytes"`
	Unasked int64      `json:"unasked,omitempty"` // ByInbox: messages that count against the inbox
}

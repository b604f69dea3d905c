package admission

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	"github.com/agora-relay/agora/envelope"
)

// Limits bound what one client may ask of a relay (PROTOCOL §5). A field that is zero means its default.
type Limits struct {
	PostsPerAddress Rate // requests by any method that may change something, valid or not
	ReadsPerAddress Rate // all other requests
	PostsPerAgent   Rate // messages signed by one DID
	// BroadcastsPerAddress limits the REQUESTs without a recipient. The reason is that every agent that offers a
	// service reads all of them.
	BroadcastsPerAddress     Rate
	NewConnectionsPerAddress Rate
	// Limits on concurrent connections, requests and polls. Unlimited: any number.
	ConnectionsPerAddress int // including idle ones
	RequestsPerAddress    int
	PollsPerAddress       int // only those that wait
	Polls                 int // waiting polls of all addresses together
	// WritesPerAddress limits the messages, and the changes at gateways, that are being stored at a time. Here an
	// address is one IPv4 address or one IPv6 /48. Others wait for their turn.
	WritesPerAddress int
	BulksPerAddress  int            // concurrent bulk requests
	BulkFrom         []netip.Prefix // networks whose lines of bulk requests do not count as posts of their address
}

// Rate limits how often something may be done: Burst times at once, and then PerSecond times a second.
type Rate struct {
	PerSecond float64 // Unlimited: any number
	Burst     int     // 0: twice PerSecond, or four times PerSecond for BroadcastsPerAddress
}

// LimitInfo is a row of the table of limits.
type LimitInfo struct {
	Name string `json:"name"` // the value of envelope.DetailLimit in a refusal
	// Default is a number a second if Rate is not nil, else a number. BurstFactor times a Rate's number may come at once.
	Default     float64 `json:"default"`
	BurstFactor float64 `json:"burstFactor,omitempty"`
	Text        string  `json:"text"` // what is counted; Markdown for PROTOCOL §5, which writes the numbers before it

	Rate  func(*Limits) *Rate `json:"-"` // the field of Limits, if there is one and it is a rate
	Count func(*Limits) *int  `json:"-"` // the field of Limits, if there is one and it is a number
}

// limitTable has the limits that a Gate enforces: the fields of Limits. relay.LimitTable adds the limits that the store
// enforces. The documents and the well-known document get them from there. A name that neither the store nor a client
// uses can be a constant here: the names of package envelope are promised (STABILITY).
var limitTable = []LimitInfo{
	{Name: envelope.LimitPostsPerAddress, Default: 50, BurstFactor: 2, Text: "POSTs a second",
		Rate: func(l *Limits) *Rate { return &l.PostsPerAddress }},
	{Name: envelope.LimitReadsPerAddress, Default: 100, BurstFactor: 2, Text: "other requests a second",
		Rate: func(l *Limits) *Rate { return &l.ReadsPerAddress }},
	{Name: envelope.LimitPostsPerAgent, Default: 20, BurstFactor: 2, Text: "messages a second by one sender",
		Rate: func(l *Limits) *Rate { return &l.PostsPerAgent }},
	{Name: envelope.LimitBroadcastsPerAddress, Default: 5, BurstFactor: 4, Text: "REQUESTs without a recipient a second",
		Rate: func(l *Limits) *Rate { return &l.BroadcastsPerAddress }},
	{Name: envelope.LimitConnectionsPerAddress, Default: 256, Text: "open connections",
		Count: func(l *Limits) *int { return &l.ConnectionsPerAddress }},
	{Name: envelope.LimitNewConnectionsPerAddress, Default: 200, BurstFactor: 2, Text: "new connections a second",
		Rate: func(l *Limits) *Rate { return &l.NewConnectionsPerAddress }},
	{Name: envelope.LimitRequestsPerAddress, Default: 64, Text: "concurrent requests",
		Count: func(l *Limits) *int { return &l.RequestsPerAddress }},
	{Name: envelope.LimitPollsPerAddress, Default: 32, Text: "waiting polls",
		Count: func(l *Limits) *int { return &l.PollsPerAddress }},
	{Name: envelope.LimitPolls, Default: 10_000, Text: "waiting polls of all addresses",
		Count: func(l *Limits) *int { return &l.Polls }},
	{Name: envelope.LimitWritesPerAddress, Default: 4, Text: "messages that are being stored",
		Count: func(l *Limits) *int { return &l.WritesPerAddress }},
	{Name: envelope.LimitBulks, Default: 4, Text: "concurrent bulk requests",
		Count: func(l *Limits) *int { return &l.BulksPerAddress }},
}

// LimitTable returns the row of every limit that a Gate enforces.
func LimitTable() []LimitInfo { return slices.Clone(limitTable) }

// WithDefaults returns l with each zero field replaced by its default.
func (l Limits) WithDefaults() Limits {
	for _, row := range limitTable {
		switch {
		case row.Rate != nil:
			rate := row.Rate(&l)
			rate.PerSecond = cmp.Or(rate.PerSecond, row.Default)
			rate.Burst = cmp.Or(rate.Burst, int(math.Ceil(row.BurstFactor*rate.PerSecond)))
		case row.Count != nil:
			count := row.Count(&l)
			*count = cmp.Or(*count, int(row.Default))
		}
	}
	return l
}

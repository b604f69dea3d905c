package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/mux"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

type receiptAnswer struct {
	OK        bool       `json:"ok"`
	ID        string     `json:"id"`
	Cursor    string     `json:"cursor"`
	Duplicate bool       `json:"duplicate"`
	ExpiresAt time.Time  `json:"expiresAt"`
	Thread    *threadRef `json:"thread,omitempty"`
	Proof     string     `json:"proof,omitempty"`
}

type threadRef struct {
	ID     string       `json:"id"`
	Client didkey.DID   `json:"client"`
	State  thread.State `json:"state,omitempty"`
}

func (a *api) postEvent(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	if err := noParams(r); err != nil {
		return err
	}
	body, err := ReadBody(w, r, a.relay.MaxBody())
	if err != nil {
		return err
	}
	// If the client closes its side of the connection now, the message is stored and the receipt written nevertheless.
	receipt, err := a.relay.Post(context.WithoutCancel(r.Context()), from, body)
	if err != nil {
		return err
	}
	answer := receiptAnswer{OK: true, ID: receipt.ID, Cursor: a.relay.FormatReceipt(receipt.Cursor),
		Duplicate: receipt.Duplicate, ExpiresAt: receipt.ExpiresAt.UTC(), Proof: receipt.Proof}
	if receipt.Queued > 0 {
		w.Header().Set("Server-Timing", "turn;dur="+strconv.FormatFloat(receipt.Queued.Seconds()*1e3, 'f', 1, 64))
	}
	if receipt.Thread.ID != "" {
		answer.Thread = &threadRef{receipt.Thread.ID, receipt.Thread.Client, receipt.State}
	}
	return WriteJSON(w, http.StatusOK, answer)
}

const (
	initialBody = 4 << 10   // memory in bytes that ReadBody allocates before it reads
	drainedBody = 256 << 10 // how much of a body that is too large is still read, in bytes
)

// ReadBody reads a request body of at most limit bytes. The body must not have a Content-Encoding. Any Content-Type is
// accepted, so that a plain curl -d works.
// Errors: CodeUnsupportedMedia for a Content-Encoding, CodePayloadTooLarge, CodeInvalidRequest for a body that ends
// early or arrives too slowly.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int) ([]byte, error) {
	if err := checkPlain(r); err != nil {
		return nil, err
	}
	if r.ContentLength > int64(limit) {
		return nil, tooLarge(r, limit)
	}
	// A client may announce a large body and never send it. So only a little memory is allocated now. The buffer grows
	// as the body arrives.
	body := bytes.NewBuffer(make([]byte, 0, min(max(r.ContentLength, 0), initialBody)+bytes.MinRead))
	_, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, int64(limit)))
	if err == nil {
		return body.Bytes(), nil
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, tooLarge(r, limit)
	}
	return nil, errBodyEnded
}

var errBodyEnded = envelope.Errorf(envelope.CodeInvalidRequest, "the body ended early or arrived too slowly")

// checkPlain refuses a Content-Encoding with CodeUnsupportedMedia.
func checkPlain(r *http.Request) error {
	if strings.Join(r.Header.Values("Content-Encoding"), "") != "" { // also if the header is given twice
		return envelope.Errorf(envelope.CodeUnsupportedMedia, "the body must be sent without Content-Encoding")
	}
	return nil
}

// tooLarge returns the error for a body of more than limit bytes. Before, it reads some of the rest. A client that still
// sends when the server closes the connection would not get the answer.
func tooLarge(r *http.Request, limit int) error {
	_, _ = io.CopyN(io.Discard, r.Body, drainedBody)         // if this fails, the client has left
	return envelope.TooLarge(max(r.ContentLength, 0), limit) // the length of a chunked body is not known
}

func (a *api) getEvents(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	q, err := a.parseEvents(r)
	if err != nil {
		return err
	}
	q.Peer = from
	if q.before != "" {
		return a.getEventsBefore(w, r, q)
	}
	// While the poll waits, net/http reads from the connection to learn whether the client is still there. The deadline
	// for reading the request would end that read and so the poll; therefore it is removed. A ResponseWriter without a
	// network connection, such as the recorder of httptest, has no deadlines; its error does not matter.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	d, err := a.relay.Events(r.Context(), &q.Poll)
	if err != nil {
		return err
	}
	lastTS := q.since // after an empty answer, existing clients poll again with lastTs
	if !d.LastTS.IsZero() {
		lastTS = d.LastTS.UTC().Format(time.RFC3339Nano)
	}
	return a.answerEvents(w, d, struct {
		HasMore bool   `json:"hasMore"`
		Cursor  string `json:"cursor"`
		LastTS  string `json:"lastTs,omitempty"`
	}{d.More, a.relay.FormatCursor(d.Cursor), lastTS})
}

// getEventsBefore answers GET /events?before=.
func (a *api) getEventsBefore(w http.ResponseWriter, r *http.Request, q *eventsQuery) (err error) {
	if q.before == theEnd {
		if q.Cursor, err = a.relay.End(r.Context()); err != nil {
			return err
		}
	}
	d, err := a.relay.EventsBefore(r.Context(), &q.Poll)
	if err != nil {
		return err
	}
	return a.answerEvents(w, d, struct {
		HasMore bool   `json:"hasMore"`
		Cursor  string `json:"cursor"`
		After   string `json:"after"`
	}{d.More, a.relay.FormatCursor(d.Cursor), a.relay.FormatCursor(q.Cursor)})
}

func (a *api) getThread(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	p, err := parseParams(r, "client")
	if err != nil {
		return err
	}
	client, err := p.did("client")
	if err != nil {
		return err
	}
	view, err := a.relay.Thread(r.Context(), from, thread.Key{ID: mux.Vars(r)["id"], Client: client})
	if err != nil {
		return err
	}
	record := struct {
		thread.Thread
		Deadline *time.Time `json:"deadline,omitempty"`
	}{Thread: view.Thread}
	if !view.Deadline.IsZero() {
		record.Deadline = &view.Deadline
	}
	members := map[string]any{"thread": record, "expired": view.Expired}
	if len(view.Removed) > 0 {
		members["removed"] = view.Removed
	}
	return a.answerEvents(w, view.Delivery, members)
}

// agentRow is an agent in the directory, without its manifest.
type agentRow struct {
	ID       didkey.DID `json:"id"`
	Online   bool       `json:"online"`
	LastSeen time.Time  `json:"lastSeen"`
	Mirrored bool       `json:"mirrored,omitempty"`
}

func (a *api) getAgents(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	q, err := a.parseAgentQuery(r)
	if err != nil {
		return err
	}
	page, err := a.relay.Agents(r.Context(), from, q)
	if err != nil {
		return err
	}
	tail, err := json.Marshal(struct {
		HasMore bool   `json:"hasMore"`
		Cursor  string `json:"cursor"`
	}{page.More, a.formatAgentCursor(page.Next)})
	if err != nil {
		return err
	}
	return WriteList(w, List{Head: `{"ok":true,"agents":[`, Elements: a.agentRows(page.Agents),
		Tail: func() string { return "]," + string(tail[1:]) + "\n" }})
}

// agentRows yields the rows of a page of the directory as JSON.
func (a *api) agentRows(agents []relay.Agent) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for _, agent := range agents {
			row, err := json.Marshal(agentRow{agent.DID, a.relay.Online(agent), agent.LastSeen, agent.Mirrored})
			if err == nil { // the manifest is sent as it was signed
				row = append(append(append(row[:len(row)-1], `,"envelope":`...), agent.Manifest...), '}')
			}
			if !yield(row, err) || err != nil {
				return
			}
		}
	}
}

func (a *api) getAgent(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	if err := noParams(r); err != nil {
		return err
	}
	did, err := didkey.Parse(mux.Vars(r)["did"])
	if err != nil {
		return envelope.Errorf(envelope.CodeInvalidDID, "the path must end in a did:key: %v", err)
	}
	first, rest, err := a.relay.Agent(r.Context(), from, did)
	if err != nil {
		return err
	}
	head, err := json.Marshal(map[string]any{"id": did, "online": a.relay.Online(first[0]), "lastSeen": first[0].LastSeen})
	if err != nil {
		return err
	}
	pieces := func(yield func([]relay.Agent, error) bool) {
		if yield(first, nil) {
			rest(yield)
		}
	}
	return WriteList(w, List{Head: `{"ok":true,"agent":` + strings.TrimSuffix(string(head), "}") + `,"manifests":[`,
		Elements: elements(pieces, func(a relay.Agent) []byte { return a.Manifest }),
		Tail:     func() string { return "]}}\n" }})
}

func (a *api) getHealth(w http.ResponseWriter, _ *http.Request, _ relay.Peer) error {
	if err := a.relay.Health(); err != nil {
		answer, known := RelayError(err)
		if !known || a.options.Node == nil {
			return err
		}
		answer.Body = struct {
			errorBody
			Node any `json:"node"`
		}{answer.Body.(errorBody), a.node()}
		return answer.Write(w)
	}
	return WriteJSON(w, http.StatusOK, struct {
		OK       bool      `json:"ok"`
		Protocol string    `json:"protocol"`
		Version  string    `json:"version"` // of the protocol, too
		Build    string    `json:"build"`
		Now      time.Time `json:"now"`
		Node     any       `json:"node,omitempty"`
	}{true, envelope.Version, wireVersion, a.options.Build, a.relay.Now().UTC(), a.node()})
}

// node describes this node of a relay with several nodes; nil: there is one node.
func (a *api) node() any {
	if a.options.Node == nil {
		return nil
	}
	return a.options.Node()
}

// wireVersion is the member "version" of /health and of the well-known document: the version of the protocol, with a
// third number. Clients of Agora v1.0 may expect it. The member "protocol" is the version as messages have it.
const wireVersion = envelope.Version + ".0"

func (a *api) getWellKnown(w http.ResponseWriter, _ *http.Request, from relay.Peer) error {
	policy := a.relay.Policy()
	seconds := map[string]any{
		"skew": policy.Window.Skew.Seconds(), "idMemory": policy.Window.Memory.Seconds(),
		"defaultTtl": envelope.DefaultTTL.Seconds(), "maxTtl": policy.Window.MaxTTL.Seconds(),
		"pendingTimeout": policy.Rules.PendingTimeout.Seconds(), "activeTimeout": policy.Rules.ActiveTimeout.Seconds(),
		"threadRetention": policy.ThreadRetention.Seconds(),
		"pollDefault":     relay.DefaultWait.Seconds(), "pollMax": relay.MaxWait.Seconds(), "streamMax": maxStream.Seconds(),
	}
	if len(policy.Retention) > 0 {
		limits := map[envelope.Type]float64{}
		for t := range policy.Retention {
			limits[t] = policy.WindowOf(t).MaxTTL.Seconds()
		}
		seconds["maxTtlOf"] = limits
	}
	document := map[string]any{
		"ok": true, "protocol": envelope.Version, "version": wireVersion, "build": a.options.Build,
		"did": a.relay.DID(), "url": a.relay.Origin(), "reads": a.relay.Reads(),
		"features": a.features(from), "limits": a.limits(), "seconds": seconds,
	}
	if log, ok := a.relay.Log(); ok {
		document["log"] = log
	}
	if a.options.Witness != nil {
		document["witness"] = a.options.Witness.Key()
	}
	if a.options.Durability != "" {
		document["durability"] = a.options.Durability
	}
	if a.options.Gateways != nil {
		document["gateways"] = a.options.Gateways
	}
	return WriteJSON(w, http.StatusOK, document)
}

// features returns what this relay can do for a client.
func (a *api) features(from relay.Peer) []string {
	features := []string{"cursor", "before", "sse", "broadcast", "threads", "agents", "duplicate-receipts", "openapi",
		"bulk", "home"}
	if len(a.options.Origins) > 0 {
		features = append(features, "cors")
	}
	if a.maySeed(from) {
		features = append(features, "seed")
	}
	if _, ok := a.relay.Log(); ok {
		features = append(features, "proofs")
	}
	if a.options.Witness != nil {
		features = append(features, "witness")
	}
	return features
}

// limits returns the limits for the well-known document. Limits that are turned off are absent.
func (a *api) limits() map[string]any {
	type rate struct {
		PerSecond float64 `json:"perSecond"`
		Burst     int     `json:"burst"`
	}
	limits := map[string]any{
		"bodyBytes": a.relay.MaxBody(), "depth": envelope.MaxDepth, "costlyNumbers": envelope.MaxCostlyNumbers,
		"hop": envelope.MaxHop, "pageEvents": relay.MaxPage, "pageBytes": relay.PageBytes,
		"offersPerThread": a.relay.Policy().Rules.MaxOffers, "manifestsPerAgent": relay.MaxManifests,
		"bulkLines": relay.MaxBulkLines, "bulkBytes": relay.MaxBulkBytes,
	}
	rates := map[string]rate{}
	current := a.relay.Gate().Limits()
	for _, row := range relay.LimitTable() {
		if row.Rate != nil && row.Rate(&current).PerSecond >= 0 {
			rates[row.Name] = rate(*row.Rate(&current))
		}
		if row.Count != nil && *row.Count(&current) >= 0 {
			limits[row.Name] = *row.Count(&current)
		}
	}
	inbox := a.relay.Policy().Inbox
	if inbox.Events >= 0 {
		limits["inboxEvents"] = inbox.Events
	}
	if inbox.Bytes >= 0 {
		limits["inboxBytes"] = inbox.Bytes
	}
	if len(rates) > 0 {
		limits["rates"] = rates
	}
	return limits
}

// maySeed reports whether a client may use POST /seed.
func (a *api) maySeed(from relay.Peer) bool { return a.options.Demo || from.Local || from.OwnPage }

func (a *api) postSeed(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	if !a.maySeed(from) {
		return envelope.Errorf(envelope.CodeNotFound, "demonstration data is created only for requests from the relay's own "+
			"machine; its operator can allow all requests with --demo")
	}
	count, err := a.relay.Seed(context.WithoutCancel(r.Context()), from)
	if err != nil {
		return err
	}
	return WriteJSON(w, http.StatusOK, struct {
		OK    bool `json:"ok"`
		Count int  `json:"count"`
	}{true, count})
}

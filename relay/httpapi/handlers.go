package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
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
}

type threadRef struct {
	ID     string       `json:"id"`
	Client didkey.DID   `json:"client"`
	State  thread.State `json:"state,omitempty"`
}

func (s *server) postEvent(w http.ResponseWriter, r *http.Request) error {
	if err := noParams(r); err != nil {
		return err
	}
	body, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	// A client that closes its side does not take back what it has sent: it is stored, and the receipt written.
	receipt, err := s.relay.Post(context.WithoutCancel(r.Context()), s.peer(r), body)
	if err != nil {
		return err
	}
	a := receiptAnswer{OK: true, ID: receipt.ID, Cursor: s.relay.FormatReceipt(receipt.Cursor), Duplicate: receipt.Duplicate, ExpiresAt: receipt.ExpiresAt.UTC()}
	if receipt.Thread.ID != "" {
		a.Thread = &threadRef{receipt.Thread.ID, receipt.Thread.Client, receipt.State}
	}
	s.answer(w, http.StatusOK, a)
	return nil
}

const readyBody = 4 << 10 // bytes

// readBody reads a body that is not encoded and not larger than the relay takes. Its Content-Type is the client's
// business: a plain curl -d works.
func (s *server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if strings.Join(r.Header.Values("Content-Encoding"), "") != "" { // a second field counts like the first
		return nil, envelope.Errorf(envelope.CodeUnsupportedMedia, "the body must come without Content-Encoding")
	}
	if r.ContentLength > int64(s.relay.MaxBody) {
		return nil, envelope.TooLarge(s.relay.MaxBody) // before a byte of it is asked for
	}
	// Of what is announced, a little is made ready at once; the rest only as it comes.
	body := bytes.NewBuffer(make([]byte, 0, min(max(r.ContentLength, 0), readyBody)+bytes.MinRead))
	_, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, int64(s.relay.MaxBody)))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, envelope.TooLarge(s.relay.MaxBody)
	case err != nil:
		return nil, envelope.Errorf(envelope.CodeInvalidRequest, "the body broke off or came too slowly")
	}
	return body.Bytes(), nil
}

func (s *server) getEvents(w http.ResponseWriter, r *http.Request) error {
	defer s.enter()()
	poll, since, err := s.parsePoll(r)
	if err != nil {
		return err
	}
	poll.Peer = s.peer(r)
	// The deadline for reading the request must not cut the wait, during which the connection is read to learn whether
	// the client is still there. A wire that cannot set deadlines (a test's recorder) has no slow client either.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	d, err := s.relay.Events(r.Context(), poll)
	if err != nil {
		return err
	}
	lastTS := since // what the loops of existing clients go on with after an empty answer
	if !d.LastTS.IsZero() {
		lastTS = d.LastTS.UTC().Format(time.RFC3339Nano)
	}
	return s.answerEvents(w, d, struct {
		HasMore bool   `json:"hasMore"`
		Cursor  string `json:"cursor"`
		LastTS  string `json:"lastTs,omitempty"`
	}{d.More, s.relay.FormatCursor(d.Cursor), lastTS})
}

func (s *server) getThread(w http.ResponseWriter, r *http.Request) error {
	p, err := parseParams(r, "client")
	if err != nil {
		return err
	}
	client, err := p.did("client")
	if err != nil {
		return err
	}
	view, err := s.relay.Thread(r.Context(), s.peer(r), thread.Key{ID: mux.Vars(r)["id"], Client: client})
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
	return s.answerEvents(w, view.Delivery, map[string]any{"thread": record, "expired": view.Expired})
}

type agentRow struct {
	ID       didkey.DID      `json:"id"`
	Online   bool            `json:"online"`
	LastSeen time.Time       `json:"lastSeen"`
	Envelope json.RawMessage `json:"envelope"`
}

func (s *server) getAgents(w http.ResponseWriter, r *http.Request) error {
	q, err := s.parseAgentQuery(r)
	if err != nil {
		return err
	}
	page, err := s.relay.Agents(r.Context(), s.peer(r), q)
	if err != nil {
		return err
	}
	rows := make([]agentRow, len(page.Agents))
	for i, a := range page.Agents {
		rows[i] = agentRow{a.DID, s.relay.Online(a), a.LastSeen, a.Manifest}
	}
	s.answer(w, http.StatusOK, struct {
		OK      bool       `json:"ok"`
		Agents  []agentRow `json:"agents"`
		HasMore bool       `json:"hasMore"`
		Cursor  string     `json:"cursor"`
	}{true, rows, page.More, s.formatAgentCursor(page.Next)})
	return nil
}

func (s *server) getAgent(w http.ResponseWriter, r *http.Request) error {
	if err := noParams(r); err != nil {
		return err
	}
	did, err := didkey.Parse(mux.Vars(r)["did"])
	if err != nil {
		return envelope.Errorf(envelope.CodeInvalidDID, "the path must end in a did:key: %v", err)
	}
	first, rest, err := s.relay.Agent(r.Context(), s.peer(r), did)
	if err != nil {
		return err
	}
	head, err := json.Marshal(map[string]any{"id": did, "online": s.relay.Online(first[0]), "lastSeen": first[0].LastSeen})
	if err != nil {
		return err
	}
	l := list{head: `{"ok":true,"agent":` + strings.TrimSuffix(string(head), "}") + `,"manifests":[`, tail: "]}}\n"}
	pieces := func(yield func([]relay.Agent, error) bool) {
		if yield(first, nil) {
			rest(yield)
		}
	}
	s.answerList(w, l, elements(pieces, func(a relay.Agent) []byte { return a.Manifest }))
	return nil
}

func (s *server) getHealth(w http.ResponseWriter, r *http.Request) error {
	if err := s.relay.Health(); err != nil {
		return err
	}
	s.answer(w, http.StatusOK, struct {
		OK      bool      `json:"ok"`
		Version string    `json:"version"`
		Build   string    `json:"build"`
		Now     time.Time `json:"now"`
	}{true, protocolVersion, s.options.Build, s.relay.Now().UTC()})
	return nil
}

// protocolVersion is what the protocol's health check shows.
const protocolVersion = "1.0.0"

func (s *server) getWellKnown(w http.ResponseWriter, r *http.Request) error {
	policy := s.relay.Policy
	s.answer(w, http.StatusOK, map[string]any{
		"ok": true, "version": protocolVersion, "build": s.options.Build,
		"did": s.relay.Key.DID(), "url": s.relay.Origin, "reads": s.visibility(),
		"features": s.features(), "limits": s.limits(),
		"seconds": map[string]any{
			"skew": policy.Window.Skew.Seconds(), "idMemory": policy.Window.Memory.Seconds(),
			"defaultTtl": envelope.DefaultTTL.Seconds(), "maxTtl": policy.Window.MaxTTL.Seconds(),
			"pendingTimeout": policy.Rules.PendingTimeout.Seconds(), "activeTimeout": policy.Rules.ActiveTimeout.Seconds(),
			"threadRetention": policy.ThreadRetention.Seconds(),
			"pollDefault":     relay.DefaultWait.Seconds(), "pollMax": relay.MaxWait.Seconds(),
		},
	})
	return nil
}

func (s *server) visibility() relay.Visibility { return cmp.Or(s.relay.Reads, relay.ToAll) }

func (s *server) features() []string {
	features := []string{"cursor", "broadcast", "threads", "agents", "duplicate-receipts"}
	if s.cors != nil {
		features = append(features, "cors")
	}
	return features
}

// limits returns the limits of the well-known document. What is not limited is absent.
func (s *server) limits() map[string]any {
	type rate struct {
		PerSecond float64 `json:"perSecond"`
		Burst     int     `json:"burst"`
	}
	limits := map[string]any{
		"bodyBytes": s.relay.MaxBody, "depth": envelope.MaxDepth, "costlyNumbers": envelope.MaxCostlyNumbers,
		"hop": envelope.MaxHop, "pageEvents": relay.MaxPage, "pageBytes": relay.PageBytes, "offersPerThread": s.relay.Rules.MaxOffers,
		"manifestsPerAgent": relay.MaxManifests,
	}
	for name, n := range map[string]int{relay.ConnectionsPerAddress: s.relay.Limits.ConnectionsPerAddress,
		relay.RequestsPerAddress: s.relay.Limits.RequestsPerAddress,
		relay.PollsPerAddress:    s.relay.Limits.PollsPerAddress, relay.Polls: s.relay.Limits.Polls, "inboxEvents": s.relay.Inbox.Events} {
		if n >= 0 {
			limits[name] = n
		}
	}
	if s.relay.Inbox.Bytes >= 0 {
		limits["inboxBytes"] = s.relay.Inbox.Bytes
	}
	rates := map[string]rate{}
	for name, r := range map[string]relay.Rate{relay.PostsPerAddress: s.relay.Limits.PostsPerAddress,
		relay.ReadsPerAddress: s.relay.Limits.ReadsPerAddress, relay.PostsPerAgent: s.relay.Limits.PostsPerAgent,
		relay.BroadcastsPerAddress: s.relay.Limits.BroadcastsPerAddress} {
		if r.PerSecond >= 0 {
			rates[name] = rate(r)
		}
	}
	if len(rates) > 0 {
		limits["rates"] = rates
	}
	return limits
}

func (s *server) postSeed(w http.ResponseWriter, r *http.Request) error {
	if !s.options.Demo && !s.local(r) {
		return envelope.Errorf(envelope.CodeNotFound, "demonstration data is made for requests from this machine only; "+
			"the operator can open it with --demo")
	}
	count, err := s.relay.Seed(context.WithoutCancel(r.Context()), s.peer(r))
	if err != nil {
		return err
	}
	s.answer(w, http.StatusOK, struct {
		OK    bool `json:"ok"`
		Count int  `json:"count"`
	}{true, count})
	return nil
}

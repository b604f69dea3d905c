// Package admin lets the operator govern a running relay: ban clients, remove messages, see who uses it, pause it, and
// make backups. The API is HTTP with JSON over a Unix socket in the data folder, which only the user of the relay can
// open. Nothing of it is served over TCP. It can neither read keys nor change settings.
package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// Options are what an API governs.
type Options struct {
	Relay *relay.Relay
	Bans  *Bans
	Build string // the program's version
	// Top returns the identities with the most messages. by is sender or inbox, and order is count or bytes.
	Top func(ctx context.Context, by, order string, limit int) (any, error)
	// Stats returns figures of the database.
	Stats func(ctx context.Context) (any, error)
	// Checkpoint copies the write-ahead log into the database. done is false if a reader is in the way.
	Checkpoint func(ctx context.Context) (done bool, err error)
	// Remove removes the content that has an id at a gateway, such as hub. Errors: CodeNotFound.
	Remove func(ctx context.Context, gateway, id string) error
	// RemoveSender removes what a sender has sent to the gateways since a time, up to limit things. removed says how many,
	// by the name of the gateway.
	RemoveSender func(ctx context.Context, sender string, since time.Time, limit int) (removed map[string]int, err error)
	Backups      *Backups     // nil: there is no folder for backups
	Nodes        *NodeOptions // nil: the relay is a single node
	Policy       func() error // why the policy command does not decide; nil: there is none
	Log          *slog.Logger // every change is logged, with the user who has asked for it
}

// NodeOptions are what an API governs of a relay of several nodes.
type NodeOptions struct {
	// Figures returns figures of this node and of the database servers. If the servers do not answer, it returns those of
	// the node, and the error.
	Figures func(ctx context.Context) (any, error)
	// RecordBackup records that the operator has made a backup of the database at a time.
	RecordBackup func(ctx context.Context, at time.Time) error
}

// Status describes a relay that runs.
type Status struct {
	Build   string      `json:"build"`
	DID     didkey.DID  `json:"did"`
	Now     time.Time   `json:"now"`
	Ready   bool        `json:"ready"` // it accepts messages
	Reason  string      `json:"reason,omitempty"`
	Paused  bool        `json:"paused"`
	Waiting int         `json:"waiting"` // polls and streams
	Bans    int         `json:"bans"`
	Policy  string      `json:"policy,omitempty"` // why the policy command does not decide
	Backup  *BackupInfo `json:"backup,omitempty"`
	Node    any         `json:"node,omitempty"` // of a relay of several nodes
	Store   any         `json:"store"`
}

// Waiting is a poll or a stream.
type Waiting struct {
	Address   string     `json:"address,omitempty"`
	Local     bool       `json:"local,omitempty"`
	Reader    didkey.DID `json:"reader,omitempty"` // the identity that it has proven
	Kind      string     `json:"kind"`             // poll or stream
	Since     time.Time  `json:"since"`
	Recipient didkey.DID `json:"recipient,omitempty"`
	Sender    didkey.DID `json:"sender,omitempty"`
	Type      string     `json:"type,omitempty"`
	Thread    string     `json:"thread,omitempty"`
}

// Limits on what the API takes and gives.
const (
	maxBody   = 64 << 10
	maxBatch  = 1000 // things that one request removes of a sender
	maxListed = 1000
	slowTime  = 10 * time.Minute // for a request that reads all of the database, or copies it
)

// Handler returns the handler of the API.
func Handler(o Options) http.Handler {
	a := &api{o}
	mux := http.NewServeMux()
	for pattern, h := range map[string]func(*http.Request) (any, error){
		"GET /status": a.status, "GET /bans": a.bans, "POST /bans": a.ban, "POST /unban": a.unban, "POST /remove": a.remove,
		"POST /remove-sender": a.removeSender,
		"GET /top":            a.top, "GET /waiters": a.waiters, "POST /drain": a.drain, "POST /resume": a.resume,
		"POST /checkpoint": a.checkpoint, "POST /backup": a.backup,
		"POST /backup/recorded": a.recordBackup,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { a.answer(w, r, h) })
	}
	mux.HandleFunc("GET /profile/{name}", a.profile)
	return mux
}

type api struct{ Options }

// answer calls h and writes its result.
func (a *api) answer(w http.ResponseWriter, r *http.Request, h func(*http.Request) (any, error)) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(slowTime)) // a recorder has no deadlines
	noted := new(notes)
	r = r.WithContext(context.WithValue(r.Context(), notesKey{}, noted))
	result, err := h(r)
	if r.Method != http.MethodGet {
		a.audit(r, noted, err)
	}
	if err == nil {
		writeJSON(w, http.StatusOK, result)
		return
	}
	refused, known := errors.AsType[*envelope.Error](err)
	if !known {
		a.Log.Error("an admin request failed", "path", r.URL.Path, "err", err)
		refused = envelope.Errorf(envelope.CodeInternal, "%v", err) // the operator may see why
	}
	status := http.StatusBadRequest
	switch refused.Code {
	case envelope.CodeNotFound, envelope.CodeThreadNotFound:
		status = http.StatusNotFound
	case envelope.CodeUnavailable:
		status = http.StatusServiceUnavailable
	case envelope.CodeInternal:
		status = http.StatusInternalServerError
	}
	writeJSON(w, status, Refusal{string(refused.Code), refused.Message})
}

// notes are what the log says about a request, in the form of slog.
type notes []any

type notesKey struct{}

// note adds to what the log says about a request.
func note(r *http.Request, attributes ...any) {
	noted := r.Context().Value(notesKey{}).(*notes) // answer has set it
	*noted = append(*noted, attributes...)
}

// audit logs what the operator has done, or has tried to do, and which user it was.
func (a *api) audit(r *http.Request, noted *notes, err error) {
	attributes := append(notes{"action", strings.Trim(r.URL.Path, "/"), "uid", callerOf(r.Context())}, *noted...)
	if err != nil {
		attributes = append(attributes, "err", err)
	}
	a.Log.Warn("the operator governs the relay", attributes...)
}

// Refusal is the answer to a request that failed.
type Refusal struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Error returns the message.
func (r Refusal) Error() string { return r.Message }

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // if it fails, the client has left
}

// read parses the body of a request. Members that v does not have are refused.
func read(r *http.Request, v any) error {
	in := json.NewDecoder(r.Body)
	in.DisallowUnknownFields()
	err := in.Decode(v)
	if err == nil && in.Decode(new(any)) != io.EOF {
		err = errors.New("there is more than one value")
	}
	if err != nil {
		return invalid("the body is not the expected JSON: %v", err)
	}
	return nil
}

func (a *api) status(r *http.Request) (any, error) {
	s := Status{Build: a.Build, DID: a.Relay.DID(), Now: a.Relay.Now().UTC(), Ready: true, Paused: a.Relay.Paused(),
		Waiting: a.Relay.Waiting(), Bans: len(a.Options.Bans.List())}
	if err := a.Policy; err != nil {
		if failed := a.Policy(); failed != nil {
			s.Ready, s.Policy, s.Reason = false, failed.Error(), failed.Error()
		}
	}
	if err := a.Relay.Health(); err != nil {
		s.Ready, s.Reason = false, err.Error()
	}
	if a.Backups != nil {
		info := a.Backups.Info()
		s.Backup = &info
	}
	var err error
	if a.Nodes != nil {
		if s.Node, err = a.Nodes.Figures(r.Context()); err != nil {
			s.Ready, s.Reason = false, cmp.Or(s.Reason, err.Error())
			return s, nil // the operator asks because the database does not answer
		}
	}
	s.Store, err = a.Stats(r.Context())
	return s, err
}

func (a *api) bans(*http.Request) (any, error) {
	return map[string]any{"bans": a.Options.Bans.List()}, nil
}

// BanRequest is the body of POST /bans. Without Seconds the ban does not expire.
type BanRequest struct {
	Subject string `json:"subject"`
	Reason  string `json:"reason,omitempty"`
	Seconds int64  `json:"seconds,omitempty"`
}

func (a *api) ban(r *http.Request) (any, error) {
	var q BanRequest
	if err := read(r, &q); err != nil {
		return nil, err
	}
	if q.Seconds < 0 || q.Seconds > int64(100*365*24*time.Hour/time.Second) {
		return nil, invalid("seconds must be from 0 to a hundred years")
	}
	var expires time.Time
	if q.Seconds > 0 {
		expires = a.Relay.Now().Add(time.Duration(q.Seconds) * time.Second)
	}
	note(r, "subject", q.Subject, "reason", q.Reason, "expires", expires)
	return a.Options.Bans.Add(r.Context(), q.Subject, q.Reason, expires)
}

func (a *api) unban(r *http.Request) (any, error) {
	var q BanRequest
	if err := read(r, &q); err != nil {
		return nil, err
	}
	note(r, "subject", q.Subject)
	return struct{}{}, a.Options.Bans.Remove(r.Context(), q.Subject)
}

func (a *api) top(r *http.Request) (any, error) {
	q := r.URL.Query()
	by, order := cmp.Or(q.Get("by"), "sender"), cmp.Or(q.Get("order"), "count")
	limit, err := limitOf(q.Get("limit"), 20)
	switch {
	case err != nil:
		return nil, err
	case by != "sender" && by != "inbox":
		return nil, invalid("by must be sender or inbox")
	case order != "count" && order != "bytes":
		return nil, invalid("order must be count or bytes")
	}
	ranked, err := a.Top(r.Context(), by, order, limit)
	return map[string]any{"top": ranked}, err
}

func limitOf(text string, standard int) (int, error) {
	if text == "" {
		return standard, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxListed {
		return 0, invalid("limit must be from 1 to %d", maxListed)
	}
	return n, nil
}

func (a *api) waiters(r *http.Request) (any, error) {
	limit, err := limitOf(r.URL.Query().Get("limit"), 100)
	if err != nil {
		return nil, err
	}
	some, all := a.Relay.Waiters(limit)
	list := make([]Waiting, len(some))
	for i, w := range some {
		list[i] = Waiting{Local: w.Peer.Local, Reader: w.Peer.Reader, Kind: "poll", Since: w.Since.UTC(),
			Recipient: w.Filter.Recipient, Sender: w.Filter.Sender, Type: string(w.Filter.Type), Thread: w.Filter.Thread}
		if w.Peer.Addr.IsValid() {
			list[i].Address = w.Peer.Addr.String()
		}
		if w.Stream {
			list[i].Kind = "stream"
		}
	}
	return map[string]any{"waiters": list, "all": all}, nil
}

func (a *api) drain(*http.Request) (any, error) {
	a.Relay.Pause()
	return map[string]any{"paused": true}, nil
}

func (a *api) resume(*http.Request) (any, error) {
	a.Relay.Resume()
	return map[string]any{"paused": false}, nil
}

func (a *api) checkpoint(r *http.Request) (any, error) {
	done, err := a.Checkpoint(r.Context())
	if err == nil && !done {
		err = envelope.NotStored("a reader is in the way, such as a backup; try again in a moment", time.Second)
	}
	return struct{}{}, err
}

func (a *api) backup(*http.Request) (any, error) {
	if a.Backups == nil {
		return nil, invalid("there is no folder for backups; start the relay with --backup-dir, or copy PostgreSQL with " +
			"pg_dump if the messages are there (--store), and then record the copy with agora admin backup --made")
	}
	return a.Backups.Now()
}

func (a *api) recordBackup(r *http.Request) (any, error) {
	if a.Nodes == nil {
		return nil, invalid("--made is for a relay whose messages are in PostgreSQL (--store); this one knows its backups, " +
			"because it makes them itself")
	}
	return struct{}{}, a.Nodes.RecordBackup(r.Context(), a.Relay.Now())
}

// maxConns is how many connections the socket accepts at a time.
const maxConns = 16

// Serve serves the API on l until ctx ends. Then it cuts off requests that are still in progress.
func Serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: 30 * time.Second, MaxHeaderBytes: 8 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx }, ConnContext: withCaller,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // Serve returns its errors
	defer stop()
	err := server.Serve(&boundedListener{Listener: l, slots: make(chan struct{}, maxConns)})
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Path is the name of the socket in a data folder.
const Path = "admin.sock"

// NotRunning is the error of a client if no relay answers at a data folder.
type NotRunning struct {
	Folder string
	Err    error
}

func (e *NotRunning) Error() string {
	text := "no relay runs at the data folder " + e.Folder + "; start one with agora serve, or name another folder with --data"
	if e.Err != nil && !strings.Contains(e.Err.Error(), "no such file") {
		text += " (" + e.Err.Error() + ")"
	}
	return text
}

// Unwrap returns the reason.
func (e *NotRunning) Unwrap() error { return e.Err }

package witness_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/relay/httpapi/apidocs/apicheck"
	"github.com/agora-relay/agora/relay/witness"
	"github.com/agora-relay/agora/store/sqlite"
)

var (
	quiet = slog.New(slog.DiscardHandler)
	local = relay.Peer{Local: true}
)

func key(t testing.TB) didkey.Key {
	t.Helper()
	k, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// party is a relay with a log at an address. The address stays while the relay is down.
type party struct {
	*testing.T
	key    didkey.Key
	folder string
	url    string

	of        []didkey.DID // whose logs it signs; nil: it is no witness
	witnesses relay.Witnesses
	newEpoch  bool
	now       func() time.Time // the clock of the witness; nil: time.Now

	handler  atomic.Pointer[http.Handler] // nil: the relay is down
	requests atomic.Int64                 // while it was down
	relay    *relay.Relay
	store    *sqlite.Store
	stop     func() // ends Run
}

func newParty(t *testing.T) *party {
	t.Helper()
	p := &party{T: t, key: key(t), folder: t.TempDir()}
	p.url = network.add(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := p.handler.Load()
		if h == nil {
			p.requests.Add(1)
			panic(http.ErrAbortHandler)
		}
		(*h).ServeHTTP(w, r)
	}))
	return p
}

// peer is what another relay says with --peer.
func (p *party) peer() witness.Peer { return witness.Peer{DID: p.key.DID(), URL: p.url} }

// open starts the relay. Its exchanges are checked against the OpenAPI document.
func (p *party) open() (err error) {
	p.Helper()
	p.store, err = sqlite.Open(p.Context(), filepath.Join(p.folder, "agora.db"), sqlite.Options{Reserve: 1 << 20,
		Log: quiet, NewEpoch: p.newEpoch, Extensions: []relay.Extension{witness.Extension}})
	if err != nil {
		p.Fatal(err)
	}
	p.relay, err = relay.New(p.Context(), relay.Config{Store: p.store, Key: p.key, Log: quiet, Transparency: true,
		Witnesses: p.witnesses, Limits: relay.Limits{PostsPerAddress: relay.Rate{PerSecond: relay.Unlimited}}})
	if err != nil {
		return errors.Join(err, p.store.Close())
	}
	options := httpapi.Options{Log: quiet}
	if p.of != nil {
		if options.Witness, err = witness.New(p.relay, p.key, p.of, quiet, p.now); err != nil {
			p.Fatal(err)
		}
	}
	checker, err := apicheck.Of()
	if err != nil {
		p.Fatal(err)
	}
	options.Wrap = checker.Wrap(p, nil)
	handler := httpapi.New(p.relay, options).Handler(false)
	p.handler.Store(&handler)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.relay.Run(ctx) }()
	p.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			p.Error(err)
		}
	}
	return nil
}

// start does the same as open, for a relay that must start.
func (p *party) start() {
	p.Helper()
	if err := p.open(); err != nil {
		p.Fatal(err)
	}
}

// publishedBy returns the published checkpoint when it has the signatures of this many witnesses, or after a while.
func (p *party) publishedBy(witnesses int) (c proof.Checkpoint) {
	p.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if c = p.published(); len(c.Signatures) > witnesses || time.Now().After(deadline) {
			return c
		}
	}
}

// close publishes a last checkpoint, which it returns, and ends the relay.
func (p *party) close() proof.Checkpoint {
	p.Helper()
	p.stop()
	last := p.published()
	p.handler.Store(nil)
	if err := p.store.Close(); err != nil {
		p.Fatal(err)
	}
	return last
}

func (p *party) published() proof.Checkpoint {
	p.Helper()
	text, err := p.relay.Checkpoint(p.Context(), local, fmt.Sprintf("%08x", p.relay.Epoch()))
	if err != nil {
		p.Fatal(err)
	}
	return p.parse(text)
}

func (p *party) parse(text string) proof.Checkpoint {
	p.Helper()
	c, err := proof.ParseCheckpoint(text)
	if err != nil {
		p.Fatalf("%q: %v", text, err)
	}
	return c
}

// post posts n messages, so the log grows by n leaves.
func (p *party) post(n int) {
	p.Helper()
	for range n {
		e, err := envelope.Draft{Payload: envelope.Request{Intent: "x"}}.Sign(key(p), p.relay.Now())
		if err != nil {
			p.Fatal(err)
		}
		if _, err := p.relay.Post(p.Context(), local, e.Canonical()); err != nil {
			p.Fatal(err)
		}
	}
}

// about is a part of the well-known document.
type about struct {
	Features []string
	Witness  witness.Key
}

func (p *party) about() (a about) {
	p.Helper()
	if err := json.Unmarshal([]byte(p.send(http.MethodGet, "/.well-known/agora.json", "").body), &a); err != nil {
		p.Fatal(err)
	}
	return a
}

// signer returns the key of the relay's witness.
func (p *party) signer() *proof.Witness {
	p.Helper()
	w, err := proof.ParseWitness(p.about().Witness.VKey)
	if err != nil {
		p.Fatal(err)
	}
	return w
}

// answer is an answer to a request.
type answer struct {
	status     int
	kind, body string
}

func (p *party) send(method, target, body string) answer {
	p.Helper()
	w := httptest.NewRecorder()
	(*p.handler.Load()).ServeHTTP(w, httptest.NewRequest(method, target, strings.NewReader(body)))
	return answer{w.Code, w.Header().Get("Content-Type"), w.Body.String()}
}

// add sends a submission, and checks the status of the answer.
func (p *party) add(what, submission string, want int) answer {
	p.Helper()
	a := p.send(http.MethodPost, "/witness/add-checkpoint", submission)
	if a.status != want {
		p.Errorf("%s: %+v, want %d", what, a, want)
	}
	return a
}

// copyFolder copies the data folder of a relay that is closed.
func (p *party) copyFolder() string {
	p.Helper()
	to := filepath.Join(p.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(p.folder)); err != nil {
		p.Fatal(err)
	}
	return to
}

// madeLog is a log that a test makes: it can have any leaves.
type madeLog struct {
	*testing.T
	key    didkey.Key
	origin proof.Origin
	stored []proof.Hash // as package tlog stores them
	size   int64
}

func (l *madeLog) ReadHashes(indexes []int64) (hashes []proof.Hash, err error) {
	for _, i := range indexes {
		hashes = append(hashes, l.stored[i])
	}
	return hashes, nil
}

// newLog returns a log with n leaves.
func newLog(t *testing.T, key didkey.Key, epoch uint32, n int) *madeLog {
	l := &madeLog{T: t, key: key, origin: proof.Origin{DID: key.DID(), Epoch: epoch}}
	l.grow("leaf", n)
	return l
}

func (l *madeLog) grow(text string, n int) {
	l.Helper()
	for range n {
		more, err := tlog.StoredHashesForRecordHash(l.size, tlog.RecordHash(fmt.Append(nil, text, l.size)), l)
		if err != nil {
			l.Fatal(err)
		}
		l.stored = append(l.stored, more...)
		l.size++
	}
}

// fork returns a log with the same first n leaves, and others up to size.
func (l *madeLog) fork(n, size int64) *madeLog {
	l.Helper()
	other := *l
	other.stored, other.size = slices.Clone(l.stored[:tlog.StoredHashIndex(0, n)]), n
	other.grow(fmt.Sprint("other ", size), int(size-n))
	return &other
}

func (l *madeLog) checkpoint(size int64) proof.Checkpoint {
	l.Helper()
	root, err := tlog.TreeHash(size, l)
	if err != nil {
		l.Fatal(err)
	}
	c, err := proof.SignCheckpoint(l.key, l.origin, size, root)
	if err != nil {
		l.Fatal(err)
	}
	return c
}

// prove returns the proof that the checkpoint with this size continues the log with old leaves.
func (l *madeLog) prove(old, size int64) (path []proof.Hash) {
	l.Helper()
	if old == 0 || old >= size {
		return nil
	}
	path, err := tlog.ProveTree(size, old, l)
	if err != nil {
		l.Fatal(err)
	}
	return path
}

// submission returns the request to sign the checkpoint with this size. signatures are lines to add.
func (l *madeLog) submission(old, size int64, signatures ...string) string {
	l.Helper()
	s := proof.Submission{Old: old, Path: l.prove(old, size), Checkpoint: l.checkpoint(size)}
	return s.String() + strings.Join(signatures, "")
}

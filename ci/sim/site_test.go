package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/relay/mirror"
	"github.com/agora-relay/agora/relay/witness"
	"github.com/agora-relay/agora/store/sqlite"
)

// site is a relay at an address of the simulated network. It starts again when its machine has died. It mirrors others.
type site struct {
	*machine
	host    string
	mirrors []witness.Peer // the relays that it copies from
	wire    *wire          // to them

	mu      sync.Mutex
	handler http.Handler // nil: the relay is down
	ctx     context.Context
	held    chan struct{}           // closed when the relay may start again; nil: it may
	acked   map[string]acknowledged // by the id of the message
	recent  []*envelope.Envelope    // the same, in order
	proofs  []*proof.Statement
	backups int
	backup  *backup // the last one
	restore *backup // the one to start from next
}

// acknowledged is a message that the relay has answered with 200.
type acknowledged struct {
	*envelope.Envelope
	at     time.Time
	stored bool // the answer said that it is no duplicate
}

// backup is a copy of the database of a relay.
type backup struct {
	path  string
	acked map[string]acknowledged // what the copy has at least
}

// open lets the network reach the relay until it stops. ctx is what start has returned.
func (s *site) open(ctx context.Context) {
	front := httpapi.New(s.life.relay, httpapi.Options{Log: s.log(), Hosts: []string{s.host}})
	copies, err := mirror.New(mirror.Options{Relay: s.life.relay, Key: s.key, Peers: s.mirrors, Log: s.log(),
		Transport: s.wire})
	s.must(err)
	s.life.uses.Go(func() { copies.Run(ctx) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handler, s.ctx = front.Handler(true), ctx
}

// close breaks all open requests. The relay gets no new ones.
func (s *site) close() {
	s.mu.Lock()
	s.handler = nil
	s.mu.Unlock()
	s.life.end()
}

// whileUp calls f if the relay is up.
func (s *site) whileUp(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handler != nil {
		f()
	}
}

// strike lets a fault happen to the disk.
func (s *site) strike(f Fault, after int) {
	s.whileUp(func() {
		s.Logf("%s: %s has %v after %d operations", time.Now().Format(time.TimeOnly), s.host, f, after)
		s.disk.Plan(after, f)
	})
}

// end stops the relay. It starts again.
func (s *site) end() {
	s.whileUp(func() {
		s.Logf("%s: %s is stopped", time.Now().Format(time.TimeOnly), s.host)
		s.life.end()
	})
}

// hold stops the relay. It does not start again before the returned function is called.
func (s *site) hold() (release func()) {
	held := make(chan struct{})
	s.mu.Lock()
	s.held = held
	s.mu.Unlock()
	s.end()
	return func() { close(held) }
}

// awaitRelease waits until the relay may start.
func (s *site) awaitRelease() {
	s.mu.Lock()
	held := s.held
	s.mu.Unlock()
	if held != nil {
		<-held
	}
}

// backUp makes a backup of the database.
func (s *site) backUp() {
	s.whileUp(func() {
		s.backups++
		b := &backup{filepath.Join(s.parent, fmt.Sprint("backup", s.backups, ".db")), maps.Clone(s.acked)}
		_, err := sqlite.Backup(s.Context(), s.path(), b.path, nil)
		if s.Logf("%s: a backup of %s: %v", time.Now().Format(time.TimeOnly), s.host, err); err == nil {
			s.backup = b
		} else if !s.disk.dead() {
			s.Errorf("a backup of %s: %v", s.host, err)
		}
	})
}

// restoreBackup stops the relay, which starts again from its last backup. It loses what it has stored since then. Each
// backup is used once. It does nothing if there is none.
func (s *site) restoreBackup() (done bool) {
	s.whileUp(func() {
		if done = s.backup != nil; done {
			s.Logf("%s: %s gets its backup", time.Now().Format(time.TimeOnly), s.host)
			s.restore, s.backup = s.backup, nil
			s.life.end()
		}
	})
	return done
}

// recover prepares the disk for the next start.
func (s *site) recover() (restored bool) {
	s.machine.recover()
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.restore
	if b == nil {
		return false
	}
	s.disk.Close()
	s.disks++
	s.must(makeFolder(s.folder()))
	content, err := os.ReadFile(b.path)
	s.must(err)
	s.must(os.WriteFile(s.path(), content, 0o600))
	s.newDisk()
	s.restore, s.acked, s.recent = nil, b.acked, nil
	return true
}

// serve lets the relay answer a request.
func (s *site) serve(ctx context.Context, r *http.Request, body []byte) (*http.Response, error) {
	s.mu.Lock()
	handler, relayCtx, life := s.handler, s.ctx, s.life
	if handler == nil || s.disk.dead() {
		s.mu.Unlock()
		return nil, errDown
	}
	life.uses.Add(1)
	s.mu.Unlock()
	defer life.uses.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(relayCtx, cancel)()
	request := httptest.NewRequestWithContext(ctx, r.Method, r.URL.RequestURI(), bytes.NewReader(body))
	request.Header, request.Host, request.RemoteAddr = r.Header.Clone(), s.host, "127.0.0.1:1"
	answer := httptest.NewRecorder()
	if !answers(handler, answer, request) {
		return nil, errBroken
	}
	if r.Method == http.MethodPost && r.URL.Path == "/events" && answer.Code == http.StatusOK {
		s.acknowledge(body, answer.Body.Bytes())
	}
	if relayCtx.Err() != nil || ctx.Err() != nil {
		return nil, errBroken
	}
	return answer.Result(), nil
}

// answers reports whether the handler has answered, and not broken the connection.
func answers(h http.Handler, w http.ResponseWriter, r *http.Request) (whole bool) {
	defer func() {
		if p := recover(); p != nil && p != http.ErrAbortHandler {
			panic(p)
		}
	}()
	h.ServeHTTP(w, r)
	return true
}

// acknowledge notes that the relay has said that it has stored a message. This counts even if nobody got the answer.
func (s *site) acknowledge(body, answer []byte) {
	e, err := envelope.Parse(body, 0)
	if err != nil {
		s.Errorf("%s took what is no message: %v", s.host, err)
		return
	}
	var receipt struct {
		Duplicate bool
		Proof     string
	}
	s.must(json.Unmarshal(answer, &receipt))
	s.mu.Lock()
	defer s.mu.Unlock()
	known, again := s.acked[e.ID]
	if known.stored && !receipt.Duplicate && s.clock.latest.Load() < e.ExpiresAt().UnixNano() {
		s.Errorf("%s has stored %s twice", s.host, e.ID)
	}
	if !again {
		known = acknowledged{Envelope: e, at: time.Now()}
		s.recent = append(s.recent, e)
	}
	known.stored = known.stored || !receipt.Duplicate
	s.acked[e.ID] = known
	if receipt.Proof != "" {
		s.proved(e, receipt.Proof)
	}
}

// proved checks a proof, and keeps it.
func (s *site) proved(e *envelope.Envelope, text string) {
	p, err := proof.Parse(text)
	var v *proof.Verified
	if err == nil {
		v, err = p.Verify()
	}
	if err == nil {
		err = v.CheckMessage(e, s.key.DID())
	}
	if err != nil {
		s.Errorf("%s: the proof of %s: %v", s.host, e.ID, err)
		return
	}
	s.proofs = append(s.proofs, &proof.Statement{Proof: p, Verified: v, Event: e})
}

// blameless checks that the proofs of each log give no evidence against the relay. A restored relay begins a new log.
func (s *site) blameless() {
	logs := map[proof.Origin][]*proof.Statement{}
	for _, p := range s.proofs {
		logs[p.Origin] = append(logs[p.Origin], p)
	}
	for _, statements := range logs {
		for _, e := range proof.Compare(statements, nil) {
			s.Errorf("%s has contradicted itself: %s", s.host, e.Kind)
		}
	}
}

package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// maxRepeatID is how many characters an Idempotency-Key may have.
const maxRepeatID = 256

// answerTime is how long an answer is kept for repeats of its request.
const answerTime = 24 * time.Hour

// Repeat identifies a request with an Idempotency-Key, and its repeats. If another caller uses the same value, or the
// same caller uses it at another endpoint, it is a different Idempotency-Key (G-23).
type Repeat struct {
	Endpoint string   // such as "POST /messages"
	Caller   string   // who sends the request, such as the number of an agent
	ID       string   // the Idempotency-Key
	Body     [32]byte // SHA-256 of the body in the form of RFC 8785
}

// ParseRepeat reads the header Idempotency-Key: 1 to 256 printable ASCII characters. net/http has removed spaces at its
// ends. given is false if the request has no such header. canonical is the request's body in the form of RFC 8785.
// Errors: CodeInvalidRequest.
func ParseRepeat(r *http.Request, endpoint, caller string, canonical []byte) (rep Repeat, given bool, err error) {
	ids := r.Header["Idempotency-Key"]
	if len(ids) == 0 {
		return Repeat{}, false, nil
	}
	notPrintable := func(c rune) bool { return c < ' ' || c > '~' }
	if id := ids[0]; len(ids) > 1 || id == "" || len(id) > maxRepeatID || strings.ContainsFunc(id, notPrintable) {
		return Repeat{}, true, envelope.Errorf(envelope.CodeInvalidRequest,
			"Idempotency-Key must be given once, with 1 to %d printable ASCII characters", maxRepeatID)
	}
	return NewRepeat(endpoint, caller, ids[0], canonical), true, nil
}

// NewRepeat returns the Repeat of a request with this Idempotency-Key. For canonical, see ParseRepeat.
func NewRepeat(endpoint, caller, id string, canonical []byte) Repeat {
	return Repeat{endpoint, caller, id, sha256.Sum256(canonical)}
}

// place says where the answer to a request is stored. The quotes keep the three texts apart.
func (r Repeat) place() Place {
	return Place{Table: "gate_answer", Column: "answer", Row: fmt.Sprintf("%q/%q/%q", r.Endpoint, r.Caller, r.ID)}
}

// ErrOtherBody is the error for an Idempotency-Key that its caller has used with another body (G-22).
var ErrOtherBody = errors.New("this Idempotency-Key was used with another body; use a new one for another request")

// Stored is what is known of an earlier request with the same Idempotency-Key.
type Stored struct {
	Ref    int64  // the number of what the request has created
	Status int    // of the answer; 0: the operation is stored, but the relay stopped before it stored the answer
	Body   []byte // of the answer
}

// Answers keeps the answers to requests with an Idempotency-Key, so that a repeated request gets the first answer
// (G-21). For each request:
//
//  1. Call Begin.
//  2. In one Update, call Find. If it finds nothing, do the operation and call Add.
//  3. Store the answer with Finish, and then send it.
//  4. Call the function that Begin has returned.
type Answers struct {
	core *Core

	mu      sync.Mutex
	running map[Repeat]chan struct{} // by Repeat without Body; the channel is closed when the request has ended
}

// NewAnswers returns the Answers of c. All gateways may share one, because their endpoints differ.
func NewAnswers(c *Core) *Answers {
	return &Answers{core: c, running: map[Repeat]chan struct{}{}}
}

// Begin waits while a request with the same Idempotency-Key is in progress. The caller must call end when the request
// has ended. The error is ctx's error.
func (a *Answers) Begin(ctx context.Context, r Repeat) (end func(), err error) {
	r.Body = [32]byte{}
	for {
		a.mu.Lock()
		other, busy := a.running[r]
		if !busy {
			ended := make(chan struct{})
			a.running[r] = ended
			a.mu.Unlock()
			return sync.OnceFunc(func() {
				a.mu.Lock()
				delete(a.running, r)
				a.mu.Unlock()
				close(ended)
			}), nil
		}
		a.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// answerRow is a row of gate_answer, without its primary key.
type answerRow struct {
	body    []byte
	ref     int64
	status  int64
	answer  []byte
	expires int64
}

var answerTable = Table{Name: "gate_answer", Key: 3,
	Columns: []string{"endpoint", "caller", "id", "body", "ref", "status", "answer", "expires"}}

func (w answerRow) sum(r Repeat) int64 {
	return Sum("gate_answer", r.Endpoint, r.Caller, r.ID, w.body, w.ref, w.status, w.answer, w.expires)
}

// load reads the row of a request, if it has not expired. Errors: ErrOtherBody.
func (a *Answers) load(q relay.Querier, r Repeat) (w answerRow, found bool, err error) {
	err = q.Query(func(scan func(...any) error) error {
		found = true
		return scan(&w.body, &w.ref, &w.status, &w.answer, &w.expires)
	}, "SELECT body, ref, status, answer, expires FROM gate_answer "+
		"WHERE endpoint = ? AND caller = ? AND id = ? AND expires > ?",
		r.Endpoint, r.Caller, r.ID, a.core.Relay.Now().UnixNano())
	if err == nil && found && !bytes.Equal(w.body, r.Body[:]) {
		err = ErrOtherBody
	}
	return w, found, err
}

// Find returns what is stored for a request. Errors: ErrOtherBody.
func (a *Answers) Find(q relay.Querier, r Repeat) (s Stored, found bool, err error) {
	w, found, err := a.load(q, r)
	if err != nil || !found {
		return Stored{}, false, err
	}
	s = Stored{Ref: w.ref, Status: int(w.status)}
	if s.Status != 0 {
		s.Body, err = a.core.Secrets.Decrypt(r.place(), w.answer)
	}
	return s, err == nil, err
}

// Add stores that the operation of a request is done. tx is the transaction of that operation. ref is the number of
// what the operation has created. After a crash, the gateway can make the answer from ref.
func (a *Answers) Add(tx relay.ExtTx, r Repeat, ref int64) error {
	now := a.core.Relay.Now()
	_, err := tx.Exec("DELETE FROM gate_answer WHERE endpoint = ? AND caller = ? AND id = ? AND expires <= ?",
		r.Endpoint, r.Caller, r.ID, now.UnixNano())
	if err != nil {
		return err
	}
	w := answerRow{body: r.Body[:], ref: ref, answer: []byte{}, expires: now.Add(answerTime).UnixNano()}
	_, err = tx.Exec("INSERT INTO gate_answer (endpoint, caller, id, body, ref, status, answer, expires, sum) "+
		"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
		r.Endpoint, r.Caller, r.ID, w.body, w.ref, w.status, w.answer, w.expires, w.sum(r))
	return err
}

// Finish stores the answer to a request, encrypted, because some answers contain keys. It does nothing if the request
// has an answer or is no longer stored. The status must be 2xx, because other answers are not kept (G-24).
func (a *Answers) Finish(tx relay.ExtTx, r Repeat, status int, body []byte) error {
	if status < 200 || status > 299 {
		return fmt.Errorf("an answer with status %d is not kept for an Idempotency-Key; keep only those with 2xx", status)
	}
	w, found, err := a.load(tx, r)
	if err != nil || !found || w.status != 0 {
		return err
	}
	w.status, w.answer = int64(status), a.core.Secrets.Encrypt(r.place(), body)
	_, err = tx.Exec("UPDATE gate_answer SET status = ?, answer = ?, sum = ? WHERE endpoint = ? AND caller = ? AND id = ?",
		w.status, w.answer, w.sum(r), r.Endpoint, r.Caller, r.ID)
	return err
}

// sweepAnswers removes up to limit answers that have expired.
func sweepAnswers(tx relay.ExtTx, now time.Time, limit int) (removed int64, err error) {
	return tx.Exec("DELETE FROM gate_answer WHERE (endpoint, caller, id) IN "+
		"(SELECT endpoint, caller, id FROM gate_answer WHERE expires <= ? ORDER BY expires LIMIT ?)", now.UnixNano(), limit)
}

package witness

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay"
)

// Peer is another relay. Each watches the log of the other if both name each other.
type Peer struct {
	DID didkey.DID
	URL string
}

// ParsePeer reads DID@URL.
func ParsePeer(text string) (p Peer, err error) {
	did, url, found := strings.Cut(text, "@")
	if !found {
		return p, errors.New("a peer is the DID of a relay, an @ and its URL, such as did:key:z6Mk…@https://relay.example")
	}
	if p.DID, err = didkey.Parse(did); err != nil {
		return p, err
	}
	if _, err = relay.ParseOrigin(url); err != nil {
		return p, err
	}
	p.URL = strings.TrimSuffix(url, "/")
	return p, nil
}

// String returns DID@URL.
func (p Peer) String() string { return string(p.DID) + "@" + p.URL }

// Limits of the requests to a witness.
const (
	askTime   = 2 * time.Second  // for the cosignatures of a checkpoint (LOG L-18)
	heldTime  = 5 * time.Second  // for the checkpoints at a start (LOG L-22)
	maxAnswer = proof.MaxBytes   // bytes of an answer
	maxAbout  = 256 << 10        // bytes of a well-known document
	retryPeer = 30 * time.Second // how often the relay tries again to read the document of a peer
	// maxSignatures is how large all signatures of a checkpoint may be, in bytes. So there are fewer than 100, and proofs
	// with them are not too large.
	maxSignatures = 10 << 10
)

// Client asks witnesses to cosign the checkpoints of one log. It implements relay.Witnesses.
type Client struct {
	http   *http.Client
	log    *slog.Logger
	remote []*remote
}

// remote is one witness.
type remote struct {
	url  string // where it takes submissions
	peer *Peer  // nil: a witness of the policy

	mu    sync.Mutex
	key   *proof.Witness // nil: not read from the peer yet
	asked time.Time      // when its document was read last
	old   int64          // the size that the witness has signed, as far as known
	state string         // the outcome of the last request, as it was logged
}

// NewClient returns a client of the witnesses of a policy, which may be nil, and of peers. Only their addresses are
// contacted.
func NewClient(policy *proof.Policy, peers []Peer, log *slog.Logger) *Client {
	c := &Client{log: log, http: &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	if policy != nil {
		for _, w := range policy.Witnesses {
			if w.Key != nil && w.URL != "" {
				c.remote = append(c.remote, &remote{url: w.URL, key: w.Key})
			}
		}
	}
	for _, p := range peers {
		c.remote = append(c.remote, &remote{url: p.URL + "/witness", peer: &p})
	}
	return c
}

// Len returns how many witnesses there are.
func (c *Client) Len() int { return len(c.remote) }

// Held returns the checkpoints that the witnesses hold of a log, as far as they answer in time (LOG L-22). A checkpoint
// counts only if its relay has signed it. The error names the witnesses that do not answer as they must.
func (c *Client) Held(ctx context.Context, o proof.Origin) (held []proof.Checkpoint, err error) {
	ctx, cancel := context.WithTimeout(ctx, heldTime)
	defer cancel()
	type answer struct {
		held *proof.Checkpoint
		err  error
	}
	for _, a := range gather(c.remote, func(r *remote) []answer {
		checkpoint, err := c.held(ctx, r, o)
		if err != nil {
			err = fmt.Errorf("the witness %s does not say what it knows of the log: %w", r.url, err)
		}
		return []answer{{checkpoint, err}}
	}) {
		if a.held != nil {
			held = append(held, *a.held)
		}
		err = errors.Join(err, a.err)
	}
	return held, err
}

// held returns the checkpoint that a witness holds; nil: none.
func (c *Client) held(ctx context.Context, r *remote, o proof.Origin) (*proof.Checkpoint, error) {
	text, status, err := c.request(ctx, http.MethodGet, r.url+"/"+HashOf(o)+"/checkpoint", "", maxAnswer)
	switch {
	case err != nil:
		return nil, err
	case status == http.StatusNotFound:
		return nil, nil
	case status != http.StatusOK:
		return nil, fmt.Errorf("status %d", status)
	}
	checkpoint, err := proof.ParseCheckpoint(text)
	if err == nil {
		_, err = checkpoint.Verify()
	}
	if err == nil && checkpoint.Origin != o {
		err = errors.New("its answer is about another log")
	}
	if err != nil {
		return nil, err
	}
	return &checkpoint, nil
}

// gather calls f for all witnesses at once, and joins the results.
func gather[T any](remotes []*remote, f func(*remote) []T) (all []T) {
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, r := range remotes {
		asking.Go(func() {
			found := f(r)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, found...)
		})
	}
	asking.Wait()
	return all
}

// Cosign asks all witnesses at once to sign a checkpoint, and returns the signatures that came in time. prove returns
// the proof that the checkpoint continues the tree of the first old leaves.
func (c *Client) Cosign(
	ctx context.Context, checkpoint proof.Checkpoint, prove func(ctx context.Context, old int64) ([]proof.Hash, error),
) []proof.Signature {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return atMost(maxSignatures, gather(c.remote, func(r *remote) []proof.Signature {
		r.mu.Lock()
		defer r.mu.Unlock()
		s, err := c.ask(ctx, r, checkpoint, prove)
		r.report(c.log, err)
		return s
	}))
}

// atMost returns as many of the signatures as have this size together, in bytes.
func atMost(size int, all []proof.Signature) (some []proof.Signature) {
	for _, s := range all {
		if n := len(s.String()); n <= size {
			some, size = append(some, s), size-n
		}
	}
	return some
}

// report logs the outcome of a request to the witness, if it is another one than before.
func (r *remote) report(log *slog.Logger, err error) {
	refusal, refuses := errors.AsType[*refused](err)
	state := "signs"
	switch {
	case refuses:
		state = refusal.Error()
	case err != nil:
		state = "fails"
	}
	if state == r.state {
		return
	}
	r.state = state
	switch {
	case err == nil:
		log.Info("a witness signs the checkpoints of this relay's log", "witness", r.url)
	case refuses:
		log.Error("a witness refuses to sign the checkpoint of this relay's log", "witness", r.url, "err", err)
	default:
		log.Warn("a witness has not signed the checkpoint of this relay's log; it is asked again every few seconds",
			"witness", r.url, "err", err)
	}
}

// refused is the error of a witness that knows another history of the log.
type refused struct{ text string }

func (r *refused) Error() string { return r.text }

func (c *Client) ask(
	ctx context.Context, r *remote, checkpoint proof.Checkpoint, prove func(context.Context, int64) ([]proof.Hash, error),
) ([]proof.Signature, error) {
	if err := c.meet(ctx, r); err != nil {
		return nil, err
	}
	for attempt := 0; ; attempt++ {
		s := proof.Submission{Old: r.old, Checkpoint: checkpoint}
		var err error
		if s.Path, err = prove(ctx, r.old); err != nil {
			return nil, err
		}
		text, status, err := c.request(ctx, http.MethodPost, r.url+"/add-checkpoint", s.String(), maxAnswer)
		switch {
		case err != nil:
			return nil, err
		case status == http.StatusOK:
			signatures, err := c.accept(r, checkpoint, text)
			if err == nil {
				r.old = checkpoint.Size
			}
			return signatures, err
		case status == http.StatusConflict && attempt == 0:
			if r.old, err = strconv.ParseInt(strings.TrimSuffix(text, "\n"), 10, 64); err != nil || r.old < 0 {
				r.old = 0
				return nil, errors.New("the witness names no size of the log that it knows")
			}
			if old := r.old; old > checkpoint.Size {
				r.old = 0
				return nil, &refused{fmt.Sprintf("the witness knows this log with %d leaves, and it has only %d: the data of this "+
					"relay was rolled back", old, checkpoint.Size)}
			}
		case status == http.StatusUnprocessableEntity, status == http.StatusConflict:
			return nil, &refused{fmt.Sprintf("the witness knows another history of this log (status %d): %.200q", status, text)}
		default:
			if r.peer != nil {
				r.key = nil // perhaps it has another epoch now
			}
			return nil, fmt.Errorf("the witness answers with the status %d: %.200q", status, text)
		}
	}
}

// maxClockError is how far the time in a cosignature may be from the clock.
const maxClockError = 5 * time.Minute

// accept checks the signatures in the answer of a witness, and returns that by its key. The relay has signed the
// checkpoint.
func (c *Client) accept(r *remote, checkpoint proof.Checkpoint, text string) ([]proof.Signature, error) {
	signatures, err := proof.ParseSignatures(text)
	if err != nil {
		return nil, err
	}
	checkpoint.Signatures = append(slices.Clip(checkpoint.Signatures), signatures...)
	cosigned, err := checkpoint.Verify(r.key)
	if err == nil && len(cosigned) == 0 {
		err = fmt.Errorf("the answer has no signature by the witness %s", r.key.Name)
		if r.peer != nil {
			r.key = nil // perhaps it has another epoch now
		}
	}
	if err != nil {
		return nil, err
	}
	if wrong := time.Since(cosigned[0].At); wrong.Abs() > maxClockError {
		return nil, fmt.Errorf("the clock of the witness differs from this one by %s", wrong.Round(time.Second))
	}
	return checkpoint.Only(r.key).Signatures[1:], nil
}

// meet reads the key of a peer from its document, unless it is known (LOG L-19).
func (c *Client) meet(ctx context.Context, r *remote) error {
	if r.key != nil {
		return nil
	}
	if time.Since(r.asked) < retryPeer {
		return errors.New("its document with its key is read again later")
	}
	r.asked = time.Now()
	text, status, err := c.request(ctx, http.MethodGet, r.peer.URL+"/.well-known/agora.json", "", maxAbout)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("the document of the peer: status %d", status)
	}
	if err != nil {
		return err
	}
	var document struct {
		Witness Key `json:"witness"`
	}
	if err := json.Unmarshal([]byte(text), &document); err != nil {
		return fmt.Errorf("the document of the peer: %w", err)
	}
	r.key, err = document.Witness.verify(r.peer.DID)
	return err
}

// verify checks that the relay with this DID has signed k.
func (k Key) verify(relay didkey.DID) (*proof.Witness, error) {
	if k.VKey == "" {
		return nil, errors.New("the peer is no witness; its operator can start it with --peer, and the DID and URL of " +
			"this relay")
	}
	verifier, err := didkey.ParseVerifier(string(relay))
	if err != nil {
		return nil, err
	}
	signature, err := base64.RawURLEncoding.Strict().DecodeString(k.Sig)
	if err != nil || !verifier.Verify(statement(k.VKey), signature) {
		return nil, fmt.Errorf("the key of the peer's witness is not signed by %s", relay)
	}
	w, err := proof.ParseWitness(k.VKey)
	if err != nil {
		return nil, err
	}
	epoch, ok := strings.CutPrefix(w.Name, nameOf(relay))
	if _, err := proof.ParseOrigin(string(relay) + "/" + epoch); !ok || err != nil {
		return nil, fmt.Errorf("the name of the peer's witness is not %sEPOCH", nameOf(relay))
	}
	return w, nil
}

// request sends a request and returns the answer, at most limit bytes.
func (c *Client) request(
	ctx context.Context, method, url, body string, limit int64,
) (text string, status int, err error) {
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return "", 0, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return "", 0, err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	read, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if int64(len(read)) > limit {
		err = cmp.Or(err, fmt.Errorf("the answer has more than %d bytes", limit))
	}
	return string(read), response.StatusCode, err
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Peer) UnmarshalText(text []byte) (err error) {
	*p, err = ParsePeer(string(text))
	return err
}

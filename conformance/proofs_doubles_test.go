package conformance_test

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay"
	"golang.org/x/mod/sumdb/tlog"
)

// Middlewares and stores with faults in proofs. Most of them sign what they say with the key of the relay.

// must returns v. The texts of this project's relay are well-formed.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// liar makes proofs that are valid, but not of the relay's tree.
type liar struct{ key didkey.Key }

// proves returns the proof of a leaf. The other leaves of its tree are zeros.
func (l liar) proves(o proof.Origin, index int64, leaf proof.Leaf) string {
	var tree proof.Tree
	if index > 0 {
		tree.Grow(make([]proof.Hash, index))
	}
	growth := tree.Grow([]proof.Hash{tlog.RecordHash([]byte(leaf.String()))})
	return must(growth.Prove(l.key, o, index, leaf.String()))
}

// changes returns a change of proofs, which makes another proof of its parts.
func (l liar) changes(change func(o *proof.Origin, index *int64, leaf *proof.Leaf)) func(string) string {
	return func(text string) string {
		p := must(proof.Parse(text))
		o, index, leaf := p.Checkpoint.Origin, p.Index, must(proof.ParseLeaf(p.Extra))
		change(&o, &index, &leaf)
		return l.proves(o, index, leaf)
	}
}

// leaves returns a change of the leaves of proofs.
func (l liar) leaves(change func(*proof.Leaf)) func(string) string {
	return l.changes(func(_ *proof.Origin, _ *int64, leaf *proof.Leaf) { change(leaf) })
}

// signs returns a change of checkpoints, which signs other ones.
func (l liar) signs(change func(*proof.Checkpoint)) func(string) string {
	return func(text string) string {
		c := must(proof.ParseCheckpoint(text))
		change(&c)
		c = must(proof.SignCheckpoint(l.key, c.Origin, c.Size, c.Root))
		return c.String()
	}
}

// changesReceipts is a middleware that changes the receipts of single posts.
func changesReceipts(change func(receipt object)) middleware {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !isPost(r) {
				h.ServeHTTP(w, r)
				return
			}
			answer := recorded(h, r)
			body := answer.Body.Bytes()
			if a := decode(body); a["ok"] == true {
				change(a)
				body = encode(a)
			}
			send(w, answer, body)
		})
	}
}

// provesOtherwise is a middleware that changes the proofs of receipts.
func provesOtherwise(change func(string) string) middleware {
	return changesReceipts(func(receipt object) {
		if text, ok := receipt["proof"].(string); ok {
			receipt["proof"] = change(text)
		}
	})
}

// changesAnswers is a middleware that changes the answers to requests whose path contains a text.
func changesAnswers(
	path string, change func(r *http.Request, status int, header http.Header, body string) (int, string),
) middleware {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.Contains(r.URL.Path, path) {
				h.ServeHTTP(w, r)
				return
			}
			answer := recorded(h, r)
			status, body := change(r, answer.Code, answer.Header(), answer.Body.String())
			answer.Code = status
			send(w, answer, []byte(body))
		})
	}
}

// showsOtherwise is a middleware that changes the bodies of good answers to such requests.
func showsOtherwise(path string, change func(string) string) middleware {
	return changesAnswers(path, func(_ *http.Request, status int, _ http.Header, body string) (int, string) {
		if status != http.StatusOK {
			return status, body
		}
		return status, change(body)
	})
}

// withHeader is a middleware that sets a header of answers to such requests.
func withHeader(path, name, value string) middleware {
	return changesAnswers(path, func(_ *http.Request, status int, header http.Header, body string) (int, string) {
		header.Set(name, value)
		return status, body
	})
}

// describesLog is a middleware that changes the member log of the well-known document.
func describesLog(name string, value any) middleware {
	return showsOtherwise("/.well-known/agora.json", func(text string) string {
		document := decode([]byte(text))
		document["log"].(object)[name] = value
		return string(encode(document))
	})
}

// first returns a change that repeats the first text. Its calls come one after the other.
func first() func(string) string {
	var mu sync.Mutex
	var kept string
	return func(text string) string {
		mu.Lock()
		defer mu.Unlock()
		if kept == "" {
			kept = text
		}
		return kept
	}
}

// everySecond returns a change that is made to every second text.
func everySecond(change func(string) string) func(string) string {
	var mu sync.Mutex
	n := 0
	return func(text string) string {
		mu.Lock()
		defer mu.Unlock()
		if n++; n%2 == 0 {
			return change(text)
		}
		change(text) // it may keep the first one
		return text
	}
}

// staleRoot returns a change of checkpoints that keeps the first root.
func (l liar) staleRoot() func(string) string {
	keep := first()
	return func(text string) string {
		kept := must(proof.ParseCheckpoint(keep(text)))
		return l.signs(func(c *proof.Checkpoint) { c.Root = kept.Root })(text)
	}
}

// shiftsIndex puts a proof at the index before, without another signature.
func shiftsIndex(text string) string {
	p := must(proof.Parse(text))
	p.Index--
	return p.String()
}

// signsAs returns a change of proofs that replaces the signature by one of another key.
func signsAs(other liar) func(string) string {
	return func(text string) string {
		p := must(proof.Parse(text))
		c := &p.Checkpoint
		*c = must(proof.SignCheckpoint(other.key, c.Origin, c.Size, c.Root))
		return p.String()
	}
}

// ids has when messages were posted.
type ids struct {
	mu   sync.Mutex
	when map[any]time.Time
}

func (i *ids) add(id any) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.when == nil {
		i.when = map[any]time.Time{}
	}
	i.when[id] = time.Now()
}

// has reports whether a message was posted within this time.
func (i *ids) has(id any, within time.Duration) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return time.Since(i.when[id]) < within
}

// storesLate is a middleware that answers a post before the message can be read.
func storesLate(h http.Handler) http.Handler {
	var posted ids
	posts := changesReceipts(func(receipt object) { posted.add(receipt["id"]) })(h)
	return rewritesEvents(func(events []json.RawMessage) []json.RawMessage {
		return slices.DeleteFunc(events, func(e json.RawMessage) bool { return posted.has(decode(e)["id"], time.Second) })
	})(posts)
}

// logsLate is a middleware that answers a post before the leaf can be read.
func logsLate(h http.Handler) http.Handler {
	var posted ids
	posts := changesReceipts(func(receipt object) { posted.add(receipt["id"]) })(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/proofs" && posted.has(r.URL.Query().Get("id"), time.Second) {
			r.URL.RawQuery = strings.Replace(r.URL.RawQuery, "id=", "id=x", 1)
		}
		posts.ServeHTTP(w, r)
	})
}

// logsAgain is a middleware that gives a duplicate another leaf. If receipts is true, the receipt has its proof.
func (l liar) logsAgain(receipts bool) middleware {
	again := l.changes(func(_ *proof.Origin, index *int64, leaf *proof.Leaf) {
		*index++
		leaf.Salt[0]++
	})
	return func(h http.Handler) http.Handler {
		var repeated ids
		var mu sync.Mutex
		proofs := map[any]string{}
		posts := changesReceipts(func(receipt object) {
			mu.Lock()
			defer mu.Unlock()
			switch text, ok := receipt["proof"].(string); {
			case ok:
				proofs[receipt["id"]] = text
			case receipts:
				receipt["proof"] = again(proofs[receipt["id"]])
			default:
				repeated.add(receipt["id"])
			}
		})(h)
		return changesAnswers("/proofs", func(r *http.Request, status int, _ http.Header, text string) (int, string) {
			if status == http.StatusOK && repeated.has(r.URL.Query().Get("id"), time.Hour) {
				text = again(text)
			}
			return status, text
		})(posts)
	}
}

// provesAnything is a middleware that answers GET /proofs for an unknown message with the proof that it has given last.
func provesAnything(h http.Handler) http.Handler {
	var mu sync.Mutex
	last := ""
	posts := provesOtherwise(func(text string) string {
		mu.Lock()
		defer mu.Unlock()
		last = text
		return text
	})(h)
	return changesAnswers("/proofs", func(_ *http.Request, status int, _ http.Header, text string) (int, string) {
		mu.Lock()
		defer mu.Unlock()
		if status == http.StatusNotFound {
			return http.StatusOK, last
		}
		return status, text
	})(posts)
}

// tellsOfProofs is a middleware whose refusals say which messages have a proof.
func tellsOfProofs(h http.Handler) http.Handler {
	var posted ids
	posts := changesReceipts(func(receipt object) { posted.add(receipt["id"]) })(h)
	return changesAnswers("/proofs", func(r *http.Request, status int, _ http.Header, body string) (int, string) {
		if status == http.StatusNotFound && posted.has(r.URL.Query().Get("id"), time.Hour) {
			body = `{"ok":false,"error":"NOT_FOUND","message":"it is not yours","retryable":false}`
		}
		return status, body
	})(posts)
}

// changesTarget is a middleware that replaces text in the targets of requests with this path.
func changesTarget(path, text, by string) middleware {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, path) {
				r.URL.Path = strings.Replace(r.URL.Path, text, by, 1)
				r.URL.RawQuery = strings.Replace(r.URL.RawQuery, text, by, 1)
			}
			h.ServeHTTP(w, r)
		})
	}
}

// forks is a store that has another leaf 0 in its tree than in its receipts.
type forks struct{ relay.LogStore }

func forked(s relay.Store) relay.Store { return forks{s.(relay.LogStore)} }

func (f forks) LogHashes(ctx context.Context, log int64, level int, first, n int64) ([]proof.Hash, error) {
	hashes, err := f.LogStore.LogHashes(ctx, log, level, first, n)
	if level == 0 && first == 0 && len(hashes) > 0 {
		hashes = slices.Clone(hashes)
		hashes[0] = proof.Hash{}
	}
	return hashes, err
}

// logsForAll is like showsAllEvents, but is also a LogStore.
type logsForAll struct{ relay.LogStore }

func (s logsForAll) Read(ctx context.Context, q relay.Query) (relay.Page, error) {
	return showsAllEvents{s.LogStore}.Read(ctx, q)
}

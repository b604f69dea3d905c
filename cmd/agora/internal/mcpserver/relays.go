package mcpserver

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// relays is what the server uses of its client: a client of one relay, or of several.
type relays interface {
	Agent(ctx context.Context, id didkey.DID) (client.Agent, error)
	Agents(ctx context.Context, q client.AgentQuery) (client.AgentPage, error)
	Events(ctx context.Context, filter client.Filter, cursor string, limit int) (client.EventPage, error)
	Outlook(ctx context.Context, opts client.RequestOptions) (client.Outlook, error)
	Origin(ctx context.Context, request *envelope.Envelope) (client.Origin, error)
	Post(ctx context.Context, d envelope.Draft) (*envelope.Envelope, client.Receipt, error)
	Thread(ctx context.Context, id string, opener didkey.DID) (*client.Thread, error)
	// at returns the client of the relay that has a thread.
	at(ctx context.Context, id string, opener didkey.DID) (*client.Client, error)
	request(ctx context.Context, opts client.RequestOptions) (call, error)
	resume(ctx context.Context, id string) (call, error)
}

// call is what client.Call and client.NetworkCall have in common.
type call interface {
	Offers(ctx context.Context) iter.Seq2[client.Offer, error]
	Acceptance(offer client.Offer) (envelope.Draft, error)
	Accept(ctx context.Context, offer client.Offer) error
	Result(ctx context.Context) (*client.Result, error)
	Record(ctx context.Context) (*client.Thread, error)
	State(ctx context.Context) (client.CallState, error)
	Limit(limits *envelope.Constraints)
	Cancel(ctx context.Context, reason string) error
	// place returns the URL of the relay that has the newest thread, and the id of the thread.
	place() (relay, thread string)
	// moves reports whether an ACCEPT was signed. If the job moves then, the call accepts the agent's offer at the next
	// relay by itself, while that thread is still pending.
	moves() bool
	proved() bool // the relay has proved the last message
}

type oneRelay struct {
	*client.Client
	url string
}

func (r oneRelay) at(context.Context, string, didkey.DID) (*client.Client, error) {
	return r.Client, nil
}

func (r oneRelay) request(ctx context.Context, opts client.RequestOptions) (call, error) {
	c, err := r.Request(ctx, opts)
	return oneCall{c, r.url}, err
}

func (r oneRelay) resume(ctx context.Context, id string) (call, error) {
	c, err := r.Resume(ctx, id)
	return oneCall{c, r.url}, err
}

type oneCall struct {
	*client.Call
	url string
}

func (c oneCall) place() (relay, thread string) { return c.url, c.Thread }
func (c oneCall) moves() bool                   { return false }
func (c oneCall) proved() bool                  { return c.Proved }

type manyRelays struct{ *client.Network }

func (r manyRelays) at(ctx context.Context, id string, opener didkey.DID) (*client.Client, error) {
	return r.At(ctx, id, opener)
}

func (r manyRelays) request(ctx context.Context, opts client.RequestOptions) (call, error) {
	j, err := r.Request(ctx, opts)
	return manyCall{j}, err
}

func (r manyRelays) resume(ctx context.Context, id string) (call, error) {
	j, err := r.Resume(ctx, id)
	return manyCall{j}, err
}

type manyCall struct{ *client.NetworkCall }

func (c manyCall) place() (relay, thread string) {
	id, home := c.Thread()
	return home.URL, id
}

func (c manyCall) moves() bool  { return c.Agent() != "" }
func (c manyCall) proved() bool { return c.Proved() }

// recordPatience is how long one try of a tool waits for the record of a thread, while its home is silent. The next try
// continues, and the time of silence counts on.
const recordPatience = 10 * time.Second

// Record is NetworkCall.Record, which would wait as long as ctx lasts.
func (c manyCall) Record(ctx context.Context) (*client.Thread, error) {
	return within(ctx, c.NetworkCall.Record)
}

// State is NetworkCall.State, which would wait as long as ctx lasts.
func (c manyCall) State(ctx context.Context) (client.CallState, error) {
	return within(ctx, c.NetworkCall.State)
}

func within[T any](ctx context.Context, read func(context.Context) (T, error)) (T, error) {
	limited, cancel := context.WithTimeout(ctx, recordPatience)
	defer cancel()
	answer, err := read(limited)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = client.ErrUnknownOutcome
	}
	return answer, err
}

// A job that can move between relays lasts longer than one call of a tool: the client remembers its threads, the
// accepted price, and since when its home is silent. So the server keeps such a job in memory. After a restart of the
// server, the job is read again from the relay that has its thread.

// maxKept is how many jobs are kept. The oldest is forgotten first.
const maxKept = 100

// jobs has the jobs at several relays. It is safe for concurrent use. nil: there is one relay, and nothing is kept.
type jobs struct {
	mu       sync.Mutex
	byThread map[string]*keptJob
	oldest   []*keptJob
}

// keptJob is a job with the ids of its threads. Only one call of a tool may use it at a time.
type keptJob struct {
	request request
	threads []string
	busy    chan struct{} // has one element while a tool uses the job
}

// keep keeps a job, and takes it for the caller until request.done is called. A job that was kept meanwhile by another
// call counts instead.
func (j *jobs) keep(ctx context.Context, q request) (request, error) {
	q.done = func() {}
	if j == nil {
		return q, nil
	}
	q.chosen = new(chosen)
	j.mu.Lock()
	if j.byThread[q.Thread] == nil {
		kept := &keptJob{request: q, threads: []string{q.Thread}, busy: make(chan struct{}, 1)}
		j.byThread[q.Thread] = kept
		if j.oldest = append(j.oldest, kept); len(j.oldest) > maxKept {
			for _, id := range j.oldest[0].threads {
				delete(j.byThread, id)
			}
			j.oldest = j.oldest[1:]
		}
	}
	j.mu.Unlock()
	q, _, err := j.take(ctx, q.Thread)
	return q, err
}

// take returns the job with this thread, for the caller only until request.done is called; ok is false if it is not
// kept.
func (j *jobs) take(ctx context.Context, thread string) (q request, ok bool, err error) {
	if j == nil {
		return request{}, false, nil
	}
	j.mu.Lock()
	kept := j.byThread[thread]
	j.mu.Unlock()
	if kept == nil {
		return request{}, false, nil
	}
	limited, cancel := context.WithTimeout(ctx, relayPatience)
	defer cancel()
	select {
	case kept.busy <- struct{}{}:
	case <-limited.Done():
		return request{}, true, errors.Join(ctx.Err(),
			mistake("Another call uses this thread. Try again when it has returned."))
	}
	q = kept.request
	q.done = sync.OnceFunc(func() {
		_, newest := q.place()
		j.mu.Lock()
		if j.byThread[q.Thread] == kept && j.byThread[newest] == nil {
			j.byThread[newest] = kept
			kept.threads = append(kept.threads, newest)
		}
		j.mu.Unlock()
		<-kept.busy
	})
	return q, true, nil
}

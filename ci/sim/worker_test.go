package sim

import (
	"context"
	"encoding/json"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
)

// worker is an agent.
type worker struct {
	*program
	ended chan error
}

// work is one call of Handler.Work.
type work struct {
	by      *worker
	life    *wire // of the agent
	id      uint64
	took    time.Duration
	ended   time.Time
	crashed bool // the agent ended before the outcome was durable
}

// begin starts the agent.
func (a *worker) begin() {
	ctx, n := a.open(nil)
	a.ended = make(chan error, 1)
	w, ended := a.wire, a.ended
	go func() {
		ended <- n.Serve(ctx, client.ServeOptions{Intents: []string{"work"},
			Manifest: envelope.Manifest{ID: "cap", Intents: []envelope.Intent{{ID: "work"}}}}, client.Handler{
			Quote: a.quote,
			Work:  func(ctx context.Context, job client.Job) (envelope.Result, error) { return a.work(ctx, w, job) }})
	}()
}

// end stops the agent, or lets it crash.
func (a *worker) end(crash bool) { a.close(crash, func() error { return <-a.ended }) }

// dieSoon lets the agent crash at its next OFFER or RESULT.
func (a *worker) dieSoon() {
	a.program.dieSoon(envelope.TypeOffer, envelope.TypeResult, envelope.TypeResult)
}

// quote is Handler.Quote. The agent asks for another price each time, but for one job only once.
func (a *worker) quote(context.Context, client.Job) (envelope.Offer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return envelope.Offer{Price: &envelope.Price{Currency: "USD", Amount: float64(1 + a.random.IntN(1000))}}, nil
}

// work is Handler.Work.
func (a *worker) work(ctx context.Context, life *wire, job client.Job) (envelope.Result, error) {
	var number int
	if err := json.Unmarshal(job.Request.Params, &number); err != nil {
		return envelope.Result{}, err
	}
	if life.isDead() { // the process is no more
		<-ctx.Done()
		return envelope.Result{}, ctx.Err()
	}
	a.mu.Lock()
	w := &work{by: a, life: life, id: a.random.Uint64() >> 12,
		took: time.Duration(a.random.IntN(4000)) * tick}
	a.mu.Unlock()
	a.beginWork(number, w)
	select {
	case <-ctx.Done():
		return envelope.Result{}, ctx.Err()
	case <-time.After(w.took):
	}
	a.endWork(w)
	return envelope.Result{Output: output{number, w.id}.json()}, nil
}

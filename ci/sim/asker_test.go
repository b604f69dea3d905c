package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// asker is a client.
type asker struct {
	*system
	network *client.Network
	clock   clock
}

// newAsker starts a client, which asks for some jobs. asking ends after them.
func (s *system) newAsker(i int, asking *sync.WaitGroup) *asker {
	c := &asker{system: s}
	s.drift(&c.clock)
	c.network = s.network(newKey(s.T, s.random), s.newWire(fmt.Sprint("client", i)), &c.clock, nil,
		func(client.Move) { s.count(func(t *tally) { t.Moves++ }) })
	for range 2 + s.random.IntN(4) {
		wait, to := time.Duration(s.random.IntN(200))*time.Second, s.agents[s.random.IntN(3)].key.DID()
		if s.random.IntN(3) == 0 {
			to = ""
		}
		asking.Go(func() {
			time.Sleep(wait)
			_ = c.ask(to, jobBound) // faults may end a job without a RESULT
		})
	}
	return c
}

// ask asks for a job, which must end within bound.
func (c *asker) ask(to didkey.DID, bound time.Duration) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(c.Context(), bound+jobTTL)
	defer cancel()
	job := c.newJob()
	result, err := c.try(ctx, to, job)
	if took := time.Since(began); took > bound {
		c.Errorf("job %d ended after %v: %v", job, took, err)
	}
	if err != nil {
		c.Logf("%s: job %d: %v", time.Now().Format(time.TimeOnly), job, err)
		return err
	}
	c.finished(job, result)
	return nil
}

func (c *asker) try(ctx context.Context, to didkey.DID, job int) (*client.Result, error) {
	call, err := c.network.Request(ctx, client.RequestOptions{Intent: "work", Params: job, Recipient: to, TTL: jobTTL})
	if err != nil {
		return nil, err
	}
	if to == "" {
		offers, err := call.Collect(ctx, 5*time.Second)
		if err != nil {
			return nil, err
		}
		if len(offers) > 1 {
			if job%2 == 0 {
				c.acceptToo(ctx, call, offers[0], job)
			}
			return c.accept(ctx, call, offers[len(offers)-1])
		}
	}
	for offer, err := range call.Offers(ctx) {
		if err != nil {
			return nil, err
		}
		return c.accept(ctx, call, offer)
	}
	return nil, errors.New("there is no offer")
}

// acceptToo accepts a second offer in the same thread, at the same time as the first, which no honest client does. The
// relay must take only one ACCEPT.
func (c *asker) acceptToo(ctx context.Context, call *client.NetworkCall, offer client.Offer, job int) {
	c.distrust(job)
	id, home := call.Thread()
	c.copies.Go(func() {
		_, _, err := c.network.Post(ctx, envelope.Draft{Thread: id, Recipient: offer.Agent, Home: &home,
			Re: offer.Envelope.Hash(), Payload: envelope.Accept{RequestID: offer.RequestID}, TTL: jobTTL})
		c.Logf("job %d: the second ACCEPT: %v", job, err)
	})
}

func (c *asker) accept(ctx context.Context, call *client.NetworkCall, offer client.Offer) (*client.Result, error) {
	if err := call.Accept(ctx, offer); err != nil {
		return nil, err
	}
	return call.Result(ctx)
}

// output is the output of a RESULT.
type output struct {
	Job  int
	Work uint64 // another number each time that the work is done
}

func (o output) json() json.RawMessage {
	text, _ := json.Marshal(o) // numbers only
	return text
}

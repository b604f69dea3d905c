package sim

import (
	"encoding/json"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// signed has what the programs have signed and sent. Perhaps no relay has it.
type signed struct {
	jobs    map[string]int           // of threads, by id
	first   map[string]envelope.Hash // of threads, by id: the first REQUEST of the job
	roots   map[envelope.Hash]int    // the jobs of first REQUESTs
	agents  map[int]didkey.DID       // by job: for whom an ACCEPT was signed
	accepts map[string]accept        // by thread
	prices  map[offered]float64      // of OFFERs
}

// offered is an agent's OFFERs for the threads that continue one REQUEST. A client that crashed may have forgotten its
// REQUEST. For an agent, its next one is another job.
type offered struct {
	first envelope.Hash
	agent didkey.DID
}

type accept struct {
	hash envelope.Hash
	life *wire
}

func newSigned() signed {
	return signed{map[string]int{}, map[string]envelope.Hash{}, map[envelope.Hash]int{}, map[int]didkey.DID{},
		map[string]accept{}, map[offered]float64{}}
}

// sends checks a message that a program sends.
func (c *checker) sends(e *envelope.Envelope, life *wire) {
	if e.Type == envelope.TypeResult {
		c.result(e)
		return
	}
	c.checking.Lock()
	defer c.checking.Unlock()
	job := c.signed.jobs[e.Thread]
	switch e.Type {
	case envelope.TypeRequest:
		c.sendsRequest(e)
	case envelope.TypeOffer:
		c.sendsOffer(e, job)
	case envelope.TypeAccept:
		c.sendsAccept(e, job, life)
	case envelope.TypeCancel:
		if a, ok := c.signed.accepts[e.Thread]; ok && a.life == life && !c.faithless[job] {
			c.Errorf("job %d: the thread %s is cancelled although its ACCEPT is signed (R-16)", job, e.Thread)
		}
	}
}

func (c *checker) sendsRequest(e *envelope.Envelope) {
	var r envelope.Request
	var job int
	if err := e.DecodePayload(&r); err != nil || json.Unmarshal(r.Params, &job) != nil {
		c.Errorf("the REQUEST %s has wrong params: %v", e.ID, err)
	}
	c.signed.jobs[e.Thread], c.signed.first[e.Thread] = job, e.Continues
	if e.Continues == (envelope.Hash{}) {
		c.signed.roots[e.Hash()], c.signed.first[e.Thread] = job, e.Hash()
	} else if of := c.signed.roots[e.Continues]; of != job {
		c.Errorf("a REQUEST of job %d continues job %d (R-15)", job, of)
	}
	if agent := c.signed.agents[job]; agent != "" && e.Recipient != agent && e.Continues != (envelope.Hash{}) &&
		!c.faithless[job] && !c.crashed[job] {
		c.Errorf("job %d is continued for %q, but %s was accepted (R-16)", job, e.Recipient, agent)
	}
}

func (c *checker) sendsOffer(e *envelope.Envelope, job int) {
	var o envelope.Offer
	if err := e.DecodePayload(&o); err != nil || o.Price == nil {
		c.Errorf("the OFFER %s has no price: %v", e.ID, err)
		return
	}
	of := offered{c.signed.first[e.Thread], e.Sender.ID}
	if before, ok := c.signed.prices[of]; ok && before != o.Price.Amount {
		c.Errorf("an agent asks for %v and later for %v for job %d (R-18)", before, o.Price.Amount, job)
	}
	c.signed.prices[of] = o.Price.Amount
}

func (c *checker) sendsAccept(e *envelope.Envelope, job int, life *wire) {
	if c.faithless[job] {
		return
	}
	if other := c.signed.agents[job]; other != "" && other != e.Recipient {
		c.Errorf("job %d: ACCEPTs for two agents are signed (R-16)", job)
	}
	c.signed.agents[job] = e.Recipient
	if a, ok := c.signed.accepts[e.Thread]; ok && a.life == life && a.hash != e.Hash() {
		c.Errorf("job %d: two ACCEPTs are signed in the thread %s", job, e.Thread)
	}
	c.signed.accepts[e.Thread] = accept{e.Hash(), life}
}

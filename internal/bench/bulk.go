package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// bulkAnswer is the answer to a bulk request, as far as the generator reads it.
type bulkAnswer struct {
	Results []struct {
		ID        string `json:"id"`
		Duplicate bool   `json:"duplicate"`
		Error     string `json:"error"`
	} `json:"results"`
	Stopped *struct {
		Error      string `json:"error"`
		RetryAfter int    `json:"retryAfter"`
	} `json:"stopped"`
}

// postBulk posts requests of r.Bulk envelopes on one connection until the round is over. The time until an answer
// counts once for each request.
func (r *run) postBulk(ctx context.Context, c *conn, p *round, s *stats) {
	var v values
	var numbers []int
	var line, body []byte
	for ctx.Err() == nil && !r.unreachable.Load() && time.Now().Before(p.end) {
		numbers, body = numbers[:0], body[:0]
		now := time.Now()
		for len(numbers) < r.Bulk {
			n, ok := p.take()
			if !ok {
				break
			}
			numbers = append(numbers, n)
			line = r.stock.canonical.fill(line, r.stock.values(n, &v))
			body = append(append(body, line...), '\n')
			r.stock.record(n).send(now.Sub(r.began), now.Sub(r.began))
		}
		if len(numbers) == 0 {
			return
		}
		a, err := answer{}, c.send(r.to.request("POST", "/events/bulk", body), 0, now)
		if err == nil {
			a, err = c.receive()
		}
		if err != nil {
			s.failed.Add(int64(len(numbers)))
			r.noteBroken(err)
			pause(ctx, brokenPause, p.end)
			continue
		}
		done := time.Now()
		s.ack.add(done.Sub(now))
		s.ackSent.add(done.Sub(now))
		if wait := r.judgeBulk(a, numbers, s); wait > 0 {
			pause(ctx, max(wait, refusedPause), p.end)
		}
	}
}

// judgeBulk records the outcomes of the envelopes of a bulk request. It returns how long to wait before the next
// request.
func (r *run) judgeBulk(a answer, numbers []int, s *stats) (wait time.Duration) {
	var v values
	if a.status != 200 {
		for _, n := range numbers {
			r.stock.record(n).outcome = r.judge(a, r.stock.values(n, &v)[partID], s)
		}
		return max(a.retryAfter, refusedPause)
	}
	var b bulkAnswer
	if err := json.Unmarshal(a.body, &b); err != nil || len(b.Results) > len(numbers) {
		s.failed.Add(int64(len(numbers)))
		r.mismatches.add("answered a bulk request without one result for each line", nil)
		return 0
	}
	for i, n := range numbers {
		id := r.stock.values(n, &v)[partID]
		switch record := r.stock.record(n); {
		case i >= len(b.Results): // a line that was not read, or that the store has not decided about
			s.refused.Add(1)
		case b.Results[i].Error == "RATE_LIMITED":
			record.outcome = refused
			s.refused.Add(1)
		case b.Results[i].ID != "msg_"+string(id) || b.Results[i].Duplicate:
			s.failed.Add(1)
			r.mismatches.add(fmt.Sprintf("a line of a bulk request has the result %+v", b.Results[i]), id)
		default:
			record.outcome = accepted
			s.accepted.Add(1)
		}
	}
	if b.Stopped != nil {
		return time.Duration(b.Stopped.RetryAfter) * time.Second
	}
	return 0
}

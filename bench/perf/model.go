package main

import "fmt"

const day = 24 * 60 * 60 // seconds

// model is what one node can bear, from few measured constants. docs/SCALING.md derives the formulas.
type model struct {
	Cores     float64
	Latency   float64 // seconds from a post to its answer when nobody else posts: one group with its fsync
	Relay     cost
	Generator cost
	Base      float64 // bytes of memory without polls
	Poll      float64 // … and a poll that waits
	Row       float64 // bytes on disk an event, with its part of the indexes
	Thread    float64 // … and the record of a thread
}

// cost is what a process spends on posts, in seconds of CPU time.
type cost struct {
	Event float64 // each
	Group float64 // whatever is in it: the transaction, the fsync, waking up
}

// fit returns the cost of which each(1) and each(256) are what was measured, in microseconds.
func fit(one, many float64) cost {
	group := (one - many) / (1 - 1/groupOf(256))
	return cost{Event: (one - group) / 1e6, Group: group / 1e6}
}

// each is the cost of one of the events that n connections post.
func (c cost) each(n int) float64 { return c.Event + c.Group/groupOf(n) }

// groupOf is how many events n connections bring into a group. They form two crowds: while the posts of one are being
// written, those of the other wait for their turn.
func groupOf(n int) float64 { return min(max(1, float64(n)/2), 256) }

// newModel fits the constants to the ends of the curve over connections and to the small database; false: not all of
// them have been measured.
func newModel(r *results) (m model, ok bool) {
	one, fitted := at(r.Connections, 1)
	many, also := at(r.Connections, 256)
	f := r.Figures
	if !fitted || !also || f.EventBytes == 0 || f.BytesPerPoll == 0 || f.Memory == 0 {
		return model{}, false
	}
	return model{
		Cores: float64(r.Cores), Latency: 1 / one.Rate, Relay: fit(one.CPU, many.CPU), Generator: fit(one.GeneratorCPU, many.GeneratorCPU),
		Base: f.Memory, Poll: f.BytesPerPoll, Row: f.EventBytes, Thread: f.ThreadBytes,
	}, true
}

func at(curve []point, where int) (point, bool) {
	for _, p := range curve {
		if p.At == where {
			return p, true
		}
	}
	return point{}, false
}

// rate is how many events a second are accepted on n connections that post one after the other, with the load generator
// on the same cores: no more than either bound allows. Groups come one after the other, and the cores have so much time.
func (m model) rate(n int) float64 {
	return min(groupOf(n)/m.Latency, m.Cores/(m.Relay.each(n)+m.Generator.each(n)))
}

// alone is the same with the load generator elsewhere.
func (m model) alone(n int) float64 { return min(groupOf(n)/m.Latency, m.Cores/m.Relay.each(n)) }

// memory is the bytes with so many polls that wait.
func (m model) memory(polls int) float64 { return m.Base + float64(polls)*m.Poll }

// polls is how many may wait in so many bytes of memory.
func (m model) polls(bytes float64) float64 { return max(bytes-m.Base, 0) / m.Poll }

// kept is for how many seconds a row and a thread's record stay on disk where messages live for ttl seconds. A row is the
// memory of its id too, which lasts for half an hour at least; the record outlives its last message by a day.
func kept(ttl float64) (row, thread float64) { return max(ttl, 30*60), ttl + day }

// perRate is the bytes on disk for each event a second, where each opens a thread of its own: what arrives in the time
// that it is kept.
func (m model) perRate(ttl float64) float64 {
	row, thread := kept(ttl)
	return row*m.Row + thread*m.Thread
}

// disk is the bytes on disk of events that go on arriving at a rate.
func (m model) disk(rate, ttl float64) float64 { return rate * m.perRate(ttl) }

// bearable is the rate that so many bytes of disk bear without end.
func (m model) bearable(bytes, ttl float64) float64 { return bytes / m.perRate(ttl) }

// lives are how long messages usually live, in seconds.
var lives = []struct {
	name string
	ttl  float64
}{{"`meta.ttl` left out (300 s)", 300}, {"`meta.ttl` of a day, as the commands and the Go client sign", day}}

// prediction is a figure of the model beside the measured one.
type prediction struct {
	What      string  `json:"what"`
	Predicted float64 `json:"predicted"`
	Measured  float64 `json:"measured"`
	Error     float64 `json:"error"` // of the prediction, as a part of what was measured
}

// predict holds the model against what it was not fitted to.
func predict(r *results) (list []prediction) {
	m, ok := newModel(r)
	if !ok {
		return nil
	}
	add := func(what string, predicted, measured float64) {
		if measured > 0 {
			list = append(list, prediction{what, predicted, measured, predicted/measured - 1})
		}
	}
	for _, p := range r.Connections {
		if p.At != 1 { // its latency is a constant of the model
			add(fmt.Sprintf("events/s on %d connections", p.At), m.rate(p.At), p.Rate)
		}
	}
	for _, p := range r.Connections {
		if p.At != 1 && p.At != 256 {
			add(fmt.Sprintf("µs of the relay's CPU an event on %d connections", p.At), 1e6*m.Relay.each(p.At), p.CPU)
		}
	}
	add(fmt.Sprintf("MB of memory that %d polls add", idlePolls), (m.memory(idlePolls)-m.Base)/1e6, idlePolls*r.Figures.BytesPerPollAtHalf/1e6)
	if r.Figures.LargeEvents > 0 {
		add(fmt.Sprintf("MB on disk of %d events", r.Figures.LargeEvents), float64(r.Figures.LargeEvents)*(m.Row+m.Thread)/1e6, float64(r.Figures.LargeBytes)/1e6)
	}
	return list
}

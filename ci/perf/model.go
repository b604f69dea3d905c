package main

import "fmt"

const day = 24 * 60 * 60 // seconds

// model predicts the capacity of one node from a few measured constants. docs/SCALING.md derives the formulas.
type model struct {
	Cores     float64
	Latency   float64 // seconds from a post to its answer with one connection: one group with its fsync
	Relay     cost
	Generator cost
	Base      float64 // bytes of memory without polls
	Poll      float64 // bytes of memory per waiting poll
	Row       float64 // bytes on disk per event, with its part of the indexes
	Thread    float64 // bytes on disk per thread record
}

// cost is the CPU time that a process spends on posts, in seconds.
type cost struct {
	Event float64 // per event
	Group float64 // per group of any size: the transaction, the fsync, waking up
}

// fit returns the cost that matches two measurements of the CPU time per event. one is the time with 1 connection and
// many the time with 256 connections, both in microseconds.
func fit(one, many float64) cost {
	group := (one - many) / (1 - 1/groupSize(256))
	return cost{Event: (one - group) / 1e6, Group: group / 1e6}
}

// perEvent returns the CPU time per event, in seconds, if n connections post.
func (c cost) perEvent(n int) float64 { return c.Event + c.Group/groupSize(n) }

// groupSize returns how many events a group contains if n connections post. At any time about half of the connections
// have a post in the group that is being written. The posts of the other half wait for the next group. So a group
// contains n/2 events, but at least 1 and at most 256.
func groupSize(n int) float64 { return min(max(1, float64(n)/2), 256) }

// newModel takes the constants from the measurements with 1 and 256 connections, and from the other figures in r. ok is
// false if one of them has not been measured.
func newModel(r *results) (m model, ok bool) {
	one, fitted := pointAt(r.Connections, 1)
	many, also := pointAt(r.Connections, 256)
	f := r.Figures
	if !fitted || !also || f.EventBytes == 0 || f.BytesPerPoll == 0 || f.Memory == 0 {
		return model{}, false
	}
	return model{
		Cores: float64(r.Cores), Latency: 1 / one.Rate,
		Relay: fit(one.CPU, many.CPU), Generator: fit(one.GeneratorCPU, many.GeneratorCPU),
		Base: f.Memory, Poll: f.BytesPerPoll, Row: f.EventBytes, Thread: f.ThreadBytes,
	}, true
}

// pointAt returns the point of the curve whose At is where. It returns false if there is none.
func pointAt(curve []point, where int) (point, bool) {
	for _, p := range curve {
		if p.At == where {
			return p, true
		}
	}
	return point{}, false
}

// rate returns how many events per second the relay accepts on n connections, each of which waits for the answer before
// its next post. The load generator runs on the same cores. There are two limits: groups are written one after the
// other, and the cores have a limited amount of CPU time. The rate is the smaller of the two.
func (m model) rate(n int) float64 {
	return min(groupSize(n)/m.Latency, m.Cores/(m.Relay.perEvent(n)+m.Generator.perEvent(n)))
}

// rateWithoutGenerator returns the rate if the load generator runs on another machine.
func (m model) rateWithoutGenerator(n int) float64 {
	return min(groupSize(n)/m.Latency, m.Cores/m.Relay.perEvent(n))
}

// memory returns the bytes of memory with this number of waiting polls.
func (m model) memory(polls int) float64 { return m.Base + float64(polls)*m.Poll }

// polls returns how many polls can wait with this many bytes of memory.
func (m model) polls(bytes float64) float64 { return max(bytes-m.Base, 0) / m.Poll }

// retention returns for how many seconds an event's row and a thread's record stay on disk if messages live for ttl
// seconds. A row stays for at least half an hour, because the relay also uses it to detect duplicate ids. A thread's
// record stays for a day longer than the thread's last message.
func retention(ttl float64) (row, thread float64) { return max(ttl, 30*60), ttl + day }

// bytesPerRate returns the bytes on disk for a rate of one event per second, if each event opens its own thread. These
// are the bytes that arrive during the retention time.
func (m model) bytesPerRate(ttl float64) float64 {
	row, thread := retention(ttl)
	return row*m.Row + thread*m.Thread
}

// disk returns the bytes on disk if events keep arriving at this rate, in events per second.
func (m model) disk(rate, ttl float64) float64 { return rate * m.bytesPerRate(ttl) }

// maxRate returns the highest rate, in events per second, at which the events never need more than this many bytes on
// disk.
func (m model) maxRate(bytes, ttl float64) float64 { return bytes / m.bytesPerRate(ttl) }

// ttls are the usual lifetimes of messages, in seconds.
var ttls = []struct {
	name string
	ttl  float64
}{
	{"without `meta.ttl`, which means 300 s", 300},
	{"with `meta.ttl` of one day, the default of the commands and the Go client", day},
}

// prediction is a figure that the model predicts, with the measured figure.
type prediction struct {
	What      string  `json:"what"`
	Predicted float64 `json:"predicted"`
	Measured  float64 `json:"measured"`
	Error     float64 `json:"error"` // (Predicted − Measured) ÷ Measured
}

// predict compares the model with the measurements that it does not take its constants from. It returns nil if the
// constants have not all been measured.
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
		if p.At != 1 { // the model takes its latency from the point at 1
			add(fmt.Sprintf("events/s on %d connections", p.At), m.rate(p.At), p.Rate)
		}
	}
	for _, p := range r.Connections {
		if p.At != 1 && p.At != 256 {
			add(fmt.Sprintf("µs of relay CPU per event on %d connections", p.At), 1e6*m.Relay.perEvent(p.At), p.CPU)
		}
	}
	add(fmt.Sprintf("MB of memory that %d polls add", idlePolls),
		(m.memory(idlePolls)-m.Base)/1e6, idlePolls*r.Figures.BytesPerPollAtHalf/1e6)
	if r.Figures.LargeEvents > 0 {
		add(fmt.Sprintf("MB on disk for %d events", r.Figures.LargeEvents),
			float64(r.Figures.LargeEvents)*(m.Row+m.Thread)/1e6, float64(r.Figures.LargeBytes)/1e6)
	}
	return list
}

package bench

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"
)

// Report is what a run found. As JSON it is one object with the members named here; rates are per second, ratios are
// to Std.Mean.
type Report struct {
	URL     string    `json:"url"`
	Mode    Mode      `json:"mode"`
	Started time.Time `json:"started"`
	Cursor  string    `json:"cursor"` // behind which all that the run posted is

	Connections int     `json:"connections"`
	Senders     int     `json:"senders"`
	Pollers     int     `json:"pollers"`
	Idle        int     `json:"idle"`
	BodyBytes   int     `json:"bodyBytes"` // of an envelope's canonical form
	Pretty      bool    `json:"pretty"`
	AskedRate   float64 `json:"askedRate"` // 0: flat out

	Std Std `json:"std"`

	Accepted  int64   `json:"accepted"` // posts answered 200 with their own id, warm-up aside
	Seconds   float64 `json:"seconds"`  // the time that took, signing aside
	Rate      float64 `json:"rate"`
	RateRatio float64 `json:"rateRatio"`
	// FloorRatio is the ratio to the floor: the median of Floor.Turns.
	FloorRatio float64 `json:"floorRatio,omitempty"`
	Refused    int64   `json:"refused"` // posts answered 429 or 503, and polls, these in warm-up too
	Failed     int64   `json:"failed"`  // posts without an answer, or with a wrong one
	Broken     int64   `json:"broken"`  // connections that broke off, in warm-up too

	Delivered      int64   `json:"delivered,omitempty"` // of the accepted, to the polls that waited for them
	DeliveredRate  float64 `json:"deliveredRate,omitempty"`
	DeliveredRatio float64 `json:"deliveredRatio,omitempty"`

	Read        int64   `json:"read,omitempty"` // events, by the reader of CatchUp
	ReadSeconds float64 `json:"readSeconds,omitempty"`
	ReadRate    float64 `json:"readRate,omitempty"`
	ReadRatio   float64 `json:"readRatio,omitempty"`

	// Latencies count from when a post was due, if the run has a rate, so that a stall counts for all it held up; those
	// FromSending from just before the post went out. Without a rate both are the same, and only the first is given.
	Ack                 *Latency `json:"ack,omitempty"`      // until the post's answer
	Delivery            *Latency `json:"delivery,omitempty"` // until it arrived at the poll that waited for it
	AckFromSending      *Latency `json:"ackFromSending,omitempty"`
	DeliveryFromSending *Latency `json:"deliveryFromSending,omitempty"`
	Page                *Latency `json:"page,omitempty"` // CatchUp: one page of 1000

	Floor     *Floor `json:"floor,omitempty"`     // if the run has a floor
	Generator *Usage `json:"generator,omitempty"` // this program's own use; Linux only
	Relay     *Usage `json:"relay,omitempty"`     // the relay's, where its process can be looked into

	Stored     int64      `json:"stored"`   // accepted events, of the warm-up too, that were there once afterwards, byte for byte
	Complete   bool       `json:"complete"` // everything could be read back
	Mismatches []Mismatch `json:"mismatches"`

	Interrupted bool `json:"interrupted"`
}

// Std is the yardstick: how many signatures crypto/ed25519 verifies a second on all cores.
type Std struct {
	Before float64 `json:"before"`
	After  float64 `json:"after"`
	Mean   float64 `json:"mean"`
	CPU    float64 `json:"cpu,omitempty"` // microseconds of CPU time of one, the mean of both; Linux only
	Cores  int     `json:"cores"`
}

// Floor is what the floor reached in its turns.
type Floor struct {
	URL         string `json:"url"`         // on the machine of this program
	PID         int    `json:"pid"`         // a process of its own
	SameMachine bool   `json:"sameMachine"` // the relay's address is this machine's too

	Accepted      int64    `json:"accepted"` // posts answered 200 with their own id, warm-up aside
	Seconds       float64  `json:"seconds"`
	Rate          float64  `json:"rate"`
	RateRatio     float64  `json:"rateRatio"`
	Ack           *Latency `json:"ack,omitempty"`
	CPUPerEvent   float64  `json:"cpuPerEvent,omitempty"`   // microseconds; Linux only
	Verifications float64  `json:"verifications,omitempty"` // the same, in verifications of crypto/ed25519

	Turns []Turn `json:"turns"`
}

// Turn is one turn of the relay and the floor's turn after it. Both last equally long.
type Turn struct {
	Relay float64 `json:"relay"` // events a second
	Floor float64 `json:"floor"` // events a second
	Ratio float64 `json:"ratio"` // Relay ÷ Floor
}

// Latency are percentiles in milliseconds.
type Latency struct {
	Count int64   `json:"count"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	Max   float64 `json:"max"`
}

// Usage is what a process used while the run was measured. Events are the accepted ones, or in CatchUp those read.
type Usage struct {
	PID           int     `json:"pid,omitempty"`
	CPUPerEvent   float64 `json:"cpuPerEvent"`              // microseconds
	Verifications float64 `json:"verifications"`            // the same, in verifications of crypto/ed25519, by Std.CPU
	RSSBefore     int64   `json:"rssBefore,omitempty"`      // bytes
	RSSAfter      int64   `json:"rssAfter,omitempty"`       // bytes
	RSSPerIdle    int64   `json:"rssPerIdlePoll,omitempty"` // bytes
}

// Mismatch is one kind of thing that did not hold.
type Mismatch struct {
	What     string   `json:"what"`
	Count    int      `json:"count"`
	Examples []string `json:"examples,omitempty"` // ids without their prefix msg_
}

// Holds reports whether all that was counted was verified, and nothing was wrong with it.
func (r Report) Holds() bool {
	return len(r.Mismatches) == 0 && r.Complete && r.Failed == 0 && r.Broken == 0 && (r.Accepted > 0 || r.Interrupted)
}

func (r *run) newReport(b books) Report {
	std := b.std
	std.Mean, std.Cores = (std.Before+std.After)/2, runtime.GOMAXPROCS(0)
	std.CPU = float64((b.verifyCPU[0] + b.verifyCPU[1]).Nanoseconds()) / 2e3
	m := b.measured
	report := Report{
		URL: r.to.url, Mode: r.Mode, Started: r.began, Cursor: r.start, Connections: r.Connections, Senders: r.Senders, Pollers: r.Pollers, Idle: r.Idle,
		BodyBytes: len(r.stock.canonical.bytes), Pretty: r.Pretty, AskedRate: r.Rate, Std: std,
		Accepted: m.accepted.Load(), Seconds: m.posting.Seconds(), Refused: m.refused.Load() + r.refused.Load(), Failed: m.failed.Load() + b.warm.failed.Load(),
		Broken: r.broken.Load(), Ack: m.ack.latency(), Delivery: m.delivery.latency(), Delivered: m.delivered.Load(),
		Stored: b.stored, Complete: b.complete, Mismatches: append([]Mismatch{}, r.faults.all()...), Interrupted: b.interrupted,
	}
	report.Rate, report.RateRatio = ratio(float64(report.Accepted), report.Seconds), ratio(ratio(float64(report.Accepted), report.Seconds), std.Mean)
	if r.Rate > 0 {
		report.AckFromSending, report.DeliveryFromSending = m.ackSent.latency(), m.deliverySent.latency()
	}
	if r.delivers() {
		report.DeliveredRate = ratio(float64(report.Delivered), m.delivering.Seconds())
		report.DeliveredRatio = ratio(report.DeliveredRate, std.Mean)
	}
	of, events := m, report.Accepted
	if r.Mode == CatchUp {
		of, events = b.reading, b.reading.accepted.Load()
		report.Read, report.ReadSeconds, report.Page = events, of.posting.Seconds(), of.ack.latency()
		report.ReadRate = ratio(float64(events), report.ReadSeconds)
		report.ReadRatio = ratio(report.ReadRate, std.Mean)
	}
	usage := func(cpu time.Duration) *Usage {
		us := ratio(float64(cpu.Nanoseconds())/1e3, float64(events))
		return &Usage{CPUPerEvent: us, Verifications: ratio(us, std.CPU)}
	}
	if r.floor != nil {
		report.Floor = r.floor.report(std, onLoopback(r.to.host))
		report.FloorRatio = report.Floor.ratio()
		report.Mismatches = append(report.Mismatches, r.floor.faults(b.interrupted)...)
	}
	if of.ownCPU > 0 {
		report.Generator = usage(of.ownCPU)
	}
	if r.process != nil {
		report.Relay = usage(of.relayCPU)
		report.Relay.PID, report.Relay.RSSBefore, report.Relay.RSSAfter = r.process.pid, b.rssBefore, b.rssAfter
		if r.Idle > 0 {
			report.Relay.RSSPerIdle = b.idleGrowth / int64(r.Idle)
		}
	}
	return report
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// WriteText writes the report for people.
func (r Report) WriteText(w io.Writer) error {
	var t strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&t, "%-12s"+format+"\n", append([]any{name}, args...)...)
	}
	form, pace := "canonical", "flat out"
	if r.Pretty {
		form = "not canonical"
	}
	if r.AskedRate > 0 {
		pace = fmt.Sprintf("%g/s", r.AskedRate)
	}
	line(string(r.Mode), "%s: %d connections, %d senders, %d pollers, %d idle polls, bodies of %d bytes, %s, %s",
		r.URL, r.Connections, r.Senders, r.Pollers, r.Idle, r.BodyBytes, form, pace)
	floor := ""
	if r.FloorRatio > 0 {
		floor = fmt.Sprintf(" = %.3f × floor", r.FloorRatio)
	}
	line("accepted", "%d in %.2f s: %.0f/s = %.3f × std%s", r.Accepted, r.Seconds, r.Rate, r.RateRatio, floor)
	if r.DeliveredRate > 0 {
		line("delivered", "%d: %.0f/s = %.3f × std", r.Delivered, r.DeliveredRate, r.DeliveredRatio)
	}
	if r.Read > 0 {
		line("read", "%d in %.2f s: %.0f/s = %.3f × std", r.Read, r.ReadSeconds, r.ReadRate, r.ReadRatio)
	}
	for _, l := range []struct {
		name, hint string
		*Latency
	}{{"ack", "", r.Ack}, {"", "from sending", r.AckFromSending}, {"delivery", "", r.Delivery}, {"", "from sending", r.DeliveryFromSending}, {"page", "", r.Page}} {
		if l.Latency != nil {
			line(l.name, "p50 %.2f  p90 %.2f  p99 %.2f  p99.9 %.2f  max %.2f ms %s", l.P50, l.P90, l.P99, l.P999, l.Max, l.hint)
		}
	}
	line("std", "%.0f/s before, %.0f/s after: verifications by crypto/ed25519 on %d cores, %.1f µs CPU each", r.Std.Before, r.Std.After, r.Std.Cores, r.Std.CPU)
	r.writeFloor(line)
	if u := r.Relay; u != nil {
		line("relay", "%.1f µs CPU an event = %.2f verifications; RSS %.1f MB before, %.1f MB after; process %d",
			u.CPUPerEvent, u.Verifications, float64(u.RSSBefore)/1e6, float64(u.RSSAfter)/1e6, u.PID)
		if r.Idle > 0 {
			line("", "%.1f KB RSS an idle poll", float64(u.RSSPerIdle)/1e3)
		}
	}
	if r.Generator != nil {
		line("generator", "%.1f µs CPU an event", r.Generator.CPUPerEvent)
	}
	if r.Refused > 0 {
		line("refused", "%d (429 or 503). A relay's limits spare requests from its own machine only: ask it at a loopback "+
			"address, without a proxy, or raise its limits", r.Refused)
	}
	r.writeVerdict(line)
	_, err := io.WriteString(w, t.String())
	return err
}

func (r Report) writeFloor(line func(name, format string, args ...any)) {
	f := r.Floor
	if f == nil {
		return
	}
	ratios := f.ratios()
	if len(ratios) == 0 {
		line("floor", "no turn was measured")
		return
	}
	line("floor", "%.0f/s = %.3f × std, %.1f µs CPU an event: a bare net/http server that verifies, at %s, "+
		"process %d on this machine", f.Rate, f.RateRatio, f.CPUPerEvent, f.URL, f.PID)
	line("", "%d turns with the relay: × floor from %.3f to %.3f, the median counts",
		len(ratios), ratios[0], ratios[len(ratios)-1])
	if !f.SameMachine {
		line("", "the relay has another address than this machine: "+
			"× floor also compares two machines and the network between")
	}
}

func (r Report) writeVerdict(line func(name, format string, args ...any)) {
	if r.Interrupted {
		line("interrupted", "the figures are those until then")
	}
	line("verified", "%d accepted events were there once, byte for byte (with the warm-up's)", r.Stored)
	if !r.Complete {
		line("WRONG", "not everything could be read back")
	}
	if r.Failed > 0 || r.Broken > 0 {
		line("WRONG", "%d posts without a right answer, %d connections broke off", r.Failed, r.Broken)
	}
	if r.Accepted == 0 && !r.Interrupted {
		line("WRONG", "nothing was accepted")
	}
	for _, m := range r.Mismatches {
		examples := ""
		if len(m.Examples) > 0 {
			examples = ", such as " + strings.Join(m.Examples, ", ")
		}
		line("WRONG", "%s: %d%s", m.What, m.Count, examples)
	}
}

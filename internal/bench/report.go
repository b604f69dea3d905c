package bench

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"
)

// Report contains the results of a run. Its JSON form is one object with the members named here. Rates are per second.
// Ratios named RateRatio, DeliveredRatio and ReadRatio are to Std.Mean.
type Report struct {
	URL     string    `json:"url"` // the relay's address
	Mode    Mode      `json:"mode"`
	Started time.Time `json:"started"`
	Cursor  string    `json:"cursor"` // all events of the run, except its first, come after this cursor

	// The options of the run. See Options.
	Connections int     `json:"connections"`
	Senders     int     `json:"senders"`
	Pollers     int     `json:"pollers"`
	Idle        int     `json:"idle"`
	BodyBytes   int     `json:"bodyBytes"` // size of an envelope's canonical form in bytes
	Pretty      bool    `json:"pretty"`
	Bulk        int     `json:"bulk,omitempty"`
	AskedRate   float64 `json:"askedRate"` // posts per second; 0: full speed

	Std Std `json:"std"`

	Accepted  int64   `json:"accepted"`  // posts answered 200 with their own id, without the warm-up
	Seconds   float64 `json:"seconds"`   // time spent posting, without the warm-up and signing
	Rate      float64 `json:"rate"`      // accepted events per second
	RateRatio float64 `json:"rateRatio"` // Rate ÷ Std.Mean
	// FloorRatio is the rate as a ratio to the floor's rate: the median of the ratios in Floor.Turns.
	FloorRatio float64 `json:"floorRatio,omitempty"`
	// Refused counts the posts that were answered 429 or 503, without the warm-up. It also counts the polls that were
	// answered so, with the warm-up.
	Refused int64 `json:"refused"`
	// Queued counts the accepted posts that waited because the relay stores only a few messages of one address at a time
	// (limits.writesPerAddress). QueuedTime is how long they have waited on average, in milliseconds.
	Queued     int64   `json:"queued,omitempty"`
	QueuedTime float64 `json:"queuedTime,omitempty"`
	Failed     int64   `json:"failed"` // posts without an answer or with a wrong one, with the warm-up
	Broken     int64   `json:"broken"` // connections that broke off, with the warm-up

	Delivered      int64   `json:"delivered,omitempty"` // accepted events that arrived at the polls waiting for them
	DeliveredRate  float64 `json:"deliveredRate,omitempty"`
	DeliveredRatio float64 `json:"deliveredRatio,omitempty"`

	Read        int64   `json:"read,omitempty"` // events that the reader of CatchUp got
	ReadSeconds float64 `json:"readSeconds,omitempty"`
	ReadRate    float64 `json:"readRate,omitempty"`
	ReadRatio   float64 `json:"readRatio,omitempty"`

	// In a run with a rate, Ack and Delivery count from the time when a post was due. So a stall counts for every post
	// that it delayed. AckFromSending and DeliveryFromSending count from just before the post was sent. In a run
	// without a rate both times are the same, and only Ack and Delivery are given.
	Ack                 *Latency `json:"ack,omitempty"`      // until the answer to the post
	Delivery            *Latency `json:"delivery,omitempty"` // until the event arrived at the poll that waited for it
	AckFromSending      *Latency `json:"ackFromSending,omitempty"`
	DeliveryFromSending *Latency `json:"deliveryFromSending,omitempty"`
	Page                *Latency `json:"page,omitempty"` // CatchUp: time to read one page of 1000 events

	Floor     *Floor `json:"floor,omitempty"`     // nil: the run has no floor
	Generator *Usage `json:"generator,omitempty"` // CPU time of this process; Linux only
	Relay     *Usage `json:"relay,omitempty"`     // CPU time and memory of the relay; nil: not known

	// Stored counts the accepted events that were read back exactly once, with the warm-up. Events with wrong bytes are
	// counted too, and are listed in Mismatches.
	Stored     int64      `json:"stored"`
	Complete   bool       `json:"complete"` // everything could be read back
	Mismatches []Mismatch `json:"mismatches"`

	Interrupted bool `json:"interrupted"` // the run was interrupted; the figures cover the time until then
}

// Std is the number of signatures that crypto/ed25519 verifies per second on all cores. Rates are compared with it.
type Std struct {
	Before float64 `json:"before"`        // measured before the run
	After  float64 `json:"after"`         // measured after the run
	Mean   float64 `json:"mean"`          // mean of Before and After
	CPU    float64 `json:"cpu,omitempty"` // CPU time of one verification in µs, the mean of both; Linux only
	Cores  int     `json:"cores"`
}

// Floor contains the results of the floor in its turns. Rates are per second.
type Floor struct {
	URL         string `json:"url"`         // the floor's address on this machine
	PID         int    `json:"pid"`         // the floor's process id
	SameMachine bool   `json:"sameMachine"` // the relay's address is on this machine too

	Accepted      int64    `json:"accepted"` // posts answered 200 with their own id, without the warm-up
	Seconds       float64  `json:"seconds"`  // time spent posting, without the warm-up
	Rate          float64  `json:"rate"`
	RateRatio     float64  `json:"rateRatio"` // Rate ÷ Std.Mean
	Ack           *Latency `json:"ack,omitempty"`
	CPUPerEvent   float64  `json:"cpuPerEvent,omitempty"`   // microseconds; Linux only
	Verifications float64  `json:"verifications,omitempty"` // CPUPerEvent ÷ Std.CPU

	Turns []Turn `json:"turns"`
}

// Turn is one turn of the relay and the floor's turn after it. Both have the same duration.
type Turn struct {
	Relay float64 `json:"relay"` // events per second
	Floor float64 `json:"floor"` // events per second
	Ratio float64 `json:"ratio"` // Relay ÷ Floor
}

// Latency contains the number of measured times, and their percentiles in milliseconds.
type Latency struct {
	Count int64   `json:"count"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	Max   float64 `json:"max"`
}

// Usage is the CPU time and memory that a process used during the measurement. CPUPerEvent is per accepted event, or in
// CatchUp per event read. The relay's Usage also contains its process id and its resident memory (RSS).
type Usage struct {
	PID           int     `json:"pid,omitempty"`
	CPUPerEvent   float64 `json:"cpuPerEvent"`              // microseconds
	Verifications float64 `json:"verifications"`            // CPUPerEvent ÷ Std.CPU
	RSSBefore     int64   `json:"rssBefore,omitempty"`      // bytes before the measurement
	RSSAfter      int64   `json:"rssAfter,omitempty"`       // bytes after the measurement
	Written       float64 `json:"written,omitempty"`        // bytes written to storage per event; 0: not known
	RSSPerIdle    int64   `json:"rssPerIdlePoll,omitempty"` // bytes that each idle poll added
}

// Mismatch describes one kind of error that verification found in the relay's or the floor's answers.
type Mismatch struct {
	What     string   `json:"what"`               // the error, in words
	Count    int      `json:"count"`              // how often it occurred
	Examples []string `json:"examples,omitempty"` // up to three ids without their prefix msg_, or the start of an event
}

// Holds reports whether everything that was counted was also verified and correct.
func (r Report) Holds() bool {
	return len(r.Mismatches) == 0 && r.Complete && r.Failed == 0 && r.Broken == 0 && (r.Accepted > 0 || r.Interrupted)
}

func (r *run) newReport(b measurements) Report {
	std := b.std
	std.Mean, std.Cores = (std.Before+std.After)/2, runtime.GOMAXPROCS(0)
	std.CPU = float64((b.verifyCPU[0] + b.verifyCPU[1]).Nanoseconds()) / 2e3
	m := b.measured
	report := Report{
		URL: r.to.url, Mode: r.Mode, Started: r.began, Cursor: r.start,
		Connections: r.Connections, Senders: r.Senders, Pollers: r.Pollers, Idle: r.Idle,
		BodyBytes: len(r.stock.canonical.bytes), Pretty: r.Pretty, Bulk: r.Bulk, AskedRate: r.Rate, Std: std,
		Accepted: m.accepted.Load(), Seconds: m.posting.Seconds(),
		Refused: m.refused.Load() + r.refused.Load(), Failed: m.failed.Load() + b.warm.failed.Load(),
		Broken: r.broken.Load(), Ack: m.ack.latency(), Delivery: m.delivery.latency(), Delivered: m.delivered.Load(),
		Stored: b.stored, Complete: b.complete, Mismatches: append([]Mismatch{}, r.mismatches.all()...),
		Interrupted: b.interrupted,
	}
	report.Queued = m.queued.Load()
	report.QueuedTime = ratio(time.Duration(m.queuedTime.Load()).Seconds()*1e3, float64(report.Queued))
	report.Rate, report.RateRatio = ratio(float64(report.Accepted), report.Seconds),
		ratio(ratio(float64(report.Accepted), report.Seconds), std.Mean)
	if r.Rate > 0 {
		report.AckFromSending, report.DeliveryFromSending = m.ackSent.latency(), m.deliverySent.latency()
	}
	if r.delivers() {
		report.DeliveredRate = ratio(float64(report.Delivered), m.delivering.Seconds())
		report.DeliveredRatio = ratio(report.DeliveredRate, std.Mean)
	}
	source, events := m, report.Accepted
	if r.Mode == CatchUp {
		source, events = b.reading, b.reading.accepted.Load()
		report.Read, report.ReadSeconds, report.Page = events, source.posting.Seconds(), source.ack.latency()
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
		report.Mismatches = append(report.Mismatches, r.floor.mismatches(b.interrupted)...)
	}
	if source.ownCPU > 0 {
		report.Generator = usage(source.ownCPU)
	}
	if r.process != nil {
		report.Relay = usage(source.relayCPU)
		report.Relay.Written = ratio(float64(source.relayWritten), float64(events))
		report.Relay.PID, report.Relay.RSSBefore, report.Relay.RSSAfter = r.process.pid, b.rssBefore, b.rssAfter
		if r.Idle > 0 {
			report.Relay.RSSPerIdle = b.idleGrowth / int64(r.Idle)
		}
	}
	return report
}

// ratio returns a ÷ b, or 0 if b is 0.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// WriteText writes the report as text for people. Lines that begin with WRONG name what Holds rejects. It returns w's
// error.
func (r Report) WriteText(w io.Writer) error {
	var t strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&t, "%-12s"+format+"\n", append([]any{name}, args...)...)
	}
	form, pace := "canonical", "full speed"
	if r.Pretty {
		form = "not canonical"
	}
	if r.Bulk > 0 {
		form = fmt.Sprintf("canonical, %d in a request", r.Bulk)
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
	}{
		{"ack", "", r.Ack},
		{"", "from sending", r.AckFromSending},
		{"delivery", "", r.Delivery},
		{"", "from sending", r.DeliveryFromSending},
		{"page", "", r.Page},
	} {
		if l.Latency != nil {
			line(l.name, "p50 %.2f  p90 %.2f  p99 %.2f  p99.9 %.2f  max %.2f ms %s",
				l.P50, l.P90, l.P99, l.P999, l.Max, l.hint)
		}
	}
	line("std", "%.0f/s before, %.0f/s after: verifications by crypto/ed25519 on %d cores, %.1f µs CPU each",
		r.Std.Before, r.Std.After, r.Std.Cores, r.Std.CPU)
	r.writeFloor(line)
	r.writeUsage(line)
	if r.Queued > 0 {
		line("queued", "%d posts waited for their turn, %.1f ms on average: the relay stores only a few messages of one "+
			"address at a time (writesPerAddress). So this is the speed for one address. agora serve --writes-per-ip raises it",
			r.Queued, r.QueuedTime)
	}
	if r.Refused > 0 {
		line("refused", "%d (429 or 503). A relay that listens on loopback only does not limit requests from its own "+
			"machine: use a loopback address and no proxy, or raise the relay's limits", r.Refused)
	}
	r.writeVerdict(line)
	_, err := io.WriteString(w, t.String())
	return err
}

func (r Report) writeUsage(line func(name, format string, args ...any)) {
	if u := r.Relay; u != nil {
		line("relay", "%.1f µs CPU per event = %.2f verifications; RSS %.1f MB before, %.1f MB after; process %d",
			u.CPUPerEvent, u.Verifications, float64(u.RSSBefore)/1e6, float64(u.RSSAfter)/1e6, u.PID)
		if u.Written > 0 {
			line("", "%.1f KB written to storage per event", u.Written/1e3)
		}
		if r.Idle > 0 {
			line("", "%.1f KB RSS per idle poll", float64(u.RSSPerIdle)/1e3)
		}
	}
	if r.Generator != nil {
		line("generator", "%.1f µs CPU per event", r.Generator.CPUPerEvent)
	}
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
	line("floor", "%.0f/s = %.3f × std, %.1f µs CPU per event: a bare net/http server that verifies, at %s, "+
		"process %d on this machine", f.Rate, f.RateRatio, f.CPUPerEvent, f.URL, f.PID)
	line("", "%d turns with the relay: × floor from %.3f to %.3f, of which the report uses the median",
		len(ratios), ratios[0], ratios[len(ratios)-1])
	if !f.SameMachine {
		line("", "the relay's address is not on this machine, so × floor also compares two machines and "+
			"includes the network between them")
	}
}

func (r Report) writeVerdict(line func(name, format string, args ...any)) {
	if r.Interrupted {
		line("interrupted", "the figures cover the time until the interrupt")
	}
	line("verified", "%d accepted events, warm-up included, were read back exactly once and compared byte for byte",
		r.Stored)
	if !r.Complete {
		line("WRONG", "not everything could be read back")
	}
	if r.Failed > 0 || r.Broken > 0 {
		line("WRONG", "%d posts without a correct answer, %d connections broke off", r.Failed, r.Broken)
	}
	if r.Accepted == 0 && !r.Interrupted {
		line("WRONG", "no post was accepted")
	}
	for _, m := range r.Mismatches {
		examples := ""
		if len(m.Examples) > 0 {
			examples = ", for example " + strings.Join(m.Examples, ", ")
		}
		line("WRONG", "%s: %d%s", m.What, m.Count, examples)
	}
}

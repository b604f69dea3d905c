// Package bench is the load generator behind `agora bench`. It measures how many events per second a relay accepts and
// how fast it delivers them.
//
// The package posts real signed envelopes from many keys over HTTP and verifies everything that it counts:
//   - A post counts as accepted if the relay answers 200 with the envelope's own id and does not call it a duplicate.
//   - After the run, the package reads all events that the relay has stored since the start. Each accepted envelope
//     must appear exactly once, byte for byte.
//   - In the modes Deliver and Mixed, each accepted envelope must also reach the poll on its inbox exactly once.
//
// Report.Mismatches lists every violation.
//
// Every rate is also given as a ratio to std. std is the number of signatures that crypto/ed25519 verifies per second
// on all cores. It is measured just before and just after the run. The ratio makes figures comparable even if the
// machine is small or busy with other work.
//
// The rate of accepted posts can also be given as a ratio to the floor. The floor is a bare net/http server that only
// verifies one signature and answers. This is the least work that any relay on net/http must do. The floor runs as a
// separate process on this machine. The same client loads the relay and the floor in turns, with the same number of
// connections, the same envelopes and the same duration. The cost of the machine, its kernel and the client is
// therefore part of both rates, and the ratio can be compared between machines. The reported ratio is the median over
// all turns. See Options.Floor and ServeFloor.
//
// Signing costs almost as much CPU time as verifying, so nothing is signed while the clock runs. Envelopes are signed
// in batches beforehand. If a run needs more envelopes than have been signed, the posting and the clock stop until the
// next batch is signed. For each envelope the package keeps only a record of 96 bytes, with the signature. All other
// fields follow from the envelope's number. The package uses the number to build the post, and again to check what the
// relay returns. An envelope's ts is the time of signing. Envelopes that have become too old before they are posted are
// skipped. An envelope lives for one hour in the relay (meta.ttl), so a run occupies space in the relay for one hour.
//
// The generator shares the machine with the relay that it measures, so it is built to use little CPU time. It speaks
// HTTP/1.1 over its own connections, at about half the cost of net/http's client. It compares events with the
// expected bytes and does not decode them. It decodes a receipt only if the receipt differs from the expected form. It
// reports its own CPU time.
package bench

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Mode selects what a run measures.
type Mode string

const (
	// Post measures how many events per second the relay accepts and how long each answer takes.
	Post Mode = "post"
	// Deliver measures how long an event takes to arrive at the poll that waits for it.
	Deliver Mode = "deliver"
	// Mixed measures accepted events and delivery together, at full speed.
	Mixed Mode = "mixed"
	// CatchUp measures how many events per second one reader gets that is far behind. It reads pages of 1000 events.
	CatchUp Mode = "catchup"
)

// Modes returns every Mode.
func Modes() []Mode { return []Mode{Post, Deliver, Mixed, CatchUp} }

// Options configure a run. The zero value posts at full speed for ten seconds.
type Options struct {
	Mode        Mode    // what to measure; empty: Post
	Connections int     // connections that post, 1 to 20 000; 0: 32
	Senders     int     // keys that sign envelopes, 1 to 1 000 000; 0: 256
	Pollers     int     // polls that wait in Deliver and Mixed, each on its own inbox, up to 20 000; 0: 100
	Idle        int     // additional polls on inboxes that never get an event, up to 50 000
	Body        int     // size of an envelope's canonical form in bytes, MinBody to 100 000; 0: 730
	Pretty      bool    // post bodies that are not canonical: pretty-printed, members in random order
	Bulk        int     // lines of a bulk request, up to 10 000; 0: each envelope is posted alone
	Rate        float64 // posts per second, 0.1 to 1 000 000; 0: full speed, but 200 per second in Deliver

	// Duration is how long to measure, up to one hour. 0 means 10 seconds. If Count is set, 0 means as long as the
	// posts take, at most 10 minutes.
	Duration time.Duration
	// Count ends the measurement after that many posts. 0 means 100 000 in CatchUp. In the other modes 0 means the
	// largest possible count, 10 000 000.
	Count int
	// WarmUp is how long to post before the measurement, up to one minute. These posts are verified and not measured.
	// CatchUp has no warm-up.
	WarmUp time.Duration

	// Nodes are the addresses (host:port) of the nodes of a relay. Each connection goes to the next one, and none to
	// the host of the relay's URL. nil: all connections go there.
	Nodes []string

	Foreign  bool     // allow a relay that is not on this machine's loopback interface
	PID      int      // process id of the relay on this machine; 0: look it up by the relay's port if there are no Nodes
	Floor    []string // command that runs ServeFloor, which is then loaded in turns with the relay; nil: no floor
	Progress func(Progress)

	calibration time.Duration // how long each measurement of std takes; 0: one second
}

// Progress is what a run passes to Options.Progress once a second.
type Progress struct {
	Doing  string  // the current phase, such as "posting"
	Events int64   // events counted in this phase so far
	Rate   float64 // events per second since the previous call
}

const (
	defaultDuration  = 10 * time.Second
	maxDuration      = time.Hour        // the largest Duration
	maxCountDuration = 10 * time.Minute // the Duration if only a Count is given
	maxWarmUp        = time.Minute
	maxPosts         = 10_000_000 // the largest Count
)

func (o Options) withDefaults() Options {
	o.Mode = cmp.Or(o.Mode, Post)
	o.calibration = cmp.Or(o.calibration, time.Second)
	o.Connections = cmp.Or(o.Connections, 32)
	o.Senders = cmp.Or(o.Senders, 256)
	o.Body = cmp.Or(o.Body, 730)
	if o.delivers() {
		o.Pollers = cmp.Or(o.Pollers, 100)
	}
	if o.Mode == Deliver {
		o.Rate = cmp.Or(o.Rate, 200)
	}
	if o.Mode == CatchUp {
		o.Count = cmp.Or(o.Count, 100_000)
		o.WarmUp = 0 // the posts that fill the relay already warm it up
	}
	if o.Duration == 0 {
		o.Duration = defaultDuration
		if o.Count > 0 {
			o.Duration = maxCountDuration
		}
	}
	o.Count = cmp.Or(o.Count, maxPosts)
	return o
}

func (o Options) delivers() bool { return o.Mode == Deliver || o.Mode == Mixed }

// Check returns an error if o or baseURL is invalid. Run makes the same check. Check sends no request.
func (o Options) Check(baseURL string) error {
	to, err := parseTarget(baseURL)
	if err != nil {
		return err
	}
	hosts := []string{to.host}
	for _, node := range o.Nodes {
		host, _, err := net.SplitHostPort(node)
		if err != nil {
			return fmt.Errorf("--nodes takes addresses such as 127.0.0.1:8789, not %q", node)
		}
		hosts = append(hosts, host)
	}
	for _, host := range hosts {
		if !o.Foreign && !onLoopback(host) {
			return fmt.Errorf("%s is not on this machine's loopback interface, and a load test can disturb the other "+
				"users of a relay; pass --yes if you may put load on this one", host)
		}
	}
	if len(o.Nodes) > 0 && len(o.Floor) > 0 {
		return fmt.Errorf("--floor compares with a single node; leave out --nodes")
	}
	if o.Pollers != 0 && !o.withDefaults().delivers() {
		return fmt.Errorf("--pollers is for the modes deliver and mixed")
	}
	o = o.withDefaults()
	if !slices.Contains(Modes(), o.Mode) {
		return fmt.Errorf("--mode must be post, deliver, mixed or catchup, not %q", o.Mode)
	}
	if (o.Mode == Mixed || o.Mode == CatchUp) && o.Rate != 0 {
		return fmt.Errorf("--rate is for the modes post and deliver; mixed and catchup always post at full speed")
	}
	if len(o.Floor) > 0 && (o.Mode != Post || o.Rate != 0) {
		return fmt.Errorf("--floor is for the mode post without --rate")
	}
	if o.Bulk > 0 && (o.Mode != Post || o.Rate != 0 || o.Pretty || len(o.Floor) > 0) {
		return fmt.Errorf("--bulk is for the mode post, without --rate, --pretty and --floor")
	}
	return o.checkRanges()
}

// checkRanges returns an error if a number in o is too small or too large. o has its defaults.
func (o Options) checkRanges() error {
	for _, f := range []struct {
		name         string
		have, lo, hi int
	}{
		{"--connections", o.Connections, 1, 20_000},
		{"--senders", o.Senders, 1, 1_000_000},
		{"--pollers", o.Pollers, 0, 20_000},
		{"--idle", o.Idle, 0, 50_000},
		{"--body", o.Body, MinBody, 100_000},
		{"--bulk", o.Bulk, 0, 10_000},
		{"--count", o.Count, 1, maxPosts},
		{"--pid", o.PID, 0, 1 << 30},
	} {
		if f.have < f.lo || f.have > f.hi {
			return fmt.Errorf("%s must be from %d to %d", f.name, f.lo, f.hi)
		}
	}
	if !(o.Rate == 0 || o.Rate >= 0.1 && o.Rate <= 1e6) { // written as a negation so that NaN is rejected too
		return fmt.Errorf("--rate must be from 0.1 to 1000000 a second, or 0 for full speed")
	}
	if o.Duration <= 0 || o.Duration > maxDuration {
		return fmt.Errorf("--duration must be more than 0 and at most %v", maxDuration)
	}
	if o.WarmUp < 0 || o.WarmUp > maxWarmUp {
		return fmt.Errorf("--warmup must be from 0 to %v", maxWarmUp)
	}
	return nil
}

func parseTarget(baseURL string) (target, error) {
	u, err := url.Parse(baseURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" ||
		u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return target{}, fmt.Errorf("the relay's address must be a URL such as http://127.0.0.1:8789, " +
			"without user name, query or fragment")
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return target{url: strings.TrimRight(baseURL, "/"), secure: u.Scheme == "https", header: u.Host, host: u.Hostname(),
		address: net.JoinHostPort(u.Hostname(), port), path: strings.TrimRight(u.EscapedPath(), "/")}, nil
}

// onLoopback reports whether host is "localhost" or a loopback address. It makes no DNS lookup, because the result of a
// lookup can change.
func onLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && addr.Unmap().IsLoopback()
}

// Run measures the relay at baseURL. It returns an error if nothing could be measured: if an option is invalid, if no
// Agora relay answers, if the floor does not start, or if ctx ends before the measurement. A relay that refuses posts,
// gives wrong answers or closes connections does not cause an error; see Report.Holds for such a run. If ctx ends
// during the measurement, Run verifies and reports what was posted until then.
func Run(ctx context.Context, baseURL string, o Options) (Report, error) {
	if err := o.Check(baseURL); err != nil {
		return Report{}, err
	}
	to, err := parseTarget(baseURL)
	if err != nil {
		return Report{}, err
	}
	if len(o.Nodes) > 0 {
		to.nodes = &nodes{addresses: o.Nodes}
	}
	r := &run{Options: o.withDefaults(), to: to, began: time.Now()}
	return r.do(ctx)
}

// Package bench puts a relay under load and says what it bears: the load generator behind `agora bench`.
//
// It posts real signed envelopes from many keys over HTTP, and it verifies what it counts. A post counts as accepted if
// it is answered 200 with its own id and not as a duplicate; after the run the relay is asked for everything since the
// start and must hand out each accepted envelope once, byte for byte; where polls wait, each envelope must reach its
// poll once. What does not hold is in Report.Mismatches.
//
// Every rate is also given as a ratio to std, how many signatures crypto/ed25519 verifies a second on all cores,
// measured just before and just after: a figure from a busy or a small machine can be compared with others by it.
//
// A rate can also be given as a ratio to the floor: a bare net/http server that only verifies and answers, which is the
// least that any relay on net/http must do. The floor is another process on this machine. The same client loads it in
// turns with the relay, over as many connections, with the same envelopes, for as long. So what the machine, its kernel
// and the client cost is in both rates, and the ratio can be compared between machines. The median of the turns' ratios
// counts. See Options.Floor and ServeFloor.
//
// Signing costs nearly what verifying costs, so nothing is signed while the clock runs. Envelopes are signed in stocks
// beforehand, and if a run outlasts its stock the clock stands still, and the posts with it, until the next is signed.
// An envelope is kept as its number and its signature, 96 bytes; all the rest of it follows from the number, for the
// post as for the comparison with what comes back. Its ts is the time of signing, and what has become too old by the
// time of its post is left out. It lives for an hour (meta.ttl), which is how long a run burdens the relay.
//
// The generator shares the machine with the relay it measures, so it is made to be cheap: HTTP/1.1 over connections of
// its own, about half the cost of net/http's client, and receipts and pages are compared, not decoded, wherever they
// have the form expected. It spends no goroutine or byte on what it does not count. It reports its own CPU time.
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

// Mode is what a run measures.
type Mode string

const (
	Post    Mode = "post"    // how many events a second are accepted, and how soon
	Deliver Mode = "deliver" // how soon an event arrives at the poll that waits for it
	Mixed   Mode = "mixed"   // both at once, flat out
	CatchUp Mode = "catchup" // how many events a second one reader gets who is far behind, a page of 1000 at a time
)

// Modes returns every Mode.
func Modes() []Mode { return []Mode{Post, Deliver, Mixed, CatchUp} }

// Options say what to do. The zero value posts flat out for ten seconds.
type Options struct {
	Mode        Mode          // empty: Post
	Connections int           // that post; 0: 32
	Senders     int           // keys that sign; 0: 256
	Pollers     int           // polls that wait in Deliver and Mixed, each on an inbox of its own; 0: 100
	Idle        int           // further polls that wait all the time on inboxes nobody writes to
	Body        int           // size of an envelope's canonical form in bytes, from MinBody; 0: 730
	Pretty      bool          // post bodies that are not canonical: pretty-printed, members in any order
	Rate        float64       // posts a second; 0: flat out, but 200 in Deliver
	Duration    time.Duration // of the measurement; 0: 10 s, or with a Count as long as it takes, 10 minutes at most
	Count       int           // ends the measurement after so many posts; 0: none does, but 100 000 in CatchUp
	WarmUp      time.Duration // posts before the measurement that are verified and not measured
	Foreign     bool          // allow a relay that is not on this machine's loopback interface
	PID         int           // of the relay, on this machine; 0: found by the port it listens on, if it can be
	Floor       []string      // command that runs ServeFloor, to load it in turns with the relay; nil: no floor
	Progress    func(Progress)

	calibration time.Duration // of std, each time; 0: a second
}

// Progress is told once a second.
type Progress struct {
	Doing  string  // such as "measuring"
	Events int64   // so far
	Rate   float64 // a second, since the last time
}

const (
	defaultDuration = 10 * time.Second
	longest         = time.Hour        // for a Duration
	longestCount    = 10 * time.Minute // for a Count without Duration
	longestWarmUp   = time.Minute
	most            = 10_000_000 // posts of a run
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
		o.WarmUp = 0 // filling the relay warms it
	}
	if o.Duration == 0 {
		o.Duration = defaultDuration
		if o.Count > 0 {
			o.Duration = longestCount
		}
	}
	o.Count = cmp.Or(o.Count, most)
	return o
}

func (o Options) delivers() bool { return o.Mode == Deliver || o.Mode == Mixed }

// Check says what is wrong with o or baseURL as Run would, without asking anybody.
func (o Options) Check(baseURL string) error {
	to, err := parseTarget(baseURL)
	if err != nil {
		return err
	}
	if !o.Foreign && !onLoopback(to.host) {
		return fmt.Errorf("%s is not on this machine's loopback interface, and a relay of others' would be kept from its work; "+
			"if it is yours to burden, say --yes", to.host)
	}
	if o.Pollers != 0 && !o.withDefaults().delivers() {
		return fmt.Errorf("--pollers wait in the modes deliver and mixed only")
	}
	o = o.withDefaults()
	if !slices.Contains(Modes(), o.Mode) {
		return fmt.Errorf("--mode must be post, deliver, mixed or catchup, not %q", o.Mode)
	}
	if (o.Mode == Mixed || o.Mode == CatchUp) && o.Rate != 0 {
		return fmt.Errorf("--rate is for the modes post and deliver; mixed and catchup run flat out")
	}
	if len(o.Floor) > 0 && (o.Mode != Post || o.Rate != 0) {
		return fmt.Errorf("--floor is for the mode post without --rate")
	}
	for _, f := range []struct {
		name         string
		have, lo, hi int
	}{
		{"--connections", o.Connections, 1, 20_000}, {"--senders", o.Senders, 1, 1_000_000}, {"--pollers", o.Pollers, 0, 20_000},
		{"--idle", o.Idle, 0, 50_000}, {"--body", o.Body, MinBody, 100_000}, {"--count", o.Count, 1, most}, {"--pid", o.PID, 0, 1 << 30},
	} {
		if f.have < f.lo || f.have > f.hi {
			return fmt.Errorf("%s must be from %d to %d", f.name, f.lo, f.hi)
		}
	}
	if !(o.Rate == 0 || o.Rate >= 0.1 && o.Rate <= 1e6) { // said so that NaN is out, too
		return fmt.Errorf("--rate must be from 0.1 to 1000000 a second, or 0 for flat out")
	}
	if o.Duration <= 0 || o.Duration > longest {
		return fmt.Errorf("--duration must be more than 0 and at most %v", longest)
	}
	if o.WarmUp < 0 || o.WarmUp > longestWarmUp {
		return fmt.Errorf("--warmup must be from 0 to %v", longestWarmUp)
	}
	return nil
}

func parseTarget(baseURL string) (target, error) {
	u, err := url.Parse(baseURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return target{}, fmt.Errorf("want the relay's address, such as http://127.0.0.1:8789")
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return target{url: strings.TrimRight(baseURL, "/"), secure: u.Scheme == "https", header: u.Host, host: u.Hostname(),
		address: net.JoinHostPort(u.Hostname(), port), path: strings.TrimRight(u.EscapedPath(), "/")}, nil
}

// onLoopback reports whether host means this machine without asking a resolver, whose word may change.
func onLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && addr.Unmap().IsLoopback()
}

// Run measures the relay at baseURL. The error says why nothing could be measured: misused options, or no relay there. A
// relay that refuses, lies or breaks off is no error: see Report.Holds. If ctx ends, what was posted until then is
// verified and reported.
func Run(ctx context.Context, baseURL string, o Options) (Report, error) {
	if err := o.Check(baseURL); err != nil {
		return Report{}, err
	}
	to, err := parseTarget(baseURL)
	if err != nil {
		return Report{}, err
	}
	r := &run{Options: o.withDefaults(), to: to, began: time.Now()}
	return r.do(ctx)
}

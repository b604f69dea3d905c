package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"
)

// results are all results of this program. docs/perf/results.json contains them in this form.
type results struct {
	Machine     string  `json:"machine"` // operating system, architecture, number of cores and Go version
	Cores       int     `json:"cores"`
	Rows        []row   `json:"rows"`
	Connections []point `json:"connections,omitempty"` // one point for each number of connections
	Stored      []point `json:"stored,omitempty"`      // one point for each number of stored events
	Figures     figures `json:"figures"`
	Profile     []share `json:"profile,omitempty"`
}

// row is a measured row of the table.
type row struct {
	ID      string    `json:"id"`
	Value   float64   `json:"value"`   // the median of the samples
	Samples []float64 `json:"samples"` // in the order of the runs
	Std     float64   `json:"std"`     // verifications by crypto/ed25519 per second on all cores, in the same runs
	Date    string    `json:"date"`    // UTC, such as 2026-11-21
}

// point is one point of a curve. Rates are per second, latencies in milliseconds, CPU times in microseconds per event.
type point struct {
	At           int     `json:"at"`    // number of connections or stored events
	Rate         float64 `json:"rate"`  // accepted events
	Ratio        float64 `json:"ratio"` // Rate ÷ Std
	Std          float64 `json:"std"`
	P50          float64 `json:"p50"` // latency of a post
	P99          float64 `json:"p99"`
	CPU          float64 `json:"cpu"` // of the relay
	GeneratorCPU float64 `json:"generatorCPU,omitempty"`
	RSS          int64   `json:"rss,omitempty"`    // the relay's memory in bytes
	Read50       float64 `json:"read50,omitempty"` // time to read a page of 100 events of an inbox
	Read99       float64 `json:"read99,omitempty"`
}

// figures are measured values that are not rows of the table. Sizes are in bytes. EventBytes and ThreadBytes are sizes
// on disk, with indexes, in a database of 100 000 events.
type figures struct {
	BytesPerPoll       float64 `json:"bytesPerPoll,omitempty"`       // memory per poll with 10 000 polls
	BytesPerPollAtHalf float64 `json:"bytesPerPollAtHalf,omitempty"` // memory per poll with idlePolls polls
	Memory             float64 `json:"memory,omitempty"`             // memory without polls, with all events stored
	EventBytes         float64 `json:"eventBytes,omitempty"`         // per event
	ThreadBytes        float64 `json:"threadBytes,omitempty"`        // per thread record
	LargeEvents        int64   `json:"largeEvents,omitempty"`        // events in the largest database
	LargeBytes         int64   `json:"largeBytes,omitempty"`         // size of the largest database
}

// goal is a row of a table with the values that it should reach.
type goal struct {
	id, title        string
	ratio            bool    // only developers of the relay care: users do not notice it, but see plain numbers
	atLeast          bool    // required and target are lower limits; otherwise they are upper limits
	required, target float64 // both 0: the row is measured for comparison only
	format           string
}

var goals = []goal{
	{"floor32", "accepted events/s ÷ floor, 32 connections, 256 senders", true, true, .48, .58, "%.3f"},
	{"floor32x10k", "… 32 connections, 10,000 senders", true, true, .42, .52, "%.3f"},
	{"floor256", "… 256 connections, 256 senders", true, true, .68, .80, "%.3f"},
	{"floor256x10k", "… 256 connections, 10,000 senders", true, true, .57, .68, "%.3f"},
	{"post32", "accepted events/s ÷ std, 32 connections, 256 senders", true, true, 0, 0, "%.3f"},
	{"post32x10k", "… 32 connections, 10,000 senders", true, true, 0, 0, "%.3f"},
	{"post256", "… 256 connections, 256 senders", true, true, 0, 0, "%.3f"},
	{"post256x10k", "… 256 connections, 10,000 senders", true, true, 0, 0, "%.3f"},
	{"bulk", "events/s in bulk requests of 5,000 on one connection ÷ std", true, true, .35, .45, "%.3f"},
	{"pretty", "rate with bodies that are not canonical ÷ with canonical ones", true, true, .85, .95, "%.3f"},
	{"cpu", "relay CPU time per event ÷ per verification by crypto/ed25519, 32 connections",
		true, false, 2.4, 1.8, "%.2f"},
	{"written", "written to storage per message of 730 bytes, 32 connections", false, false, 0, 0, "%.1f KB"},
	{"tail", "ack latency p99 ÷ p50, 32 connections", false, false, 8, 4, "%.1f"},
	{"deliver50", "time from sending a post to its delivery, 1,000 polls, 200 events/s: p50",
		false, false, 1, .6, "%.2f ms"},
	{"deliver99", "… p99", false, false, 5, 4, "%.2f ms"},
	{"idle", "posting rate with 5,000 idle polls ÷ without idle polls", false, true, .9, .97, "%.3f"},
	{"rss", "memory (RSS) per idle poll, with 10,000 idle polls", false, false, 20, 17, "%.1f KB"},
	{"growth", "rate at 1,000,000 stored events ÷ at 10,000", false, true, .85, .95, "%.3f"},
	{"growthRead", "speed of reading 100 events of an inbox at 1,000,000 stored events ÷ at 10,000",
		false, true, .85, .95, "%.3f"},
	{"memory", "RSS after 1,000,000 posts, all of them read once, ÷ after 10,000", false, false, 1.5, 1.2, "%.2f"},
	{"catchup", "a reader 100,000 events behind: events/s ÷ std", true, true, 1, 3, "%.2f"},
	{"hub50", "time from sending a message of the hub to its receiver's stream, 1,000 streams, 500 messages/s: p50",
		false, false, 10, 4, "%.1f ms"},
	{"hub99", "… p99", false, false, 50, 20, "%.1f ms"},
	{"hubRSS", "memory (RSS) per open stream of the hub", false, false, 40, 30, "%.1f KB"},
	{"a2aRSS", "memory (RSS) per open stream of an A2A task", false, false, 40, 30, "%.1f KB"},
	{"a2aDrain", "time in which 20 A2A agents that were offline do the 1,000 tasks that wait for them",
		false, false, 10, 5, "%.1f s"},
	{"a2aTasks", "A2A tasks/s, 20 agents, 64 callers", false, true, 200, 300, "%.0f"},
	{"a2aWork99", "time from an A2A message until its stream says that the agent works, idle agents: p99",
		false, false, 50, 20, "%.1f ms"},
	{"start", "time from start to the first answer 200, with 1,000,000 stored events " +
		"(slowest of three starts, one of them after a kill)", false, false, 2, .3, "%.2f s"},
}

// hasNoBounds reports whether g has no required value and no target.
func (g goal) hasNoBounds() bool { return g.required == 0 && g.target == 0 }

// misses reports whether value is worse than what is required.
func (g goal) misses(value float64) bool {
	return !g.hasNoBounds() && (g.atLeast && value < g.required || !g.atLeast && value > g.required)
}

// add adds the results of a row. They replace the row's earlier results.
func (r *results) add(id string, std float64, samples []float64) {
	new := row{ID: id, Value: medianOf(samples), Samples: samples, Std: std,
		Date: time.Now().UTC().Format(time.DateOnly)}
	r.Cores = runtime.NumCPU()
	r.Machine = fmt.Sprintf("%s/%s, %d cores, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())
	if i := slices.IndexFunc(r.Rows, func(old row) bool { return old.ID == id }); i >= 0 {
		r.Rows[i] = new
	} else {
		r.Rows = append(r.Rows, new)
	}
	fmt.Fprintf(os.Stderr, "   %s %.4g\n", id, new.Value)
}

// row returns the row with this id. It returns false if the row has not been measured.
func (r *results) row(id string) (row, bool) {
	i := slices.IndexFunc(r.Rows, func(r row) bool { return r.ID == id })
	if i < 0 {
		return row{}, false
	}
	return r.Rows[i], true
}

// load reads the results of earlier measurements. If there are none, it returns empty results.
func load(docs string) (*results, error) {
	r := &results{}
	data, err := os.ReadFile(filepath.Join(docs, "perf", "results.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(data, r)
	}
	return r, err
}

// save writes the results, the graphs, and the marked parts of the two pages.
func (r *results) save(docs string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	folder := filepath.Join(docs, "perf")
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	files := map[string][]byte{"results.json": append(data, '\n')}
	if len(r.Connections) > 0 {
		files["connections.svg"] = []byte(r.connectionsGraph())
	}
	if len(r.Stored) > 0 {
		files["stored.svg"] = []byte(r.storedGraph())
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o666); err != nil {
			return err
		}
	}
	return errors.Join(
		fillIn(filepath.Join(docs, "PERFORMANCE.md"),
			map[string]string{"plain": r.plainTable(), "table": r.goalTable(false), "ratios": r.goalTable(true),
				"profile": r.profileTable()}),
		fillIn(filepath.Join(docs, "SCALING.md"),
			map[string]string{"node": r.nodeTable()}))
}

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

// results are all that was measured, as docs/perf/results.json holds it.
type results struct {
	Machine     string       `json:"machine"` // in words: system, cores, Go
	Cores       int          `json:"cores"`
	Rows        []row        `json:"rows"`
	Connections []point      `json:"connections,omitempty"` // the curve over connections
	Stored      []point      `json:"stored,omitempty"`      // the curve over stored events
	Figures     figures      `json:"figures"`
	Model       []prediction `json:"model,omitempty"`
	Profile     []share      `json:"profile,omitempty"`
}

// row is a measured row of the table.
type row struct {
	ID      string    `json:"id"`
	Value   float64   `json:"value"`   // the samples' median
	Samples []float64 `json:"samples"` // in the order of the runs
	Std     float64   `json:"std"`     // verifications by crypto/ed25519 a second on all cores, in the same runs
	Date    string    `json:"date"`
}

// point is one place on a curve. Rates are per second, latencies in milliseconds, CPU times in microseconds an event.
type point struct {
	At           int     `json:"at"` // connections or stored events
	Rate         float64 `json:"rate"`
	Ratio        float64 `json:"ratio"` // to Std
	Std          float64 `json:"std"`
	P50          float64 `json:"p50"`
	P99          float64 `json:"p99"`
	CPU          float64 `json:"cpu"`
	GeneratorCPU float64 `json:"generatorCPU,omitempty"`
	RSS          int64   `json:"rss,omitempty"`    // bytes
	Read50       float64 `json:"read50,omitempty"` // a page of 100 events of an inbox
	Read99       float64 `json:"read99,omitempty"`
}

// figures are measured too, and stand in no row.
type figures struct {
	BytesPerPoll       float64 `json:"bytesPerPoll,omitempty"`       // of memory, 10 000 held
	BytesPerPollAtHalf float64 `json:"bytesPerPollAtHalf,omitempty"` // … idlePolls held
	Memory             float64 `json:"memory,omitempty"`             // bytes, with all events stored and no poll
	EventBytes         float64 `json:"eventBytes,omitempty"`         // on disk, in a database of 100 000
	ThreadBytes        float64 `json:"threadBytes,omitempty"`        // … of a thread's record
	LargeEvents        int64   `json:"largeEvents,omitempty"`        // in a database of so many bytes
	LargeBytes         int64   `json:"largeBytes,omitempty"`
}

// goal is what is wanted of a row.
type goal struct {
	id, title string
	least     bool    // must and aim are the least, not the most
	must, aim float64 // both 0: the row is measured for comparison only
	format    string
}

var goals = []goal{
	{"floor32", "accepted events/s ÷ floor, 32 connections, 256 senders", true, .42, .55, "%.3f"},
	{"floor32x10k", "… 32 connections, 10,000 senders", true, .42, .55, "%.3f"},
	{"floor256", "… 256 connections, 256 senders", true, .52, .65, "%.3f"},
	{"floor256x10k", "… 256 connections, 10,000 senders", true, .52, .65, "%.3f"},
	{"post32", "accepted events/s ÷ std, 32 connections, 256 senders", true, 0, 0, "%.3f"},
	{"post32x10k", "… 32 connections, 10,000 senders", true, 0, 0, "%.3f"},
	{"post256", "… 256 connections, 256 senders", true, 0, 0, "%.3f"},
	{"post256x10k", "… 256 connections, 10,000 senders", true, 0, 0, "%.3f"},
	{"pretty", "bodies that are not canonical ÷ canonical ones", true, .85, .95, "%.3f"},
	{"cpu", "server CPU an event ÷ one verification by crypto/ed25519, 32 connections", false, 2.4, 1.8, "%.2f"},
	{"tail", "ack latency p99 ÷ p50, 32 connections", false, 8, 4, "%.1f"},
	{"deliver50", "from sending a post to its arrival, 1,000 polls, 200 events/s: p50", false, 1, .5, "%.2f ms"},
	{"deliver99", "… p99", false, 10, 4, "%.2f ms"},
	{"idle", "posting rate with 5,000 idle polls ÷ with none", true, .9, .97, "%.3f"},
	{"rss", "memory (RSS) an idle poll, 10,000 held", false, 20, 17, "%.1f KB"},
	{"growth", "rate at 1,000,000 stored events ÷ at 10,000", true, .85, .95, "%.3f"},
	{"growthRead", "speed of reading 100 events of an inbox, likewise", true, .85, .95, "%.3f"},
	{"memory", "RSS after 1,000,000 posts, all of them read once, ÷ after 10,000", false, 1.5, 1.2, "%.2f"},
	{"catchup", "a reader 100,000 events behind: events/s ÷ std", true, 1, 3, "%.2f"},
	{"start", "start with 1,000,000 stored events until the first 200 (the slowest of three, one after a kill)", false, 2, .3, "%.2f s"},
}

// none reports whether g asks for nothing.
func (g goal) none() bool { return g.must == 0 && g.aim == 0 }

// reached says which of a goal's two a value has: "aim", "must" or "missed".
func (g goal) reached(value float64) string {
	better := func(bound float64) bool { return g.least && value >= bound || !g.least && value <= bound }
	switch {
	case better(g.aim):
		return "aim"
	case better(g.must):
		return "must"
	}
	return "**missed**"
}

// add puts a row in the place of what was measured of it before.
func (r *results) add(id string, std float64, samples []float64) {
	new := row{ID: id, Value: middle(samples), Samples: samples, Std: std, Date: time.Now().UTC().Format(time.DateOnly)}
	r.Cores = runtime.NumCPU()
	r.Machine = fmt.Sprintf("%s/%s, %d cores, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())
	if i := slices.IndexFunc(r.Rows, func(old row) bool { return old.ID == id }); i >= 0 {
		r.Rows[i] = new
	} else {
		r.Rows = append(r.Rows, new)
	}
	fmt.Fprintf(os.Stderr, "   %s %.4g\n", id, new.Value)
}

func (r *results) row(id string) (row, bool) {
	i := slices.IndexFunc(r.Rows, func(r row) bool { return r.ID == id })
	if i < 0 {
		return row{}, false
	}
	return r.Rows[i], true
}

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

// save writes the results, and what is made of them: the graphs, and the marked parts of the two pages.
func (r *results) save(docs string) error {
	r.Model = predict(r)
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
	return errors.Join(fillIn(filepath.Join(docs, "PERFORMANCE.md"), map[string]string{"table": r.table(), "profile": r.profileTable()}),
		fillIn(filepath.Join(docs, "SCALING.md"), map[string]string{"node": r.nodeTable(), "model": r.modelTable()}))
}

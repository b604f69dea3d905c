package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/agora-relay/agora/internal/bench"
)

// stored fills one relay step by step and probes it after each step.
const (
	firstLevel   = 10_000 // stored events at the first probe
	probeEvents  = 20_000 // events that each run of a probe posts
	probeInboxes = 64     // inboxes that these events go to
	probeReads   = 1000   // pages that a probe reads
	readRows     = 100    // events per page
)

// stored fills one relay and measures how fast it accepts and returns events at different numbers of stored events. At
// the end it measures how long the relay takes to start.
func (p *perf) stored(ctx context.Context) error {
	return p.withNode(ctx, func(n *node) error {
		var points []point
		total := 0
		for _, level := range []int{firstLevel, p.settings.stored / 10, p.settings.stored * 3 / 10, p.settings.stored} {
			if level > total {
				if _, err := p.load(ctx, n, bench.Options{
					Connections: 32, Senders: probeInboxes, Count: level - total,
				}); err != nil {
					return err
				}
				total = level
			}
			result, posted, err := p.probe(ctx, n)
			if err != nil {
				return err
			}
			result.At = level
			points = append(points, result)
			total += posted
		}
		first, last := points[0], points[len(points)-1]
		p.results.Stored = points
		p.results.add("growth", last.Std, []float64{last.Ratio / first.Ratio})
		p.results.add("growthRead", last.Std, []float64{first.Read50 * first.Std / (last.Read50 * last.Std)})
		p.results.add("memory", last.Std, []float64{float64(last.RSS) / float64(first.RSS)})
		p.results.Figures.Memory = float64(last.RSS)
		took, err := p.measureStarts(ctx, n)
		if err != nil {
			return err
		}
		p.results.add("start", last.Std, []float64{slices.Max(took)})
		p.results.Figures.LargeEvents = int64(total)
		p.results.Figures.LargeBytes, err = n.size()
		return err
	})
}

// probe measures the relay at its current number of stored events. It takes the memory before it posts anything, when
// all earlier events have been posted and read back once. Then it posts probeEvents events p.runs times, and reads
// pages of the last posted events p.runs times. The caller sets result.At.
func (p *perf) probe(ctx context.Context, n *node) (result point, posted int, err error) {
	all, err := p.repeat(ctx, n, bench.Options{Connections: 32, Senders: probeInboxes, Count: probeEvents})
	if err != nil {
		return result, 0, err
	}
	result = point{
		Rate:  median(all[0], func(r bench.Report) float64 { return r.Rate }),
		Ratio: median(all[0], rateRatio),
		Std:   median(all[0], std),
		P50:   median(all[0], func(r bench.Report) float64 { return r.Ack.P50 }),
		P99:   median(all[0], func(r bench.Report) float64 { return r.Ack.P99 }),
		CPU:   median(all[0], func(r bench.Report) float64 { return r.Relay.CPUPerEvent }),
		RSS:   all[0][0].Relay.RSSBefore,
	}
	var p50, p99 []float64
	for range p.runs {
		a, b, err := readInboxes(n, all[0][len(all[0])-1].Cursor)
		if err != nil {
			return result, 0, err
		}
		p50, p99 = append(p50, a), append(p99, b)
	}
	result.Read50, result.Read99 = medianOf(p50), medianOf(p99)
	fmt.Fprintf(os.Stderr, "   reading a page of %d events: p50 %.3f p99 %.3f ms\n",
		readRows, result.Read50, result.Read99)
	return result, p.runs * probeEvents, nil
}

// readInboxes reads the first page after cursor from many inboxes, one after the other. It returns the time for one
// page in milliseconds.
func readInboxes(n *node, cursor string) (p50, p99 float64, err error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1}, Timeout: time.Minute}
	defer client.CloseIdleConnections()
	body, err := n.get(client, "/events?cursor="+cursor+"&limit=1000&timeout=0")
	if err != nil {
		return 0, 0, err
	}
	var page struct {
		Events []struct {
			Recipient struct{ ID string }
		}
	}
	if err := json.Unmarshal(body, &page); err != nil || len(page.Events) == 0 {
		return 0, 0, fmt.Errorf("there are no events after cursor %s: %w", cursor, err)
	}
	var took []float64
	for i := range probeReads {
		to := page.Events[i%len(page.Events)].Recipient.ID
		began := time.Now()
		body, err := n.get(client,
			fmt.Sprintf("/events?recipient=%s&cursor=%s&limit=%d&timeout=0", to, cursor, readRows))
		took = append(took, float64(time.Since(began).Microseconds())/1e3)
		if err != nil {
			return 0, 0, err
		}
		if i == 0 {
			var first struct{ Events []json.RawMessage }
			if err := json.Unmarshal(body, &first); err != nil || len(first.Events) != readRows {
				return 0, 0, fmt.Errorf("the page of an inbox has %d events, want %d: %w",
					len(first.Events), readRows, err)
			}
		}
	}
	slices.Sort(took)
	return took[len(took)/2], took[len(took)*99/100], nil
}

// measureStarts starts the relay three times: once after killing it and twice after stopping it. It stops the relay at
// the end. It returns the time from each start to the first answer 200, in seconds.
func (p *perf) measureStarts(ctx context.Context, n *node) (took []float64, err error) {
	for i := range 3 {
		end := n.stop
		if i == 0 {
			end = n.kill
		}
		if err := end(); err != nil {
			return nil, err
		}
		again, err := startNode(ctx, p.agora, n.data)
		if err != nil {
			return nil, err
		}
		*n = *again
		took = append(took, n.took.Seconds())
	}
	return took, n.stop()
}

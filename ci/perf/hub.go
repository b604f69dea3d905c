package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agora-relay/agora/internal/bench"
)

// The load of the measurement hub.
const (
	hubStreams = 1000
	hubRate    = 500 // messages a second
)

// hubLoad is a load of agents at a hub, each with an open stream.
type hubLoad struct {
	url    string
	client *http.Client
	keys   []string // of the agents

	mu      sync.Mutex
	arrived []time.Duration // from sending a message until its receiver has read it from the stream
}

// hub measures how long a message takes from its sender to the receiver's stream, and how much memory a stream needs.
func (p *perf) hub(ctx context.Context) error {
	return p.withNode(ctx, func(n *node) error {
		reference, err := p.load(ctx, n, bench.Options{Connections: 1, Rate: 20, Duration: time.Second})
		if err != nil {
			return err
		}
		l := &hubLoad{url: n.url + "/hub", client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: hubRate}}}
		if err := l.register(ctx); err != nil {
			return err
		}
		before, err := rssOf(n.pid())
		if err != nil {
			return err
		}
		reading, stop := context.WithCancel(ctx)
		var streams sync.WaitGroup
		defer streams.Wait()
		defer stop()
		for i := range l.keys {
			if err := l.open(reading, &streams, i); err != nil {
				return err
			}
		}
		time.Sleep(time.Second) // until the connections are idle
		after, err := rssOf(n.pid())
		if err != nil {
			return err
		}
		if err := l.send(ctx, 15*p.duration); err != nil {
			return err
		}
		slices.Sort(l.arrived)
		at := func(share float64) []float64 {
			d := l.arrived[int(share*float64(len(l.arrived)-1))]
			return []float64{d.Seconds() * 1e3}
		}
		p.results.add("hub50", reference.Std.Mean, at(.5))
		p.results.add("hub99", reference.Std.Mean, at(.99))
		p.results.add("hubRSS", reference.Std.Mean, []float64{float64(after-before) / hubStreams / 1e3})
		return nil
	}, "--hub")
}

func hubAddress(i int) string { return fmt.Sprintf("agent-%d@hub.example", i) }

// register registers the agents.
func (l *hubLoad) register(ctx context.Context) error {
	for i := range hubStreams {
		const card = `{"card_version":"0.3","user_culture":"en","supported_languages":["en"]}`
		body := fmt.Sprintf(`{"agent_id":%q,"agent_card":%s}`, hubAddress(i), card)
		text, err := l.post(ctx, "/register", "", body)
		if err != nil {
			return err
		}
		var answer struct {
			Data struct {
				Key string `json:"api_key"`
			}
		}
		if err := json.Unmarshal(text, &answer); err != nil {
			return err
		}
		l.keys = append(l.keys, answer.Data.Key)
	}
	return nil
}

// request sends a request to the hub. The caller closes the body of the answer.
func (l *hubLoad) request(ctx context.Context, c *http.Client, method, path, key, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, l.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+key)
	return c.Do(r)
}

// post returns the body of a success.
func (l *hubLoad) post(ctx context.Context, path, key, body string) ([]byte, error) {
	answer, err := l.request(ctx, l.client, http.MethodPost, path, key, body)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(answer.Body)
	if err = errors.Join(err, answer.Body.Close()); err == nil && answer.StatusCode >= 300 {
		err = fmt.Errorf("%s: status %d %.200s", path, answer.StatusCode, text)
	}
	return text, err
}

// sentMark is the text before the time in the text of each message.
const sentMark = `"original_text":"sent at `

// open opens the stream of an agent and reads it until ctx ends.
func (l *hubLoad) open(ctx context.Context, streams *sync.WaitGroup, agent int) error {
	answer, err := l.request(ctx, http.DefaultClient, http.MethodGet, "/agent/inbox", l.keys[agent], "")
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return errors.Join(fmt.Errorf("a stream is answered with the status %d", answer.StatusCode), answer.Body.Close())
	}
	streams.Go(func() {
		lines := bufio.NewScanner(answer.Body)
		for lines.Scan() {
			_, text, found := bytes.Cut(lines.Bytes(), []byte(sentMark))
			if !found {
				continue
			}
			digits, _, _ := bytes.Cut(text, []byte(`"`))
			if at, err := strconv.ParseInt(string(digits), 10, 64); err == nil {
				took := time.Since(time.Unix(0, at))
				l.mu.Lock()
				l.arrived = append(l.arrived, took)
				l.mu.Unlock()
			}
		}
		_ = answer.Body.Close() // the stream has ended
	})
	return nil
}

// send sends messages between random agents at hubRate, for as long as duration. It returns an error unless each message
// arrives on a stream once.
func (l *hubLoad) send(ctx context.Context, duration time.Duration) error {
	var sending sync.WaitGroup
	var mu sync.Mutex
	var failed error
	count := int(duration.Seconds() * hubRate)
	tick := time.NewTicker(time.Second / hubRate)
	defer tick.Stop()
	for range count {
		<-tick.C
		sending.Go(func() {
			from, to := rand.IntN(hubStreams), rand.IntN(hubStreams)
			_, err := l.post(ctx, "/messages", l.keys[from], fmt.Sprintf(`{"receiver_id":%q,"envelope":{"chorus_version":"0.4",`+
				`"sender_id":%q,%s%d","sender_culture":"en"}}`, hubAddress(to), hubAddress(from), sentMark, time.Now().UnixNano()))
			mu.Lock()
			defer mu.Unlock()
			failed = errors.Join(failed, err)
		})
	}
	sending.Wait()
	if failed != nil {
		return failed
	}
	time.Sleep(time.Second) // each message was written to its stream before it was answered
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.arrived) != count {
		return fmt.Errorf("%d messages were sent, and %d have arrived", count, len(l.arrived))
	}
	return nil
}

// rssOf returns the resident memory of a process in bytes.
func rssOf(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0, errors.New("the memory of the relay's process cannot be read")
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// receive records that an agent has received a message. A repeat must be the same.
func (l *hubLoad) receive(a *hubAgent, text, trace string) *hubDelivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.numbers.received++
	d := a.got[text]
	if d == nil {
		d = &hubDelivery{trace: trace}
		a.got[text] = d
		return d
	}
	l.numbers.repeated++
	if d.trace != trace {
		l.t.Errorf("%s has received message %.20s with the traces %s and %s", a.address, text, d.trace, trace)
	}
	return d
}

// confirmed records that the hub has answered a confirmation of these messages with 2xx.
func (l *hubLoad) confirmed(all ...*hubDelivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range all {
		d.confirmed = true
		l.numbers.confirmed++
	}
}

// readStream reads streams without Last-Event-ID, and acknowledges each message.
func (l *hubLoad) readStream(ctx context.Context, a *hubAgent, random *rand.Rand) {
	l.follow(ctx, a, random, false, func(row hubRow, d *hubDelivery) {
		answer, err := l.try(ctx, hubCall{method: http.MethodPost, path: "/agent/ack", key: a.key,
			body: map[string]any{"trace_ids": []string{row.Trace}}})
		if err == nil && answer.ok() {
			l.confirmed(d)
		}
	})
}

// resumeStream reads streams with Last-Event-ID.
func (l *hubLoad) resumeStream(ctx context.Context, a *hubAgent, random *rand.Rand) {
	l.follow(ctx, a, random, true, func(hubRow, *hubDelivery) {})
}

// follow reads streams until ctx ends, one after the other. It closes some of them and loses what it has not read yet.
func (l *hubLoad) follow(
	ctx context.Context, a *hubAgent, random *rand.Rand, resume bool, each func(hubRow, *hubDelivery),
) {
	for {
		relay, err := l.relay.address(ctx)
		if err != nil {
			return
		}
		c := hubCall{method: http.MethodGet, path: "/agent/inbox", key: a.key}
		if resume {
			c.lastEventID = strconv.FormatInt(a.lastID, 10)
		}
		short, cancel := context.WithTimeout(ctx, time.Duration(50+random.IntN(500))*time.Millisecond)
		l.followOnce(short, c, relay, a, each)
		cancel()
	}
}

// followOnce reads one stream until it or ctx ends.
func (l *hubLoad) followOnce(
	ctx context.Context, c hubCall, relay string, a *hubAgent, each func(hubRow, *hubDelivery),
) {
	r, err := c.request(ctx, relay)
	if err != nil {
		l.t.Error(err)
		return
	}
	response, err := connections.Do(r)
	if err != nil {
		return // the relay was killed
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		l.t.Errorf("a stream of %s is answered with %d", a.address, response.StatusCode)
		return
	}
	l.readFrames(ctx, a, bufio.NewReader(response.Body), each)
}

// readFrames reads one stream to its end. The ids of a stream grow. A part of a frame at the end is not a frame.
func (l *hubLoad) readFrames(ctx context.Context, a *hubAgent, in *bufio.Reader, each func(hubRow, *hubDelivery)) {
	var row hubRow
	last := int64(0)
	for ctx.Err() == nil {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		if data, ok := strings.CutPrefix(line, "data: {\"id\":"); ok {
			row = hubRow{}
			if err := json.Unmarshal([]byte("{\"id\":"+data), &row); err != nil {
				l.t.Errorf("a frame of %s has %q: %v", a.address, line, err)
			}
		}
		if line != "\n" || row.ID == 0 {
			continue
		}
		if row.ID <= last {
			l.t.Errorf("message %d has come to %s after %d on one stream", row.ID, a.address, last)
		}
		last = row.ID
		a.lastID = max(a.lastID, row.ID)
		each(row, l.receive(a, row.Envelope.Text, row.Trace))
		if row.ID%8 == 0 {
			sleep(200 * time.Millisecond) // so that others are still unread when the stream ends
		}
		row = hubRow{}
	}
}

// pollHistory reads its history again and again. With the next poll it confirms what it has. No message may come twice.
func (l *hubLoad) pollHistory(ctx context.Context, a *hubAgent, _ *rand.Rand) {
	var unconfirmed []*hubDelivery
	for ctx.Err() == nil {
		rows, err := l.poll(ctx, a, a.lastID)
		if err != nil {
			continue
		}
		l.confirmed(unconfirmed...)
		unconfirmed = nil
		for _, row := range rows {
			if row.ID <= a.lastID {
				l.t.Errorf("message %d has come to %s after %d", row.ID, a.address, a.lastID)
			}
			a.lastID = row.ID
			unconfirmed = append(unconfirmed, l.receive(a, row.Envelope.Text, row.Trace))
		}
		sleep(20 * time.Millisecond)
	}
}

// poll returns the messages of an agent after an id.
func (l *hubLoad) poll(ctx context.Context, a *hubAgent, after int64) ([]hubRow, error) {
	path := fmt.Sprint("/agent/messages?since=", after)
	answer, err := l.try(ctx, hubCall{method: http.MethodGet, path: path, key: a.key})
	if err == nil && answer.status != http.StatusOK {
		err = fmt.Errorf("the history is answered with %d %s", answer.status, answer.text)
	}
	if err != nil {
		return nil, err
	}
	var body struct{ Data []hubRow }
	err = json.Unmarshal([]byte(answer.text), &body)
	return body.Data, err
}

// history returns the whole history of a sender.
func (l *hubLoad) history(a *hubAgent) []hubRow {
	l.t.Helper()
	rows, err := l.poll(l.t.Context(), a, 0)
	must(l.t, err)
	return rows
}

// webhook receives messages of an agent. It is slow now and then, and sometimes its answer gets lost.
func (l *hubLoad) webhook(a *hubAgent, random *rand.Rand) http.HandlerFunc {
	var mu sync.Mutex // of random
	draw := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(n)
	}
	return func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Envelope struct {
				Text string `json:"original_text"`
			} `json:"envelope"`
		}
		if json.NewDecoder(r.Body).Decode(&body) != nil {
			return // the relay was killed
		}
		l.receive(a, body.Envelope.Text, r.Header.Get("Chorus-Trace-Id"))
		sleep(time.Duration(draw(20)) * time.Millisecond)
		if draw(200) == 0 {
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, `{"status":"ok"}`) // the relay may have been killed
	}
}

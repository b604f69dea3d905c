package hub_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
)

// local is a client that the relay takes for its own machine, to which no rates apply. It uses each connection once.
var local = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: -1}, CheckRedirect: remote.CheckRedirect}

// startLocal is like start, but the clients are on the relay's machine, and the relay's clock stands still. Only wait
// moves it.
func startLocal(t testing.TB, configure ...func(*fixture)) *fixture {
	t.Helper()
	return start(t, append(configure, func(f *fixture) { f.client, f.frozen = local, time.Now() })...)
}

// wait moves the relay's clock.
func (f *fixture) wait(d time.Duration) { f.ahead.Add(int64(d)) }

// moment is less than the times that tests wait for.
const moment = time.Second

func (f *fixture) get(path, key string) answer {
	f.t.Helper()
	return f.do(call{"GET", path, key, nil, nil})
}

func (f *fixture) post(path, key string, body any) answer {
	f.t.Helper()
	return f.do(call{"POST", path, key, body, nil})
}

func (f *fixture) remove(path, key string) answer {
	f.t.Helper()
	return f.do(call{"DELETE", path, key, nil, nil})
}

// has reports whether the body has this text.
func (a answer) has(text string) bool { return strings.Contains(string(a.body), text) }

// begins reports whether the body begins with this text.
func (a answer) begins(text string) bool { return strings.HasPrefix(string(a.body), text) }

// doFrom sends a request under the prefix from another machine, to which the limits apply.
func (f *fixture) doFrom(addr string, c call) answer {
	f.t.Helper()
	r, err := newRequest(f.t.Context(), publicURL+"/hub", c)
	if err != nil {
		f.t.Fatal(err)
	}
	r.RemoteAddr = net.JoinHostPort(addr, "1234")
	return f.serve(r)
}

// serve answers a request of a client, without a connection.
func (f *fixture) serve(r *http.Request) answer {
	if r.Body == nil {
		r.Body = http.NoBody
	}
	w := httptest.NewRecorder()
	f.front.Handler(false).ServeHTTP(w, r)
	return answer{w.Code, w.Header(), w.Body.Bytes()}
}

// at sends a request to another base URL than that of the prefix.
func (f *fixture) at(base string, c call) answer {
	f.t.Helper()
	a, err := request(f.t.Context(), f.client, base, c)
	if err != nil {
		f.t.Fatal(err)
	}
	return a
}

// fixedHook is a server that gets webhooks. It answers all of them in the same way.
type fixedHook struct {
	*httptest.Server
	status  int
	reply   string
	headers chan http.Header // of the requests
	bodies  chan string
}

// newFixedHook returns a server that answers {"status":"ok"}.
func newFixedHook(t testing.TB) *fixedHook {
	h := &fixedHook{status: 200, reply: `{"status":"ok"}`, headers: make(chan http.Header, 100), bodies: make(chan string, 100)}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // a part is not what a test wants, so it fails
		h.headers <- r.Header
		h.bodies <- string(body)
		w.WriteHeader(h.status)
		_, _ = io.WriteString(w, h.reply) // if that fails, the client has left
	}))
	t.Cleanup(h.Close)
	return h
}

// queue stores messages that are queued for a receiver. They count as size bytes each.
func (f *fixture) queue(sender, receiver string, count, size int) {
	f.t.Helper()
	f.store(sender, receiver, count, size, 0)
}

// store stores messages in a state, without the limits of POST /messages and much faster. f.checkDatabase checks these
// rows, too.
func (f *fixture) store(sender, receiver string, count, size, state int) {
	f.t.Helper()
	for count > 0 {
		some := min(count, 100)
		count -= some
		if err := f.relay.Update(f.t.Context(), relay.Peer{Local: true}, func(tx relay.ExtTx) error {
			return storeSome(tx, sender, receiver, some, size, state)
		}); err != nil {
			f.t.Fatal(err)
		}
	}
}

// envelopeOf returns an envelope of size bytes in the form of RFC 8785, at least 83. A control character has 6 bytes.
func envelopeOf(sender string, size int) string {
	head, tail := `{"chorus_version":"0.4","original_text":"`, `","sender_culture":"en","sender_id":"`+sender+`"}`
	size -= len(head) + len(tail)
	return head + strings.Repeat(`\u0001`, size/6) + strings.Repeat("x", size%6) + tail
}

func storeSome(tx relay.ExtTx, sender, receiver string, count, size, state int) error {
	const agentNumber = "SELECT n FROM hub_agent WHERE address = ? AND deleted = 0"
	from, err := integers(tx, 1, agentNumber, sender)
	if err != nil {
		return err
	}
	to, err := integers(tx, 1, agentNumber, receiver)
	if err != nil {
		return err
	}
	last, err := integers(tx, 1, "SELECT COALESCE(MAX(ts), 0) FROM hub_message")
	if err != nil {
		return err
	}
	ts := max(time.Now().UnixMilli()*1e6, last[0])
	n, err := skipNumbers(tx, count)
	if err != nil {
		return err
	}
	parties := slices.Compact([]int64{from[0], to[0]})
	for range count {
		n++
		ts += 1e6
		rows := map[string][]any{
			"hub_message": {n, fmt.Sprintf("%08x-0000-4000-8000-000000000000", n), from[0], sender, to[0], receiver,
				envelopeOf(sender, 100), ts},
			"hub_delivery": {n, from[0], to[0], size, state, "", 0, 0, ""},
		}
		if state > 0 {
			rows["hub_delivery"][5], rows["hub_delivery"][6] = "poll", ts
		}
		for table, values := range rows {
			if err := insertRow(tx, table, values...); err != nil {
				return err
			}
		}
		for _, party := range parties {
			if err := insertRow(tx, "hub_entry", party, n); err != nil {
				return err
			}
		}
	}
	const usage = "agent, used, replied, framed, stream_ended, kept, kept_bytes, queued, queued_bytes"
	for _, party := range parties {
		u, err := integers(tx, 9, "SELECT "+usage+" FROM hub_use WHERE agent = ?", party)
		if err != nil {
			return err
		}
		for i, more := range []int{count, count * size, count, count * size} {
			if i < 2 || party == to[0] && state == 0 {
				u[5+i] += int64(more)
			}
		}
		if _, err := tx.Exec("DELETE FROM hub_use WHERE agent = ?", party); err != nil {
			return err
		}
		values := make([]any, len(u))
		for i, value := range u {
			values[i] = value
		}
		if err := insertRow(tx, "hub_use", values...); err != nil {
			return err
		}
	}
	return nil
}

// skipNumbers uses up numbers of messages. It returns the last one that was used before.
func skipNumbers(tx relay.ExtTx, count int) (last int64, err error) {
	first, err := gateway.Next(tx, "hub_message")
	if err != nil {
		return 0, err
	}
	if _, err := tx.Exec("DELETE FROM gate_counter WHERE name = 'hub_message'"); err != nil {
		return 0, err
	}
	return first - 1, insertRow(tx, "gate_counter", "hub_message", first-1+int64(count))
}

// integers returns the row that a SELECT of integers finds.
func integers(q relay.Querier, columns int, text string, args ...any) (row []int64, err error) {
	row = make([]int64, columns)
	into := make([]any, columns)
	for i := range row {
		into[i] = &row[i]
	}
	err = q.Query(func(scan func(...any) error) error { return scan(into...) }, text, args...)
	return row, err
}

// insertRow inserts a row with its checksum.
func insertRow(tx relay.ExtTx, table string, values ...any) error {
	values = append(values, gateway.Sum(table, values...))
	_, err := tx.Exec("INSERT INTO "+table+" VALUES (?"+strings.Repeat(", ?", len(values)-1)+")", values...)
	return err
}

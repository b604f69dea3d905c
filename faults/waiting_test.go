package faults

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
)

const (
	waitingPolls   = 5000
	maxMemory      = 160 << 20 // resident memory in bytes, with all waiting polls
	maxNoisyMemory = 300 << 20 // resident memory in bytes, with badly behaving readers
	maxPostLatency = time.Second
	comparedPosts  = 300

	databaseFiles = 16 // file descriptors that the relay opens only for several concurrent readers
)

// waiter is a poll on a plain connection, which needs few resources in the test.
type waiter struct {
	net.Conn
	request string
}

// dial opens a connection and sends a GET on it.
func dial(address, path string) (waiter, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return waiter{}, err
	}
	w := waiter{c, "GET " + path + " HTTP/1.1\r\nHost: " + address + "\r\n\r\n"}
	_, err = io.WriteString(c, w.request)
	return w, err
}

// answer reads an answer to the GET from in.
func (w waiter) answer(in *bufio.Reader) (a answer, err error) {
	response, err := http.ReadResponse(in, nil)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	a.status = response.StatusCode
	return a, json.NewDecoder(response.Body).Decode(&a)
}

func (s *server) host(t testing.TB) string {
	t.Helper()
	url, err := s.address(t.Context())
	must(t, err)
	return strings.TrimPrefix(url, "http://")
}

// startPolls starts n waiting polls, each for another inbox. It returns when the relay has accepted all connections.
func startPolls(t testing.TB, relay *server, n int) []waiter {
	t.Helper()
	host := relay.host(t)
	before, counted := openFiles(t, relay.process.Process.Pid)
	waiters := make([]waiter, n)
	for i := range waiters {
		var err error
		waiters[i], err = dial(host, "/events?cursor=0&timeout=60&recipient="+string(newKey(t).DID()))
		must(t, err)
	}
	t.Cleanup(func() {
		for _, w := range waiters {
			_ = w.Close() // the relay may have closed the connection
		}
	})
	if counted {
		within(t, 30*time.Second, "the relay has accepted all connections", func() bool {
			now, _ := openFiles(t, relay.process.Process.Pid)
			return now >= before+n
		})
	}
	return waiters
}

// postTime posts a message and returns how long the answer took.
func postTime(t testing.TB, relay *server, from didkey.Key, to didkey.DID) time.Duration {
	t.Helper()
	e := request(t, from, to, time.Hour, 0)
	began := time.Now()
	relay.mustAccept(e)
	return time.Since(began)
}

func percentile(times []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[(len(sorted)-1)*p/100]
}

// TestManyWaitingPolls tests that 5000 waiting polls need little memory and do not delay posts, and that each poll is
// answered when the relay shuts down (SECURITY.md T14, T16).
func TestManyWaitingPolls(t *testing.T) {
	busy, empty := newServer(t, longTimeouts...), newServer(t, longTimeouts...)
	busy.start()
	empty.start()
	n := scaled(waitingPolls)
	idle, _ := residentBytes(t, busy.process.Process.Pid)
	waiters := startPolls(t, busy, n)

	// The posts alternate between two relays, so that other load on the machine affects both.
	keys := newKeys(t, 2)
	var with, without []time.Duration
	for range scaled(comparedPosts) {
		with = append(with, postTime(t, busy, keys[0], keys[1].DID()))
		without = append(without, postTime(t, empty, keys[0], keys[1].DID()))
	}
	memory, measured := residentBytes(t, busy.process.Process.Pid)
	t.Logf("memory with %d waiting polls: %d MB, without: %d MB; a post takes %s (p50) and %s (p99) with them, "+
		"and %s and %s without", n, memory>>20, idle>>20,
		percentile(with, 50), percentile(with, 99), percentile(without, 50), percentile(without, 99))
	if most := percentile(without, 50)*3/2 + time.Millisecond; percentile(with, 50) > most {
		t.Errorf("with %d waiting polls the median of the posts is %s, without them %s", n, percentile(with, 50),
			percentile(without, 50))
	}
	if most := percentile(without, 99)*3 + 50*time.Millisecond; percentile(with, 99) > most {
		t.Errorf("with %d waiting polls the 99th percentile of the posts is %s, without them %s", n,
			percentile(with, 99), percentile(without, 99))
	}
	if measured && !raceDetector && memory > maxMemory {
		t.Errorf("with %d waiting polls the relay uses %d MB", n, memory>>20)
	}

	var answers sync.WaitGroup
	var mu sync.Mutex
	emptyAnswers := 0
	for _, w := range waiters {
		answers.Go(func() {
			a, err := w.answer(bufio.NewReader(w))
			mu.Lock()
			defer mu.Unlock()
			if err == nil && a.status == http.StatusOK && a.OK && a.Events != nil && len(a.Events) == 0 &&
				a.Cursor != "" {
				emptyAnswers++
			}
		})
	}
	if code := busy.stop(); code != 0 {
		t.Errorf("the relay ended with exit code %d", code)
	}
	answers.Wait()
	if emptyAnswers != n {
		t.Errorf("%d of %d waiting polls were answered with 200 and no events at the shutdown", emptyAnswers, n)
	}
}

// readerFunc starts readers that behave badly. They run until stop is called.
type readerFunc func(t *testing.T, relay *server) (stop func())

// TestNoisyReaders tests that badly behaving readers do not delay posts, and that the relay releases their resources
// (SECURITY.md T14 to T16). The readers do not read their answers, disconnect early, or poll again at once.
func TestNoisyReaders(t *testing.T) {
	for name, startReaders := range map[string]readerFunc{
		"slow": slowReaders, "disconnecting": disconnectingReaders, "greedy": greedyReaders} {
		t.Run(name, func(t *testing.T) {
			relay := newServer(t, longTimeouts...)
			relay.start()
			keys := newKeys(t, 2)
			postTime(t, relay, keys[0], keys[1].DID())
			before, counted := openFiles(t, relay.process.Process.Pid)
			stop := startReaders(t, relay)
			var times []time.Duration
			for range scaled(300) {
				times = append(times, postTime(t, relay, keys[0], keys[1].DID())) // fails the test if a post is refused
			}
			stop()
			memory, measured := residentBytes(t, relay.process.Process.Pid)
			t.Logf("a post takes %s (p50) and %s (p99) with these readers; the relay uses %d MB", percentile(times, 50),
				percentile(times, 99), memory>>20)
			if percentile(times, 99) > maxPostLatency {
				t.Errorf("the 99th percentile of the posts is %s", percentile(times, 99))
			}
			if measured && !raceDetector && memory > maxNoisyMemory {
				t.Errorf("the relay uses %d MB", memory>>20)
			}
			if counted {
				connections.CloseIdleConnections()
				within(
					t,
					45*time.Second,
					fmt.Sprintf("at most %d open files in addition to those of the database", before),
					func() bool {
						now, _ := openFiles(t, relay.process.Process.Pid)
						return now <= before+databaseFiles
					},
				)
			}
		})
	}
}

// slowReaders request all events several times on each connection and do not read the answers.
func slowReaders(t *testing.T, relay *server) (stop func()) {
	from, host := newKey(t), relay.host(t)
	for range 48 { // 4 MiB, the size of a page
		relay.mustAccept(request(t, from, "", time.Hour, 90<<10))
	}
	var conns []waiter
	for range 16 {
		w, err := dial(host, "/events?cursor=0&timeout=0&limit=1000")
		must(t, err)
		for range 3 {
			_, err := io.WriteString(w, w.request)
			must(t, err)
		}
		conns = append(conns, w)
	}
	return func() {
		for _, w := range conns {
			must(t, w.Close())
		}
	}
}

// disconnectingReaders send a poll and disconnect after a millisecond.
func disconnectingReaders(t *testing.T, relay *server) (stop func()) {
	host, of := relay.host(t), newKey(t).DID()
	return inBackground(1, func() bool {
		w, err := dial(host, "/events?cursor=0&timeout=60&recipient="+string(of))
		if err != nil {
			t.Errorf("cannot send a poll: %v", err)
			return false
		}
		sleep(time.Millisecond) // so that there are at most a thousand polls a second
		return w.Close() == nil
	})
}

// greedyReaders poll for all events, and poll again as soon as they are answered.
func greedyReaders(t *testing.T, relay *server) (stop func()) {
	return inBackground(8, func() bool {
		a, err := relay.tryAsk(http.MethodGet, "/events?timeout=0&since=2020-01-01T00:00:00Z", nil)
		if err != nil || !a.OK && a.status != http.StatusTooManyRequests {
			t.Errorf("a greedy reader got the answer %s and the error %v", a, err)
			return false
		}
		return true
	})
}

// inBackground starts n goroutines that call f again and again, until f returns false or stop is called.
func inBackground(n int, f func() bool) (stop func()) {
	stopped := make(chan struct{})
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for f() {
				select {
				case <-stopped:
					return
				default:
				}
			}
		})
	}
	return func() {
		close(stopped)
		all.Wait()
	}
}

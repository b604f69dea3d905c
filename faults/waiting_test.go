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
	crowd       = 5000
	mostMemory  = 150 << 20 // bytes resident, with the whole crowd waiting
	mostNoise   = 300 << 20 // with readers that misbehave
	slowestPost = time.Second
	comparisons = 300

	databaseFiles = 16 // that the relay opens only once there are several readers
)

// waiter is a poll on a bare connection, which costs the tests little.
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

// answer reads an answer to the GET.
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

// wait has n polls wait, each for an inbox of its own, the relay having taken in all their connections.
func wait(t testing.TB, relay *server, n int) []waiter {
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
			_ = w.Close() // the relay may have closed it
		}
	})
	if counted {
		within(t, 30*time.Second, "all connections accepted", func() bool {
			now, _ := openFiles(t, relay.process.Process.Pid)
			return now >= before+n
		})
	}
	return waiters
}

// postTime is how long a post takes.
func postTime(t testing.TB, relay *server, from didkey.Key, to didkey.DID) time.Duration {
	t.Helper()
	e := request(t, from, to, time.Hour, 0)
	began := time.Now()
	relay.mustTake(e)
	return time.Since(began)
}

func percentile(times []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[(len(sorted)-1)*p/100]
}

// Five thousand waiting polls cost little memory and posters no time, and at a shutdown each gets its answer
// (THREATS T14, T16).
func TestManyWaitingPolls(t *testing.T) {
	crowded, empty := newServer(t, patient...), newServer(t, patient...)
	crowded.start()
	empty.start()
	n := scaled(crowd)
	idle, _ := residentBytes(t, crowded.process.Process.Pid)
	waiters := wait(t, crowded, n)

	// The two relays take turns, so that whatever else the machine does hits both.
	keys := newKeys(t, 2)
	var with, without []time.Duration
	for range scaled(comparisons) {
		with = append(with, postTime(t, crowded, keys[0], keys[1].DID()))
		without = append(without, postTime(t, empty, keys[0], keys[1].DID()))
	}
	memory, measured := residentBytes(t, crowded.process.Process.Pid)
	t.Logf("%d waiting: %d MB, nobody: %d MB; a post takes %s (p50) and %s (p99), without them %s and %s", n, memory>>20, idle>>20,
		percentile(with, 50), percentile(with, 99), percentile(without, 50), percentile(without, 99))
	if most := percentile(without, 50)*3/2 + time.Millisecond; percentile(with, 50) > most {
		t.Errorf("with %d polls waiting half of the posts take %s, without them %s", n, percentile(with, 50), percentile(without, 50))
	}
	if most := percentile(without, 99)*3 + 50*time.Millisecond; percentile(with, 99) > most {
		t.Errorf("with %d polls waiting the slowest posts take %s, without them %s", n, percentile(with, 99), percentile(without, 99))
	}
	if measured && !raceDetector && memory > mostMemory {
		t.Errorf("%d waiting polls take %d MB", n, memory>>20)
	}

	var answers sync.WaitGroup
	var mu sync.Mutex
	empties := 0
	for _, w := range waiters {
		answers.Go(func() {
			a, err := w.answer(bufio.NewReader(w))
			mu.Lock()
			defer mu.Unlock()
			if err == nil && a.status == http.StatusOK && a.OK && a.Events != nil && len(a.Events) == 0 && a.Cursor != "" {
				empties++
			}
		})
	}
	if code := crowded.stop(); code != 0 {
		t.Errorf("the relay ended with code %d", code)
	}
	answers.Wait()
	if empties != n {
		t.Errorf("%d of %d waiting polls were answered with 200 and no events at the shutdown", empties, n)
	}
}

// noise starts readers that behave badly, until stop is called.
type noise func(t *testing.T, relay *server) (stop func())

// Readers that do not read, that leave, or that ask again at once, do not hurt those who post (THREATS T14 to T16), and
// leave nothing behind.
func TestNoisyReaders(t *testing.T) {
	for name, makeNoise := range map[string]noise{"slow": slow, "vanishing": vanishing, "greedy": greedy} {
		t.Run(name, func(t *testing.T) {
			relay := newServer(t, patient...)
			relay.start()
			keys := newKeys(t, 2)
			postTime(t, relay, keys[0], keys[1].DID())
			before, counted := openFiles(t, relay.process.Process.Pid)
			stop := makeNoise(t, relay)
			var times []time.Duration
			for range scaled(300) {
				times = append(times, postTime(t, relay, keys[0], keys[1].DID())) // fails the test if it is refused
			}
			stop()
			memory, measured := residentBytes(t, relay.process.Process.Pid)
			t.Logf("a post takes %s (p50) and %s (p99) amid them; %d MB", percentile(times, 50), percentile(times, 99), memory>>20)
			if percentile(times, 99) > slowestPost {
				t.Errorf("the slowest posts take %s", percentile(times, 99))
			}
			if measured && !raceDetector && memory > mostNoise {
				t.Errorf("the relay takes %d MB", memory>>20)
			}
			if counted {
				connections.CloseIdleConnections()
				within(t, 45*time.Second, fmt.Sprintf("back to %d open files, and those of the database", before), func() bool {
					now, _ := openFiles(t, relay.process.Process.Pid)
					return now <= before+databaseFiles
				})
			}
		})
	}
}

// slow readers ask for all there is, several times on one connection, and read none of it.
func slow(t *testing.T, relay *server) (stop func()) {
	from, host := newKey(t), relay.host(t)
	for range 48 { // 4 MiB, a page
		relay.mustTake(request(t, from, "", time.Hour, 90<<10))
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

// vanishing readers ask and leave at once.
func vanishing(t *testing.T, relay *server) (stop func()) {
	host, of := relay.host(t), newKey(t).DID()
	return inBackground(1, func() bool {
		w, err := dial(host, "/events?cursor=0&timeout=60&recipient="+string(of))
		if err != nil {
			t.Errorf("asking: %v", err)
			return false
		}
		pass(time.Millisecond) // a thousand a second at most
		return w.Close() == nil
	})
}

// greedy readers ask for everything since long ago, and again as soon as they are answered.
func greedy(t *testing.T, relay *server) (stop func()) {
	return inBackground(8, func() bool {
		a, err := relay.tryAsk(http.MethodGet, "/events?timeout=0&since=2020-01-01T00:00:00Z", nil)
		if err != nil || !a.OK && a.status != http.StatusTooManyRequests {
			t.Errorf("a greedy reader is answered %s, %v", a, err)
			return false
		}
		return true
	})
}

// inBackground has n goroutines call f until it returns false or stop is called.
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

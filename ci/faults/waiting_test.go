package faults

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/internal/racing"
)

const (
	waitingPolls   = 5000
	maxPollMemory  = 2         // resident memory of a waiting poll, compared with one of a bare HTTP server
	maxNoisyMemory = 300 << 20 // resident memory in bytes, with badly behaving readers
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

// bareServer returns a server of net/http whose requests all wait until their clients leave. It does nothing else. What
// a waiting request costs there is the price of HTTP on this machine.
func bareServer(t testing.TB) *server {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	s := newServer(t)
	s.commandPrefix = []string{self, "-bare"}
	return s
}

// serveBare is the program of bareServer. It runs until it is killed.
func serveBare() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("listening on http://%s\n", l.Addr())
	return http.Serve(l, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
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

// postLatencies posts to two relays in turns, so that other load on the machine affects both. It returns how long the
// posts took at each.
func postLatencies(t *testing.T, one, other *server) (atOne, atOther []time.Duration) {
	t.Helper()
	keys := newKeys(t, 2)
	for range scaled(comparedPosts) {
		atOne = append(atOne, postTime(t, one, keys[0], keys[1].DID()))
		atOther = append(atOther, postTime(t, other, keys[0], keys[1].DID()))
	}
	return atOne, atOther
}

// maxDelay is how much later than a relay without load another one may answer, for the slowest percent of its answers.
const maxDelay = 250 * time.Millisecond

// checkDelay checks answers that came under some load. It compares them with answers of a relay without that load, which
// were measured in turns with them. So a busy machine delays both.
func checkDelay(t testing.TB, load string, with, without []time.Duration) (ok bool) {
	t.Helper()
	t.Logf("%s: answers take %s (p50) and %s (p99), and without %s and %s", load, percentile(with, 50), percentile(with, 99),
		percentile(without, 50), percentile(without, 99))
	if most := percentile(without, 99)*3 + maxDelay; !racing.Detector && percentile(with, 99) > most {
		t.Errorf("%s: the 99th percentile of %d answers is %s, and %s without", load, len(with), percentile(with, 99),
			percentile(without, 99))
		return false
	}
	return true
}

// TestMemoryOfWaitingPolls tests that a waiting poll needs at most twice the memory of a waiting request of a bare HTTP
// server (SECURITY.md T14). Both numbers come from the same machine, so they contain the same buffers, stacks and garbage.
func TestMemoryOfWaitingPolls(t *testing.T) {
	if racing.Detector {
		t.Skip("race detection changes how much memory a request needs")
	}
	n := scaled(waitingPolls)
	perPoll := func(s *server) int {
		s.start()
		idle, measured := residentBytes(t, s.process.Process.Pid)
		if !measured {
			t.Skip("this system does not tell the memory of a process")
		}
		polls := startPolls(t, s, n)
		for _, w := range polls {
			defer w.Close() // so that the next server is measured alone
		}
		memory, _ := residentBytes(t, s.process.Process.Pid)
		return (memory - idle) / n
	}
	bare, relay := perPoll(bareServer(t)), perPoll(newServer(t, longTimeouts...))
	t.Logf("%d waiting polls need %d bytes each, and %d with a bare HTTP server", n, relay, bare)
	if relay > maxPollMemory*bare {
		t.Errorf("a waiting poll needs %d bytes, and a request that waits at a bare HTTP server %d", relay, bare)
	}
}

// TestManyWaitingPolls tests that 5000 waiting polls do not delay posts, and that each poll is answered when the relay
// shuts down (SECURITY.md T14, T16).
func TestManyWaitingPolls(t *testing.T) {
	busy, empty := newServer(t, longTimeouts...), newServer(t, longTimeouts...)
	busy.start()
	empty.start()
	n := scaled(waitingPolls)
	waiters := startPolls(t, busy, n)

	with, without := postLatencies(t, busy, empty)
	t.Logf("a post takes %s (p50) and %s (p99) with %d waiting polls, and %s and %s without", percentile(with, 50),
		percentile(with, 99), n, percentile(without, 50), percentile(without, 99))
	if most := percentile(without, 50)*3/2 + time.Millisecond; percentile(with, 50) > most {
		t.Errorf("with %d waiting polls the median of the posts is %s, without them %s", n, percentile(with, 50),
			percentile(without, 50))
	}
	if most := percentile(without, 99)*3 + 50*time.Millisecond; percentile(with, 99) > most {
		t.Errorf("with %d waiting polls the 99th percentile of the posts is %s, without them %s", n,
			percentile(with, 99), percentile(without, 99))
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
			relay, quiet := newServer(t, longTimeouts...), newServer(t, longTimeouts...)
			relay.start()
			quiet.start()
			keys := newKeys(t, 2)
			postTime(t, relay, keys[0], keys[1].DID())
			before, counted := openFiles(t, relay.process.Process.Pid)
			stop := startReaders(t, relay)
			with, without := postLatencies(t, relay, quiet) // fails the test if a post is refused
			stop()
			memory, measured := residentBytes(t, relay.process.Process.Pid)
			checkDelay(t, name+" readers", with, without)
			t.Logf("the relay uses %d MB", memory>>20)
			if measured && !racing.Detector && memory > maxNoisyMemory {
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

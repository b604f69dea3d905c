//go:build cluster && linux

package cluster

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// event is what the tests read of a delivered message.
type event struct {
	ID string `json:"id"`
}

// page is an answer of GET /events.
type page struct {
	Events []event `json:"events"`
	Cursor string  `json:"cursor"`
}

// request makes a request and returns the status and the body; status 0: there was no answer.
func request(method, url string, body []byte) (status int, answer []byte) {
	r, err := http.NewRequest(method, url, bytes.NewReader(body))
	if err != nil {
		panic(err) // the URL is constant
	}
	client := http.Client{Timeout: 40 * time.Second}
	resp, err := client.Do(r)
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	if answer, err = io.ReadAll(resp.Body); err != nil {
		return 0, nil
	}
	return resp.StatusCode, answer
}

func newKey(t testing.TB) didkey.Key {
	t.Helper()
	key, err := didkey.Generate()
	must(t, err)
	return key
}

func sign(t testing.TB, by didkey.Key, d envelope.Draft) []byte {
	t.Helper()
	m, err := d.Sign(by, time.Now())
	must(t, err)
	return m.Canonical()
}

// oracle knows which messages were acknowledged, and under which cursor.
type oracle struct {
	mu    sync.Mutex
	acked map[string]string // cursor by id
	posts atomic.Int64      // attempts
}

// ownID begins the ids of messages that are compared.
const ownID = "oracle-"

// post posts a message to one node after the other until it gets a receipt or stop is closed.
func (o *oracle) post(t *testing.T, urls []string, by didkey.Key, stop <-chan struct{}) {
	id := fmt.Sprintf("%s%d", ownID, rand.Int64())
	body := sign(t, by, envelope.Draft{ID: id, TTL: time.Hour, Payload: envelope.Request{Intent: "x"}})
	for {
		o.posts.Add(1)
		status, answer := request(http.MethodPost, urls[rand.IntN(len(urls))]+"/events", body)
		var receipt struct{ Cursor string }
		switch {
		case status == 200 || status == 201:
			if err := json.Unmarshal(answer, &receipt); err != nil || receipt.Cursor == "" {
				t.Errorf("a receipt without a cursor: %s", answer)
				return
			}
			o.mu.Lock()
			o.acked[id] = receipt.Cursor
			o.mu.Unlock()
			return
		case status != 0 && status != 503 && status != 502 && status != 500:
			t.Errorf("post: %d %s", status, answer)
			return
		}
		select {
		case <-stop:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// ownIDs returns the ids of the oracle's messages in a page. Other messages may expire between two reads.
func ownIDs(p page) (ids []string) {
	for _, e := range p.Events {
		if strings.HasPrefix(e.ID, ownID) {
			ids = append(ids, e.ID)
		}
	}
	return ids
}

// readAll reads the oracle's messages from the whole sequence of a node. It tries again while the node has no database.
func readAll(t *testing.T, url string) (ids []string, cursor string) {
	t.Helper()
	cursor = "0"
	for deadline := time.Now().Add(time.Minute); ; {
		status, answer := request(http.MethodGet, url+"/events?limit=1000&timeout=0&cursor="+cursor, nil)
		if status != 200 {
			if time.Now().After(deadline) {
				t.Fatalf("GET /events: %d %s", status, answer)
			}
			time.Sleep(100 * time.Millisecond)
			continue
		}
		var p page
		must(t, json.Unmarshal(answer, &p))
		ids = append(ids, ownIDs(p)...)
		if cursor = p.Cursor; len(p.Events) == 0 {
			return ids, cursor
		}
	}
}

// check compares what the nodes have with what was acknowledged.
func (o *oracle) check(t *testing.T, nodes [3]*node) {
	t.Helper()
	first, _ := readAll(t, nodes[0].url())
	seen := map[string]int{}
	for _, id := range first {
		seen[id]++
	}
	lost, doubled := 0, 0
	for id := range o.acked {
		if seen[id] == 0 {
			lost++
		}
	}
	for _, n := range seen {
		if n > 1 {
			doubled++
		}
	}
	if lost > 0 || doubled > 0 {
		t.Errorf("of %d acknowledged messages %d are lost, and %d are stored twice", len(o.acked), lost, doubled)
	}
	for _, n := range nodes[1:] {
		if other, _ := readAll(t, n.url()); !slices.Equal(first, other) {
			t.Errorf("%s has another sequence than %s: %d and %d messages", n.name, nodes[0].name, len(other), len(first))
		}
	}
	t.Logf("%d messages acknowledged after %d attempts, %d stored: %d lost, %d stored twice", len(o.acked), o.posts.Load(),
		len(first), lost, doubled)
}

// follower polls a node from the beginning, and continues with its last cursor after each failure.
type follower struct {
	mu  sync.Mutex
	ids []string
	bad []string // answers other than 200, 502 and 503
}

func (f *follower) run(url string, stop <-chan struct{}) {
	cursor := "0"
	for {
		select {
		case <-stop:
			return
		default:
		}
		status, answer := request(http.MethodGet, url+"/events?limit=1000&timeout=2&cursor="+cursor, nil)
		var p page
		if status == 200 && json.Unmarshal(answer, &p) == nil {
			f.mu.Lock()
			f.ids = append(f.ids, ownIDs(p)...)
			f.mu.Unlock()
			cursor = p.Cursor
			continue
		}
		if status != 0 && status != 503 && status != 502 {
			f.mu.Lock()
			f.bad = append(f.bad, fmt.Sprintf("%d %.200s", status, answer))
			f.mu.Unlock()
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// clusterTime is how long faults are caused. Each kind comes at least once.
func clusterTime(t *testing.T) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(cmp.Or(os.Getenv("AGORA_CLUSTER_TIME"), "0s"))
	must(t, err)
	return d
}

// TestCluster runs all parts over one cluster, because starting it takes a while.
func TestCluster(t *testing.T) {
	d := startDatabase(t)
	d.synced()
	front := &balancer{}
	url := front.listen(t)
	nodes := newNodes(t, d, url)
	for _, n := range nodes {
		n.start()
	}
	front.nodes = nodes
	front.serve()
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range nodes {
				t.Log(n.logs())
			}
			t.Log(d.logs())
		}
	})
	var urls []string
	for _, n := range nodes {
		urls = append(urls, n.url())
	}
	if !testing.Short() {
		t.Run("suite of stores", func(t *testing.T) { testStoreSuite(t, d) })
	}
	t.Run("one node accepts", func(t *testing.T) { testAccepts(t, urls) })
	t.Run("conformance", func(t *testing.T) { testConformance(t, url) })
	t.Run("rolling restart", func(t *testing.T) { testRollingRestart(t, url, nodes) })
	t.Run("no standby", func(t *testing.T) { testNoStandby(t, d, nodes, urls) })
	t.Run("health", func(t *testing.T) { testHealth(t, nodes[2]) })
	t.Run("runbook", func(t *testing.T) { testRunbook(t, d, nodes, urls) })
	t.Run("faults", func(t *testing.T) { testFaults(t, d, nodes, urls) })
}

// testStoreSuite runs the suite of all stores with the primary, whose commits wait for a standby.
func testStoreSuite(t *testing.T, d *database) {
	cmd := exec.Command("go", "test", "-tags", "postgres", "-vet=off", "-short", "-count=1", "-run", "^(TestStore|TestRemover)$",
		"github.com/agora-relay/agora/store/postgres")
	cmd.Env = append(os.Environ(), fmt.Sprintf("AGORA_POSTGRES=127.0.0.1 port=%d", d.servers[d.primary].port))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// testAccepts posts ACCEPTs for the same thread to all nodes at the same time. One of them must win.
func testAccepts(t *testing.T, urls []string) {
	rounds := 100
	if !testing.Short() {
		rounds = 1000
	}
	alice, bob := newKey(t), newKey(t)
	post := func(url string, body []byte) int {
		status, answer := request(http.MethodPost, url+"/events", body)
		if status != 200 && status != 201 && status != 409 {
			t.Errorf("post: %d %s", status, answer)
		}
		return status
	}
	for n := range rounds {
		id := fmt.Sprintf("race%d", n)
		post(urls[n%3], sign(t, alice, envelope.Draft{Thread: id, Payload: envelope.Request{RequestID: "r", Intent: "x"}}))
		post(urls[(n+1)%3], sign(t, bob, envelope.Draft{Recipient: alice.DID(), Thread: id,
			Payload: envelope.Offer{RequestID: "r"}}))
		var won atomic.Int64
		var posts sync.WaitGroup
		for i := range 6 {
			body := sign(t, alice, envelope.Draft{Recipient: bob.DID(), Thread: id, Payload: envelope.Accept{RequestID: "r"}})
			posts.Go(func() {
				if status := post(urls[i%3], body); status != 409 {
					won.Add(1)
				}
			})
		}
		posts.Wait()
		if won.Load() != 1 {
			t.Fatalf("round %d: %d ACCEPTs have won, want 1", n, won.Load())
		}
	}
}

// testConformance runs the conformance kit through the proxy, which gives each request to the next node. With -short it
// leaves out the checks that hold a poll for half a minute and for a minute.
func testConformance(t *testing.T, front string) {
	program, err := agora()
	must(t, err)
	args := []string{"conformance", front, "--level", "extensions", "--timeout", "5m"}
	if testing.Short() {
		list, err := exec.Command(program, "conformance", "--list").Output()
		must(t, err)
		var checks []string
		for line := range strings.Lines(string(list)) {
			number, _, found := strings.Cut(line, " ")
			if found && !slices.Contains([]string{"C-42", "C-43"}, number) {
				checks = append(checks, number)
			}
		}
		args = append(args, "--only", strings.Join(checks, ","))
	}
	out, err := exec.Command(program, args...).CombinedOutput()
	text := string(out)
	if err != nil {
		_, text, _ := strings.Cut(text, "\n\n") // the report, without the progress
		t.Errorf("%v\n%s", err, text)
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	t.Log(lines[len(lines)-1])
}

// testRollingRestart restarts one node after the other while polls wait. No poll may fail, and none may miss a message.
func testRollingRestart(t *testing.T, front string, nodes [3]*node) {
	_, cursor := readAll(t, nodes[0].url())
	to := newKey(t).DID()
	stop := make(chan struct{})
	var failed atomic.Int64
	var got sync.Map
	var polls sync.WaitGroup
	for range 6 {
		polls.Go(func() {
			for cursor := cursor; ; {
				select {
				case <-stop:
					return
				default:
				}
				status, answer := request(http.MethodGet, front+"/events?timeout=5&cursor="+cursor+"&recipient="+string(to), nil)
				var p page
				if status != 200 || json.Unmarshal(answer, &p) != nil {
					failed.Add(1)
					t.Logf("a poll was answered with %d %.200s", status, answer)
					time.Sleep(50 * time.Millisecond)
					continue
				}
				for _, e := range p.Events {
					got.Store(e.ID, true)
				}
				cursor = p.Cursor
			}
		})
	}
	o := &oracle{acked: map[string]string{}}
	by := newKey(t)
	for _, n := range nodes {
		n.stop()
		n.start()
		id := fmt.Sprintf("rolling-%s", n.name)
		body := sign(t, by, envelope.Draft{ID: id, Recipient: to, Payload: envelope.Request{Intent: "x"}})
		waitUntil(t, "a post succeeds", func() bool {
			status, _ := request(http.MethodPost, front+"/events", body)
			return status == 200 || status == 201
		})
		o.acked[id] = ""
	}
	waitUntil(t, "the polls get the messages", func() bool {
		n := 0
		got.Range(func(any, any) bool { n++; return true })
		return n == len(o.acked)
	})
	close(stop)
	polls.Wait()
	if failed.Load() > 0 {
		t.Errorf("%d polls failed during the restart", failed.Load())
	}
}

// testNoStandby stops both standbys. A post must not get a receipt then, but an answer that does not say whether it was
// stored: neither when the relay has waited for long, nor when the server cancels the wait. When a standby is back, the
// message is there, once.
func testNoStandby(t *testing.T, d *database, nodes [3]*node, urls []string) {
	waitUntil(t, "the figures of a node have both standbys", func() bool { return nodes[1].standbys(t) == "2 of 1" })
	var standbys []*pgServer
	for i, s := range d.servers {
		if i != d.primary {
			standbys = append(standbys, s)
			s.kill()
		}
	}
	const waitingID = ownID + "waits-for-a-standby"
	body := sign(t, newKey(t), envelope.Draft{ID: waitingID, Payload: envelope.Request{Intent: "x"}})
	type result struct {
		status int
		answer []byte
	}
	answered := make(chan result, 1)
	go func() {
		status, answer := request(http.MethodPost, urls[0]+"/events", body)
		answered <- result{status, answer}
	}()
	primary := d.servers[d.primary]
	const waiting = "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query = 'COMMIT'"
	waitUntil(t, "the commit waits for a standby", func() bool { return d.query(primary, "SELECT count(*) "+waiting) != "0" })
	began := time.Now()
	waitUntil(t, "the figures of a node have no standby", func() bool { return nodes[1].standbys(t) == "0 of 1" })
	r := <-answered
	if r.status != 503 || time.Since(began) > 20*time.Second {
		t.Errorf("without a standby a post was answered with %d %s after %v", r.status, r.answer, time.Since(began))
	}
	d.query(primary, "SELECT count(pg_cancel_backend(pid)) "+waiting)
	for _, s := range standbys {
		d.start(s)
	}
	d.synced()
	waitUntil(t, "the same message gets its receipt", func() bool {
		status, _ := request(http.MethodPost, urls[1]+"/events", body)
		return status == 200
	})
	ids, _ := readAll(t, urls[2])
	if n := strings.Count(strings.Join(ids, "\n"), waitingID); n != 1 {
		t.Errorf("the message is stored %d times", n)
	}
}

// testHealth cuts off a node while nobody posts. Its health must show it, so that a load balancer leaves it out.
func testHealth(t *testing.T, n *node) {
	isNow := func(want int, state string) func() bool {
		return func() bool {
			status, answer := request(http.MethodGet, n.url()+"/health", nil)
			var health struct{ Node struct{ State string } }
			return status == want && json.Unmarshal(answer, &health) == nil && health.Node.State == state
		}
	}
	waitUntil(t, "the node is healthy", isNow(200, "ok"))
	for _, l := range n.links {
		l.set(true)
	}
	began := time.Now()
	waitUntil(t, "the node is not healthy", isNow(503, "unreachable"))
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("this took %v", took)
	}
	for _, l := range n.links {
		l.set(false)
	}
	waitUntil(t, "the node is healthy again", isNow(200, "ok"))
}

// testFaults causes faults while messages are posted to all nodes and each node is followed.
func testFaults(t *testing.T, d *database, nodes [3]*node, urls []string) {
	o := &oracle{acked: map[string]string{}}
	stopPosts, stopPolls := make(chan struct{}), make(chan struct{})
	var posts, polls sync.WaitGroup
	for range 8 {
		by := newKey(t)
		posts.Go(func() {
			for {
				select {
				case <-stopPosts:
					return
				default:
					o.post(t, urls, by, stopPosts)
				}
			}
		})
	}
	var followers [3]follower
	for i := range followers {
		polls.Go(func() { followers[i].run(urls[i], stopPolls) })
	}
	faults := map[string]int{}
	acked := func() int {
		o.mu.Lock()
		defer o.mu.Unlock()
		return len(o.acked)
	}
	for deadline, round := time.Now().Add(clusterTime(t)), 0; time.Now().Before(deadline) || round < 5; round++ {
		before := acked()
		n := nodes[rand.IntN(len(nodes))]
		switch kind := round % 5; kind {
		case 0:
			faults["node killed"]++
			n.kill()
			time.Sleep(300 * time.Millisecond)
			n.start()
		case 1:
			faults["standby killed"]++
			s := d.servers[(d.primary+1+rand.IntN(2))%3]
			s.kill()
			time.Sleep(500 * time.Millisecond)
			d.start(s)
		case 2:
			faults["node cut off"]++
			for _, l := range n.links {
				l.set(true)
			}
			time.Sleep(time.Second)
			for _, l := range n.links {
				l.set(false)
			}
		case 3:
			faults["primary killed, standby promoted"]++
			d.failOver()
		case 4:
			faults["node frozen"]++
			must(t, n.process.Process.Signal(syscall.SIGSTOP))
			if testing.Short() {
				time.Sleep(time.Second)
			} else {
				time.Sleep(12 * time.Second) // the server ends its connections, and another node takes over
			}
			must(t, n.process.Process.Signal(syscall.SIGCONT))
		}
		d.synced()
		waitUntil(t, "posts succeed again", func() bool { return acked() > before+20 })
	}
	close(stopPosts)
	posts.Wait()
	for _, n := range nodes {
		if n.process.ProcessState != nil {
			t.Errorf("%s has ended", n.name)
		}
	}
	o.check(t, nodes)
	all, _ := readAll(t, nodes[0].url())
	for i := range followers {
		f := &followers[i]
		waitUntil(t, "a follower has all messages", func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return len(f.ids) >= len(all)
		})
		if !slices.Equal(f.ids, all) || len(f.bad) > 0 {
			t.Errorf("the follower of %s has seen %d messages, in another order or with gaps, want %d; bad answers: %v",
				nodes[i].name, len(f.ids), len(all), f.bad)
		}
	}
	close(stopPolls)
	polls.Wait()
	t.Logf("faults: %v", faults)
}

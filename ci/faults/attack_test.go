package faults

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
)

const (
	attackers       = 16 // addresses
	perAttacker     = 16 // concurrent requests of an address
	attackTime      = 1500 * time.Millisecond
	leastRounds     = 15 // of the stranger, if they take at most longestAttack
	longestAttack   = 6 * time.Second
	longestAnswer   = 10 * time.Second // after that, the stranger gives up
	maxAnswerSize   = 5 << 20          // a page of 4 MiB, with what is around it
	maxHistoryBytes = 70 << 20         // of the one answer that may have 64 MiB of texts (docs/HUB.md)
)

// attackClient is the client of the attackers.
var attackClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: attackers * perAttacker},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// attack is an attack on some operations, with what the stranger has seen meanwhile.
type attack struct {
	name       string
	operations []*operation

	with, without []time.Duration
	refused       int // requests of the stranger
	statuses      [6]atomic.Int64
	broken        sync.Map // what was wrong with answers
	peak          int
}

func (a *attack) String() string {
	return fmt.Sprintf("p50 %5d ms, p99 %5d ms (quiet relay %4d and %4d ms), peak RSS %4d MB, %d requests of the "+
		"stranger failed; answers 2xx %5d, 4xx %5d, 5xx %5d, others %5d: %s", percentile(a.with, 50).Milliseconds(),
		percentile(a.with, 99).Milliseconds(), percentile(a.without, 50).Milliseconds(),
		percentile(a.without, 99).Milliseconds(), a.peak>>20, a.refused, a.statuses[2].Load(), a.statuses[4].Load(),
		a.statuses[5].Load(), a.statuses[0].Load()+a.statuses[3].Load(), a.name)
}

// run attacks until the stranger has measured.
func (a *attack) run(t testing.TB, number int, measure func(began time.Time)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	concurrent := attackers * perAttacker
	if testing.Short() {
		concurrent /= 4 // so that the test passes beside other tests
	}
	for i := range concurrent {
		from := fmt.Sprintf("20.%d.%d.%d", number/256, number%256, i%attackers)
		all.Go(func() {
			for ctx.Err() == nil {
				a.once(ctx, t, from)
			}
		})
	}
	measure(time.Now())
	cancel()
	all.Wait()
	attackClient.CloseIdleConnections()
}

// once sends one request, and checks its answer. Some clients soon leave.
func (a *attack) once(ctx context.Context, t testing.TB, from string) {
	p := a.operations[rand.IntN(len(a.operations))]
	r, err := p.request(rand.IntN(1<<40), from)
	if err != nil {
		t.Error(err)
		return
	}
	patience := longestAnswer
	if rand.IntN(4) == 0 {
		patience = 200 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	response, err := attackClient.Do(r.WithContext(ctx))
	if err != nil {
		a.statuses[0].Add(1)
		sleep(20 * time.Millisecond)
		return
	}
	defer response.Body.Close()
	most := int64(maxAnswerSize)
	if p.path == "/hub/agent/messages" {
		most = maxHistoryBytes
	}
	start := make([]byte, 400)
	read, _ := io.ReadFull(response.Body, start) // most answers are shorter
	size, err := io.CopyN(io.Discard, response.Body, most-int64(read)+1)
	if size += int64(read); err == nil && !strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream") {
		a.broken.Store(fmt.Sprintf("%s %s has an answer of more than %d bytes", p.method, p.path, size-1), nil)
	}
	status := response.StatusCode
	a.statuses[status/100].Add(1)
	if status >= 500 && (status != http.StatusServiceUnavailable || response.Header.Get("Retry-After") == "") {
		a.broken.Store(fmt.Sprintf("%s %s is answered with %d, Retry-After %q", p.method, p.path, status,
			response.Header.Get("Retry-After")), start[:read])
	}
	if status == http.StatusTooManyRequests || status >= 500 {
		sleep(20 * time.Millisecond)
	}
}

// judge fails the test if the attack has had an effect. It reports whether it has.
func (a *attack) judge(t testing.TB) (failed bool) {
	t.Helper()
	fail := func(format string, args ...any) { t.Errorf(a.name+": "+format, args...); failed = true }
	failed = !checkDelay(t, a.name, a.with, a.without)
	if a.peak > maxReadMemory && !racing.Detector {
		fail("the relay used %d MB", a.peak>>20)
	}
	if a.refused > 0 {
		fail("%d requests of the stranger have failed", a.refused)
	}
	a.broken.Range(func(what, text any) bool { fail("%s: %s", what, text); return true })
	return failed
}

// visit posts, polls and reads a thread, as a stranger. It returns how long each took.
func visit(
	ctx context.Context, t testing.TB, relay string, keys []didkey.Key, round int,
) (times []time.Duration, failed int) {
	from, to := keys[round%len(keys)], keys[(round+1)%len(keys)].DID()
	address := fmt.Sprintf("198.51.100.%d", round%200)
	e := request(t, from, to, time.Hour, 0)
	for _, c := range []struct {
		method, path string
		body         []byte
	}{{"POST", "/events", e.Canonical()}, {"GET", "/events?cursor=0&timeout=0&recipient=" + string(to), nil},
		{"GET", "/threads/" + e.Thread + "?client=" + string(from.DID()), nil}} {
		ctx, cancel := context.WithTimeout(ctx, longestAnswer)
		began := time.Now()
		a, err := exchangeFrom(ctx, address, c.method, relay+c.path, c.body)
		cancel()
		if times = append(times, time.Since(began)); err != nil || !a.OK {
			t.Logf("the stranger's %s %.10s was answered with %v, %v", c.method, c.path, a, err)
			return times, failed + 1
		}
	}
	return times, failed
}

// send sends one request, and returns the status and the body of the answer.
func (v *victim) send(t testing.TB, method, target, caller, body string) (status int, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, v.url+target, strings.NewReader(body))
	must(t, err)
	r.Header.Set(forwardedFor, "198.51.100.250")
	r.Header.Set("Content-Type", "application/json")
	must(t, v.authorize(r, caller, body))
	response, err := attackClient.Do(r)
	must(t, err)
	defer response.Body.Close()
	all, err := io.ReadAll(response.Body)
	must(t, err)
	if response.StatusCode >= 300 {
		t.Fatalf("%s %s is answered with %d %s", method, target, response.StatusCode, all)
	}
	return response.StatusCode, string(all)
}

// newVictim makes objects at a relay on whose database fillGateways has run.
func newVictim(t testing.TB, relay string, keys map[string]string) *victim {
	t.Helper()
	var mu sync.Mutex
	got := ""
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got += string(body)
		_, _ = io.WriteString(w, `{"status":"ok"}`)
	}))
	t.Cleanup(agent.Close)
	find := func(pattern, in string) (found string) {
		t.Helper()
		within(t, time.Minute, "a callback with "+pattern, func() bool {
			mu.Lock()
			defer mu.Unlock()
			match := regexp.MustCompile(pattern).FindStringSubmatch(cmp.Or(in, got))
			if match != nil {
				found = match[1]
			}
			return match != nil
		})
		return found
	}
	const keyText = `[A-Za-z0-9_-]{43}`
	v := &victim{url: relay, keys: keys, signer: newKey(t), tokens: map[string]string{}}
	v.values = map[string]string{"since": "2020-01-01T00:00:00Z", "before": "end", "owner_id": "bob", "q": "nope",
		"intent": "nope", "Accept": "text/event-stream", "Last-Event-ID": "1", "job_id": exampleID}

	const room = "/channel/channels/ch_1"
	v.send(t, "POST", room+"/connections", "channelKey", `{"name":"bob","url":"`+agent.URL+`/inbox/sk_2"}`)
	v.send(t, "POST", room+"/messages", "memberKey", `{"content":"Good morning!"}`)
	v.tokens[strings.Replace(room, "ch_1", "{channel}", 1)+"/inbox/{token}"] = find(`/inbox/(tok_`+keyText+`)`, "")
	keys["toolToken"] = find(`(mt_`+keyText+`)`, "")

	_, inbox := v.send(t, "POST", "/channel/inboxes", "signedCall", `{"label":"Bob"}`)
	key := find(`(sk_`+keyText+`)`, inbox)
	v.send(t, "POST", "/channel/inbox/"+key, "", `{"channel":{"id":"ch_1"},"message":{"id":"msg_1","sender":"alice",`+
		`"content":"Hi"},"callback":"`+agent.URL+`/callback/tok_1"}`)
	asked, err := poll(t.Context(), relay, values("cursor", "0", "timeout", "0", "recipient", string(v.signer.DID())))
	must(t, err)
	opened, err := parse(t, asked.Events[0]).Open(v.signer)
	must(t, err)
	v.tokens["/channel/out/{token}"] = find(`/out/(tok_`+keyText+`)`, string(opened.Payload))

	_, registered := v.send(t, "POST", "/jobs/register", "jobsKey", `{"agent_name":"Caller","owner_id":"bob",`+
		`"api_endpoint":"`+agent.URL+`/jobs","skills":[{"skill_name":"call","cost_per_call":0.1}]}`)
	v.send(t, "POST", "/jobs/a/"+find(`"agent_id":"([^"]+)"`, registered)+"/jobs?wait=0", "jobsKey",
		`{"orchestrator_id":"bob","skill_name":"call","budget":0.1}`)
	v.tokens["/jobs/cb/{token}"] = find(`/cb/(tok_`+keyText+`)`, "")
	v.send(t, "POST", "/jobs/a/"+exampleID+"/jobs?wait=0", "jobsKey", `{"job_id":"`+exampleID+
		`","orchestrator_id":"bob","skill_name":"analyze_text","budget":0.1}`)

	manifest, err := envelope.Draft{TTL: time.Hour, Payload: envelope.Manifest{ID: "m1",
		Intents: []envelope.Intent{{ID: "echo"}}}}.Sign(v.signer, time.Now())
	must(t, err)
	v.send(t, "POST", "/events", "", string(manifest.Canonical()))
	opening := request(t, newKey(t), v.signer.DID(), time.Hour, 0)
	v.send(t, "POST", "/events", "", string(opening.Canonical()))
	v.real = strings.NewReplacer("thread_1", opening.Thread, "sk_1", key, "in_1", find(`"(in_[^"]+)"`, inbox),
		"https://agent.example", agent.URL, "https://service.example", agent.URL)
	return v
}

// attacks returns the attacks on all operations of a relay: one on each, or with -short one on all reads of a gateway
// and one on its other operations.
func (v *victim) attacks(t testing.TB) (all []*attack) {
	t.Helper()
	chosen := regexp.MustCompile(*attackFlag)
	for _, p := range v.operations(t) {
		name := p.method + " " + p.path
		if !chosen.MatchString(name) {
			continue
		}
		if testing.Short() {
			gateway := strings.Split(p.path, "/")[1]
			if !slices.Contains([]string{"hub", "channel", "jobs"}, gateway) {
				gateway = "others"
			}
			name = fmt.Sprintf("%s of %s", map[bool]string{true: "reads", false: "writes"}[p.method == "GET" ||
				p.method == "HEAD"], gateway)
		}
		i := slices.IndexFunc(all, func(a *attack) bool { return a.name == name })
		if i < 0 {
			i, all = len(all), append(all, &attack{name: name})
		}
		all[i].operations = append(all[i].operations, p)
	}
	return all
}

// TestAttacksDelayNoStranger attacks all routes of the OpenAPI document, from 16 addresses with 16 requests at a time.
// The database has what makes reads dear. A stranger must not notice it, compared with a relay that is not attacked,
// and the relay must use little memory (SECURITY.md T14, T45).
func TestAttacksDelayNoStranger(t *testing.T) {
	folder := t.TempDir()
	data, quietData := filepath.Join(folder, "data"), filepath.Join(folder, "quiet")
	began := time.Now()
	h := fullDatabase{events: scaled(5_000), manifests: scaled(100)}
	h.fill(t, data)
	keys := fillGateways(t, data)
	must(t, os.CopyFS(quietData, os.DirFS(data)))
	must(t, os.Chmod(quietData, 0o700))
	must(t, os.Chmod(filepath.Join(quietData, "relay.key"), 0o600))
	t.Logf("the databases are filled in %s", time.Since(began).Round(time.Millisecond))
	args := []string{"--public-url", "https://relay.example", "--trusted-proxy", "127.0.0.1", "--hub", "--channel",
		"--jobs", "--hub-agents", "20000", "--outbound-allow", "127.0.0.1", "--pending-timeout", "24h"}
	relay, quiet := serverOn(t, data, args...), serverOn(t, quietData, args...)
	relay.start()
	quiet.start()
	urls := []string{"http://" + relay.host(t), "http://" + quiet.host(t)}
	v := newVictim(t, urls[0], keys)
	all, strangers := v.attacks(t), newKeys(t, 32)
	round := 0
	for i, a := range all {
		v.url = urls[0]
		resetPeak(t, relay.process.Process.Pid)
		a.run(t, i, func(began time.Time) {
			for n := 0; a.refused < 3 && (n < 4 || time.Since(began) < attackTime ||
				n < leastRounds && time.Since(began) < longestAttack); n++ {
				with, failed := visit(t.Context(), t, urls[0], strangers, round)
				without, broken := visit(t.Context(), t, urls[1], strangers, round)
				a.with, a.without, a.refused = append(a.with, with...), append(a.without, without...), a.refused+failed+broken
				round++
			}
		})
		a.peak = peakBytes(t, relay.process.Process.Pid)
		t.Logf("%s", a)
		if a.judge(t) && i+1 < len(all) { // the others are measured without what this attack has left behind
			relay.kill()
			relay.start()
			urls[0] = "http://" + relay.host(t)
		}
	}
	slices.SortFunc(all, func(a, b *attack) int { return cmp.Compare(percentile(b.with, 99), percentile(a.with, 99)) })
	for _, a := range all[:min(10, len(all))] {
		t.Logf("worst: %s", a)
	}
	if code := relay.stop(); code != 0 {
		t.Errorf("the relay ended with exit code %d", code)
	}
}

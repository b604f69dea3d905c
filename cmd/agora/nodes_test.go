//go:build postgres

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/datafolder"
	"github.com/jackc/pgx/v5"
)

// storeURL returns the address of a new schema in the server of make postgres.
func storeURL(t *testing.T) string {
	t.Helper()
	folder := os.Getenv("AGORA_POSTGRES")
	if folder == "" {
		t.Fatal("AGORA_POSTGRES is not set; use make postgres")
	}
	name := fmt.Sprintf("cmd%d", time.Now().UnixNano())
	server := "host=" + folder + " user=agora dbname=postgres"
	conn, err := pgx.Connect(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "CREATE SCHEMA "+name); err != nil {
		t.Fatal(err)
	}
	return server + " password=pa5sword search_path=" + name
}

// output is a buffer that the test reads while a command writes.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// relayNode is `agora serve` in this process.
type relayNode struct {
	url    string
	did    string
	stop   func() int // and returns the exit code
	stderr *output
}

var listening = regexp.MustCompile(`(?s)Agora relay (did:key:\S+).*listening on (http://\S+)`)

// startNode runs agora serve with these arguments. It waits until the node listens, or ends.
func startNode(t *testing.T, args ...string) *relayNode {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stdout, n := &output{}, &relayNode{stderr: &output{}}
	ended := make(chan int, 1)
	go func() {
		ended <- run(cli.Environment{Ctx: ctx, Stdin: strings.NewReader(""), Stdout: stdout, Stderr: n.stderr},
			append([]string{"serve", "--addr", "127.0.0.1:0"}, args...))
	}()
	code, over := 0, false
	n.stop = func() int {
		if cancel(); !over {
			code, over = <-ended, true
		}
		return code
	}
	t.Cleanup(func() { n.stop() })
	for deadline := time.Now().Add(time.Minute); n.url == ""; time.Sleep(10 * time.Millisecond) {
		if found := listening.FindStringSubmatch(stdout.String()); found != nil {
			n.did, n.url = found[1], found[2]
		}
		select {
		case code = <-ended:
			over = true
			return n
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("the node does not listen: %s", n.stderr)
		}
	}
	return n
}

// get returns the status and the body of an answer.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// TestNodesShareARelay runs two nodes with a common secret. They are one relay: one identity, one sequence of messages,
// and one node that serves the gateways. When that node ends, the other one serves them.
func TestNodesShareARelay(t *testing.T) {
	folder, store := t.TempDir(), storeURL(t)
	secret := filepath.Join(folder, "secret")
	if code := run(cli.Environment{Ctx: t.Context(), Stdout: io.Discard, Stderr: os.Stderr}, []string{"key", "secret", secret}); code != 0 {
		t.Fatal("key secret failed")
	}
	args := func(data string) []string {
		return []string{"--accept-async", "--store", store, "--key-secret", secret, "--data", filepath.Join(folder, data), "--hub", "--channel",
			"--jobs"}
	}
	a := startNode(t, args("a")...)
	b := startNode(t, args("b")...)
	if a.url == "" || a.did != b.did {
		t.Fatalf("the nodes are %s and %s: %s %s", a.did, b.did, a.stderr, b.stderr)
	}
	key := filepath.Join(folder, "bob.key")
	for _, c := range [][]string{{"keygen", key}, {"send", "request", "--key", key, "--relay", a.url, "--intent", "x"}} {
		if code := run(cli.Environment{Ctx: t.Context(), Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: os.Stderr},
			c); code != 0 {
			t.Fatalf("%v: exit %d", c, code)
		}
	}
	if status, body := get(t, b.url+"/events?cursor=0"); status != 200 || strings.Count(body, `"request_id"`) == 0 {
		t.Errorf("the other node answers %d %s", status, body)
	}
	for _, path := range []string{"/hub/health", "/jobs/health"} {
		waitFor(t, a.url+path, 200)
		if status, body := get(t, b.url+path); status != 503 {
			t.Errorf("a node without the lease answers %s with %d %s", path, status, body)
		}
	}
	if _, body := get(t, b.url+"/health"); !strings.Contains(body, `"role":"follower"`) ||
		!strings.Contains(body, `"durability":"primary"`) {
		t.Errorf("/health of the other node is %s", body)
	}
	if a.stop() != 0 {
		t.Errorf("the first node failed: %s", a.stderr)
	}
	waitFor(t, b.url+"/hub/health", 200)
	for _, n := range []*relayNode{a, b} {
		if strings.Contains(n.stderr.String(), "pa5sword") {
			t.Error("the log has the password of the database")
		}
	}

	t.Run("another key", func(t *testing.T) {
		n := startNode(t, "--accept-async", "--store", store, "--data", filepath.Join(folder, "c"))
		if code := n.stop(); code == 0 || !strings.Contains(n.stderr.String(), "copy their file to this node") {
			t.Errorf("a node without the key: exit %d, %s", code, n.stderr)
		}
	})
	t.Run("another policy", func(t *testing.T) {
		for _, c := range []struct{ flag, value, want string }{
			{"--active-timeout", "2h", `--active-timeout is \"2h0m0s\" here and \"`},
			{"--reads", "parties", `--reads is \"parties\" here and \"open\" there`},
			{"--public-url", "https://other.example", `--public-url is \"https://other.example\" here and \"\" there`},
		} {
			n := startNode(t, append(args("a"), c.flag, c.value)...)
			if code := n.stop(); code == 0 || !strings.Contains(n.stderr.String(), c.want) &&
				!strings.Contains(n.stderr.String(), strings.ReplaceAll(c.want, `\`, "")) {
				t.Errorf("a node with another policy: exit %d, %s, want %s", code, n.stderr, c.want)
			}
		}
	})
	t.Run("key fetch", func(t *testing.T) {
		data := filepath.Join(folder, "fetched")
		if code := run(cli.Environment{Ctx: t.Context(), Stdout: io.Discard, Stderr: io.Discard},
			[]string{"key", "fetch", "--store", store, "--key-secret", secret, "--data", data}); code != 0 {
			t.Fatalf("exit %d", code)
		}
		for _, name := range datafolder.Keys {
			want, err := os.ReadFile(filepath.Join(folder, "b", name))
			got, err2 := os.ReadFile(filepath.Join(data, name))
			if err != nil || err2 != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %v %v", name, err, err2)
			}
		}
	})
	t.Run("a data folder in use", func(t *testing.T) {
		n := startNode(t, args("b")...)
		if code := n.stop(); code == 0 || !strings.Contains(n.stderr.String(), "in use by another process") {
			t.Errorf("a node with the data folder of another one: exit %d, %s", code, n.stderr)
		}
	})
	t.Run("a ban at a node that does not lead", func(t *testing.T) {
		var stderr bytes.Buffer
		c := startNode(t, args("e")...)
		if _, body := get(t, c.url+"/health"); !strings.Contains(body, `"role":"follower"`) {
			t.Errorf("the node leads: %s", body)
		}
		if code := run(cli.Environment{Ctx: t.Context(), Stdout: io.Discard, Stderr: &stderr},
			[]string{"admin", "ban", "--data", filepath.Join(folder, "e"), "203.0.113.7"}); code != 0 {
			t.Errorf("exit %d, %s", code, &stderr)
		}
		testBanReaches(t, filepath.Join(folder, "e"), key, b.url)
		if code := c.stop(); code != 0 {
			t.Errorf("the node ends with %d", code)
		}
	})
	t.Run("figures", func(t *testing.T) { testNodeFigures(t, filepath.Join(folder, "b")) })
	t.Run("what only a single node can do", func(t *testing.T) {
		n := startNode(t, append(args("d"), "--backup-dir", filepath.Join(folder, "backups"))...)
		if code := n.stop(); code == 0 || !strings.Contains(n.stderr.String(), "pg_dump") {
			t.Errorf("a node with --backup-dir: exit %d, %s", code, n.stderr)
		}
	})
	t.Run("backup", func(t *testing.T) {
		var stderr bytes.Buffer
		if code := run(cli.Environment{Ctx: t.Context(), Stdout: io.Discard, Stderr: &stderr},
			[]string{"backup", "--data", filepath.Join(folder, "b"), filepath.Join(folder, "copy")}); code == 0 ||
			!strings.Contains(stderr.String(), "pg_dump") {
			t.Errorf("exit %d, %s", code, &stderr)
		}
	})
}

// testBanReaches bans an identity at the node of a data folder. Another node must refuse its posts long before it looks
// at the table by itself, which it does once a minute.
func testBanReaches(t *testing.T, folder, key, other string) {
	command := func(args ...string) (int, string) {
		var out bytes.Buffer
		code := run(cli.Environment{Ctx: t.Context(), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out}, args)
		return code, strings.TrimSpace(out.String())
	}
	post := func() (int, string) {
		return command("send", "request", "--key", key, "--relay", other, "--intent", "x")
	}
	_, described := command("did", key)
	did := regexp.MustCompile(`did:key:\w+`).FindString(described)
	if code, out := post(); code != 0 {
		t.Fatalf("before the ban: exit %d, %s", code, out)
	}
	if code, out := command("admin", "ban", "--data", folder, did); code != 0 {
		t.Fatalf("exit %d, %s", code, out)
	}
	banned := time.Now()
	for {
		if code, out := post(); code != 0 {
			if !strings.Contains(out, "FORBIDDEN") {
				t.Errorf("after the ban: %s", out)
			}
			break
		}
		if time.Since(banned) > 15*time.Second {
			t.Fatal("the other node does not know the ban after 15 seconds")
		}
	}
	t.Logf("the other node refuses after %v", time.Since(banned))
	if code, out := command("admin", "unban", "--data", folder, did); code != 0 {
		t.Fatalf("exit %d, %s", code, out)
	}
}

// testNodeFigures checks what agora admin shows of a node.
func testNodeFigures(t *testing.T, folder string) {
	for _, c := range []struct {
		want string
		args []string
	}{
		{"standbys     0 in sync", []string{"status"}}, {"none was recorded", []string{"status"}},
		{"leader, ok", []string{"status"}}, {"REQUEST", []string{"status"}}, {"did:key:", []string{"top"}},
		{"write-ahead log", []string{"checkpoint"}}, {"recorded", []string{"backup", "--made"}},
		{"recorded at 20", []string{"status"}}, {`"standbysRequired":0`, []string{"status", "--json"}},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(cli.Environment{Ctx: t.Context(), Stdout: &stdout, Stderr: &stderr},
			append([]string{"admin"}, append(c.args, "--data", folder)...)); code != 0 || !strings.Contains(stdout.String(), c.want) {
			t.Errorf("agora admin %v: exit %d, %s%s, want %q", c.args, code, &stdout, &stderr, c.want)
		}
	}
}

// TestMigrate moves a relay from its data folder to PostgreSQL, and back into another folder.
func TestMigrate(t *testing.T) {
	folder, store := t.TempDir(), storeURL(t)
	data, back, key := filepath.Join(folder, "data"), filepath.Join(folder, "back"), filepath.Join(folder, "bob.key")
	command := func(args ...string) string {
		t.Helper()
		var stdout, stderr bytes.Buffer
		if code := run(cli.Environment{Ctx: t.Context(), Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr}, args); code != 0 {
			t.Fatalf("%v: exit %d: %s", args, code, &stderr)
		}
		return stdout.String()
	}
	single := startNode(t, "--data", data, "--jobs")
	command("keygen", key)
	for range 3 {
		command("send", "request", "--key", key, "--relay", single.url, "--intent", "x")
	}
	list := func(url string) string {
		status, body := get(t, url)
		events, _, _ := strings.Cut(body, `"hasMore"`) // the gateways take numbers when they start, so the end may differ
		if status != 200 || events == "" {
			t.Fatalf("GET %s: %d %s", url, status, body)
		}
		return events
	}
	const all = "/events?cursor=0&timeout=0"
	want := list(single.url + all)
	_, body := get(t, single.url+"/events?cursor=0&timeout=0&limit=1")
	cursor := regexp.MustCompile(`"cursor":"([^"]*)"`).FindStringSubmatch(body)[1]
	rest := "/events?timeout=0&cursor=" + cursor
	wantRest := list(single.url + rest)
	var stderr bytes.Buffer
	if code := run(cli.Environment{Ctx: t.Context(), Stdout: io.Discard, Stderr: &stderr},
		[]string{"migrate", "--from", data, "--to", store, "--accept-async"}); code == 0 || !strings.Contains(stderr.String(), "in use") {
		t.Errorf("while the relay runs: exit %d, %s", code, &stderr)
	}
	if single.stop() != 0 {
		t.Fatal(single.stderr)
	}
	if out := command("migrate", "--from", data, "--to", store, "--accept-async"); !strings.Contains(out, "moved 3 events") {
		t.Error(out)
	}
	node := startNode(t, "--data", data, "--store", store, "--accept-async", "--jobs")
	if got, gotRest := list(node.url+all), list(node.url+rest); got != want || gotRest != wantRest {
		t.Errorf("the node shows %s, the relay showed %s", got, want)
	}
	stderr.Reset()
	if code := run(cli.Environment{Ctx: t.Context(), Stdout: io.Discard, Stderr: &stderr},
		[]string{"migrate", "--from", store, "--to", back, "--accept-async"}); code == 0 || !strings.Contains(stderr.String(), "stop them first") {
		t.Errorf("while a node runs: exit %d, %s", code, &stderr)
	}
	if node.stop() != 0 {
		t.Fatal(node.stderr)
	}
	command("migrate", "--from", store, "--to", back, "--accept-async")
	for _, name := range datafolder.Keys {
		content, err := os.ReadFile(filepath.Join(data, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(back, name), content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	again := startNode(t, "--data", back, "--jobs")
	if got, gotRest := list(again.url+all), list(again.url+rest); got != want || gotRest != wantRest {
		t.Errorf("after the way back the relay shows %s, it showed %s", got, want)
	}
	again.stop()
	if out := command("check", "--data", back); !strings.Contains(out, "clean") {
		t.Errorf("agora check: %s", out)
	}
}

// waitFor waits until a GET is answered with this status.
func waitFor(t *testing.T, url string, status int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		got, body := get(t, url)
		if got == status {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("GET %s: %d %s, want %d", url, got, body, status)
		}
	}
}

// TestAsyncIsRefused checks that a node does not promise what the database cannot keep.
func TestAsyncIsRefused(t *testing.T) {
	var stderr bytes.Buffer
	code := run(cli.Environment{Ctx: t.Context(), Stdout: io.Discard, Stderr: &stderr},
		[]string{"serve", "--addr", "127.0.0.1:0", "--store", storeURL(t), "--data", filepath.Join(t.TempDir(), "data")})
	if code == 0 || !strings.Contains(stderr.String(), "synchronous_standby_names") {
		t.Errorf("exit %d, %s", code, &stderr)
	}
}

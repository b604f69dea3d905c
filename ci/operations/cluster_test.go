//go:build operations

package operations

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeNode is a node of a relay, as a load balancer sees it.
type fakeNode struct {
	name    string
	leads   bool
	mu      sync.Mutex
	posts   int           // POSTs that it has got, without those to a gateway that it does not serve
	release chan struct{} // a stream gets its second part when this is closed
}

// ServeHTTP answers as a node does. At /…/broken it closes the connection after it has got the request.
func (n *fakeNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	gateway := !strings.HasPrefix(r.URL.Path, "/events") && r.URL.Path != "/health"
	switch {
	case r.URL.Path == "/health":
		role := map[bool]string{true: "leader", false: "follower"}[n.leads]
		fmt.Fprintf(w, `{"ok":true,"node":{"state":"ok","role":%q}}`, role)
		return
	case gateway && !n.leads:
		w.Header().Set("Retry-After", "2")
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case r.Method == http.MethodPost:
		body, _ := io.ReadAll(r.Body) // what it has read is compared by the client
		n.mu.Lock()
		n.posts++
		n.mu.Unlock()
		if strings.HasSuffix(r.URL.Path, "/broken") {
			panic(http.ErrAbortHandler)
		}
		if strings.HasSuffix(r.URL.Path, "/unknown") {
			w.WriteHeader(http.StatusServiceUnavailable) // it may have been stored
			return
		}
		fmt.Fprintf(w, "%s %s", n.name, body)
	case strings.HasSuffix(r.URL.Path, "/stream"):
		fmt.Fprint(w, "one\n")
		_ = http.NewResponseController(w).Flush()
		<-n.release
		fmt.Fprint(w, "two\n")
	}
}

// TestClusterBalancers runs the load balancers of docs/examples before three nodes, of which the last one leads. A POST to
// a gateway must reach the leader, once, also if the leader closes the connection or does not know whether it has
// stored something. Streams must pass at once. A post to the relay succeeds if one node is down.
func TestClusterBalancers(t *testing.T) {
	for name, file := range map[string]string{"haproxy": "haproxy.cfg", "nginx": "nginx-nodes.conf"} {
		t.Run(name, func(t *testing.T) {
			config, err := os.ReadFile("../../docs/examples/" + file)
			if err != nil {
				t.Fatal(err)
			}
			testBalancer(t, name, string(config))
		})
	}
}

func testBalancer(t *testing.T, name, config string) {
	cert, key := selfSigned(t)
	folder, front := t.TempDir(), "127.0.0.1:"+freePort(t)
	var nodes [3]*fakeNode
	replace := []string{":443", front, " 443", " " + front}
	for i := range nodes {
		nodes[i] = &fakeNode{name: fmt.Sprintf("n%d", i+1), leads: i == 2, release: make(chan struct{})}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: nodes[i], ReadHeaderTimeout: time.Minute}
		go func() { _ = server.Serve(l) }() // ends with the test
		t.Cleanup(func() { _ = server.Close() })
		replace = append(replace, fmt.Sprintf("10.0.0.1%d:8789", i+1), l.Addr().String())
	}
	var balancer *program
	file := filepath.Join(folder, "config")
	switch name {
	case "haproxy":
		pem := filepath.Join(folder, "relay.pem")
		var both []byte
		for _, part := range []string{cert, key} {
			text, err := os.ReadFile(part)
			if err != nil {
				t.Fatal(err)
			}
			both = append(both, text...)
		}
		write(t, pem, string(both))
		write(t, file, strings.NewReplacer(append(replace, "/etc/haproxy/relay.pem", pem)...).Replace(config))
		balancer = start(t, nil, "haproxy", "-db", "-f", file)
	case "nginx":
		// The location of the checks makes the address of a node from its number.
		byNumber := "map $uri $leads { ~1$ " + replace[5] + "; ~2$ " + replace[7] + "; }\n"
		config = strings.ReplaceAll(config, "10.0.0.1$1:8789", "$leads")
		config = strings.NewReplacer(append(replace, "/etc/nginx/relay.pem", cert, "/etc/nginx/relay.key", key)...).Replace(config)
		write(t, file, nginxConfig(folder, byNumber+config))
		balancer = start(t, nil, "nginx", "-c", file, "-e", "stderr")
	}
	client := clientFor(t, front, cert)
	client.Timeout = 30 * time.Second
	const url = "https://relay.example.org"
	post := func(path, body string) (int, string) {
		response, err := client.Post(url+path, "application/json", strings.NewReader(body))
		if err != nil {
			return 0, err.Error()
		}
		defer response.Body.Close()
		answer, _ := io.ReadAll(response.Body) // a connection that ends has no answer
		return response.StatusCode, string(answer)
	}
	// A load balancer takes a while to find the leader. Until then, it may ask any node.
	for found, deadline := 0, time.Now().Add(time.Minute); found < 2*len(nodes); time.Sleep(20 * time.Millisecond) {
		if status, answer := post("/hub/messages", "x"); status == 200 && answer == "n3 x" {
			found++
		} else {
			found = 0
		}
		if time.Now().After(deadline) {
			t.Fatalf("no request reaches the leader: %s", balancer.text())
		}
	}
	count := func() (posts int) {
		for _, n := range nodes {
			n.mu.Lock()
			posts += n.posts
			n.mu.Unlock()
		}
		return posts
	}
	for _, path := range []string{"/hub/hire", "/jobs/hire", "/channel/mcp", "/a2a/agent/"} {
		before := count()
		if status, answer := post(path, "pay"); status != 200 || answer != "n3 pay" || count() != before+1 {
			t.Errorf("POST %s: %d %q, and the nodes got it %d times", path, status, answer, count()-before)
		}
		for _, bad := range []string{"/broken", "/unknown"} {
			before := count()
			if status, answer := post(strings.TrimSuffix(path, "/")+bad, "pay"); status == 200 || count() != before+1 {
				t.Errorf("POST %s%s: %d %q, and the nodes got it %d times", path, bad, status, answer, count()-before)
			}
		}
	}
	for _, path := range []string{"/events/stream", "/a2a/agent/stream", "/channel/stream"} {
		response, err := client.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		part := make([]byte, 4)
		if _, err := io.ReadFull(response.Body, part); err != nil || string(part) != "one\n" {
			t.Errorf("%s: %q %v", path, part, err)
		}
		response.Body.Close()
	}
	for _, n := range nodes {
		close(n.release)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

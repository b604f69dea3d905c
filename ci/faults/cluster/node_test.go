//go:build cluster && linux

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// link carries the connections of one node to one server. It can be cut.
type link struct {
	listener net.Listener
	to       string
	mu       sync.Mutex
	conns    map[net.Conn]struct{}
	cut      bool
}

func newLink(t *testing.T, to int) *link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	l := &link{listener: listener, to: fmt.Sprintf("127.0.0.1:%d", to), conns: map[net.Conn]struct{}{}}
	t.Cleanup(func() { l.set(true); _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go l.carry(conn)
		}
	}()
	return l
}

func (l *link) port() int { return l.listener.Addr().(*net.TCPAddr).Port }

// add remembers a connection, so that a cut ends it.
func (l *link) add(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return false
	}
	l.conns[conn] = struct{}{}
	return true
}

func (l *link) carry(from net.Conn) {
	defer from.Close()
	if !l.add(from) {
		return
	}
	to, err := net.Dial("tcp", l.to)
	if err != nil {
		return
	}
	defer to.Close()
	if !l.add(to) {
		return
	}
	go func() { _, _ = io.Copy(to, from); _ = to.Close() }() // the ends of the connections end the copies
	_, _ = io.Copy(from, to)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, from)
	delete(l.conns, to)
}

// set cuts the link, or repairs it. A cut ends all connections with a reset.
func (l *link) set(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	if cut {
		for conn := range l.conns {
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
		clear(l.conns)
	}
}

// node is agora serve.
type node struct {
	t       *testing.T
	name    string
	data    string
	args    []string // arguments that not all nodes have
	port    int
	links   [3]*link // to the servers
	store   string   // URL of the database; empty: the node has one of its own
	process *exec.Cmd
}

// agora is the path of the program.
var agora = sync.OnceValues(func() (string, error) {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("agora-cluster-program-%d", os.Getpid()))
	out, err := exec.Command("go", "build", "-o", path, "github.com/agora-relay/agora/cmd/agora").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return path, err
})

// newNodes makes three nodes that reach the database by their links. They do not run yet.
func newNodes(t *testing.T, d *database, public string) (nodes [3]*node) {
	t.Helper()
	program, err := agora()
	must(t, err)
	t.Cleanup(func() { _ = os.Remove(program) })
	folder := t.TempDir()
	secret := filepath.Join(folder, "secret")
	if out, err := exec.Command(program, "key", "secret", secret).CombinedOutput(); err != nil {
		t.Fatalf("key secret: %v %s", err, out)
	}
	for i := range nodes {
		n := &node{t: t, name: fmt.Sprintf("n%d", i+1), port: freePort(t),
			args: []string{"--key-secret", secret, "--hub", "--public-url", public}}
		n.data = filepath.Join(folder, n.name)
		var hosts []string
		for k, s := range d.servers {
			n.links[k] = newLink(t, s.port)
			hosts = append(hosts, fmt.Sprintf("127.0.0.1:%d", n.links[k].port()))
		}
		n.store = "postgres://agora@" + strings.Join(hosts, ",") + "/postgres?target_session_attrs=read-write&connect_timeout=2"
		nodes[i] = n
		t.Cleanup(n.kill)
	}
	return nodes
}

func (n *node) url() string { return fmt.Sprintf("http://127.0.0.1:%d", n.port) }

// start starts the node and waits until it listens.
func (n *node) start() {
	n.t.Helper()
	n.launch()
	waitUntil(n.t, n.name+" starts", func() bool {
		if n.process.ProcessState != nil {
			n.launch()
		}
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", n.port))
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
}

func (n *node) launch() {
	n.t.Helper()
	program, err := agora()
	must(n.t, err)
	log, err := os.OpenFile(n.data+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(n.t, err)
	defer log.Close()
	args := []string{"serve", "--addr", fmt.Sprintf("127.0.0.1:%d", n.port), "--data", n.data,
		"--page=false", "--pending-timeout", "10m",
		// All requests come from one address.
		"--post-rate-ip", "0", "--read-rate-ip", "0", "--post-rate-did", "0", "--broadcast-rate-ip", "0",
		"--connections-per-ip", "0", "--connection-rate-ip", "0", "--requests-per-ip", "0", "--polls-per-ip", "0"}
	n.process = exec.Command(program, append(args, n.args...)...)
	n.process.Env = append(os.Environ(), "AGORA_STORE="+n.store)
	n.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	n.process.Stdout, n.process.Stderr = log, log
	must(n.t, n.process.Start())
}

// kill kills the node with SIGKILL.
func (n *node) kill() {
	if n.process != nil {
		_ = n.process.Process.Kill() // it may have ended
		_ = n.process.Wait()         // says that it was killed
		n.process = nil
	}
}

// stop stops the node with SIGTERM and waits for its end.
func (n *node) stop() {
	n.t.Helper()
	must(n.t, n.process.Process.Signal(syscall.SIGTERM))
	if err := n.process.Wait(); err != nil {
		n.t.Errorf("%s ends with %v\n%s", n.name, err, n.logs())
	}
	n.process = nil
}

// standbys returns how many standbys are in sync, and for how many a commit waits, as agora admin status says.
func (n *node) standbys(t *testing.T) string {
	t.Helper()
	program, err := agora()
	must(t, err)
	out, err := exec.Command(program, "admin", "status", "--json", "--data", n.data).Output()
	must(t, err)
	var status struct {
		Node struct{ Standbys, StandbysRequired int }
	}
	must(t, json.Unmarshal(out, &status))
	return fmt.Sprintf("%d of %d", status.Node.Standbys, status.Node.StandbysRequired)
}

func (n *node) logs() string {
	text, _ := os.ReadFile(n.data + ".log") // a missing log is empty
	return fmt.Sprintf("--- %s\n%s\n", n.name, text[max(0, len(text)-3000):])
}

// balancer is a proxy that gives each request to the next node. If a node does not accept the connection, it asks the
// next one, as it does if the connection ends without an answer to a GET.
type balancer struct {
	listener net.Listener
	nodes    [3]*node
	next     atomic.Uint64
}

// RoundTrip implements http.RoundTripper.
func (b *balancer) RoundTrip(r *http.Request) (resp *http.Response, err error) {
	for range b.nodes {
		n := b.nodes[b.next.Add(1)%uint64(len(b.nodes))]
		r.URL.Scheme, r.URL.Host = "http", fmt.Sprintf("127.0.0.1:%d", n.port)
		resp, err = http.DefaultTransport.RoundTrip(r)
		if err == nil {
			return resp, nil
		}
		op, isOp := errors.AsType[*net.OpError](err)
		if r.Context().Err() != nil || r.Method != http.MethodGet && !(isOp && op.Op == "dial") {
			return nil, err // the client has left, or the node may have acted on it
		}
	}
	return nil, err
}

// listen returns the URL of the proxy, which serve serves until the test ends.
func (b *balancer) listen(t *testing.T) string {
	t.Helper()
	var err error
	b.listener, err = net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = b.listener.Close() })
	return "http://" + b.listener.Addr().String()
}

func (b *balancer) serve() {
	proxy := &httputil.ReverseProxy{Transport: b, FlushInterval: -1, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			target := *r.In.URL // as it is, even if its query is malformed
			r.Out.URL, r.Out.Host = &target, r.In.Host
		}}
	server := &http.Server{Handler: proxy, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(b.listener) }()
}

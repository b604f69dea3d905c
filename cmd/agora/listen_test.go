package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
)

// clientOver returns an HTTP client that connects with dial, whatever the URL. It uses TLS for https, and trusts every
// certificate.
func clientOver(t *testing.T, network, address string) *http.Client {
	t.Helper()
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, address)
		}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// statusOf sends a request and returns the status of the answer.
func statusOf(t *testing.T, client *http.Client, method, url string, headers ...string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	return response.StatusCode
}

// TestUnixSocket serves on a Unix socket. Its clients share the limits of one address, unless they are trusted proxies.
func TestUnixSocket(t *testing.T) {
	clearSettings(t)
	folder := t.TempDir()
	socket, data := filepath.Join(folder, "s"), filepath.Join(folder, "data")
	flags := []string{"--addr", "unix:" + socket, "--data", data, "--read-rate-ip", "0.01"}
	client := clientOver(t, "unix", socket)
	ask := func(path, forwarded string) int {
		return statusOf(t, client, "GET", "http://localhost"+path, "X-Forwarded-For", forwarded)
	}
	s := startServe(t, flags...)
	if s.relay != "unix:"+socket {
		t.Errorf("listening on %s", s.relay)
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	if a, b, c := ask("/health", "192.0.2.1"), ask("/agents", "192.0.2.1"), ask("/agents", "192.0.2.2"); a != 200 || b != 200 || c != 429 {
		t.Errorf("answered %d, %d, %d", a, b, c)
	}
	if status := statusOf(t, client, "POST", "http://localhost/seed"); status != 404 {
		t.Errorf("a client of a Unix socket may use /seed: %d", status)
	}
	if l, err := cli.ListenAddress("unix:" + socket).Listen("--addr"); err == nil || !strings.Contains(err.Error(), "choose another address with --addr") {
		t.Errorf("a socket in use: %v, %v", l, err)
	}
	client.CloseIdleConnections()
	s.stop()
	if _, err := os.Stat(socket); err == nil {
		t.Error("the socket is still there")
	}
	s = startServe(t, append(flags, "--trusted-proxy", "unix")...)
	for _, client := range []string{"192.0.2.1", "192.0.2.2"} {
		if a, b := ask("/agents", client), ask("/agents", client); a != 200 || b != 429 {
			t.Errorf("%s behind the proxy: answered %d, %d", client, a, b)
		}
	}
	client.CloseIdleConnections()
	s.stop()
}

// TestSystemdSockets starts the program with sockets as systemd passes them. It must use these and not those of its
// flags, and tell systemd when it is ready, that it is alive, when it reloads, and when it begins to stop.
func TestSystemdSockets(t *testing.T) {
	clearSettings(t)
	folder := t.TempDir()
	test, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(folder, "agora") // a test binary with this name is the program, see TestMain
	if err := os.Symlink(test, program); err != nil {
		t.Fatal(err)
	}
	var files []*os.File
	var addresses []string
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		file, err := l.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		files, addresses = append(files, file), append(addresses, l.Addr().String())
	}
	notified, err := net.ListenPacket("unixgram", filepath.Join(folder, "notify"))
	if err != nil {
		t.Fatal(err)
	}
	defer notified.Close()
	state := func() string {
		buf := make([]byte, 100)
		if err := notified.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		n, _, err := notified.ReadFrom(buf)
		return fmt.Sprint(string(buf[:n]), err)
	}
	cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, program, "serve", "--addr", "127.0.0.1:1",
		"--data", filepath.Join(folder, "data"))
	cmd.ExtraFiles = files
	cmd.Env = append(os.Environ(), "LISTEN_FDS=2", "LISTEN_FDNAMES=web:metrics", "WATCHDOG_USEC=3600000000", "NOTIFY_SOCKET="+notified.LocalAddr().String())
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var printed []string
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if printed = append(printed, lines.Text()); strings.HasPrefix(lines.Text(), "listening on ") {
			break
		}
	}
	if got := strings.Join(printed, " "); !strings.Contains(got, "metrics at http://"+addresses[1]+"/metrics listening on http://"+addresses[0]) {
		t.Errorf("printed %s", got)
	}
	if got := state(); got != "READY=1<nil>" {
		t.Error(got)
	}
	if got := state(); got != "WATCHDOG=1<nil>" {
		t.Error(got)
	}
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	wanted := "^RELOADING=1<nil>$"
	if runtime.GOOS == "linux" {
		wanted = `^RELOADING=1\nMONOTONIC_USEC=[0-9]{5,}<nil>$`
	}
	if got := state(); !regexp.MustCompile(wanted).MatchString(got) {
		t.Errorf("at the beginning of a reload: %q", got)
	}
	if got := state(); got != "READY=1<nil>" {
		t.Error(got)
	}
	for i, path := range []string{"/health", "/metrics"} {
		if status, _ := call(t, "GET", "http://"+addresses[i]+path); status != 200 {
			t.Errorf("%s: %d", path, status)
		}
	}
	// The relay says that it stops while a request is still in progress.
	slow, err := net.Dial("tcp", addresses[0])
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	answer := bufio.NewReader(slow)
	fmt.Fprintf(slow, "POST /events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
	if line, err := answer.ReadString('\n'); line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("%q %v", line, err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := state(); got != "STOPPING=1<nil>" {
		t.Error(got)
	}
	fmt.Fprint(slow, "{}")
	rest, err := io.ReadAll(answer)
	if err != nil || !strings.Contains(string(rest), "\r\nHTTP/1.1 ") {
		t.Errorf("the request was answered with %q, %v, after the relay had said that it stops", rest, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

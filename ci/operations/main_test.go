//go:build operations

package operations

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agora-relay/agora/internal/markdown"
)

// Programs under test, built once for all tests.
var (
	binFolder string // has the program agora
	authority string // the ACME server of ci/acme
)

func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (code int, err error) {
	folder, err := os.MkdirTemp("", "agora-operations")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	binFolder, authority = folder, filepath.Join(folder, "authority")
	for _, args := range [][]string{
		{"build", "-o", filepath.Join(folder, "agora"), "../../cmd/agora"},
		{"build", "-C", "../acme", "-o", authority, "."},
	} {
		if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
			return 0, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return m.Run(), nil
}

// section returns the section of docs/OPERATING.md with this heading.
func section(t *testing.T, heading string) markdown.Section {
	t.Helper()
	s, found := document(t).Section(heading)
	if !found {
		t.Fatalf("docs/OPERATING.md has no section %q", heading)
	}
	return s
}

// document returns docs/OPERATING.md.
func document(t *testing.T) *markdown.Page {
	t.Helper()
	text, err := os.ReadFile("../../docs/OPERATING.md")
	if err != nil {
		t.Fatal(err)
	}
	page, err := markdown.Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// block returns the only code block of a section that has this language.
func block(t *testing.T, heading, language string) string {
	t.Helper()
	all := section(t, heading).Code(language)
	if len(all) != 1 {
		t.Fatalf("%q has %d blocks of %s, want one", heading, len(all), language)
	}
	return all[0]
}

// freePort returns a TCP port of 127.0.0.1 on which nobody listens.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// program is a program that runs beside a test.
type program struct {
	cmd   *exec.Cmd
	lines chan string // of its standard output
	ended chan struct{}
	err   error // of cmd.Wait, after ended is closed

	mu  sync.Mutex
	log bytes.Buffer // standard output and standard error
}

func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *program) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// start starts a program, with these variables added to the environment. It is stopped when the test ends.
func start(t *testing.T, variables []string, name string, args ...string) *program {
	t.Helper()
	p := &program{cmd: exec.Command(name, args...), lines: make(chan string, 1000), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), variables...)
	p.cmd.Stderr = p
	stdin, err := p.cmd.StdinPipe() // stays open until the program has ended; the authority runs that long
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("%v; ci/install installs the programs that these tests need", err)
	}
	go func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			fmt.Fprintln(p, lines.Text())
			select {
			case p.lines <- lines.Text():
			default: // nobody waits for so many lines
			}
		}
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		p.stop(t)
		stdin.Close()
		if t.Failed() {
			t.Logf("%s said:\n%s", filepath.Base(name), p.text())
		}
	})
	return p
}

// stop ends the program and waits until it has ended.
func (p *program) stop(t *testing.T) {
	t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // the error says only that it has ended already
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		t.Errorf("%s does not end", p.cmd.Path)
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// await returns the rest of the next line that begins with before.
func (p *program) await(t *testing.T, before string) string {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case line := <-p.lines:
			if value, found := strings.CutPrefix(line, before); found {
				return strings.TrimSpace(value)
			}
		case <-p.ended:
			t.Fatalf("%s has ended: %v\n%s", p.cmd.Path, p.err, p.text())
		case <-deadline:
			t.Fatalf("%s does not print %q:\n%s", p.cmd.Path, before, p.text())
		}
	}
}

// agora starts the program agora.
func agora(t *testing.T, variables []string, args ...string) *program {
	t.Helper()
	return start(t, variables, filepath.Join(binFolder, "agora"), args...)
}

// acmeServer is a certificate authority that runs beside a test. It believes that all names lead to 127.0.0.1.
type acmeServer struct {
	directory, ca string // the URL of the ACME directory, and the root of its certificate
	roots         string // the root of the certificates that it issues
	tlsPort       string // where it reaches the relay
	httpPort      string
}

func startAuthority(t *testing.T, flags ...string) acmeServer {
	t.Helper()
	a := acmeServer{tlsPort: freePort(t), httpPort: freePort(t)}
	p := start(t, nil, authority, append([]string{"-out", t.TempDir(), "-tls-port", a.tlsPort, "-http-port", a.httpPort}, flags...)...)
	a.directory, a.ca, a.roots = p.await(t, "directory "), p.await(t, "ca "), p.await(t, "roots ")
	return a
}

// variables are the settings of a relay that uses the authority.
func (a acmeServer) variables() []string {
	return []string{"AGORA_ADDR=127.0.0.1:" + a.tlsPort, "AGORA_HTTP_ADDR=127.0.0.1:" + a.httpPort,
		"AGORA_ACME_DIRECTORY=" + a.directory, "AGORA_ACME_ROOTS=" + a.ca}
}

// clientFor returns an HTTP client that connects to address, whatever the URL, and trusts only these roots.
func clientFor(t *testing.T, address, roots string) *http.Client {
	t.Helper()
	text, err := os.ReadFile(roots)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		t.Fatalf("%s has no certificate", roots)
	}
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: pool},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, address)
		}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// get sends a GET and returns the answer and its body. It repeats the request for up to 20 seconds, until there is an
// answer.
func get(t *testing.T, client *http.Client, url string, headers ...string) (*http.Response, string) {
	t.Helper()
	var failed error
	for began := time.Now(); time.Since(began) < 20*time.Second; time.Sleep(100 * time.Millisecond) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(headers); i += 2 {
			request.Header.Set(headers[i], headers[i+1])
		}
		response, err := client.Do(request)
		if err != nil {
			failed = err
			continue
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		return response, string(body)
	}
	t.Fatalf("%s: %v", url, failed)
	return nil, ""
}

//go:build operations

package operations

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// selfSigned writes a certificate for localhost and its key, and returns the names of the files.
func selfSigned(t *testing.T) (cert, key string) {
	t.Helper()
	cert, key = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	out, err := exec.Command("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30",
		"-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,DNS:relay.example.org", "-keyout", key, "-out", cert).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return cert, key
}

// checkProxied checks a relay behind a proxy: requests, the addresses of clients, and a poll that waits longer than a
// proxy waits by default would make the test slow, so it waits for three seconds only.
func checkProxied(t *testing.T, client *http.Client, relay *program) {
	t.Helper()
	const url = "https://relay.example.org"
	if response, body := get(t, client, url+"/health"); response.StatusCode != 200 {
		t.Fatalf("%s %s", response.Status, body)
	}
	began := time.Now()
	if response, body := get(t, client, url+"/events?cursor=0&timeout=3&type=RESULT"); response.StatusCode != 200 || time.Since(began) < 3*time.Second {
		t.Errorf("a poll: %s after %v: %s", response.Status, time.Since(began), body)
	}
	// The relay allows few reads. A client that invents addresses has no more than others.
	refused := false
	for i := range 40 {
		response, _ := get(t, client, url+"/agents", "X-Forwarded-For", fmt.Sprintf("192.0.2.%d", i))
		refused = refused || response.StatusCode == 429
	}
	if !refused {
		t.Error("a client gets around the limits with invented addresses")
	}
	if log := relay.text(); !strings.Contains(log, `"addr":"127.0.0.1"`) || strings.Contains(log, `"addr":"192.0.2.`) {
		t.Errorf("the relay does not see the address of the client: %s", log)
	}
}

// proxiedRelay starts a relay as the section about proxies says, and returns it and its port.
func proxiedRelay(t *testing.T) (relay *program, port string) {
	t.Helper()
	port = freePort(t)
	line, _, _ := strings.Cut(section(t, "Behind a proxy").Code("sh")[0], "\n")
	args := append(strings.Fields(line)[1:], "--addr", "127.0.0.1:"+port, "--data", filepath.Join(t.TempDir(), "data"),
		"--access-log", "--read-rate-ip", "10")
	relay = agora(t, nil, args...)
	relay.await(t, "listening on ")
	return relay, port
}

// nginxConfig returns a configuration with these servers. nginx then keeps its files in a folder.
func nginxConfig(folder, servers string) string {
	return fmt.Sprintf("daemon off; pid %[1]s/pid; error_log stderr; user root;\nevents {}\nhttp {\naccess_log off;\n"+
		"client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;\n%[2]s}\n", folder, servers)
}

// TestNginx uses the configuration of nginx in the page.
func TestNginx(t *testing.T) {
	relay, port := proxiedRelay(t)
	cert, key := selfSigned(t)
	front := freePort(t)
	server := block(t, "Behind a proxy", "nginx")
	server = strings.NewReplacer("listen 443", "listen 127.0.0.1:"+front, "/etc/ssl/relay.pem", cert, "/etc/ssl/relay.key", key,
		"127.0.0.1:8789", "127.0.0.1:"+port).Replace(server)
	folder := t.TempDir()
	file := filepath.Join(folder, "nginx.conf")
	write(t, file, nginxConfig(folder, server))
	start(t, nil, "nginx", "-c", file, "-e", "stderr")
	checkProxied(t, clientFor(t, "127.0.0.1:"+front, cert), relay)
}

// TestCaddy uses the configuration of Caddy in the page. Caddy gets its certificate from the authority.
func TestCaddy(t *testing.T) {
	relay, port := proxiedRelay(t)
	a := startAuthority(t)
	folder := t.TempDir()
	config := fmt.Sprintf("{\nadmin off\nhttp_port %s\nhttps_port %s\nacme_ca %s\nacme_ca_root %s\nstorage file_system %s\n}\n%s",
		a.httpPort, a.tlsPort, a.directory, a.ca, folder, strings.ReplaceAll(block(t, "Behind a proxy", "caddyfile"), "127.0.0.1:8789", "127.0.0.1:"+port))
	file := filepath.Join(folder, "Caddyfile")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, []string{"HOME=" + folder}, "caddy", "run", "--config", file, "--adapter", "caddyfile")
	checkProxied(t, clientFor(t, "127.0.0.1:"+a.tlsPort, a.roots), relay)
}

// TestRenewal runs a relay whose certificates live for nine seconds. It must renew them without a break: a poll over an
// earlier connection continues. After a restart it uses the certificate in its folder.
func TestRenewal(t *testing.T) {
	a := startAuthority(t, "-valid", "9")
	data := filepath.Join(t.TempDir(), "data")
	args := []string{"serve", "--domain", "relay.example.org", "--data", data}
	relay := agora(t, a.variables(), args...)
	relay.await(t, "listening on ")
	client := clientFor(t, "127.0.0.1:"+a.tlsPort, a.roots)
	const url = "https://relay.example.org"
	polled := make(chan string, 1)
	response, _ := get(t, client, url+"/health")
	first := response.TLS.PeerCertificates[0].SerialNumber
	if response.Proto != "HTTP/2.0" {
		t.Errorf("answered with %s", response.Proto)
	}
	go func() {
		answer, body := get(t, client, url+"/events?cursor=0&timeout=15")
		polled <- answer.Status + " " + body
	}()
	renewed := false
	for began := time.Now(); !renewed && time.Since(began) < 20*time.Second; time.Sleep(200 * time.Millisecond) {
		other := clientFor(t, "127.0.0.1:"+a.tlsPort, a.roots) // a new connection
		response, _ := get(t, other, url+"/health")
		renewed = response.TLS.PeerCertificates[0].SerialNumber.Cmp(first) != 0
		other.CloseIdleConnections()
	}
	if !renewed {
		t.Error("the certificate was not renewed")
	}
	if err := relay.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if answer := <-polled; !strings.HasPrefix(answer, "200 OK") || !strings.Contains(answer, `"events":[]`) {
		t.Errorf("the poll: %s", answer)
	}
	if !strings.Contains(relay.text(), `"msg":"reloaded"`) {
		t.Error("the relay was not reloaded")
	}
	relay.stop(t)
	if relay.err != nil {
		t.Errorf("the relay ended with %v", relay.err)
	}
	files, err := os.ReadDir(filepath.Join(data, "certificates"))
	if err != nil || len(files) < 2 {
		t.Errorf("certificates: %v, %v", files, err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v", f.Name(), info.Mode(), err)
		}
	}
	// The authority is not asked again.
	again := agora(t, append(a.variables(), "AGORA_ACME_DIRECTORY=https://127.0.0.1:1/"), args...)
	again.await(t, "listening on ")
	if response, body := get(t, clientFor(t, "127.0.0.1:"+a.tlsPort, a.roots), url+"/health"); response.StatusCode != 200 {
		t.Errorf("after a restart: %s %s", response.Status, body)
	}
}

// TestChallengeOverHTTP gets a certificate where only port 80 leads to the relay.
func TestChallengeOverHTTP(t *testing.T) {
	a := startAuthority(t)
	other := freePort(t) // where the authority does not look for the relay
	relay := agora(t, append(a.variables(), "AGORA_ADDR=127.0.0.1:"+other), "serve", "--domain", "relay.example.org", "--domain", "www.example.org",
		"--data", filepath.Join(t.TempDir(), "data"))
	relay.await(t, "listening on ")
	for _, host := range []string{"relay.example.org", "www.example.org"} {
		response, body := get(t, clientFor(t, "127.0.0.1:"+other, a.roots), "https://"+host+"/health")
		if response.StatusCode != 200 || response.TLS.PeerCertificates[0].VerifyHostname(host) != nil {
			t.Errorf("%s: %s %s", host, response.Status, body)
		}
	}
	response, _ := get(t, clientFor(t, "127.0.0.1:"+a.httpPort, a.roots), "http://relay.example.org/agents?limit=1")
	if want := "https://relay.example.org/agents?limit=1"; response.StatusCode != 308 || response.Header.Get("Location") != want {
		t.Errorf("%s to %s, want %s", response.Status, response.Header.Get("Location"), want)
	}
}

// TestConformanceOverTLS runs the conformance kit against a relay that ends TLS itself.
func TestConformanceOverTLS(t *testing.T) {
	t.Parallel() // it mostly waits
	cert, key := selfSigned(t)
	port := freePort(t)
	url := "https://localhost:" + port
	relay := agora(t, nil, "serve", "--addr", "127.0.0.1:"+port, "--public-url", url, "--tls-cert", cert, "--tls-key", key,
		"--data", filepath.Join(t.TempDir(), "data"), "--post-rate-ip", "0", "--read-rate-ip", "0",
		"--broadcast-rate-ip", "0")
	relay.await(t, "listening on ")
	cmd := exec.CommandContext(t.Context(), filepath.Join(binFolder, "agora"), "conformance", url, "--level", "core")
	cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+cert)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

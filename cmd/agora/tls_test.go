package main

import (
	"crypto/tls"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/serve/certtest"
)

// servedName returns the common name of the certificate that a new connection gets.
func servedName(t *testing.T, address string) string {
	t.Helper()
	c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0].Subject.CommonName
}

// TestServeTLS serves HTTPS with a certificate in files, and plain HTTP that leads there.
func TestServeTLS(t *testing.T) {
	clearSettings(t)
	folder := t.TempDir()
	cert, key := filepath.Join(folder, "c.pem"), filepath.Join(folder, "k.pem")
	certtest.Write(t, cert, key, "one.example", 90*cli.Day)
	const origin = "https://one.example"
	s := startServe(t, "--data", filepath.Join(folder, "data"), "--tls-cert", cert, "--tls-key", key, "--http-addr", "127.0.0.1:0",
		"--public-url", origin, "--metrics-addr", "127.0.0.1:0", "--hub", "--hub-addr", "127.0.0.1:0")
	address, ok := strings.CutPrefix(s.relay, "https://")
	if !ok || s.printed["page at"] != origin+"/" || s.hub == "" || !strings.HasPrefix(s.hub, "https://") {
		t.Fatalf("listening on %s, printed %v", s.relay, s.printed)
	}
	client := clientOver(t, "tcp", address)
	response, err := client.Get("https://" + address + "/.well-known/agora.json")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != 200 || response.Proto != "HTTP/2.0" {
		t.Errorf("%s %s", response.Status, response.Proto)
	}
	if status := statusOf(t, clientOver(t, "tcp", strings.TrimPrefix(s.hub, "https://")), "GET", s.hub+"/health"); status != 200 {
		t.Errorf("the hub's own listener: %d", status)
	}
	if _, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 is accepted")
	}
	metrics := clientOver(t, "tcp", strings.TrimSuffix(strings.TrimPrefix(s.printed["metrics at"], "http://"), "/metrics"))
	for path, want := range map[string]int{"/metrics": 200, "/readyz": 200, "/livez": 200, "/debug/pprof/": 404, "/events": 404} {
		if status := statusOf(t, metrics, "GET", "http://localhost"+path); status != want {
			t.Errorf("%s on the address of the metrics: %d", path, status)
		}
	}
	if _, text := call(t, "GET", s.printed["metrics at"]); !strings.Contains(text, `agora_tls_certificate_expiry_timestamp_seconds{host=""}`) ||
		!strings.Contains(text, `agora_threads{state="ACTIVE"} 0`) {
		t.Errorf("metrics are missing in %s", text)
	}
	plain := clientOver(t, "tcp", strings.TrimPrefix(s.printed["redirecting"], "http://"))
	for path, want := range map[string]string{"/": "/", "/events?cursor=0&x=%2F": "/events?cursor=0&x=%2F", "//evil.example/": "//evil.example/",
		"/a%0d%0ab": "/a%0d%0ab"} {
		for _, method := range []string{"GET", "HEAD"} {
			request, err := http.NewRequestWithContext(t.Context(), method, s.printed["redirecting"]+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := plain.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			if response.StatusCode != 308 || response.Header.Get("Location") != origin+want {
				t.Errorf("%s %s: %d to %s, want %s", method, path, response.StatusCode, response.Header.Get("Location"), origin+want)
			}
		}
	}
	for _, method := range []string{"POST", "PUT", "DELETE"} {
		if status, text := call(t, method, s.printed["redirecting"]+"/events", "{}"); status != 403 || !strings.Contains(text, origin+"/events") {
			t.Errorf("%s: %d %s", method, status, text)
		}
	}
	client.CloseIdleConnections()
	metrics.CloseIdleConnections()
	plain.CloseIdleConnections()
}

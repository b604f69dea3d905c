package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/datafolder"
	"github.com/agora-relay/agora/cmd/agora/internal/serve/certtest"
	"golang.org/x/crypto/acme"
)

// TestCertificateFiles changes the files of a certificate. A new certificate is used within seconds. Files that do not
// belong together, or that cannot be read, change nothing until they are right.
func TestCertificateFiles(t *testing.T) {
	folder := t.TempDir()
	cert, key, other := filepath.Join(folder, "c.pem"), filepath.Join(folder, "k.pem"), filepath.Join(folder, "o.pem")
	certtest.Write(t, cert, key, "one.example", 90*cli.Day)
	synctest.Test(t, func(t *testing.T) {
		var log lockedText
		c, err := tlsFlags{TLSCert: cert, TLSKey: key}.openCertificates(folder, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.run(ctx)
		}()
		want := func(step, name string, logged string) {
			t.Helper()
			time.Sleep(checkInterval + time.Second)
			synctest.Wait()
			certificate, err := c.get(nil)
			if err != nil || certificate.Leaf.Subject.CommonName != name || !strings.Contains(log.String(), logged) {
				t.Errorf("%s: %v, %v\n%s", step, certificate.Leaf.Subject, err, log.String())
			}
			log.Reset()
		}
		want("at first", "one.example", "a certificate is in use")
		certtest.Write(t, cert, key, "two.example", 90*cli.Day)
		want("a new one", "two.example", "a new certificate is in use")
		certtest.Write(t, cert, other, "three.example", 90*cli.Day)
		want("without its key", "two.example", "the changed certificate cannot be used")
		if err := os.Rename(other, key); err != nil {
			t.Fatal(err)
		}
		want("with its key", "three.example", "a new certificate is in use")
		if err := os.Remove(cert); err != nil {
			t.Fatal(err)
		}
		want("missing", "three.example", "")
		certtest.Write(t, cert, key, "four.example", 2*cli.Day)
		want("about to expire", "four.example", "the certificate expires soon")
		certtest.Write(t, cert, key, "five.example", -time.Minute)
		want("expired", "five.example", "the certificate has expired")
		if err := os.WriteFile(cert, []byte("garbage\x00"), 0o600); err != nil {
			t.Fatal(err)
		}
		want("garbage", "five.example", "cannot be used")
		stop()
		<-ended
	})
	if _, err := (tlsFlags{TLSCert: cert, TLSKey: key}).openCertificates(folder, slog.Default()); err == nil || !strings.Contains(err.Error(), cert) {
		t.Errorf("a start with garbage: %v", err)
	}
}

// lockedText is a log that is read while it is written.
type lockedText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lockedText) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Reset()
}

// unreachable is a network in which no server can be reached.
type unreachable struct{}

func (unreachable) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("no route to host")
}

// TestShortLivedCertificates has a certificate that lives for six days, while the authority cannot be reached. The log
// has one line about it until it should have been renewed, then a warning each hour, and one line about the next one.
func TestShortLivedCertificates(t *testing.T) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		store := func() {
			t.Helper()
			now := time.Now()
			cert, key := certtest.New(t, "relay.example", now, now.Add(6*cli.Day))
			file := filepath.Join(folder, datafolder.Certificates, "relay.example")
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, append(key, cert...), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		store()
		var log lockedText
		c, err := tlsFlags{Domain: []domainText{"relay.example"}}.openCertificates(folder, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		c.(*acmeCertificates).manager.Client.HTTPClient.Transport = unreachable{}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.run(ctx)
		}()
		read := 0
		for _, step := range []struct {
			name                   string
			lasts                  time.Duration
			inUse, renewed, warned int
		}{
			{"at first", 4 * cli.Day, 1, 0, 0},
			{"due for renewal", 12*time.Hour + time.Minute, 0, 0, 0},
			{"not renewed", 10 * time.Hour, 0, 0, 10},
			{"renewed", 2 * cli.Day, 0, 1, 0},
		} {
			if step.renewed > 0 {
				store() // autocert finds it there when it tries again, within an hour
				time.Sleep(time.Hour)
				synctest.Wait()
			}
			time.Sleep(step.lasts)
			synctest.Wait()
			lines := log.String()[read:]
			read += len(lines)
			for text, want := range map[string]int{"a certificate is in use": step.inUse, "a new certificate": step.renewed,
				"expires soon": step.warned} {
				if text == "expires soon" && step.renewed > 0 {
					continue // there may be a last warning before autocert has found the new certificate
				}
				if got := strings.Count(lines, text); got != want {
					t.Errorf("%s: %d lines have %q, want %d:\n%s", step.name, got, text, want, lines)
				}
			}
		}
		stop()
		<-ended
	})
}

// TestACMEHandshakes checks that no handshake orders a certificate, or waits for one, whatever name and protocol it
// asks for.
func TestACMEHandshakes(t *testing.T) {
	orders := 0
	authority := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { orders++ }))
	defer authority.Close()
	c, err := tlsFlags{Domain: []domainText{"relay.example"}, ACMEDirectory: webURL(authority.URL)}.openCertificates(t.TempDir(), slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"relay.example", "RELAY.example", "relay.example.", "", "evil.example", "../../etc/passwd", "192.0.2.1",
		strings.Repeat("a.", 200) + "example", "\x00", "xn--relay"} {
		for _, protocols := range [][]string{nil, {"h2"}, {acme.ALPNProto}, {acme.ALPNProto, "h2"}} {
			began := time.Now()
			got, err := c.get(&tls.ClientHelloInfo{ServerName: name, SupportedProtos: protocols})
			if took := time.Since(began); err == nil || took > 20*time.Second { // the authority never gives one
				t.Errorf("%q %q: %v after %v", name, protocols, got, took)
			}
		}
	}
	if orders > 0 {
		t.Errorf("%d requests to the authority", orders)
	}
	for path, want := range map[string]bool{"/.well-known/acme-challenge/x": true, "/.well-known/acme": false, "/": false} {
		w := httptest.NewRecorder()
		if got := c.challenge(w, httptest.NewRequest("GET", path, nil)); got != want || got && w.Code < 400 {
			t.Errorf("%s is a challenge: %v, %d", path, got, w.Code)
		}
	}
}

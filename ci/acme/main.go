// Command acme runs an ACME server on loopback, so that tests can let a relay obtain certificates without a network. It
// is Pebble, the test server of Let's Encrypt, with a DNS server that has the same answer for all names.
//
//	go -C ci/acme run . -out acme-files -http-port 5080 -tls-port 5443
//
// When the server is ready, the command prints three lines:
//
//	directory https://127.0.0.1:PORT/dir
//	ca FILE
//	roots FILE
//
// The first line has the URL of the ACME directory. The file ca has the CA of this URL, which the relay must trust. The
// file roots has the CA of the certificates that the relay gets, which the relay's clients must trust. Both are PEM.
// Pebble's log goes to stderr. The command ends when stdin is closed, so that it does not outlive its test. It also
// ends at SIGINT and SIGTERM.
//
// The command is a separate module, so that Agora does not depend on Pebble.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/letsencrypt/challtestsrv"
	"github.com/letsencrypt/pebble/v2/acme"
	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"
)

var (
	out         = flag.String("out", "", "the `folder` for ca.pem and roots.pem; required")
	listen      = flag.String("listen", "127.0.0.1:0", "the `address` of the ACME directory")
	httpPort    = flag.Int("http-port", 0, "the `port` of 127.0.0.1 on which the relay answers HTTP-01")
	tlsPort     = flag.Int("tls-port", 0, "the `port` of 127.0.0.1 on which the relay answers TLS-ALPN-01")
	valid       = flag.Uint64("valid", 0, "how many `seconds` a certificate is valid; 0 means 90 days")
	nonceReject = flag.Int("nonce-reject", 0, "how many `percent` of good nonces the server refuses")
	failFirst   = flag.Int64("fail-first", 0, "how many orders the server refuses with status 503, before it takes one")
	logger      = log.New(os.Stderr, "", log.Ltime|log.Lmicroseconds)
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "acme:", err)
		os.Exit(1)
	}
}

// run serves until ctx is done.
func run(ctx context.Context) error {
	// Pebble lets a certificate end one second early. With -valid 1 it would end when it begins.
	if *out == "" || *valid == 1 || flag.NArg() > 0 {
		return errors.New("usage: acme -out FOLDER [FLAGS]; -valid must not be 1")
	}
	// Pebble reads these settings from the environment only.
	for name, value := range map[string]string{
		"PEBBLE_VA_NOSLEEP":      "1", // validate at once
		"PEBBLE_VA_ALWAYS_VALID": "0", // validate, whatever the environment of the caller says
		"PEBBLE_AUTHZREUSE":      "0", // validate again at a renewal; one time in 100 Pebble does not
		"PEBBLE_WFE_NONCEREJECT": strconv.Itoa(*nonceReject),
	} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	resolver, err := serveDNS()
	if err != nil {
		return err
	}
	proxyPort, err := serveProxy()
	if err != nil {
		return err
	}
	store := db.NewMemoryStore()
	// If a client asks for no profile, Pebble takes a random one. So there is only one.
	profiles := map[string]ca.Profile{"default": {Description: "the only profile", ValidityPeriod: *valid}}
	issuer := ca.New(logger, store, "", "ecdsa", 0, 1, profiles)
	validator := va.New(logger, proxyPort, *tlsPort, false, resolver, store)
	front := wfe.New(logger, store, validator, issuer, []string{"acme.invalid"}, false, false, 0, 0)

	root, certificate, err := newCertificate()
	if err != nil {
		return err
	}
	// The printed paths are absolute, because `go -C` starts this command in another folder than the caller's.
	folder, err := filepath.Abs(*out)
	if err != nil {
		return err
	}
	caFile, rootsFile := filepath.Join(folder, "ca.pem"), filepath.Join(folder, "roots.pem")
	if err := errors.Join(os.MkdirAll(folder, 0o755), os.WriteFile(caFile, root, 0o644),
		os.WriteFile(rootsFile, issuer.GetRootCert(0).PEM(), 0o644)); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:   adapt(front.Handler(), store),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}},
		ErrorLog:  logger,
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	fmt.Printf("directory https://%s%s\nca %s\nroots %s\n", listener.Addr(), wfe.DirectoryPath, caFile, rootsFile)
	if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// serveDNS starts a DNS server for which each name has the one address 127.0.0.1, and returns the server's address. It
// speaks TCP only, because Pebble does too.
func serveDNS() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	// challtestsrv opens only ports whose numbers it is told. Nobody can know in advance that a port will be free. So
	// its own servers are not started. New has also made it the handler for all servers of package dns, and the server
	// below uses that.
	names, err := challtestsrv.New(challtestsrv.Config{Log: logger, DNSAddrs: []string{listener.Addr().String()}})
	if err != nil {
		return "", err
	}
	names.SetDefaultDNSIPv4("127.0.0.1")
	names.SetDefaultDNSIPv6("")
	go func() { logger.Print((&dns.Server{Listener: listener}).ActivateAndServe()) }()
	return listener.Addr().String(), nil
}

// serveProxy starts a proxy in front of the relay's port for HTTP-01, and returns the proxy's port. The proxy removes
// the port from the header Host. A real CA uses port 80 and sends no port, but Pebble sends one. A relay may refuse
// that, because it compares the header with its own name.
func serveProxy() (port int, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	relay := &url.URL{Scheme: "http", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(*httpPort))}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(relay)
			r.Out.Host = (&url.URL{Host: r.In.Host}).Hostname()
		},
		Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true},
		ErrorLog:  logger,
	}
	go func() { logger.Print(http.Serve(listener, proxy)) }()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// adapt adds to Pebble what the tests need. It refuses the first orders, if -fail-first says so. It also holds back an
// answer while Pebble validates the challenge or signs the certificate. That takes some milliseconds, but a client that
// is told to ask again does so only after a second.
func adapt(pebble http.Handler, store *db.MemoryStore) http.Handler {
	var orders atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Pebble does not export this path.
		if r.URL.Path == "/order-plz" && orders.Add(1) <= *failFirst {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"type":"urn:ietf:params:acme:error:serverInternal","detail":"-fail-first"}`)
			return
		}
		pebble.ServeHTTP(w, r)
		// An answer as short as these is sent when the handler returns. If the relay hangs, the client need not.
		id, end := path.Base(r.URL.Path), time.Now().Add(2*time.Second)
		for processing(store, id) && time.Now().Before(end) {
			time.Sleep(5 * time.Millisecond)
		}
	})
}

// processing reports whether Pebble is at work on the challenge or the order with the id. Other ids are not found.
func processing(store *db.MemoryStore, id string) bool {
	if challenge := store.GetChallengeByID(id); challenge != nil {
		challenge.RLock()
		defer challenge.RUnlock()
		return challenge.Status == acme.StatusProcessing
	}
	if order := store.GetOrderByID(id); order != nil {
		status, err := order.GetStatus()
		return err == nil && status == acme.StatusProcessing
	}
	return false
}

// newCertificate makes a CA, and the certificate for the directory. It returns the CA's own certificate as PEM.
func newCertificate() (root []byte, certificate tls.Certificate, err error) {
	rootKey, err1 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	key, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err := errors.Join(err1, err2); err != nil {
		return nil, certificate, err
	}
	issuer := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA of the ACME directory"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(0, 0, 7),
		BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: issuer.NotBefore, NotAfter: issuer.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	rootDER, err1 := x509.CreateCertificate(rand.Reader, issuer, issuer, rootKey.Public(), rootKey)
	leafDER, err2 := x509.CreateCertificate(rand.Reader, leaf, issuer, key.Public(), rootKey)
	root = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: rootDER})
	return root, tls.Certificate{Certificate: [][]byte{leafDER}, PrivateKey: key}, errors.Join(err1, err2)
}

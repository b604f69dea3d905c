package serve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/datafolder"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// tlsFlags are the flags of serve for TLS.
type tlsFlags struct {
	Domain        []domainText    `placeholder:"HOST" help:"Serve HTTPS for this host name, with certificates from an ACME certificate authority. May be repeated. By using it you accept the terms of that authority."`
	ACMEEmail     string          `name:"acme-email" placeholder:"ADDRESS" help:"Address at which the certificate authority can reach you."`
	ACMEDirectory webURL          `name:"acme-directory" default:"https://acme-v02.api.letsencrypt.org/directory" placeholder:"URL" help:"The certificate authority's ACME directory (default: ${default})."`
	ACMERoots     string          `name:"acme-roots" placeholder:"FILE" help:"PEM file with the root certificates to trust when the relay connects to the ACME directory. Only an authority of your own needs it (default: the roots of this machine)."`
	HTTPAddr      optionalAddress `name:"http-addr" placeholder:"HOST:PORT|off" help:"With TLS: answer challenges of the certificate authority here, and redirect browsers to HTTPS (default: :80 with --domain, otherwise off)."`
	TLSCert       string          `name:"tls-cert" placeholder:"FILE" help:"Serve HTTPS with the certificate chain in this PEM file. It is read again when it changes."`
	TLSKey        string          `name:"tls-key" placeholder:"FILE" help:"The PEM file of the certificate's private key."`
}

// isOn reports whether the relay ends TLS itself.
func (f tlsFlags) isOn() bool { return len(f.Domain) > 0 || f.TLSCert != "" }

func (f tlsFlags) Validate() error {
	switch {
	case (f.TLSCert == "") != (f.TLSKey == ""):
		return errors.New("--tls-cert and --tls-key belong together; give both, or none")
	case f.TLSCert != "" && len(f.Domain) > 0:
		return errors.New("--domain gets certificates itself; give either --domain, or --tls-cert and --tls-key")
	case f.HTTPAddr.isOn() && !f.isOn():
		return errors.New("--http-addr redirects to HTTPS; give --domain, or --tls-cert and --tls-key, too")
	case f.ACMEEmail != "" && len(f.Domain) == 0:
		return errors.New("--acme-email has no effect without --domain; give both, or none")
	case f.ACMEEmail != "" && !strings.Contains(f.ACMEEmail, "@"):
		return errors.New("--acme-email: want an address such as admin@relay.example")
	}
	return nil
}

// domainText is a host name for which the relay gets a certificate.
type domainText string

var domainForm = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])$`)

func (d *domainText) UnmarshalText(text []byte) error {
	name := strings.ToLower(string(text))
	if !domainForm.MatchString(name) || len(name) > 253 {
		return fmt.Errorf("%q: want a host name such as relay.example.org, without scheme, port or wildcard", text)
	}
	*d = domainText(name)
	return nil
}

// webURL is an absolute URL with http or https.
type webURL string

func (u *webURL) UnmarshalText(text []byte) error {
	parsed, err := url.Parse(string(text))
	if err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Host == "" || parsed.User != nil {
		return errors.New("want a URL such as https://example.org/path, without a password")
	}
	*u = webURL(text)
	return nil
}

// certificates are the certificates of a relay with TLS.
type certificates interface {
	// get returns the certificate for a handshake. It does not wait.
	get(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// run keeps the certificates current until ctx ends.
	run(ctx context.Context)
	// reload reads the certificates again if they are in files.
	reload() error
	// expiry returns when the certificate of each host ends. It is in 1970 for a host that has none.
	expiry() map[string]time.Time
	// challenge answers a challenge of a certificate authority over HTTP, and reports whether r is one.
	challenge(w http.ResponseWriter, r *http.Request) bool
}

// openCertificates returns the certificates of these flags; nil: the relay has no TLS.
func (f tlsFlags) openCertificates(folder string, log *slog.Logger) (certificates, error) {
	switch {
	case f.TLSCert != "":
		files := &fileCertificates{certFile: f.TLSCert, keyFile: f.TLSKey, log: log}
		return files, files.reload()
	case len(f.Domain) > 0:
		return f.newACME(folder, log)
	}
	return nil, nil
}

// tlsConfig returns the configuration of TLS with these certificates.
func tlsConfig(c certificates) *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, GetCertificate: c.get}
	if _, isACME := c.(*acmeCertificates); isACME {
		config.NextProtos = append(config.NextProtos, acme.ALPNProto)
	}
	return config
}

// checkInterval is the time between two looks at the files of a certificate.
const checkInterval = 5 * time.Second

// expiryWarning is how long before its end a certificate should have been renewed. For one that lives less than 56 days
// it is a quarter of its lifetime.
const expiryWarning = 14 * 24 * time.Hour

// fileCertificates has one certificate, in two files.
type fileCertificates struct {
	certFile, keyFile string
	log               *slog.Logger
	current           atomic.Pointer[tls.Certificate]

	loading sync.Mutex     // guards seen; a handshake never waits for it
	seen    [2]os.FileInfo // the files at the last try to load them
}

func (f *fileCertificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return f.current.Load(), nil
}

func (f *fileCertificates) run(ctx context.Context) {
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !f.changed() {
			continue
		}
		if err := f.reload(); err != nil {
			f.log.Error("the changed certificate cannot be used; the one before stays in use", "err", err)
		}
	}
}

// changed reports whether a file has changed since the last reload. A file that is missing counts as unchanged: its
// replacement is about to come.
func (f *fileCertificates) changed() bool {
	f.loading.Lock()
	defer f.loading.Unlock()
	changed := false
	for i, name := range []string{f.certFile, f.keyFile} {
		info, err := os.Stat(name)
		if err != nil {
			return false
		}
		changed = changed || f.seen[i] == nil || !os.SameFile(info, f.seen[i]) || info.Size() != f.seen[i].Size() ||
			!info.ModTime().Equal(f.seen[i].ModTime())
	}
	return changed
}

// reload loads the files. If they cannot be used, the certificate stays as it is.
func (f *fileCertificates) reload() error {
	f.loading.Lock()
	defer f.loading.Unlock()
	for i, name := range []string{f.certFile, f.keyFile} {
		info, err := cli.RegularFile(name)
		if err != nil {
			return err
		}
		f.seen[i] = info
	}
	loaded, err := tls.LoadX509KeyPair(f.certFile, f.keyFile)
	if err != nil {
		return fmt.Errorf("the certificate %s with the key %s: %w", f.certFile, f.keyFile, err)
	}
	if f.seen[1].Mode().Perm()&0o007 != 0 {
		f.log.Warn("every user of this machine may access the private key; allow it only to the relay's user", "file", f.keyFile)
	}
	before := f.current.Swap(&loaded)
	if before == nil || !before.Leaf.Equal(loaded.Leaf) {
		noteCertificate(f.log, strings.Join(loaded.Leaf.DNSNames, " "), loaded.Leaf, before != nil)
	}
	return nil
}

func (f *fileCertificates) expiry() map[string]time.Time {
	return map[string]time.Time{"": f.current.Load().Leaf.NotAfter}
}

func (f *fileCertificates) challenge(http.ResponseWriter, *http.Request) bool { return false }

// noteCertificate logs that a certificate is in use, and warns if it ends soon.
func noteCertificate(log *slog.Logger, host string, leaf *x509.Certificate, renewed bool) {
	level, text := slog.LevelInfo, "a certificate is in use"
	switch {
	case time.Until(leaf.NotAfter) <= 0:
		level, text = slog.LevelError, "the certificate has expired; clients refuse it"
	case expiresSoon(leaf):
		level, text = slog.LevelWarn, "the certificate expires soon"
	case renewed:
		text = "a new certificate is in use"
	}
	log.Log(context.Background(), level, text, "host", host, "until", leaf.NotAfter.UTC(), "issuer", leaf.Issuer.CommonName)
}

// expiresSoon reports whether a certificate should have been renewed by now. autocert renews one when a third of its
// lifetime is left, or 30 days.
func expiresSoon(leaf *x509.Certificate) bool {
	left := time.Until(leaf.NotAfter)
	return left < expiryWarning && left < leaf.NotAfter.Sub(leaf.NotBefore)/4
}

// acmeCertificates gets its certificates from a certificate authority (RFC 8555). Only its own task orders them, so no
// handshake can cause an order, or wait for one. The authority allows only a few orders an hour.
type acmeCertificates struct {
	manager *autocert.Manager
	http    http.Handler // answers challenges over HTTP; nil: they come only over TLS
	domains []string
	log     *slog.Logger

	mu    sync.Mutex
	until map[string]time.Time // end of the certificate of each domain that has one
}

func (f tlsFlags) newACME(folder string, log *slog.Logger) (certificates, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if f.ACMERoots != "" {
		text, err := os.ReadFile(f.ACMERoots)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s has no certificate in PEM format", f.ACMERoots)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	domains := f.hosts()
	client := &acme.Client{DirectoryURL: string(f.ACMEDirectory), UserAgent: "agora",
		HTTPClient: &http.Client{Transport: transport, Timeout: time.Minute}}
	a := &acmeCertificates{domains: domains, log: log, until: map[string]time.Time{}, manager: &autocert.Manager{
		Prompt: autocert.AcceptTOS, Cache: autocert.DirCache(filepath.Join(folder, datafolder.Certificates)),
		HostPolicy: autocert.HostWhitelist(domains...), Email: f.ACMEEmail, Client: client,
	}}
	if f.HTTPAddr != "off" || passesSocket(httpSocket) {
		a.http = a.manager.HTTPHandler(http.NotFoundHandler()) // from now on, the manager asks for such challenges
	}
	return a, nil
}

func (a *acmeCertificates) get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	name := strings.TrimSuffix(strings.ToLower(hello.ServerName), ".")
	if len(hello.SupportedProtos) == 1 && hello.SupportedProtos[0] == acme.ALPNProto {
		for _, domain := range a.domains {
			if name == domain {
				return a.manager.GetCertificate(hello)
			}
		}
		return nil, errors.New("there is no such host here")
	}
	a.mu.Lock()
	_, ready := a.until[name]
	a.mu.Unlock()
	if !ready {
		return nil, errors.New("there is no certificate for this host")
	}
	return a.manager.GetCertificate(helloFor(name))
}

// helloFor returns the handshake of a client that supports ECDSA. autocert would order a second certificate for a
// client that does not.
func helloFor(name string) *tls.ClientHelloInfo {
	return &tls.ClientHelloInfo{ServerName: name, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256},
		SupportedCurves: []tls.CurveID{tls.CurveP256}, SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256}}
}

// Times between two tries to get a certificate, and between two looks at one. autocert renews certificates itself.
const (
	firstOrderRetry = time.Minute
	maxOrderRetry   = time.Hour
	renewalCheck    = time.Hour
)

func (a *acmeCertificates) run(ctx context.Context) {
	var tasks sync.WaitGroup
	for _, domain := range a.domains {
		tasks.Go(func() { a.keep(ctx, domain) })
	}
	tasks.Wait()
	a.manager.Client.HTTPClient.CloseIdleConnections()
}

// keep gets the certificate of a domain, and then looks at it from time to time.
func (a *acmeCertificates) keep(ctx context.Context, domain string) {
	a.log.Info("getting a certificate", "host", domain, "directory", a.manager.Client.DirectoryURL)
	wait, failures := time.Duration(0), firstOrderRetry
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		certificate, err := a.obtain(ctx, domain)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			a.log.Error("cannot get a certificate; the relay must reach the authority, and the authority must reach this host "+
				"on port 443 or 80", "host", domain, "err", err, "next", failures.String())
			wait, failures = failures, min(4*failures, maxOrderRetry)
			continue
		}
		leaf := certificate.Leaf
		a.mu.Lock()
		before := a.until[domain]
		a.until[domain] = leaf.NotAfter
		a.mu.Unlock()
		if !leaf.NotAfter.Equal(before) || expiresSoon(leaf) {
			noteCertificate(a.log, domain, leaf, !before.IsZero())
		}
		wait, failures = renewalCheck, firstOrderRetry
	}
}

// obtain returns the certificate of a domain. If there is none, it orders one, which takes some seconds. An order cannot
// be interrupted. So when ctx ends, obtain returns, and the order continues without it.
func (a *acmeCertificates) obtain(ctx context.Context, domain string) (*tls.Certificate, error) {
	type outcome struct {
		certificate *tls.Certificate
		err         error
	}
	done := make(chan outcome, 1)
	go func() { // ends after five minutes at the latest, or with the process
		certificate, err := a.manager.GetCertificate(helloFor(domain))
		done <- outcome{certificate, err}
	}()
	select {
	case o := <-done:
		return o.certificate, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (a *acmeCertificates) reload() error { return nil }

func (a *acmeCertificates) expiry() map[string]time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	until := map[string]time.Time{}
	for _, domain := range a.domains {
		until[domain] = time.Unix(0, 0)
	}
	maps.Copy(until, a.until)
	return until
}

func (a *acmeCertificates) challenge(w http.ResponseWriter, r *http.Request) bool {
	if a.http == nil || !strings.HasPrefix(r.URL.Path, "/.well-known/acme-challenge/") {
		return false
	}
	a.http.ServeHTTP(w, r)
	return true
}

// plainHTTP is the only mount of the listener without TLS of a relay with TLS. It answers challenges, and redirects GET
// and HEAD to the relay's public origin. It refuses other methods: most clients would repeat a redirected POST as a GET.
func plainHTTP(c certificates, origin string) httpapi.Mount {
	return httpapi.Mount{Handler: func(w http.ResponseWriter, r *http.Request, _ relay.Peer) error {
		if c.challenge(w, r) {
			return nil
		}
		if !strings.HasPrefix(r.URL.Path, "/") { // such as OPTIONS *
			return envelope.Errorf(envelope.CodeNotFound, "there is nothing at this path")
		}
		target := origin + (&url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery}).RequestURI()
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			return envelope.Errorf(envelope.CodeForbidden, "this relay accepts messages over HTTPS only; send the request to %s",
				origin+r.URL.EscapedPath())
		}
		httpapi.SetHeader(w, "text/plain; charset=utf-8")
		w.Header().Set("Location", target)
		w.WriteHeader(http.StatusPermanentRedirect)
		return nil
	}}
}

// hosts returns the host names of --domain.
func (f tlsFlags) hosts() (names []string) {
	for _, d := range f.Domain {
		names = append(names, string(d))
	}
	return names
}

// scheme returns the scheme of the relay's URLs.
func (f tlsFlags) scheme() string {
	if f.isOn() {
		return "https"
	}
	return "http"
}

// defaultOrigin returns the public URL of a relay whose operator has given none; empty: there is none. It has no port,
// because the certificate authority reaches the host only on the standard ports.
func (f tlsFlags) defaultOrigin() string {
	if len(f.Domain) == 0 {
		return ""
	}
	return "https://" + string(f.Domain[0])
}

package main

import (
	"context"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// forwarder passes the reads of a page on this machine to a relay elsewhere. The relay is not trusted: whatever it
// answers must not become a page at the address where the reader's key is.
type forwarder struct {
	relay     url.URL // scheme and host
	transport *http.Transport
	log       *slog.Logger
}

const (
	// forwardTimeout limits one request with its whole answer. A poll waits up to a minute before its answer begins.
	forwardTimeout = relay.MaxWait + time.Minute
	// forwardBytes is the size of the largest answer. A page of events has about 4 MiB.
	forwardBytes = 32 << 20
	// forwardConns limits the connections to the relay. Further requests wait for a free one.
	forwardConns = 16
)

// newForwarder returns a forwarder to the relay at origin, which relay.ParseOrigin has checked.
func newForwarder(origin string, log *slog.Logger) *forwarder {
	scheme, host, _ := strings.Cut(origin, "://")
	return &forwarder{relay: url.URL{Scheme: scheme, Host: host}, log: log, transport: &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout:    10 * time.Second,
		ResponseHeaderTimeout:  relay.MaxWait + 15*time.Second,
		IdleConnTimeout:        time.Minute,
		MaxConnsPerHost:        forwardConns,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true, // a small compressed answer could be a very large one
		ForceAttemptHTTP2:      true,
	}}
}

// routes returns the reads that are forwarded.
func (f *forwarder) routes() (routes []httpapi.Route) {
	for _, path := range []string{"/events", "/threads/{id:" + idForm + "}", "/agents", "/agents/{did:" + idForm + "}",
		"/health", "/.well-known/agora.json", "/openapi.json", proofPath, "/log/{epoch:[0-9a-f]{8}}/checkpoint"} {
		routes = append(routes, httpapi.Route{Path: path, Methods: map[string]httpapi.Handler{http.MethodGet: f.forward}})
	}
	return routes
}

// proofPath is where a relay gives proofs. They and the checkpoints of its log are plain text.
const proofPath = "/proofs"

// contentType returns the content type of a success at path. The page gets errors as JSON everywhere.
func contentType(path string, status int) string {
	if status == http.StatusOK && (path == proofPath || strings.HasPrefix(path, "/log/")) {
		return "text/plain; charset=utf-8"
	}
	return "application/json"
}

// idForm matches thread ids and DIDs, and no path such as "..".
const idForm = "[A-Za-z0-9][A-Za-z0-9._:~-]*"

// forward sends a read to the relay and passes the answer on. Path and query stay the same to the byte, because signed
// reads contain them.
func (f *forwarder) forward(w http.ResponseWriter, r *http.Request, _ relay.Peer) error {
	for _, site := range r.Header.Values("Sec-Fetch-Site") {
		if site != "same-origin" && site != "none" {
			return envelope.Errorf(envelope.CodeForbidden, "this request comes from a web page of another origin")
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), forwardTimeout)
	defer cancel()
	target := f.relay
	target.Path, target.RawPath = r.URL.Path, r.URL.RawPath
	target.RawQuery, target.ForceQuery = r.URL.RawQuery, r.URL.ForceQuery
	request := (&http.Request{Method: http.MethodGet, URL: &target, Host: target.Host, Header: http.Header{
		"Accept": {"application/json"}, "User-Agent": {"agora-page/" + envelope.Version},
	}}).WithContext(ctx)
	if tokens := r.Header.Values("Authorization"); len(tokens) > 0 {
		request.Header["Authorization"] = tokens
	}
	answer, err := f.transport.RoundTrip(request) // follows no redirect and keeps no cookies
	if err != nil {
		if r.Context().Err() == nil {
			f.log.Warn("the relay cannot be reached", "err", err)
		}
		return badGateway(http.StatusBadGateway, "the relay cannot be reached; the command agora page prints why").Write(w)
	}
	defer func() { _ = answer.Body.Close() }() // nothing of it is needed any more
	as := contentType(r.URL.Path, answer.StatusCode)
	if refusal := checkAnswer(answer, as); refusal != nil {
		return refusal.Write(w)
	}
	f.passOn(w, answer, as)
	return nil
}

// checkAnswer returns nil if the answer can come from a relay: it has the content type as. Otherwise it returns an
// error, which the page gets in place of the answer.
func checkAnswer(answer *http.Response, as string) *httpapi.ErrorAnswer {
	status := answer.StatusCode
	kind, _, err := mime.ParseMediaType(answer.Header.Get("Content-Type"))
	want, _, _ := strings.Cut(as, ";")
	switch {
	case err == nil && kind == want && (status == http.StatusOK || status >= 400):
		if answer.ContentLength > forwardBytes {
			return badGateway(http.StatusBadGateway, "the relay's answer is too large")
		}
		return nil
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable: // of a proxy, for example
		refusal := badGateway(status, "the relay asks to wait")
		seconds, err := strconv.ParseUint(answer.Header.Get("Retry-After"), 10, 16)
		if err == nil {
			refusal.RetryAfter = time.Duration(seconds) * time.Second
		}
		return refusal
	}
	return badGateway(http.StatusBadGateway, "what answers at the relay's address is not a relay, or its address has changed")
}

// badGateway returns an error in the relay's form. Its status differs from that of the relay's own UNAVAILABLE.
func badGateway(status int, message string) *httpapi.ErrorAnswer {
	answer, _ := httpapi.RelayError(envelope.Errorf(envelope.CodeUnavailable, "%s", message))
	answer.Status = status
	return &answer
}

// passOn streams an answer to the page, with the content type as. If the answer breaks off or is too large, so does the page's.
func (f *forwarder) passOn(w http.ResponseWriter, answer *http.Response, as string) {
	header := w.Header()
	header.Set("Content-Type", as)
	header.Set("Cache-Control", "no-store")
	if after := answer.Header.Get("Retry-After"); after != "" {
		header.Set("Retry-After", after)
	}
	if answer.Header.Get("WWW-Authenticate") == "Agora" { // others would make the browser ask for a password
		header.Set("WWW-Authenticate", "Agora")
	}
	if answer.ContentLength >= 0 {
		header.Set("Content-Length", strconv.FormatInt(answer.ContentLength, 10))
	}
	httpapi.ExtendWrite(w)
	w.WriteHeader(answer.StatusCode)
	out, part, left := http.NewResponseController(w), make([]byte, 32<<10), int64(forwardBytes)
	for {
		n, err := answer.Body.Read(part)
		if left -= int64(n); left < 0 {
			panic(http.ErrAbortHandler)
		}
		httpapi.ExtendWrite(w)
		if _, err := w.Write(part[:n]); err != nil {
			return // the page has left
		}
		if err := out.Flush(); err != nil {
			return
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler) // the page must not take this for the whole answer
		}
	}
}

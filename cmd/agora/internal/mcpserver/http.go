package mcpserver

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Limits of the HTTP transport.
const (
	maxBody       = 1 << 20 // bytes of a request
	maxSessions   = 16
	idleSession   = 30 * time.Minute
	headerTimeout = 10 * time.Second
	shutdownTime  = 3 * time.Second
)

// Path is the path of the endpoint of the HTTP transport.
const Path = "/mcp"

// RunHTTP serves clients over streamable HTTP on a loopback listener until ctx ends, which is no error. It closes the
// listener. Each request needs the header Authorization with Bearer and the token.
func (s *Server) RunHTTP(ctx context.Context, l net.Listener, token string) error {
	if tcp, ok := l.Addr().(*net.TCPAddr); !ok || !tcp.IP.IsLoopback() || token == "" {
		return errors.Join(errors.New("mcpserver: HTTP needs a loopback address and a token"), l.Close())
	}
	sdk := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s.mcp }, &mcp.StreamableHTTPOptions{
		SessionTimeout: idleSession, MaxRequestBodyBytes: maxBody, Logger: s.Log, PropagateRequestCancellation: true})
	served := &http.Server{Handler: s.guard(sdk, l.Addr().String(), token), ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	ended := make(chan error, 1)
	go func() { ended <- served.Serve(l) }() // it ends with the server
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
		defer cancel()
		s.end()
		s.closeSessions()
		if served.Shutdown(limited) != nil {
			err = served.Close()
		}
		err = errors.Join(err, <-ended)
	}
	s.closeSessions()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func (s *Server) closeSessions() {
	for session := range s.mcp.Sessions() {
		_ = session.Close() // the process ends, so there is nobody to tell
	}
}

// guard lets only programs of this machine that have the token through to h. A web page has no token; but it must not
// even learn whether a guess was right. So requests with the Origin or Host of another site are refused first.
func (s *Server) guard(h http.Handler, address, token string) http.Handler {
	want := sha256.Sum256([]byte(token))
	_, port, _ := net.SplitHostPort(address)
	hosts := map[string]bool{address: true, net.JoinHostPort("localhost", port): true}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin := r.Header.Get("Origin")
		scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got := sha256.Sum256([]byte(given))
		switch {
		case !hosts[strings.ToLower(r.Host)]:
			http.Error(w, "the Host of this request is not the address of this server", http.StatusForbidden)
		case origin != "" && origin != "http://"+r.Host:
			http.Error(w, "requests of web pages are refused", http.StatusForbidden)
		case r.URL.Path != Path:
			http.Error(w, "the endpoint is "+Path, http.StatusNotFound)
		case !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(got[:], want[:]) != 1:
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "this request needs the header Authorization: Bearer TOKEN", http.StatusUnauthorized)
		case r.Method == http.MethodPost && r.Header.Get("Mcp-Session-Id") == "" && s.sessions() >= maxSessions:
			w.Header().Set("Retry-After", "60")
			http.Error(w, "there are too many sessions; end one, or wait until an idle one has ended", http.StatusServiceUnavailable)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

func (s *Server) sessions() (n int) {
	for range s.mcp.Sessions() {
		n++
	}
	return n
}

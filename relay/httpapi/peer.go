package httpapi

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/rs/cors"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// Who a request comes from, and whether it is taken at all.

// admit lets h see the requests that the rates allow, before anything else of them is read or judged.
func (s *server) admit(h handler) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		kind := relay.Reads
		if r.Method == http.MethodPost {
			kind = relay.Posts
		}
		peer := s.peer(r)
		if err := s.relay.Admit(peer, kind); err != nil {
			return err
		}
		leave, err := s.relay.Enter(peer)
		if err != nil {
			return err
		}
		defer leave()
		if s.rebound(r) {
			return envelope.Errorf(envelope.CodeForbidden, "this relay serves its own machine, and this web page reaches it under "+
				"another machine's name; its operator can give it that name with --public-url")
		}
		if s.cors != nil && r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
			s.extend(w)
			w.WriteHeader(http.StatusNoContent) // the headers are there already, see newCORS
			return nil
		}
		return h(w, r)
	}
}

// newCORS returns what writes the headers that let web pages of these origins read answers, errors among them; nil if
// there are none. No credentials are ever asked for, as no cookie means anything here.
func newCORS(origins []string) *cors.Cors {
	if len(origins) == 0 {
		return nil
	}
	return cors.New(cors.Options{
		AllowedOrigins: origins,
		AllowedMethods: []string{http.MethodGet, http.MethodPost, http.MethodHead},
		AllowedHeaders: []string{"Content-Type", "Authorization"},
		ExposedHeaders: []string{"Retry-After", "WWW-Authenticate"},
		MaxAge:         600, // seconds

		OptionsPassthrough: true, // preflights count like other requests, see admit
	})
}

func (s *server) peer(r *http.Request) relay.Peer {
	return relay.Peer{Addr: s.client(r), Local: s.local(r), Reader: reader(r)}
}

// client returns the address a request comes from: the connection's, unless that is a trusted proxy's. Then it is the
// address that the proxy says it has the request from, and so on through other trusted ones. What stands left of that
// in X-Forwarded-For is anybody's invention.
func (s *server) client(r *http.Request) netip.Addr {
	addr := connected(r.RemoteAddr)
	chain := strings.Join(r.Header.Values("X-Forwarded-For"), ",")
	for more := chain != ""; more && s.trusts(addr); {
		var last string
		if i := strings.LastIndexByte(chain, ','); i >= 0 {
			chain, last = chain[:i], chain[i+1:]
		} else {
			last, more = chain, false
		}
		next, ok := parseHop(strings.TrimSpace(last))
		if !ok {
			break
		}
		addr = next
	}
	return addr
}

// connected returns the address at the other end of a connection, the zero Addr where there is none.
func connected(remote string) netip.Addr {
	connection, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	return connection.Addr().Unmap().WithZone("")
}

// parseHop reads an entry of X-Forwarded-For, which some proxies write with a port.
func parseHop(text string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(strings.Trim(text, "[]"))
	if err != nil {
		withPort, err := netip.ParseAddrPort(text)
		if err != nil {
			return netip.Addr{}, false
		}
		addr = withPort.Addr()
	}
	return addr.Unmap().WithZone(""), true
}

func (s *server) trusts(addr netip.Addr) bool {
	return slices.ContainsFunc(s.options.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// passedOn are further headers that a proxy or a browser adds.
var passedOn = []string{"Via", "X-Real-Ip", "Origin", "Sec-Fetch-Site"}

// local reports whether a request certainly comes from this machine: over loopback, to a loopback name, not passed on
// by a proxy, not sent by a web page, at a relay that has no public address (PROTOCOL §5). The Host keeps out pages
// that have rebound their own name to this machine. What a trusted proxy sends is passed on, whatever headers it has.
func (s *server) local(r *http.Request) bool {
	addr := connected(r.RemoteAddr)
	if !addr.IsLoopback() || s.options.Public || s.trusts(addr) {
		return false
	}
	for name := range r.Header {
		if name == "Forwarded" || strings.HasPrefix(name, "X-Forwarded-") || slices.Contains(passedOn, name) {
			return false
		}
	}
	return loopbackName(r.Host)
}

// loopbackName reports whether a Host header means the machine it is sent on.
func loopbackName(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && addr.IsLoopback()
}

// rebound reports whether a request may be from a web page that has made its own name point to this machine, and so
// reads the answers as its own (DNS rebinding). It is, if a browser sends it to a relay that only this machine reaches,
// under a name that is neither this machine's nor the operator's.
func (s *server) rebound(r *http.Request) bool {
	if !s.options.Loopback || s.options.Public || len(s.options.TrustedProxies) > 0 || loopbackName(r.Host) {
		return false
	}
	h := r.Header
	browser := h.Get("Origin") != "" || h.Get("Sec-Fetch-Site") != "" || h.Get("Referer") != "" ||
		strings.HasPrefix(h.Get("User-Agent"), "Mozilla/")
	return browser && (s.cors == nil || !s.cors.OriginAllowed(r))
}

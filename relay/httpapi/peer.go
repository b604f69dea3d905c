package httpapi

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/rs/cors"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/hostname"
	"github.com/agora-relay/agora/relay"
)

// This file finds out where a request comes from, and whether it is accepted.

// newCORS returns the CORS handler that lets web pages of these origins read answers, errors included. It returns nil
// if there are no origins. Credentials are not allowed, because the relay uses no cookies.
func newCORS(origins, methods, headers []string) *cors.Cors {
	if len(origins) == 0 {
		return nil
	}
	return cors.New(cors.Options{
		AllowedOrigins: origins,
		AllowedMethods: append([]string{http.MethodGet, http.MethodPost, http.MethodHead}, methods...),
		AllowedHeaders: append([]string{"Content-Type", "Authorization", headerLastEventID}, headers...),
		ExposedHeaders: []string{"Retry-After", "WWW-Authenticate", "X-Request-Id"},
		MaxAge:         600, // seconds

		OptionsPassthrough: true, // preflights count like other requests, see admit
	})
}

func (s *site) peer(r *http.Request) relay.Peer {
	p := relay.Peer{Addr: s.client(r)}
	p.Local, p.OwnPage = s.fromHere(r)
	return p
}

// client returns the address of the client that sent a request. It starts with the address of the connection. While the
// address belongs to a trusted proxy, it continues with the address that this proxy has added to X-Forwarded-For, which
// it reads from right to left. The entries that remain on the left are ignored, because the client can invent them.
func (s *site) client(r *http.Request) netip.Addr {
	addr := remoteAddr(r.RemoteAddr)
	chain := strings.Join(r.Header.Values("X-Forwarded-For"), ",")
	trusted := s.fromProxy(r)
	for more := chain != ""; more && trusted; trusted = s.trusts(addr) {
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

// remoteAddr returns the address of the other end of a connection. A Unix socket has none; then it is the zero Addr.
func remoteAddr(remote string) netip.Addr {
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

// trusts reports whether addr is the address of a trusted proxy.
func (f *Front) trusts(addr netip.Addr) bool {
	return slices.ContainsFunc(f.proxies.Load().Networks, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// trustsListener reports whether every client of a listener is a trusted proxy.
func (f *Front) trustsListener(info listenerInfo) bool {
	return info.unix && f.proxies.Load().UnixSockets
}

// fromProxy reports whether a trusted proxy has sent a request.
func (s *site) fromProxy(r *http.Request) bool {
	return s.trustsListener(s.listenerInfo) || s.trusts(remoteAddr(r.RemoteAddr))
}

// proxyHeaders are headers that only proxies add. Headers with the prefix X-Forwarded- are such headers too.
var proxyHeaders = []string{"Forwarded", "Via", "X-Real-Ip", "X-Client-Ip", "X-Cluster-Client-Ip",
	"X-Original-Forwarded-For", "X-Original-Host", "X-Proxyuser-Ip", "True-Client-Ip", "Client-Ip", "Cf-Connecting-Ip",
	"Cf-Ray", "Cdn-Loop", "Fastly-Client-Ip", "X-Amzn-Trace-Id",
	"X-Envoy-External-Address", "X-Envoy-Internal", "Proxy-Connection"}

// browserHeaders are headers that browsers add, and that a web page cannot set. Sec-Fetch-Mode is none of them: the fetch
// of Node sends it too, and a browser that sends it also sends Sec-Fetch-Site.
var browserHeaders = []string{"Origin", "Sec-Fetch-Site"}

// fromHere reports whether a request certainly comes from this machine (PROTOCOL §5). It comes over loopback and uses a
// loopback name; the listener is on loopback only and the relay has no public URL; and nothing in the request looks
// like a proxy. Then it is local if it has no header of a browser either. If it has one, it may come from a page of this
// relay. A local proxy that adds no header cannot be distinguished from a local client; LimitLocal, PublicURL and
// Proxies are for that case.
func (s *site) fromHere(r *http.Request) (local, ownPage bool) {
	if !s.trusted {
		addr := remoteAddr(r.RemoteAddr)
		if !s.exemptsLoopback(s.listenerInfo) || !addr.IsLoopback() || s.trusts(addr) || !IsLoopbackName(r.Host) {
			return false, false
		}
		if !r.ProtoAtLeast(1, 1) || r.Close {
			return false, false // nginx sends such requests by default
		}
	}
	browser := false
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Forwarded-") || slices.Contains(proxyHeaders, name) {
			return false, false
		}
		browser = browser || slices.Contains(browserHeaders, name)
	}
	// A browser does not connect to a Unix socket, so a proxy has sent a request with its headers there.
	return !browser, browser && !s.trusted && fromSameOrigin(r)
}

// fromSameOrigin reports whether the browser's headers say that a page of the relay's own origin has sent r. A browser
// may leave out Origin if the method is safe, but then it sends Sec-Fetch-Site.
func fromSameOrigin(r *http.Request) bool {
	origin, site := r.Header.Values("Origin"), r.Header.Values("Sec-Fetch-Site")
	if len(site) > 1 || len(site) == 1 && site[0] != "same-origin" {
		return false
	}
	if len(origin) == 0 {
		return isSafe(r.Method) && len(site) == 1
	}
	scheme := "http://"
	if r.TLS != nil {
		scheme = "https://"
	}
	return len(origin) == 1 && origin[0] == scheme+r.Host
}

// exemptsLoopback reports whether requests over loopback can be exempt from limits. They cannot if other machines can
// connect or there is a public URL: then a proxy on this machine may forward the requests of others.
func (f *Front) exemptsLoopback(info listenerInfo) bool {
	return info.loopback && f.options.PublicURL == "" && !f.options.LimitLocal
}

// exempts reports whether connections from addr are not counted. Connections of a trusted proxy do not count, because
// they carry the requests of many clients. Connections of this machine do not count if its requests have no limits.
func (f *Front) exempts(addr netip.Addr, info listenerInfo) bool {
	return info.trusted || f.trustsListener(info) || f.trusts(addr) || addr.IsLoopback() && f.exemptsLoopback(info)
}

// guard refuses requests that web pages of other sites make through a browser on this machine. A page can use its own
// host name after making it point here (DNS rebinding). Or it can send a POST to this machine's name, which browsers
// allow.
func (s *site) guard(r *http.Request) error {
	if s.loopback && !s.ownName(r.Host) {
		return errHost
	}
	if !isSafe(r.Method) && s.foreignPage(r) {
		return envelope.Errorf(envelope.CodeForbidden, "this request comes from a web page of another origin; the relay "+
			"accepts it only if its operator names that origin with --cors-origin")
	}
	return nil
}

// ownName reports whether a Host header is a loopback name, the host of the public URL, or one of Options.Hosts.
func (f *Front) ownName(host string) bool {
	return IsLoopbackName(host) || f.options.PublicURL != "" && f.publicHost(host) ||
		slices.ContainsFunc(f.options.Hosts, func(own string) bool { return hostname.Map(own) == hostname.WithoutPort(host) })
}

// GuardHost is the handler next of a further listener, such as the one for metrics. It refuses what the relay's own
// listeners refuse because of the Host: a web page must not read the answers after it has made its own name point to
// this machine (DNS rebinding).
func (f *Front) GuardHost(l net.Listener, next http.Handler) http.Handler {
	info := Listener{Listener: l}.info()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info.loopback && !f.ownName(r.Host) {
			http.Error(w, errHost.Message, http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// errHost is the refusal of a request that uses a name which is not the relay's.
var errHost = envelope.Errorf(envelope.CodeForbidden, "this relay listens on its own machine only, and the request's Host "+
	"is neither a loopback name nor that of the public URL; its operator can set a name with --public-url")

// publicHost reports whether host is the host of the public URL. The scheme's default port may be left out.
func (f *Front) publicHost(host string) bool {
	return sameHost(f.options.PublicURL, host)
}

// foreignPage reports whether r comes from a web page of another origin that CORS does not admit.
func (s *site) foreignPage(r *http.Request) bool {
	origins, site := r.Header.Values("Origin"), r.Header.Values("Sec-Fetch-Site")
	if len(origins) == 0 && len(site) == 0 || s.cors != nil && s.cors.OriginAllowed(r) {
		return false
	}
	for _, value := range site {
		if value != "same-origin" && value != "none" {
			return true
		}
	}
	for _, value := range origins {
		origin, err := relay.ParseOrigin(value)
		if err != nil || origin != s.relay.Origin() && !sameHost(origin, r.Host) {
			return true
		}
	}
	return len(origins) > 1
}

// sameHost reports whether an origin is the origin of a request with this Host header.
func sameHost(origin, host string) bool {
	for _, scheme := range []string{"http", "https"} {
		if own, err := relay.ParseOrigin(scheme + "://" + host); err == nil && own == origin {
			return true
		}
	}
	return false
}

// IsLoopbackName reports whether a Host header is localhost or a loopback address, each in its usual spelling, with or
// without a port. Other spellings that a resolver may accept do not count.
func IsLoopbackName(host string) bool {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name = host
		if inner, found := strings.CutPrefix(host, "["); found {
			if name, found = strings.CutSuffix(inner, "]"); !found {
				return false
			}
		}
	} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return false
	}
	if strings.EqualFold(name, "localhost") {
		return !strings.HasPrefix(host, "[")
	}
	addr, err := netip.ParseAddr(name)
	return err == nil && addr.IsLoopback() && addr.Zone() == "" && addr.Is6() == strings.HasPrefix(host, "[")
}

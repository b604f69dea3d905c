package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/agora-relay/agora/internal/hostname"
	"github.com/agora-relay/agora/internal/netaddr"
)

// MaxURL is how many bytes a URL that the relay calls may have.
const MaxURL = 2048

// Exception is a host or a network that the relay may call although the rules of Destinations exclude it.
type Exception struct {
	host    string // mapped; empty: the exception is a network
	network netip.Prefix
}

// ParseException parses an exact host name, an IP address, or a network such as 10.1.0.0/16.
func ParseException(text string) (Exception, error) {
	if network, err := netip.ParsePrefix(text); err == nil {
		return Exception{network: network.Masked()}, nil
	}
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		addr = addr.Unmap()
		return Exception{network: netip.PrefixFrom(addr, addr.BitLen())}, nil
	}
	host := hostname.Map(text)
	if host == "" || strings.ContainsAny(host, "/:@?#[] \\*%") {
		return Exception{}, fmt.Errorf("%q is neither a host name, nor an address, nor a network such as 10.1.0.0/16", text)
	}
	return Exception{host: host}, nil
}

// Destinations says which URLs the relay may call for its users. Without these rules, a user could make the relay call
// addresses that only the relay can reach, such as those of its own network.
type Destinations struct {
	Origin     string // the relay's own origin; its URLs are excluded. Empty: not known
	Exceptions []Exception
}

// errExcluded is the error for an address or a host that the relay must not call.
var errExcluded = errors.New("the relay does not call addresses of private networks, of its own machine, or for " +
	"special uses; its operator can allow one with --outbound-allow")

// Check parses a URL, and maps its host to the form in which hosts are compared. The error says why the relay would not
// call it. Check resolves no names. The address of a name is
// checked when the relay connects, because it may have changed by then.
func (d Destinations) Check(raw string) (*url.URL, error) {
	if len(raw) > MaxURL {
		return nil, fmt.Errorf("the URL has more than %d bytes", MaxURL)
	}
	u, err := url.Parse(raw)
	if err != nil || u.Opaque != "" || u.Host == "" || strings.ContainsFunc(raw, isControlOrSpace) {
		return nil, errors.New("this is not an absolute URL such as https://agent.example/inbox")
	}
	host := mapHost(u)
	excepted := d.exceptsHost(host)
	port, err := portOf(u)
	switch {
	case u.Scheme != "https" && (u.Scheme != "http" || !excepted):
		return nil, errors.New("the URL must begin with https://; http:// is only for hosts that the operator allows with --outbound-allow")
	case u.User != nil:
		return nil, errors.New("the URL must not contain a user name or a password")
	case strings.Contains(raw, "#"):
		return nil, errors.New("the URL must not have a fragment (the part after #)")
	case err != nil:
		return nil, err
	case d.isOwn(u, host, port):
		return nil, errors.New("the URL must not lead to this relay")
	case excepted:
		return u, nil
	case port < 1024 && port != 80 && port != 443:
		return nil, errors.New("the port must be 80, 443, or 1024 or higher")
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		if addr.Zone() != "" || !d.allows(addr) {
			return nil, errExcluded
		}
		return u, nil
	}
	if !hostForm.MatchString(host) {
		return nil, errors.New("the host must be a name such as agent.example, or an address in its usual form")
	}
	if !strings.Contains(host, ".") || slices.ContainsFunc([]string{".localhost", ".local", ".internal"},
		func(suffix string) bool { return strings.HasSuffix(host, suffix) }) {
		return nil, errExcluded
	}
	return u, nil
}

// hostForm is the form of a mapped name. The last label must not be a number, because some programs read such names as addresses:
// 127.1 is then 127.0.0.1 (WHATWG URL, "ends in a number").
var hostForm = regexp.MustCompile(`^([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)

func isControlOrSpace(r rune) bool { return r <= ' ' || r == 0x7f }

// mapHost replaces the host of a URL by the form in which hosts are compared, and returns it without the port (G-38).
func mapHost(u *url.URL) (host string) {
	host = hostname.Of(u)
	switch port := u.Port(); {
	case port != "":
		u.Host = net.JoinHostPort(host, port)
	case strings.Contains(host, ":"):
		u.Host = "[" + host + "]"
	default:
		u.Host = host
	}
	return host
}

// portOf returns the port of a URL.
func portOf(u *url.URL) (int, error) {
	switch text := u.Port(); {
	case text != "":
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return 0, errors.New("the port must be a number from 1 to 65535")
		}
		return int(port), nil
	case u.Scheme == "http":
		return 80, nil
	default:
		return 443, nil
	}
}

// isOwn reports whether a URL has the relay's own origin.
func (d Destinations) isOwn(u *url.URL, host string, port int) bool {
	own, err := url.Parse(d.Origin)
	if err != nil || d.Origin == "" {
		return false
	}
	ownPort, err := portOf(own)
	return err == nil && host == hostname.Of(own) && port == ownPort && u.Scheme == own.Scheme
}

// OwnPath returns the rest of a URL below base, which is the base URL of a gateway. own is false for any other URL. Hosts
// are mapped before they are compared (G-38).
func OwnPath(base, text string) (path string, own bool) {
	u, err := url.Parse(text)
	if err != nil || u.User != nil || u.RawQuery != "" || u.ForceQuery || strings.Contains(text, "#") {
		return "", false
	}
	return strings.CutPrefix(hostname.Origin(u)+u.EscapedPath(), base)
}

// exceptsHost reports whether an exception covers a host, which is a name or an address.
func (d Destinations) exceptsHost(host string) bool {
	addr, err := netip.ParseAddr(host)
	return slices.ContainsFunc(d.Exceptions, func(e Exception) bool {
		return e.host != "" && e.host == host || err == nil && e.covers(addr)
	})
}

func (e Exception) covers(addr netip.Addr) bool {
	return e.host == "" && e.network.Contains(addr.Unmap())
}

// allows reports whether the relay may connect to an address.
func (d Destinations) allows(addr netip.Addr) bool {
	return slices.ContainsFunc(d.Exceptions, func(e Exception) bool { return e.covers(addr) }) || netaddr.Public(addr)
}

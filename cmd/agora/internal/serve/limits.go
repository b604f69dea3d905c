package serve

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// limitFlags are the flags of serve for limits, and for the proxies and web pages that may use the relay. 0 means no
// limit.
type limitFlags struct {
	PostRateIP       float64     `reload:"" name:"post-rate-ip" default:"50" placeholder:"N" help:"Posts per second from one address; twice as many may come at once. 0: no limit. An IPv6 /64 counts as one address. In all flags for one address, a /56 has 4 times and a /48 16 times the limit of one address (default: ${default})."`
	ReadRateIP       float64     `reload:"" name:"read-rate-ip" default:"100" placeholder:"N" help:"Other requests per second from one address; twice as many may come at once. 0: no limit (default: ${default})."`
	PostRateDID      float64     `reload:"" name:"post-rate-did" default:"20" placeholder:"N" help:"Messages per second signed by one identity; twice as many may come at once. 0: no limit (default: ${default})."`
	BroadcastRateIP  float64     `reload:"" name:"broadcast-rate-ip" default:"5" placeholder:"N" help:"REQUESTs without a recipient per second from one address; four times as many may come at once. 0: no limit (default: ${default})."`
	ConnectionsPerIP int         `reload:"" name:"connections-per-ip" default:"256" placeholder:"N" help:"Open connections of one address, idle ones included; 0: no limit (default: ${default})."`
	ConnectionRateIP float64     `reload:"" name:"connection-rate-ip" default:"200" placeholder:"N" help:"New connections per second from one address; twice as many may come at once. 0: no limit (default: ${default})."`
	RequestsPerIP    int         `reload:"" name:"requests-per-ip" default:"64" placeholder:"N" help:"Concurrent requests of one address, waiting polls included; 0: no limit (default: ${default})."`
	PollsPerIP       int         `reload:"" name:"polls-per-ip" default:"32" placeholder:"N" help:"Concurrent waiting polls of one address; 0: no limit (default: ${default})."`
	MaxPolls         int         `reload:"" default:"10000" placeholder:"N" help:"Concurrent waiting polls of all addresses together; 0: no limit (default: ${default})."`
	WritesPerIP      int         `reload:"" name:"writes-per-ip" default:"4" placeholder:"N" help:"Messages of one address, and its changes at gateways, that are being stored at a time; others wait for their turn, at most 10s. An IPv6 /48 counts as one address here. 0: no limit (default: ${default})."`
	BulksPerIP       int         `reload:"" name:"bulks-per-ip" default:"4" placeholder:"N" help:"Concurrent bulk requests of one address; 0: only the limit of 16 for all addresses (default: ${default})."`
	BulkFrom         []netText   `reload:"" placeholder:"CIDR" sep:"none" help:"Do not count the lines of bulk requests from this address or network as posts of its address. They still count as messages of their senders. May be repeated."`
	InboxEvents      int         `reload:"" default:"10000" placeholder:"N" help:"Number of unexpired REQUESTs and MANIFESTs stored for one recipient. Messages of the recipient's own threads are not counted. 0: no limit (default: ${default})."`
	InboxBytes       int64       `reload:"" type:"bytes" default:"64MiB" placeholder:"SIZE" help:"Total size of the messages that --inbox-events counts. 0: no limit (default: ${default})."`
	TrustedProxy     []proxyText `reload:"" placeholder:"CIDR" sep:"none" help:"Address or network of a proxy, or unix for a proxy that connects over a Unix socket. The relay then takes the address of a client from the proxy's header X-Forwarded-For. May be repeated. Without this flag all clients of a proxy count as one address."`
	Ban              []banText   `reload:"" placeholder:"CIDR|DID" sep:"none" help:"Refuse this address, network or identity. May be repeated."`
	LimitLocal       bool        `help:"Limit requests from this machine too. By default they are not limited if the relay listens on loopback only and has no --public-url."`
	CORSOrigin       []webOrigin `name:"cors-origin" placeholder:"ORIGIN" sep:"none" help:"Let web pages of this origin use the relay, such as https://app.example; * lets all pages. May be repeated. By default no web page can read answers."`
}

func (f limitFlags) Validate() error {
	for name, perSecond := range map[string]float64{"--post-rate-ip": f.PostRateIP, "--read-rate-ip": f.ReadRateIP,
		"--post-rate-did": f.PostRateDID, "--broadcast-rate-ip": f.BroadcastRateIP,
		"--connection-rate-ip": f.ConnectionRateIP} {
		if perSecond != 0 && (perSecond < 0.01 || perSecond > 1e6) {
			return fmt.Errorf("%s must be from 0.01 to 1000000 a second, or 0 for no limit", name)
		}
	}
	for name, n := range map[string]int64{"--connections-per-ip": int64(f.ConnectionsPerIP),
		"--requests-per-ip": int64(f.RequestsPerIP), "--polls-per-ip": int64(f.PollsPerIP), "--max-polls": int64(f.MaxPolls),
		"--writes-per-ip": int64(f.WritesPerIP), "--bulks-per-ip": int64(f.BulksPerIP),
		"--inbox-events": int64(f.InboxEvents), "--inbox-bytes": f.InboxBytes} {
		if n < 0 {
			return fmt.Errorf("%s must not be negative; 0 means no limit", name)
		}
	}
	if slices.Contains(f.CORSOrigin, "*") && len(f.CORSOrigin) > 1 {
		return fmt.Errorf("--cors-origin '*' already allows every web page; give it alone, or give only whole origins")
	}
	return nil
}

func (f limitFlags) limits() relay.Limits {
	rate := func(perSecond float64) relay.Rate {
		if perSecond == 0 {
			perSecond = relay.Unlimited
		}
		return relay.Rate{PerSecond: perSecond}
	}
	return relay.Limits{
		PostsPerAddress: rate(f.PostRateIP), ReadsPerAddress: rate(f.ReadRateIP), PostsPerAgent: rate(f.PostRateDID),
		BroadcastsPerAddress: rate(f.BroadcastRateIP), NewConnectionsPerAddress: rate(f.ConnectionRateIP),
		ConnectionsPerAddress: orUnlimited(f.ConnectionsPerIP),
		RequestsPerAddress:    orUnlimited(f.RequestsPerIP), PollsPerAddress: orUnlimited(f.PollsPerIP),
		Polls: orUnlimited(f.MaxPolls), WritesPerAddress: orUnlimited(f.WritesPerIP),
		BulksPerAddress: orUnlimited(f.BulksPerIP), BulkFrom: f.bulkFrom(),
	}
}

func (f limitFlags) bulkFrom() (networks []netip.Prefix) {
	for _, text := range f.BulkFrom {
		networks = append(networks, netip.MustParsePrefix(string(text)))
	}
	return networks
}

func (f limitFlags) inbox() relay.Quota {
	return relay.Quota{Events: orUnlimited(f.InboxEvents), Bytes: orUnlimited(f.InboxBytes)}
}

// orUnlimited converts the value of a flag, where 0 means no limit, to relay.Unlimited.
func orUnlimited[N int | int64](n N) N {
	if n == 0 {
		return relay.Unlimited
	}
	return n
}

func (f limitFlags) proxies() (p httpapi.Proxies) {
	for _, text := range f.TrustedProxy {
		if text == unixProxy {
			p.UnixSockets = true
		} else {
			p.Networks = append(p.Networks, netip.MustParsePrefix(string(text)))
		}
	}
	return p
}

func (f limitFlags) origins() (origins []string) {
	for _, o := range f.CORSOrigin {
		origins = append(origins, string(o))
	}
	return origins
}

// proxyText is the network of a proxy in the form of netip.Prefix.String, or unixProxy.
type proxyText string

// unixProxy stands for every client of a Unix socket.
const unixProxy proxyText = "unix"

func (p *proxyText) UnmarshalText(text []byte) error {
	if string(text) == string(unixProxy) {
		*p = unixProxy
		return nil
	}
	prefix, ok := parseNetwork(string(text))
	if !ok {
		return fmt.Errorf("%q: want the proxy's address or network, such as 127.0.0.1, 10.0.0.0/8 or fd00::/8; or unix for a "+
			"proxy that connects over a Unix socket", text)
	}
	*p = proxyText(prefix.String())
	return nil
}

// parseNetwork parses a network. A single address is a network with one address.
func parseNetwork(text string) (netip.Prefix, bool) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		var addr netip.Addr
		if addr, err = netip.ParseAddr(text); err == nil {
			prefix, err = addr.Unmap().Prefix(addr.Unmap().BitLen())
		}
	}
	if err != nil || prefix.Addr().Is4In6() || prefix.Addr().Zone() != "" {
		return netip.Prefix{}, false
	}
	return prefix.Masked(), true
}

// netText is a network in the form of netip.Prefix.String.
type netText string

func (n *netText) UnmarshalText(text []byte) error {
	prefix, ok := parseNetwork(string(text))
	if !ok {
		return fmt.Errorf("%q: want an address or network such as 192.0.2.7 or 2001:db8::/32", text)
	}
	*n = netText(prefix.String())
	return nil
}

// banText is an address, a network or an identity that the relay refuses. The text is in canonical form.
type banText string

func (b *banText) UnmarshalText(text []byte) error {
	if did, err := didkey.Parse(string(text)); err == nil {
		*b = banText(did)
		return nil
	}
	prefix, ok := parseNetwork(string(text))
	if !ok {
		return fmt.Errorf("%q: want an address or network such as 192.0.2.7 or 2001:db8::/32, or an identity such as did:key:z6Mk…",
			text)
	}
	*b = banText(prefix.String())
	return nil
}

func (f limitFlags) bans() (b relay.Bans) {
	for _, text := range f.Ban {
		if did, err := didkey.Parse(string(text)); err == nil {
			b.Agents = append(b.Agents, did)
		} else {
			b.Networks = append(b.Networks, netip.MustParsePrefix(string(text)))
		}
	}
	return b
}

// webOrigin is the origin of web pages, or * for all origins.
type webOrigin string

func (o *webOrigin) UnmarshalText(text []byte) error {
	if string(text) == "*" {
		*o = "*"
		return nil
	}
	origin, err := relay.ParseOrigin(string(text))
	if err == nil && slices.Contains(text, '*') {
		err = fmt.Errorf("want whole origins such as https://app.example, or * alone for all pages")
	}
	*o = webOrigin(origin)
	return err
}

// IsHuge reports whether a network has more addresses than a /8 of IPv4 or a /32 of IPv6.
func IsHuge(n netip.Prefix) bool {
	return n.Addr().Is4() && n.Bits() < 8 || n.Addr().Is6() && n.Bits() < 32
}

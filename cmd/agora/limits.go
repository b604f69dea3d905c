package main

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/agora-relay/agora/relay"
)

// limitFlags are the settings of serve for limits, and for who counts as which address. 0 means no limit.
type limitFlags struct {
	PostRateIP       float64     `name:"post-rate-ip" default:"50" placeholder:"N" help:"Posts a second from one address, after twice as many at once; 0: no limit. An IPv6 /64 counts as one address; a /56 has 4 times and a /48 16 times the limits of one (default: ${default})."`
	ReadRateIP       float64     `name:"read-rate-ip" default:"100" placeholder:"N" help:"Other requests a second from one address, after twice as many at once; 0: no limit (default: ${default})."`
	PostRateDID      float64     `name:"post-rate-did" default:"20" placeholder:"N" help:"Messages a second signed by one identity, after twice as many at once; 0: no limit (default: ${default})."`
	BroadcastRateIP  float64     `name:"broadcast-rate-ip" default:"5" placeholder:"N" help:"REQUESTs without a recipient a second from one address, after four times as many at once; 0: no limit (default: ${default})."`
	ConnectionsPerIP int         `name:"connections-per-ip" default:"256" placeholder:"N" help:"Open connections of one address, idle ones included; 0: no limit (default: ${default})."`
	RequestsPerIP    int         `name:"requests-per-ip" default:"64" placeholder:"N" help:"Concurrent requests of one address, waiting polls included; 0: no limit (default: ${default})."`
	PollsPerIP       int         `name:"polls-per-ip" default:"32" placeholder:"N" help:"Concurrent waiting polls of one address; 0: no limit (default: ${default})."`
	MaxPolls         int         `default:"10000" placeholder:"N" help:"Concurrent waiting polls of all addresses together; 0: no limit (default: ${default})."`
	InboxEvents      int         `default:"10000" placeholder:"N" help:"Unexpired REQUESTs and MANIFESTs stored for one recipient; messages of its own threads are not counted; 0: no limit (default: ${default})."`
	InboxBytes       int64       `type:"bytes" default:"64MiB" placeholder:"SIZE" help:"Total size of these messages for one recipient; 0: no limit (default: ${default})."`
	TrustedProxy     []proxyText `placeholder:"CIDR" sep:"none" help:"Address or network of a proxy. Its X-Forwarded-For header then tells where a request comes from. May be repeated. Without it all clients of a proxy count as one address."`
	LimitLocal       bool        `help:"Limit requests from this machine too. By default they have no limits if the relay listens on loopback only and has no --public-url."`
	CORSOrigin       []webOrigin `name:"cors-origin" placeholder:"ORIGIN" sep:"none" help:"Let web pages of this origin use the relay, such as https://app.example; * lets all pages. May be repeated. By default no web page can read answers."`
}

func (f limitFlags) Validate() error {
	for name, perSecond := range map[string]float64{"--post-rate-ip": f.PostRateIP, "--read-rate-ip": f.ReadRateIP,
		"--post-rate-did": f.PostRateDID, "--broadcast-rate-ip": f.BroadcastRateIP} {
		if perSecond != 0 && (perSecond < 0.01 || perSecond > 1e6) {
			return fmt.Errorf("%s must be from 0.01 to 1000000 a second, or 0 for no limit", name)
		}
	}
	for name, n := range map[string]int64{"--connections-per-ip": int64(f.ConnectionsPerIP),
		"--requests-per-ip": int64(f.RequestsPerIP), "--polls-per-ip": int64(f.PollsPerIP), "--max-polls": int64(f.MaxPolls),
		"--inbox-events": int64(f.InboxEvents), "--inbox-bytes": f.InboxBytes} {
		if n < 0 {
			return fmt.Errorf("%s must not be negative; 0 means no limit", name)
		}
	}
	if slices.Contains(f.CORSOrigin, "*") && len(f.CORSOrigin) > 1 {
		return fmt.Errorf("--cors-origin '*' lets every page use the relay; give it alone, or only whole origins")
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
		BroadcastsPerAddress:  rate(f.BroadcastRateIP),
		ConnectionsPerAddress: orUnlimited(f.ConnectionsPerIP),
		RequestsPerAddress:    orUnlimited(f.RequestsPerIP), PollsPerAddress: orUnlimited(f.PollsPerIP), Polls: orUnlimited(f.MaxPolls),
	}
}

func (f limitFlags) inbox() relay.Quota {
	return relay.Quota{Events: orUnlimited(f.InboxEvents), Bytes: orUnlimited(f.InboxBytes)}
}

// orUnlimited returns n, of which 0 means no limit on the command line.
func orUnlimited[N int | int64](n N) N {
	if n == 0 {
		return relay.Unlimited
	}
	return n
}

func (f limitFlags) proxies() (prefixes []netip.Prefix) {
	for _, p := range f.TrustedProxy {
		prefixes = append(prefixes, netip.Prefix(p))
	}
	return prefixes
}

func (f limitFlags) origins() (origins []string) {
	for _, o := range f.CORSOrigin {
		origins = append(origins, string(o))
	}
	return origins
}

// proxyText is a network, or an address as a network of its own.
type proxyText netip.Prefix

func (p *proxyText) UnmarshalText(text []byte) error {
	prefix, err := netip.ParsePrefix(string(text))
	if err != nil {
		var addr netip.Addr
		if addr, err = netip.ParseAddr(string(text)); err == nil {
			prefix, err = addr.Unmap().Prefix(addr.Unmap().BitLen())
		}
	}
	if err != nil || prefix.Addr().Is4In6() || prefix.Addr().Zone() != "" {
		return fmt.Errorf("want the proxy's address or network, such as 127.0.0.1, 10.0.0.0/8 or fd00::/8")
	}
	*p = proxyText(prefix.Masked())
	return nil
}

// webOrigin is the origin of web pages, or * for every one.
type webOrigin string

func (o *webOrigin) UnmarshalText(text []byte) error {
	if string(text) == "*" {
		*o = "*"
		return nil
	}
	origin, err := relay.ParseOrigin(string(text))
	if err == nil && slices.Contains(text, '*') {
		err = fmt.Errorf("want whole origins such as https://app.example, or * alone for every page")
	}
	*o = webOrigin(origin)
	return err
}

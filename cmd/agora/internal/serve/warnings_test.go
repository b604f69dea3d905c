package serve

import (
	"strings"
	"testing"
)

func TestStartWarnings(t *testing.T) {
	proxy := []proxyText{"127.0.0.1/32"}
	for name, c := range map[string]struct {
		serve        Cmd
		loopbackOnly bool
		want         string // a part of the only warning; empty: there is none
	}{
		"on loopback":                      {Cmd{}, true, ""},
		"on loopback, limited":             {Cmd{Limits: limitFlags{LimitLocal: true}}, true, ""},
		"on loopback, a name and no proxy": {Cmd{PublicURL: "https://relay.example"}, true, "--trusted-proxy is not"},
		"on loopback, a proxy and no name": {Cmd{Limits: limitFlags{TrustedProxy: proxy}}, true, "--public-url is not"},
		"on loopback, with both":           {Cmd{PublicURL: "https://relay.example", Limits: limitFlags{TrustedProxy: proxy}}, true, ""},
		"for all":                          {Cmd{}, false, ""},
		"for all, a name and no proxy":     {Cmd{PublicURL: "https://relay.example"}, false, "--trusted-proxy is not"},
		"for all, a huge ban":              {Cmd{Limits: limitFlags{Ban: []banText{"0.0.0.0/0"}}}, false, "--ban 0.0.0.0/0 refuses very many"},
		"for all, a ban":                   {Cmd{Limits: limitFlags{Ban: []banText{"10.0.0.0/8", "2001:db8::/32"}}}, false, ""},
		"for all, with both":               {Cmd{PublicURL: "https://relay.example", Limits: limitFlags{TrustedProxy: proxy}}, false, ""},
		"for all, a proxy and no name":     {Cmd{Limits: limitFlags{TrustedProxy: proxy}}, false, ""},
		"for all, limited as it would be":  {Cmd{Limits: limitFlags{LimitLocal: true}}, false, ""},
		"for all, a hub":                   {Cmd{Gateways: gatewayFlags{Hub: hubFlags{Hub: true}}}, false, "--hub is given and --public-url is not"},
		"for all, channels":                {Cmd{Gateways: gatewayFlags{Channel: channelFlags{Channel: true}}}, false, "--channel is given and --public-url is not"},
		"for all, a hub and a name": {Cmd{PublicURL: "https://relay.example", Limits: limitFlags{TrustedProxy: proxy},
			Gateways: gatewayFlags{Hub: hubFlags{Hub: true}}}, false, ""},
		"on loopback, limited, a hub":       {Cmd{Limits: limitFlags{LimitLocal: true}, Gateways: gatewayFlags{Hub: hubFlags{Hub: true}}}, true, ""},
		"on loopback, limited, and a proxy": {Cmd{Limits: limitFlags{LimitLocal: true, TrustedProxy: proxy}}, true, "--public-url is not"},
	} {
		got := c.serve.warnings(c.loopbackOnly)
		if c.want == "" && got != nil || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

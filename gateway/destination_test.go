package gateway_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/agora-relay/agora/gateway"
)

// TestDestinations checks G-14 before a connection is made: which URLs are refused at once.
func TestDestinations(t *testing.T) {
	long := "https://agent.example/" + strings.Repeat("a", gateway.MaxURL-len("https://agent.example/"))
	d := gateway.Destinations{Origin: "https://relay.example"}
	for _, good := range []string{
		"https://agent.example", "https://agent.example/hook?key=1", "HTTPS://Agent.Example./", long,
		"https://agent.example:80/", "https://agent.example:443/", "https://agent.example:1024/", "https://agent.example:65535/",
		"https://8.8.8.8/", "https://[2606:4700::1111]/", "https://relay.example:8443/", "https://other.relay.example/",
		"https://bücher.example/", "https://localhost.example/", "https://xlocal.example/",
		"https://xn--bcher-kva.example/", "https://a_b.1.example/", "https://例え.テスト/", "https://a.xn--p1ai/",
		"https://" + strings.Repeat("a", 63) + ".example/",
	} {
		if _, err := d.Check(good); err != nil {
			t.Errorf("%.60s is refused: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", "agent.example", "/hook", "//agent.example/", "https:agent.example", "https:///hook", "https://", long + "a",
		"http://agent.example/", "ftp://agent.example/", "file:///etc/passwd", "https://u@agent.example/",
		"https://u:p@agent.example/", "https://agent.example/#", "https://agent.example/#part", " https://agent.example/",
		"https://agent.example/a b", "https://agent.example/\n", "https://agent.exa\x00mple/",
		"https://agent.example:0/", "https://agent.example:22/", "https://agent.example:81/", "https://agent.example:1023/",
		"https://agent.example:65536/", "https://agent.example:x/",
		"https://relay.example/", "https://RELAY.example./x", "https://relay.example:443/",
		"https://localhost/", "https://intranet/", "https://intranet./", "https://x.localhost/", "https://printer.local/",
		"https://a.internal/", "https://A.INTERNAL./", "https://2130706433/", "https://0x7f000001/",
		"https://127.0.0.1/", "https://127.0.0.1./", "https://0.0.0.0/", "https://[::1]/", "https://[::]/",
		"https://[::ffff:127.0.0.1]/", "https://[::ffff:7f00:1]/", "https://[64:ff9b::7f00:1]/", "https://[fe80::1%25lo]/",
		"https://[2001:db8::1]/", "https://10.0.0.1/", "https://169.254.169.254/latest/meta-data",
		"https://127.1/", "https://127.0.1/", "https://0x7f.0.0.1/", "https://0177.0.0.1/", "https://127.000.000.001/",
		"https://１２７.０.０.１/", "https://①②⑦.⓪.⓪.①/", "https://127。0。0。1/", "https://8.8.8.8.8/", "https://a.example.1/",
		"https://x..example/", "https://.example/", "https://-a.example/", "https://a.example-/", "https://a_b.example!/",
		"https://" + strings.Repeat("a", 64) + ".example/",
	} {
		if _, err := d.Check(bad); err == nil {
			t.Errorf("%.60q is accepted", bad)
		}
	}
}

// TestExcludedNetworks checks both ends of each excluded network, and the addresses next to it.
func TestExcludedNetworks(t *testing.T) {
	accepts := func(addr netip.Addr) bool {
		host := addr.String()
		if addr.Is6() {
			host = "[" + host + "]"
		}
		_, err := gateway.Destinations{}.Check("https://" + host + "/")
		return err == nil
	}
	for network := range strings.FieldsSeq(`2001::/23 2001:db8::/32 2002::/16 3fff::/20 0.0.0.0/8 10.0.0.0/8
		100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 192.168.0.0/16
		198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 ::/3 4000::/2 8000::/1`) {
		first := netip.MustParsePrefix(network)
		last := lastOf(first)
		if accepts(first.Addr()) || accepts(last) || first.Addr().Is4() && accepts(netip.AddrFrom16(last.As16())) {
			t.Errorf("an address of %s is accepted", network)
		}
	}
	for addr := range strings.FieldsSeq(`1.0.0.0 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255
		128.0.0.0 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 192.0.1.0 192.0.3.0 192.88.98.255 192.88.100.0
		192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 198.51.99.255 198.51.101.0 203.0.112.255 203.0.114.0
		223.255.255.255 ::ffff:8.8.8.8 2000:: 2001:200:: 2001:db7:ffff:ffff:ffff:ffff:ffff:ffff 2001:db9:: 2003:: 3ffe::
		3fff:1000:: 3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff`) {
		if !accepts(netip.MustParseAddr(addr)) {
			t.Errorf("%s is refused", addr)
		}
	}
	gateway.SetInterfaces(t, "8.8.8.8/24", "2606:4700::1111/64")
	for addr, want := range map[string]bool{"8.8.8.8": false, "::ffff:8.8.8.8": false, "8.8.8.9": true,
		"2606:4700::1111": false, "2606:4700::1112": true} {
		if accepts(netip.MustParseAddr(addr)) != want {
			t.Errorf("on a machine with the addresses 8.8.8.8 and 2606:4700::1111, %s is accepted: %t", addr, !want)
		}
	}
	gateway.SetInterfaces(t, "broken")
	if accepts(netip.MustParseAddr("9.9.9.9")) {
		t.Error("an address is accepted although the machine's own are not known")
	}
}

// lastOf returns the last address of a network.
func lastOf(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(bytes); bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	addr, _ := netip.AddrFromSlice(bytes)
	return addr
}

// TestExceptions checks what --outbound-allow opens, and what it does not.
func TestExceptions(t *testing.T) {
	for _, c := range []struct{ exception, good, bad string }{
		{"127.0.0.0/8", "http://127.0.0.1:9/x https://127.255.255.255:22/ http://[::ffff:127.0.0.1]:1/",
			"http://128.0.0.1/ http://localhost/ http://agent.example/ https://10.0.0.1/ http://[::1]/"},
		{"10.1.2.3", "http://10.1.2.3/ https://10.1.2.3:25/", "http://10.1.2.4/ https://10.1.2.2/"},
		{"::1", "http://[::1]:80/", "http://127.0.0.1/ https://[::2]/"},
		{"localhost", "http://localhost:1/ https://LocalHost./", "http://127.0.0.1/ http://x.localhost/"},
		{"Agent.Example", "http://agent.example/ https://agent.example:25/", "http://x.agent.example/ https://b.example:25/"},
	} {
		e, err := gateway.ParseException(c.exception)
		if err != nil {
			t.Fatal(err)
		}
		d := gateway.Destinations{Exceptions: []gateway.Exception{e}}
		for url := range strings.FieldsSeq(c.good) {
			if _, err := d.Check(url); err != nil {
				t.Errorf("with %s, %s is refused: %v", c.exception, url, err)
			}
		}
		for url := range strings.FieldsSeq(c.bad) {
			if _, err := d.Check(url); err == nil {
				t.Errorf("with %s, %s is accepted", c.exception, url)
			}
		}
	}
	for _, bad := range []string{"", "*", "*.example", "https://agent.example", "10.0.0.0/33", "a b", "agent.example:443", "fe80::1%lo"} {
		if _, err := gateway.ParseException(bad); err == nil {
			t.Errorf("%q is accepted as an exception", bad)
		}
	}
}

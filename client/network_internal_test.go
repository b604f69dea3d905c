package client

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/internal/netaddr"
	"github.com/agora-relay/agora/proof"
)

// TestDialer checks that a client that discovers relays connects to no address inside of its network, whatever name or
// redirect leads there (RELAYS R-13).
func TestDialer(t *testing.T) {
	netaddr.InterfaceAddrs = func() ([]net.Addr, error) {
		return []net.Addr{&net.IPNet{IP: net.ParseIP("198.51.99.7"), Mask: net.CIDRMask(24, 32)}}, nil
	}
	defer func() { netaddr.InterfaceAddrs = net.InterfaceAddrs }()
	transport := guarded()
	inner := "0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.255 127.0.0.1 127.255.255.254 169.254.0.1 " +
		"169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.8 192.0.2.1 192.88.99.1 192.168.0.1 192.168.255.255 198.18.0.1 " +
		"198.19.255.255 198.51.100.1 198.51.99.7 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 :: ::1 " +
		"::ffff:127.0.0.1 ::ffff:10.0.0.1 ::127.0.0.1 64:ff9b::7f00:1 100::1 2001::1 2001:db8::1 2002:7f00:1::1 3fff::1 " +
		"fc00::1 fd12:3456::1 fe80::1 fec0::1 ff02::1"
	for address := range strings.FieldsSeq(inner) {
		for _, port := range []string{"443", "8443"} {
			refusedInside(t, transport, net.JoinHostPort(address, port))
		}
	}
	for _, port := range []string{"22", "80", "1023"} {
		refusedInside(t, transport, net.JoinHostPort("9.9.9.9", port))
	}
	refusedInside(t, transport, "localhost:8443") // a name is checked by its address
	for _, origin := range []string{"http://relay.example", "https://relay.example/x", "https://me@relay.example",
		"relay.example", ""} {
		if checkOrigin(origin) == nil {
			t.Errorf("%q counts as the origin of a relay that may be discovered", origin)
		}
	}
	if err := checkOrigin("https://relay.example:8443"); err != nil {
		t.Error(err)
	}
}

func refusedInside(t *testing.T, transport http.RoundTripper, host string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+host+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := transport.RoundTrip(request)
	if err == nil {
		err = response.Body.Close()
	}
	if err == nil || !strings.Contains(err.Error(), errInside.Error()) {
		t.Errorf("%s: %v", host, err)
	}
}

// TestNewHostsAreCounted: at most 16 new hosts an hour (RELAYS R-13).
func TestNewHostsAreCounted(t *testing.T) {
	n, now := &Network{}, time.Now()
	for i := range maxNewHosts {
		if err := n.countHost(now); err != nil {
			t.Fatal(i, err)
		}
	}
	if n.countHost(now.Add(time.Hour-1)) == nil {
		t.Error("a further host within the hour is contacted")
	}
	if err := n.countHost(now.Add(time.Hour)); err != nil {
		t.Error(err)
	}
}

// TestContradictionIsCaught: a relay whose proofs contradict each other within one log is not used any more, and the
// evidence is in a file. What can come from a restore does not count (RELAYS R-17).
func TestContradictionIsCaught(t *testing.T) {
	text, err := os.ReadFile("../testvectors/log.json")
	var file struct {
		Vectors []struct {
			Name, Expect string
			Evidence     []byte
		}
	}
	if err == nil {
		err = json.Unmarshal(text, &file)
	}
	if err != nil {
		t.Fatal(err)
	}
	kinds, restored := map[proof.Kind]bool{}, false
	for _, v := range file.Vectors {
		e, err := proof.ParseEvidence(v.Evidence)
		if err != nil || v.Expect != "accept" || len(e.Proofs) != 2 {
			continue
		}
		folder := t.TempDir()
		key, err := didkey.Generate()
		if err != nil {
			t.Fatal(err)
		}
		n, err := NewNetwork([]string{"https://relay.example"}, key, NetworkOptions{Evidence: folder})
		if err != nil {
			t.Fatal(err)
		}
		events, err := proof.ParseMessages(e.Events)
		if err != nil {
			t.Fatal(v.Name, err)
		}
		logs := map[proof.Origin]bool{}
		var relay didkey.DID
		for i, text := range e.Proofs {
			p, err := proof.Parse(text)
			var verified *proof.Verified
			if err == nil {
				verified, err = p.Verify()
			}
			if err != nil {
				t.Fatal(v.Name, err)
			}
			s := &proof.Statement{Proof: p, Verified: verified}
			if e.Kind == proof.KindSteps {
				s.Event = events[i]
			}
			relay, logs[verified.Origin] = verified.Origin.DID, true
			n.compare(s)
		}
		restored = restored || e.Kind == proof.KindSteps && len(logs) == 2
		files, err := filepath.Glob(folder + "/evidence-*.json")
		caught := n.state.isCaught(relay)
		if want := e.Kind != proof.KindChain && len(logs) == 1; err != nil || caught != want || (len(files) == 1) != want {
			t.Errorf("%s, %s: caught %v, %d files, %v", v.Name, e.Kind, caught, len(files), err)
		}
		kinds[e.Kind] = true
	}
	if len(kinds) < 4 || !restored {
		t.Errorf("only the kinds %v were tried, two steps in two logs: %v", kinds, restored)
	}
}

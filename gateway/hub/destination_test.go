package hub_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/store/storetest/engine"
)

// G-14: an endpoint that the relay must not call is refused at once. The deep tests of destinations are in package
// gateway.
func TestBlockedEndpoints(t *testing.T) {
	f := start(t)
	operator := func(endpoint string) answer {
		return f.do(call{"POST", "/agents", f.Operator, object{"agent_id": alice, "endpoint": endpoint}, nil})
	}
	agent := func(endpoint string) answer {
		body := registrationOf(alice)
		body["endpoint"] = endpoint
		return f.do(call{"POST", "/register", "", body, nil})
	}
	for _, endpoint := range []string{"https://127.0.0.2/", "https://[::1]/hook", "https://[::ffff:10.0.0.1]/",
		"https://10.0.0.1:8443/",
		"https://169.254.169.254/latest", "https://[64:ff9b::a00:1]/", "https://[fe80::1%25eth0]/", "https://localhost/",
		"https://LOCALHOST./", "https://x.localhost/", "https://printer.local/", "https://db.internal./", "https://agent/",
		"https://2130706433/", "https://0x7f000001/", "https://agent.example:22/", "https://relay.example/hub",
		"https://RELAY.example.:443/x",
		"http://agent.example/", "http://10.0.0.1/", "ftp://agent.example/", "//agent.example/", "/hook",
		"https:agent.example", "",
		"https://user@agent.example/", "https://agent.example/#x", "https://agent.example/ x", "https://agent.example:0/",
		"https://agent.example/" + strings.Repeat("a", 2027)} {
		for _, register := range []func(string) answer{agent, operator} {
			if a := register(endpoint); a.Status != 400 || a.code() != "ERR_ENDPOINT_BLOCKED" {
				t.Errorf("%q: %v", endpoint, a)
			}
		}
	}
	f.want(f.do(call{"GET", "/agents/" + alice, "", nil, nil}), 404, "ERR_AGENT_NOT_FOUND")
	for _, endpoint := range []string{"https://agent.example/" + strings.Repeat("a", 2026),
		"https://agent.example:1024/?key=1", "http://127.0.0.1:1/", "https://1.1.1.1/", "https://[2606:4700::1]:443/"} {
		if a := operator(endpoint); a.Status != 201 && a.Status != 200 {
			t.Errorf("%q: %v", endpoint, a)
		}
	}
}

// G-14, G-16: a name is judged by its address when the relay connects. The sender learns only that it is blocked.
func TestBlockedNames(t *testing.T) {
	addresses := []string{"127.0.0.2", "10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "64:ff9b::a00:1",
		"fd00::1"}
	f := start(t, func(f *fixture) { f.Outgoing.Resolver = resolver(t, addresses) })
	key := f.register(alice)
	for i, address := range addresses {
		receiver := fmt.Sprintf("n%d@x", i)
		f.register(receiver, object{"endpoint": fmt.Sprintf("https://n%d.example/", i)})
		a := f.send(key, alice, receiver, address)
		want := fmt.Sprintf(`{"delivery":"failed","detail":"blocked","error_code":"ERR_ENDPOINT_BLOCKED",`+
			`"state":"failed","trace_id":"%s"}`, a.text("trace_id"))
		if a.Status != 200 || a.dataOf() != want {
			t.Errorf("a name with the address %s: %v, want %s", address, a, want)
		}
	}
	for _, row := range f.history(key, "") {
		if row["state"] != "failed" || row["error_code"] != "ERR_ENDPOINT_BLOCKED" || row["detail"] != "blocked" ||
			row["delivered_via"] != "queued" {
			t.Errorf("the history has %v", row)
		}
	}
}

// G-7, G-8: a secret in the URL of a webhook is neither in the database nor in the log. G-16: no sender learns it.
func TestEndpointIsSecret(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		const secret = "SecretOfTheURL"
		answers := ""
		for i, answer := range []func(http.ResponseWriter, hookCall){nil, status(500, ""), status(404, ""),
			func(http.ResponseWriter, hookCall) { panic(http.ErrAbortHandler) }} {
			receiver := fmt.Sprintf("s%d@x", i)
			p.register(receiver, object{"endpoint": newHook(t, answer).url + "?key=" + secret})
			answers += p.send(p.alice, alice, receiver, "a").String()
		}
		p.register("s4@x", object{"endpoint": "http://127.0.0.1:2000/" + secret})
		answers += p.send(p.alice, alice, "s4@x", "a").String()
		answers += string(p.do(call{"GET", "/agent/messages", p.alice, nil, nil}).Body)
		if strings.Contains(answers, secret) || strings.Contains(answers, "127.0.0.1") {
			t.Errorf("the sender has %s", answers)
		}
		p.Stop()
		if strings.Contains(p.Logged(), secret) {
			t.Error("the secret is in the log")
		}
		for _, name := range engine.Files(t, p.Path) {
			content, err := os.ReadFile(name)
			if err != nil || strings.Contains(string(content), secret) {
				t.Errorf("%s has the secret, %v", name, err)
			}
		}
	})
}

// resolver returns a resolver that gives each name nI.example the address with the index I.
func resolver(t *testing.T, addresses []string) *net.Resolver {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	go func() {
		query := make([]byte, 512)
		for {
			n, from, err := server.ReadFrom(query)
			if err != nil {
				return
			}
			var index int
			_, _ = fmt.Sscanf(string(query[13:13+query[12]]), "n%d", &index) // else the first address
			_, _ = server.WriteTo(resolved(query[:n], netip.MustParseAddr(addresses[index])), from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
}

// resolved answers a query of one question with an address (RFC 1035 §4).
func resolved(query []byte, address netip.Addr) []byte {
	end := 12 // of the question
	for query[end] != 0 {
		end += int(query[end]) + 1
	}
	end += 5
	data, kind := address.AsSlice(), uint16(1) // A
	if address.Is6() {
		kind = 28 // AAAA
	}
	answer := append([]byte{query[0], query[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, query[12:end]...)
	if binary.BigEndian.Uint16(query[end-4:]) != kind {
		return answer
	}
	answer[7] = 1
	answer = append(answer, 0xc0, 12, 0, byte(kind), 0, 1, 0, 0, 0, 0, 0, byte(len(data)))
	return append(answer, data...)
}

// G-14: a redirect is not followed.
func TestRedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	inParty(t, func(t *testing.T, p party) {
		inner := newHook(t, nil)
		for _, status := range []int{301, 302, 303, 307, 308} {
			receiver := fmt.Sprintf("r%d@x", status)
			p.registerHook(receiver, func(w http.ResponseWriter, _ hookCall) {
				w.Header().Set("Location", inner.url)
				w.WriteHeader(status)
			})
			a := p.send(p.alice, alice, receiver, "a")
			if a.text("state") != "failed" || a.text("detail") != fmt.Sprint("HTTP ", status) {
				t.Errorf("%d: %v", status, a)
			}
		}
		time.Sleep(time.Minute)
		if n := len(inner.seen()); n != 0 {
			t.Errorf("%d redirects were followed", n)
		}
	})
}

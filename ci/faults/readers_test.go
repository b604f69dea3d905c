package faults

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
)

const (
	maxReadMemory     = 300 << 20 // resident memory of the relay, in bytes
	concurrentClients = 64
	otherRequests     = 12 // polls from other addresses, and as many posts
)

// fullDatabase describes a database with many events and manifests.
type fullDatabase struct {
	events, manifests int
	inbox, sender     didkey.DID // recipient and sender of all events
}

// fill creates the database and the relay's key in the folder data.
func (h *fullDatabase) fill(t testing.TB, data string) {
	t.Helper()
	must(t, os.MkdirAll(data, 0o700))
	must(t, didkey.Save(filepath.Join(data, "relay.key"), newKey(t)))
	unbounded := relay.Policy{Inbox: relay.Quota{Events: -1, Bytes: -1}}
	store, err := sqlite.Open(t.Context(), filepath.Join(data, "agora.db"), sqlite.Options{Policy: unbounded})
	must(t, err)
	defer func() { must(t, store.Close()) }()
	from, to := newKey(t), newKey(t).DID()
	h.inbox, h.sender = to, from.DID()
	listers := newKeys(t, h.manifests/relay.MaxManifests+1)
	words := strings.Repeat("word ", 20_000)
	var next atomic.Int64
	var all sync.WaitGroup
	for range 128 * runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < h.events+h.manifests; i = int(next.Add(1)) - 1 {
				by, d := from, envelope.Draft{TTL: time.Hour, Recipient: to, Payload: envelope.Request{Intent: "echo"}}
				var listing *relay.Listing
				if i < h.manifests {
					id := fmt.Sprint("m", i%relay.MaxManifests)
					by, d.Recipient = listers[i/relay.MaxManifests], ""
					d.Payload = envelope.Manifest{ID: id, Description: words, Intents: []envelope.Intent{{ID: "echo"}}}
					listing = &relay.Listing{ID: id, Intents: []string{"echo"}, Text: words}
				}
				e, err := d.Sign(by, time.Now())
				if err == nil {
					_, err = store.Append(t.Context(), relay.Entry{Envelope: e, Received: time.Now(), Listing: listing})
				}
				if err != nil {
					t.Errorf("cannot fill the database: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
}

// flood sends GETs from one address with 64 concurrent clients, until stop is called. Every second client disconnects
// before it is answered. served counts the answers with status 200 to the other clients.
func flood(t testing.TB, relay *server, from, path string) (stop func(), served *atomic.Int64) {
	t.Helper()
	host := relay.host(t)
	text := "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n" + forwardedFor + ": " + from +
		"\r\nConnection: close\r\n\r\n"
	var asked atomic.Int64
	served = new(atomic.Int64)
	stop = inBackground(concurrentClients, func() bool {
		c, err := net.Dial("tcp", host)
		if err != nil {
			t.Errorf("cannot connect: %v", err)
			return false
		}
		defer c.Close()
		if _, err = c.Write([]byte(text)); err == nil && asked.Add(1)%2 == 0 {
			_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
			answer := make([]byte, len("HTTP/1.1 200"))
			if n, _ := c.Read(answer); string(answer[:n]) == "HTTP/1.1 200" { // others are refused or still waiting
				served.Add(1)
			}
		}
		sleep(20 * time.Millisecond)
		return true
	})
	return stop, served
}

// TestReadersFromOneAddressDelayNoOther tests expensive reads. One address makes as many of them as its limits allow.
// They must not delay the posts and polls of other addresses, and the relay must use little memory.
func TestReadersFromOneAddressDelayNoOther(t *testing.T) {
	h := fullDatabase{events: scaled(*hoardEvents), manifests: scaled(*hoardManifests)}
	data := filepath.Join(t.TempDir(), "data")
	began := time.Now()
	h.fill(t, data)
	t.Logf("%d events and %d manifests stored in %s", h.events, h.manifests, time.Since(began).Round(time.Millisecond))
	relay := serverOn(t, data, "--public-url", "https://relay.example", "--trusted-proxy", "127.0.0.1",
		"--pending-timeout", "24h")
	relay.start()
	quiet := newServer(t, relay.args...)
	quiet.start()
	to, sender := "&recipient="+string(h.inbox), "&sender="+string(h.sender)
	const long = "/events?since=2020-01-01T00:00:00Z&timeout=0"
	for i, path := range []string{
		"/agents?intent=nope", "/agents?q=nope", "/agents?online=true", "/agents?limit=1000",
		"/events?cursor=0&type=CANCEL&timeout=0", "/events?cursor=0&type=CANCEL&timeout=60",
		"/events?cursor=0&type=CANCEL&timeout=0" + sender, "/events?cursor=0&type=CANCEL&timeout=0" + to,
		"/events?cursor=0&limit=1000&timeout=0",
		long + "&limit=1" + to, long + "&limit=1000" + to, long + "&type=CANCEL", long + "&type=CANCEL" + to,
	} {
		t.Run(path, func(t *testing.T) {
			stop, served := flood(t, relay, fmt.Sprint("203.0.113.", i), path)
			with, without := othersLatencies(t, relay, quiet)
			memory, measured := residentBytes(t, relay.process.Process.Pid)
			stop()
			checkDelay(t, path, with, without)
			t.Logf("the relay uses %d MB; %d reads served", memory>>20, served.Load())
			if measured && !racing.Detector && memory > maxReadMemory {
				t.Errorf("the relay uses %d MB", memory>>20)
			}
		})
	}
}

// othersLatencies returns how long posts and polls from other addresses take at each relay. They alternate.
func othersLatencies(t testing.TB, one, other *server) (atOne, atOther []time.Duration) {
	t.Helper()
	keys := newKeys(t, 2)
	for n := range otherRequests {
		atOne = append(atOne, othersTimes(t, one, n, keys[n%2], keys[1-n%2])...)
		atOther = append(atOther, othersTimes(t, other, n, keys[n%2], keys[1-n%2])...)
		sleep(10 * time.Millisecond)
	}
	return atOne, atOther
}

// othersTimes returns how long a post and a poll from another address take, which is one of eight.
func othersTimes(t testing.TB, at *server, n int, from, to didkey.Key) []time.Duration {
	t.Helper()
	url, err := at.address(t.Context())
	must(t, err)
	address := fmt.Sprintf("198.51.100.%d", 1+n%8)
	e := request(t, from, to.DID(), time.Hour, 0)
	began := time.Now()
	a, err := exchangeFrom(t.Context(), address, http.MethodPost, url+"/events", e.Canonical())
	must(t, err)
	posted := time.Now()
	b, err := exchangeFrom(t.Context(), address, http.MethodGet, url+"/events?cursor=0&timeout=0&recipient="+string(to.DID()), nil)
	must(t, err)
	if !a.OK || !b.OK || len(b.Events) == 0 {
		t.Fatalf("another address got the answers %s and %s with %d events", a, b, len(b.Events))
	}
	return []time.Duration{posted.Sub(began), time.Since(posted)}
}

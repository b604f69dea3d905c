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
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
)

const (
	slowestForeign = 250 * time.Millisecond // the slowest post or poll of another address
	mostReading    = 300 << 20              // the relay's resident memory, in bytes
	attackAtOnce   = 64
	foreignReads   = 12 // polls of another address, and as many posts
)

// hoard is a full database.
type hoard struct {
	events, manifests int
	inbox, sender     didkey.DID // of all events
}

// fill creates a database in a folder, and the relay's key.
func (h *hoard) fill(t testing.TB, data string) {
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
					t.Errorf("filling the database: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
}

// besiege sends 64 concurrent GETs from one address, again and again until stop is called. Every second client leaves
// before its answer; served counts the answers to the other clients.
func besiege(t testing.TB, relay *server, from, path string) (stop func(), served *atomic.Int64) {
	t.Helper()
	host := relay.host(t)
	text := "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n" + forwardedFor + ": " + from + "\r\nConnection: close\r\n\r\n"
	var asked atomic.Int64
	served = new(atomic.Int64)
	stop = inBackground(attackAtOnce, func() bool {
		c, err := net.Dial("tcp", host)
		if err != nil {
			t.Errorf("asking: %v", err)
			return false
		}
		defer c.Close()
		if _, err = c.Write([]byte(text)); err == nil && asked.Add(1)%2 == 0 {
			_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
			answer := make([]byte, len("HTTP/1.1 200"))
			if n, _ := c.Read(answer); string(answer[:n]) == "HTTP/1.1 200" { // others are refused, or have to wait
				served.Add(1)
			}
		}
		pass(20 * time.Millisecond)
		return true
	})
	return stop, served
}

// One address that makes as many of the costliest reads as it may does not delay the posts and polls of other addresses,
// and uses little memory.
func TestReadersFromOneAddressDelayNoOther(t *testing.T) {
	h := hoard{events: scaled(*hoardEvents), manifests: scaled(*hoardManifests)}
	data := filepath.Join(t.TempDir(), "data")
	began := time.Now()
	h.fill(t, data)
	t.Logf("%d events and %d manifests stored in %s", h.events, h.manifests, time.Since(began).Round(time.Millisecond))
	relay := serverOn(t, data, "--public-url", "https://relay.example", "--trusted-proxy", "127.0.0.1", "--pending-timeout", "24h")
	relay.start()
	url, err := relay.address(t.Context())
	must(t, err)
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
			stop, served := besiege(t, relay, fmt.Sprint("203.0.113.", i), path)
			times := others(t, url)
			memory, measured := residentBytes(t, relay.process.Process.Pid)
			stop()
			t.Logf("%s: posts and polls of others take %s (p50), %s (p99); %d MB; %d served", path, percentile(times, 50), percentile(times, 99),
				memory>>20, served.Load())
			if !raceDetector && percentile(times, 99) > slowestForeign {
				t.Errorf("the slowest of %d requests take %s", len(times), percentile(times, 99))
			}
			if measured && !raceDetector && memory > mostReading {
				t.Errorf("the relay takes %d MB", memory>>20)
			}
		})
	}
}

// others returns how long posts and polls of other addresses take.
func others(t testing.TB, url string) (times []time.Duration) {
	t.Helper()
	keys := newKeys(t, 2)
	for n := range foreignReads {
		address := fmt.Sprintf("198.51.100.%d", 1+n%8)
		e := request(t, keys[n%2], keys[1-n%2].DID(), time.Hour, 0)
		began := time.Now()
		a, err := exchangeFrom(t.Context(), address, http.MethodPost, url+"/events", e.Canonical())
		must(t, err)
		posted := time.Now()
		b, err := exchangeFrom(t.Context(), address, http.MethodGet, url+"/events?cursor=0&timeout=0&recipient="+string(keys[1-n%2].DID()), nil)
		must(t, err)
		times = append(times, posted.Sub(began), time.Since(posted))
		if !a.OK || !b.OK || len(b.Events) == 0 {
			t.Fatalf("another address is answered %s and %s, %d events", a, b, len(b.Events))
		}
		pass(10 * time.Millisecond)
	}
	return times
}

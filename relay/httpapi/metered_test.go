package httpapi_test

import (
	"bytes"
	"io"
	"sync"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"

	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
	"github.com/agora-relay/agora/relay/httpapi"
)

// TestTrafficIsCharged sends PING frames, which no limit on requests counts. The bytes are charged to the address, and
// its connection ends when the allowance is used up. Other addresses and trusted proxies continue.
func TestTrafficIsCharged(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		const burst = 6
		r := limited(t, relay.Limits{ReadsPerAddress: relay.Rate{PerSecond: 0.01, Burst: burst}})
		l, _ := serveTLS(t, r, httpapi.Options{Log: quiet, Proxies: httpapi.Proxies{Networks: networks("10.0.0.1/32")}})
		var pings bytes.Buffer
		framer := http2.NewFramer(&pings, nil)
		for range 100 {
			if err := framer.WritePing(false, [8]byte{}); err != nil {
				t.Fatal(err)
			}
		}
		sent := func(from string, most int) (bytes int) {
			h := l.dialH2(t, from)
			var reading sync.WaitGroup
			reading.Go(func() { _, _ = io.Copy(io.Discard, h.conn) })
			for bytes < most {
				n, err := h.conn.Write(pings.Bytes())
				if bytes += n; err != nil {
					break
				}
				synctest.Wait() // until the answers are read; net/http ends a connection with 10,000 waiting ones
			}
			h.check(h.conn.NetConn().Close())
			reading.Wait()
			return bytes
		}
		const all = 1 << 20
		if n := sent(stranger, all); n < (burst-1)*admission.TrafficUnit || n > (burst+3)*admission.TrafficUnit {
			t.Errorf("the connection ended after %d bytes, want about %d", n, burst*admission.TrafficUnit)
		}
		if n := sent(stranger, all); n > 3*admission.TrafficUnit {
			t.Errorf("another connection of the address has sent %d bytes", n)
		}
		if n := sent("10.0.0.1:9", all); n < all {
			t.Errorf("the connection of a trusted proxy ended after %d bytes", n)
		}
		other := l.dialH2(t, "192.0.2.2:9")
		other.exchange()
		other.answer(other.get("/agents")).want(t, "200", `"agents":[]`)
	})
}

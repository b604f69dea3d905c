// Package stage provides the signed messages that the benchmarks of several packages post. It is for tests only.
package stage

import (
	"encoding/json"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Requests returns n signed REQUESTs of 730 bytes in their canonical form, and the time in their ts. The requests come
// from 256 senders in turn, and each sender has its own recipient. Requests fails b if it cannot sign.
func Requests(b *testing.B, n int) (bodies [][]byte, signed time.Time) {
	b.Helper()
	const senders = 256
	var keys [2 * senders]didkey.Key
	for i := range keys {
		key, err := didkey.Generate()
		if err != nil {
			b.Fatal(err)
		}
		keys[i] = key
	}
	payload := envelope.Request{
		Intent: "translate", Params: json.RawMessage(`{"text":"` + strings.Repeat("Hello, world. ", 16) + `"}`)}
	bodies, signed = make([][]byte, n), time.Now()
	var next atomic.Int64
	var signing sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		signing.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				e, err := envelope.Draft{
					Recipient: keys[senders+i%senders].DID(), Payload: payload,
				}.Sign(keys[i%senders], signed)
				if err != nil {
					b.Error(err)
					return
				}
				bodies[i] = e.Canonical()
			}
		})
	}
	signing.Wait()
	return bodies, signed
}

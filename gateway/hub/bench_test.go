package hub_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
)

// BenchmarkSend sends messages to agents with open streams, from 64 senders at a time.
func BenchmarkSend(b *testing.B) {
	f := start(b, func(f *fixture) { f.Client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 200}} })
	const agents = 64
	var keys [agents]string
	for i := range keys {
		keys[i] = f.register(fmt.Sprintf("a%d@b.example", i))
		in := f.open(keys[i], nil)
		go func() {
			for in.frame() != "" {
			}
		}()
	}
	var next atomic.Int64
	b.SetParallelism(agents / 2)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			n := next.Add(1)
			from, to := n%agents, (n*7+1)%agents
			f.send(keys[from], fmt.Sprintf("a%d@b.example", from), fmt.Sprintf("a%d@b.example", to), "some text")
		}
	})
}

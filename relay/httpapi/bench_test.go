package httpapi_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/internal/bench"
	"github.com/agora-relay/agora/internal/bench/stage"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// requests returns n HTTP requests that post the messages of package stage, and the time at which these were signed.
func requests(b *testing.B, n int) (list [][]byte, signed time.Time) {
	list, signed = stage.Requests(b, n)
	for i, body := range list {
		list[i] = fmt.Appendf(nil, "POST /events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	return list, signed
}

// poster is the client of BenchmarkPost. make profile finds the client's share of the CPU time by this name.
type poster struct {
	conn net.Conn
	in   *bufio.Reader
}

func (p poster) post(request []byte) error {
	if _, err := p.conn.Write(request); err != nil {
		return err
	}
	answer, err := http.ReadResponse(p.in, nil)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != 200 {
		err = fmt.Errorf("status %d: %s", answer.StatusCode, body)
	}
	return err
}

// BenchmarkPost measures posts over HTTP, on TCP connections within this machine. The times include the work of the
// client; make profile separates it from the work of the relay.
func BenchmarkPost(b *testing.B) {
	for _, connections := range []int{32, 256} {
		b.Run(fmt.Sprintf("connections=%d", connections), func(b *testing.B) {
			list, signed := requests(b, b.N)
			address := serveAt(b, signed)
			posters := make([]poster, connections)
			for i := range posters {
				conn, err := net.Dial("tcp", address)
				if err != nil {
					b.Fatal(err)
				}
				defer conn.Close()
				posters[i] = poster{conn, bufio.NewReader(conn)}
			}
			cpu := bench.OwnCPU()
			b.ResetTimer()
			var next atomic.Int64
			var posting sync.WaitGroup
			for _, p := range posters {
				posting.Go(func() {
					for i := int(next.Add(1)) - 1; i < b.N; i = int(next.Add(1)) - 1 {
						if err := p.post(list[i]); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			posting.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
			if cpu > 0 {
				b.ReportMetric(float64(bench.OwnCPU()-cpu)/float64(b.N), "cpu-ns/op")
			}
		})
	}
}

// serveAt runs a relay until the benchmark ends and returns its address. The relay's clock always shows now.
func serveAt(b *testing.B, now time.Time) string {
	b.Helper()
	store, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "agora.db"), sqlite.Options{Reserve: 1 << 22})
	if err != nil {
		b.Fatal(err)
	}
	r, err := relay.New(b.Context(), relay.Config{Store: store, Key: key(b), Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return now }})
	if err != nil {
		b.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(engine.Run(b, r, store))
	runFront(b, httpapi.New(r, httpapi.Options{Log: slog.New(slog.DiscardHandler)}), httpapi.Listener{Listener: listener})
	return listener.Addr().String()
}

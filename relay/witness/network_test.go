package witness_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay/witness"
)

// network has the servers of all tests. They have no sockets, because sockets would stop the time of a synctest bubble.
var network servers

// newClient returns a client that finds the servers of the network.
func newClient(policy *proof.Policy, log *slog.Logger, peers ...witness.Peer) *witness.Client {
	return witness.NewClient(policy, peers, log).Over(&network)
}

// servers are handlers by their hosts. It is an http.RoundTripper.
type servers struct {
	byHost sync.Map
	last   atomic.Int64
}

// add returns the URL of a new server.
func (s *servers) add(h http.Handler) (url string) {
	host := fmt.Sprintf("server%d.example", s.last.Add(1))
	s.byHost.Store(host, h)
	return "https://" + host
}

// RoundTrip implements http.RoundTripper. The handler runs until it returns, as on a server, while the client reads.
func (s *servers) RoundTrip(r *http.Request) (*http.Response, error) {
	h, found := s.byHost.Load(r.URL.Host)
	if !found {
		return nil, fmt.Errorf("there is no server %s", r.URL.Host)
	}
	ctx, leave := context.WithCancel(r.Context())
	body, in := io.Pipe()
	context.AfterFunc(ctx, func() { in.CloseWithError(ctx.Err()) })
	w := &responding{header: http.Header{}, body: in, began: make(chan *http.Response, 1)}
	failed := make(chan error, 1)
	go func() {
		defer func() {
			if aborted := recover(); aborted != nil {
				if aborted != http.ErrAbortHandler {
					panic(aborted)
				}
				failed <- io.ErrUnexpectedEOF
				in.CloseWithError(io.ErrUnexpectedEOF)
				return
			}
			w.WriteHeader(http.StatusOK)
			in.Close()
		}()
		request := r.Clone(ctx)
		request.Host, request.RequestURI, request.RemoteAddr = r.URL.Host, r.URL.RequestURI(), "192.0.2.1:9"
		h.(http.Handler).ServeHTTP(w, request)
	}()
	select {
	case response := <-w.began:
		response.Request, response.Body = r, leaving{body, leave}
		return response, nil
	case err := <-failed:
		leave()
		return nil, err
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// leaving is the body of a response. Closing it ends the context of the handler.
type leaving struct {
	io.ReadCloser
	leave context.CancelFunc
}

func (b leaving) Close() error {
	b.leave()
	return b.ReadCloser.Close()
}

// responding is a response that its client reads while it is written.
type responding struct {
	header http.Header
	body   *io.PipeWriter
	once   sync.Once
	began  chan *http.Response
}

func (w *responding) Header() http.Header { return w.header }

func (w *responding) WriteHeader(status int) {
	w.once.Do(func() { w.began <- &http.Response{StatusCode: status, Header: w.header.Clone()} })
}

func (w *responding) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// FlushError is for http.ResponseController. A pipe keeps nothing back.
func (w *responding) FlushError() error {
	w.WriteHeader(http.StatusOK)
	return nil
}

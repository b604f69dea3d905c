package conformance

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// hookServer receives the requests that a gateway sends during a run.
type hookServer struct {
	url     string // at which the gateway reaches the server
	address string // like WebhookListen, with port 0
	server  *http.Server
	mu      sync.Mutex
	hooks   map[string]*hook // by path
}

// listenForWebhooks starts a server at the address listen. It returns nil if there is no address. url is where the
// gateway reaches the server; if it is empty, that is http:// and the address.
func listenForWebhooks(listen, url string) (*hookServer, error) {
	if listen == "" {
		return nil, nil
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("cannot listen for webhooks: %w", err)
	}
	host, _, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		panic(err) // cannot happen: it is the address of a listener
	}
	s := &hookServer{url: strings.TrimRight(url, "/"), address: net.JoinHostPort(host, "0"),
		hooks: map[string]*hook{}}
	if s.url == "" {
		s.url = "http://" + listener.Addr().String()
	}
	s.server = &http.Server{Handler: s, ReadHeaderTimeout: answerTimeout}
	go func() {
		_ = s.server.Serve(listener) // it ends with http.ErrServerClosed; other errors show in the checks
	}()
	return s, nil
}

// close ends the server. s may be nil.
func (s *hookServer) close() {
	if s != nil {
		_ = s.server.Close() // the run is over
	}
}

func (s *hookServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	found := s.find(r.URL.Path)
	if found == nil {
		http.NotFound(w, r)
		return
	}
	found.serve(w, r)
}

// find returns the hook whose name is a part of the path, or nil. A gateway may append something to the URL of a hook.
func (s *hookServer) find(path string) *hook {
	s.mu.Lock()
	defer s.mu.Unlock()
	for part := range strings.SplitSeq(path, "/") {
		if k := s.hooks[part]; k != nil {
			return k
		}
	}
	return nil
}

// hookReply is what a hook answers.
type hookReply struct {
	status int // 0: 200
	header http.Header
	body   string
	bodyOf func(sent answer) string // makes the body from that of the call, if it is not nil
	after  time.Duration            // how long the hook waits before it answers
}

// replyOK is the reply of a receiver that has taken a message.
var replyOK = hookReply{body: `{"status":"ok"}`}

// hookCall is one call of a hook.
type hookCall struct {
	method     string
	target     string // the path
	query      string
	header     http.Header
	body       answer
	trace      string // the header Chorus-Trace-Id
	began      time.Time
	ended      time.Time // zero: the hook has not answered yet
	overlapped bool      // another call was in progress
}

// hook is a URL that a gateway calls, with its calls so far.
type hook struct {
	url     string
	path    string
	mu      sync.Mutex
	reply   func(call int) hookReply // of the call with this number, from 1
	calls   []*hookCall
	running int
	changed chan struct{} // has an element after a call has begun or ended
}

// add returns the hook with this path. It replies to each call with what reply returns for its number, from 1.
func (s *hookServer) add(path string, reply func(call int) hookReply) *hook {
	name := path[strings.LastIndexByte(path, '/')+1:]
	k := &hook{url: s.url + path, path: name, reply: reply, changed: make(chan struct{}, 1)}
	s.mu.Lock()
	s.hooks[name] = k
	s.mu.Unlock()
	return k
}

func (k *hook) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxAnswer))
	if err != nil {
		return // the call was cut off
	}
	k.mu.Lock()
	call := &hookCall{method: r.Method, target: r.URL.Path, query: r.URL.RawQuery, header: r.Header, body: parseRow(body),
		trace: r.Header.Get("Chorus-Trace-Id"), began: time.Now(), overlapped: k.running > 0}
	k.running++
	k.calls = append(k.calls, call)
	reply := k.reply(len(k.calls))
	k.mu.Unlock()
	k.notify()
	wait(r.Context(), reply.after)
	k.mu.Lock()
	k.running--
	call.ended = time.Now()
	k.mu.Unlock()
	for name, values := range reply.header {
		w.Header()[name] = values
	}
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/json")
	}
	if reply.status != 0 {
		w.WriteHeader(reply.status)
	}
	if reply.bodyOf != nil {
		reply.body = reply.bodyOf(call.body)
	}
	_, _ = io.WriteString(w, reply.body) // the gateway may be gone
	k.notify()
}

// wait waits for d or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (k *hook) notify() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// seen returns the calls so far.
func (k *hook) seen() (list []hookCall) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, call := range k.calls {
		list = append(list, *call)
	}
	return list
}

// wantCalls waits until the hook has answered n calls, and returns all calls.
func (p *probe) wantCalls(k *hook, n int, within time.Duration) []hookCall {
	return p.waitForCalls(k, n, within, func(call hookCall) bool { return !call.ended.IsZero() })
}

// waitForCalls waits until the hook has n calls that count, and returns all calls.
func (p *probe) waitForCalls(k *hook, n int, within time.Duration, counts func(hookCall) bool) []hookCall {
	timer := time.NewTimer(within)
	defer timer.Stop()
	for {
		calls := k.seen()
		found := 0
		for _, call := range calls {
			if counts(call) {
				found++
			}
		}
		if found >= n {
			return calls
		}
		select {
		case <-k.changed:
		case <-timer.C:
			p.expect("%d calls of the webhook within %v", n, within)
			p.failf("%d calls", len(calls))
		case <-p.ctx.Done():
			p.stopped()
		}
	}
}

// wantNoMoreCalls ends the check if the hook has more than n calls, or gets one in the next moments.
func (p *probe) wantNoMoreCalls(k *hook, n int) {
	p.sleep(quiet)
	p.expect("%d calls of the webhook and no more", n)
	if calls := k.seen(); len(calls) != n {
		p.failf("%d calls", len(calls))
	}
}

// replyWith is a reply with this status to each delivery.
func replyWith(status int) hookReply { return hookReply{status: status} }

// replyFirst returns replies: the first delivery gets one, and all others get replyOK.
func replyFirst(reply hookReply) func(call int) hookReply {
	return func(call int) hookReply {
		if call == 1 {
			return reply
		}
		return replyOK
	}
}

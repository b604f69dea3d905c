package kit

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

// HookServer receives the requests that a gateway sends during a run.
type HookServer struct {
	url     string // at which the gateway reaches the server
	Address string // like WebhookListen, with port 0
	server  *http.Server
	mu      sync.Mutex
	hooks   map[string]*Hook // by path
}

// listenForWebhooks starts a server at the address listen. It returns nil if there is no address. url is where the
// gateway reaches the server; if it is empty, that is http:// and the address.
func listenForWebhooks(listen, url string) (*HookServer, error) {
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
	s := &HookServer{url: strings.TrimRight(url, "/"), Address: net.JoinHostPort(host, "0"),
		hooks: map[string]*Hook{}}
	if s.url == "" {
		s.url = "http://" + listener.Addr().String()
	}
	s.server = &http.Server{Handler: s, ReadHeaderTimeout: AnswerTimeout}
	go func() {
		_ = s.server.Serve(listener) // it ends with http.ErrServerClosed; other errors show in the checks
	}()
	return s, nil
}

// close ends the server. s may be nil.
func (s *HookServer) close() {
	if s != nil {
		_ = s.server.Close() // the run is over
	}
}

func (s *HookServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	found := s.find(r.URL.Path)
	if found == nil {
		http.NotFound(w, r)
		return
	}
	found.serve(w, r)
}

// find returns the hook whose name is a part of the path, or nil. A gateway may append something to the URL of a hook.
func (s *HookServer) find(path string) *Hook {
	s.mu.Lock()
	defer s.mu.Unlock()
	for part := range strings.SplitSeq(path, "/") {
		if k := s.hooks[part]; k != nil {
			return k
		}
	}
	return nil
}

// HookReply is what a hook answers.
type HookReply struct {
	Status int // 0: 200
	Header http.Header
	Body   string
	BodyOf func(sent Answer) string // makes the body from that of the call, if it is not nil
	After  time.Duration            // how long the hook waits before it answers
}

// ReplyOK is the reply of a receiver that has taken a message.
var ReplyOK = HookReply{Body: `{"status":"ok"}`}

// HookCall is one call of a hook.
type HookCall struct {
	Method     string
	Target     string // the path
	Query      string
	Header     http.Header
	Body       Answer
	Trace      string // the header Chorus-Trace-Id
	Began      time.Time
	Ended      time.Time // zero: the hook has not answered yet
	Overlapped bool      // another call was in progress
}

// Hook is a URL that a gateway calls, with its calls so far.
type Hook struct {
	URL     string
	Path    string
	mu      sync.Mutex
	reply   func(call int) HookReply // of the call with this number, from 1
	calls   []*HookCall
	running int
	changed chan struct{} // has an element after a call has begun or ended
}

// Add returns the hook with this path. It replies to each call with what reply returns for its number, from 1.
func (s *HookServer) Add(path string, reply func(call int) HookReply) *Hook {
	name := path[strings.LastIndexByte(path, '/')+1:]
	k := &Hook{URL: s.url + path, Path: name, reply: reply, changed: make(chan struct{}, 1)}
	s.mu.Lock()
	s.hooks[name] = k
	s.mu.Unlock()
	return k
}

func (k *Hook) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, MaxAnswer))
	if err != nil {
		return // the call was cut off
	}
	k.mu.Lock()
	call := &HookCall{Method: r.Method, Target: r.URL.Path, Query: r.URL.RawQuery, Header: r.Header, Body: ParseRow(body),
		Trace: r.Header.Get("Chorus-Trace-Id"), Began: time.Now(), Overlapped: k.running > 0}
	k.running++
	k.calls = append(k.calls, call)
	reply := k.reply(len(k.calls))
	k.mu.Unlock()
	k.notify()
	Wait(r.Context(), reply.After)
	k.mu.Lock()
	k.running--
	call.Ended = time.Now()
	k.mu.Unlock()
	for name, values := range reply.Header {
		w.Header()[name] = values
	}
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/json")
	}
	if reply.Status != 0 {
		w.WriteHeader(reply.Status)
	}
	if reply.BodyOf != nil {
		reply.Body = reply.BodyOf(call.Body)
	}
	_, _ = io.WriteString(w, reply.Body) // the gateway may be gone
	k.notify()
}

// Wait waits for d or until ctx ends.
func Wait(ctx context.Context, d time.Duration) {
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

func (k *Hook) notify() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// Seen returns the calls so far.
func (k *Hook) Seen() (list []HookCall) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, call := range k.calls {
		list = append(list, *call)
	}
	return list
}

// WantCalls waits until the hook has answered n calls, and returns all calls.
func (p *Probe) WantCalls(k *Hook, n int, within time.Duration) []HookCall {
	return p.WaitForCalls(k, n, within, func(call HookCall) bool { return !call.Ended.IsZero() })
}

// WaitForCalls waits until the hook has n calls that count, and returns all calls.
func (p *Probe) WaitForCalls(k *Hook, n int, within time.Duration, counts func(HookCall) bool) []HookCall {
	timer := time.NewTimer(within)
	defer timer.Stop()
	for {
		calls := k.Seen()
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
			p.Expect("%d calls of the webhook within %v", n, within)
			p.Failf("%d calls", len(calls))
		case <-p.Ctx.Done():
			p.Stopped()
		}
	}
}

// WantNoMoreCalls ends the check if the hook has more than n calls, or gets one in the next moments.
func (p *Probe) WantNoMoreCalls(k *Hook, n int) {
	p.Sleep(Quiet)
	p.Expect("%d calls of the webhook and no more", n)
	if calls := k.Seen(); len(calls) != n {
		p.Failf("%d calls", len(calls))
	}
}

// ReplyWith is a reply with this status to each delivery.
func ReplyWith(status int) HookReply { return HookReply{Status: status} }

// ReplyFirst returns replies: the first delivery gets one, and all others get ReplyOK.
func ReplyFirst(reply HookReply) func(call int) HookReply {
	return func(call int) HookReply {
		if call == 1 {
			return reply
		}
		return ReplyOK
	}
}

package hub

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

const (
	// stalledLimit is the longest time until the hub cuts off a client that reads nothing. The hub writes for some
	// seconds until all buffers are full, and then waits for 30 s.
	stalledLimit = 50 * time.Second
	// stalledAtLeast is a time during which no hub may cut off this client.
	stalledAtLeast = 20 * time.Second
	// stalledMessages is how many messages of about 60 KB wait for the client. They are more than the buffers of both
	// systems hold, and fewer than the hub queues from one sender.
	stalledMessages = 80
)

// stalledReader opens a stream and reads nothing of it. The directory shows when the hub ends the stream.
func stalledReader(h *hubProbe) {
	alice, bob := h.newAgent(), h.newAgent()
	alice.lost, bob.lost = true, true // their histories become large, so no other check uses them
	text := strings.Repeat(control, 9_900)
	for i := 0; i < stalledMessages; i += 5 {
		for _, a := range h.InParallel(5, func(int) kit.Answer {
			return h.Write(alice.key, "/messages", letter(alice, bob,
				text))
		}) {
			h.wantData(a, http.StatusOK, http.StatusAccepted)
		}
	}
	body := h.openUnread(bob)
	defer func() { _ = body.Close() }() // the check is over
	opened := time.Now()
	h.wantOnline(bob, true, kit.PromptLimit)
	h.Describe("a stream with %d messages of about 60 KB, of which the client reads nothing", stalledMessages)
	for {
		h.Sleep(time.Second)
		online, _ := h.listed(bob).Flag("online")
		stalled := time.Since(opened)
		h.Expect("the hub ends the stream when its client has taken nothing for 30 s")
		switch {
		case !online && stalled < stalledAtLeast:
			h.Failf("it ended the stream after %v", stalled.Round(time.Second))
		case online && stalled > stalledLimit:
			h.Failf("the stream is still open after %v", stalled.Round(time.Second))
		case !online:
			h.Note("ended after %v", stalled.Round(time.Second))
			n, _ := io.Copy(io.Discard, body) // the error says that the stream was cut off
			h.Expect("the stream ends before the client has received all messages")
			if n > stalledMessages*55_000 {
				h.Failf("the client received %d bytes", n)
			}
			return
		}
	}
}

// openUnread opens the stream of a on a connection with a small receive buffer, and reads nothing but the header.
func (h *hubProbe) openUnread(a *hubAgent) io.ReadCloser {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Protocols = new(http.Protocols)
	transport.Protocols.SetHTTP1(true) // an HTTP/2 client buffers megabytes
	dialer := net.Dialer{Timeout: kit.ConnectTimeout}
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if tcp, ok := conn.(*net.TCPConn); ok {
			err = tcp.SetReadBuffer(16 << 10)
		}
		return conn, err
	}
	header := http.Header{"Authorization": {"Bearer " + a.key}}
	body, answered, _ := h.begin(h.Ctx, transport, "/agent/inbox", header)
	h.Want(body != nil, answered, "status 200 and an event stream")
	return body
}

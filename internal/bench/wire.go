package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// target is the address of a relay.
type target struct {
	url     string // as given
	secure  bool   // https
	header  string // value of the Host header
	host    string // host name or address, without the port
	address string // host and port to connect to
	nodes   *nodes // connect to these in place of address; nil: to address
	path    string // path before /events; usually empty
	origin  string // audience of signed reads (PROTOCOL §8); empty: reads need no signature
}

// nodes are the nodes of a relay. Each connection goes to the next one.
type nodes struct {
	addresses []string
	last      atomic.Uint64
}

// dial returns the address for a new connection.
func (t target) dial() string {
	if t.nodes == nil {
		return t.address
	}
	return t.nodes.addresses[t.nodes.last.Add(1)%uint64(len(t.nodes.addresses))]
}

// request returns the bytes of an unsigned request.
func (t target) request(method, path string, body []byte) []byte {
	return t.requestWithToken("", method, path, body)
}

// readRequest returns the bytes of a GET request. If the relay wants signed reads, the key by signs it.
func (t target) readRequest(path string, by didkey.Key) ([]byte, error) {
	if t.origin == "" {
		return t.request("GET", path, nil), nil
	}
	token, err := envelope.Read{
		Reader: by.DID(), Audience: t.origin, Method: "GET", Target: t.path + path, TS: time.Now(),
	}.Sign(by)
	return t.requestWithToken(token, "GET", path, nil), err
}

// requestWithToken returns the bytes of a request with the token of a signed read. Without a token it is unsigned.
func (t target) requestWithToken(token, method, path string, body []byte) []byte {
	b := fmt.Appendf(nil, "%s %s%s HTTP/1.1\r\nHost: %s\r\n", method, t.path, path, t.header)
	if token != "" {
		b = fmt.Appendf(b, "Authorization: Agora %s\r\n", token)
	}
	if body != nil {
		b = fmt.Appendf(b, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(body))
	}
	return append(append(b, "\r\n"...), body...)
}

const (
	answerTimeout = 10 * time.Second // how long to wait for an answer, in addition to the time that a poll may wait
	idleLimit     = 30 * time.Second // reopen a connection unused for this long: the relay may have closed it
	maxAnswer     = 64 << 20         // largest body of an answer, in bytes
)

// conn is an HTTP connection that is reused for many requests, one after the other. One goroutine owns it.
type conn struct {
	to      target
	ctx     context.Context // the connection is closed when ctx ends
	buffer  int             // size of the read buffer in bytes
	net     net.Conn        // nil: not connected
	in      *bufio.Reader
	release func() bool // stops watching ctx
	until   time.Time   // the deadline set on net
	used    time.Time   // when the last request was sent
	body    []byte
}

// answer is an HTTP response. Its body is valid until the next answer is read.
type answer struct {
	status     int
	retryAfter time.Duration // 0: no Retry-After header
	queued     time.Duration // how long a post has waited for its turn, by its Server-Timing header
	body       []byte
	last       bool // the server closes the connection after this answer
}

func (c *conn) close() {
	if c.net != nil {
		c.release()
		_ = c.net.Close() // all errors that matter were already returned by send or receive
		c.net = nil
	}
}

func (c *conn) open() error {
	c.close()
	ctx, cancel := context.WithTimeout(c.ctx, answerTimeout)
	defer cancel()
	var dialer interface {
		DialContext(context.Context, string, string) (net.Conn, error)
	} = &net.Dialer{}
	if c.to.secure {
		dialer = &tls.Dialer{Config: &tls.Config{ServerName: c.to.host}}
	}
	n, err := dialer.DialContext(ctx, "tcp", c.to.dial())
	if err != nil {
		return err
	}
	c.net, c.until = n, time.Time{}
	c.release = context.AfterFunc(c.ctx, func() { _ = n.Close() }) // the next read or write returns the error
	if c.in == nil {
		c.in = bufio.NewReaderSize(n, c.buffer)
	} else {
		c.in.Reset(n)
	}
	return nil
}

// send sends a request. It opens a new connection if necessary. hold is how long the relay may keep a poll waiting
// before it answers.
func (c *conn) send(request []byte, hold time.Duration, now time.Time) error {
	if c.net == nil || now.Sub(c.used) > idleLimit {
		if err := c.open(); err != nil {
			return err
		}
	}
	c.used = now
	// Setting a deadline takes CPU time, so send sets a new one only after half of answerTimeout has passed.
	if c.until.Sub(now) < hold+answerTimeout/2 {
		c.until = now.Add(hold + answerTimeout)
		if err := c.net.SetDeadline(c.until); err != nil {
			c.close()
			return err
		}
	}
	_, err := c.net.Write(request)
	if err != nil {
		c.close()
	}
	return err
}

// receive reads the answer to the last request.
func (c *conn) receive() (answer, error) {
	a, err := c.read()
	if err != nil || a.last {
		c.close()
	}
	return a, err
}

var (
	errAnswer   = errors.New("the answer is not HTTP/1.1")
	errTooLarge = errors.New("the answer is too large")
)

func (c *conn) read() (a answer, err error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return a, err
	}
	if len(line) < len("HTTP/1.1 200") || !bytes.HasPrefix(line, []byte("HTTP/1.")) {
		return a, errAnswer
	}
	a.last = line[len("HTTP/1.")] == '0'
	if a.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return a, errAnswer
	}
	length, chunked := -1, false
	for {
		if line, err = c.in.ReadSlice('\n'); err != nil {
			return a, err
		}
		if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case isHeader(name, "content-length"):
			if length, err = strconv.Atoi(string(value)); err != nil || length < 0 {
				return a, errAnswer
			}
		case isHeader(name, "transfer-encoding"):
			chunked = true
		case isHeader(name, "connection"):
			a.last = a.last || bytes.EqualFold(value, []byte("close"))
		case isHeader(name, "server-timing"):
			if text, ok := bytes.CutPrefix(value, []byte("turn;dur=")); ok {
				if ms, err := strconv.ParseFloat(string(text), 64); err == nil {
					a.queued = time.Duration(ms * float64(time.Millisecond))
				}
			}
		case isHeader(name, "retry-after"):
			if seconds, err := strconv.Atoi(string(value)); err == nil && seconds >= 0 {
				a.retryAfter = time.Duration(min(seconds, 3600)) * time.Second
			}
		}
	}
	a.body, err = c.readBody(length, chunked)
	a.last = a.last || length < 0 && !chunked
	return a, err
}

// isHeader reports whether name is the header want, ignoring case. It compares lengths first, because most headers
// differ in length.
func isHeader(name []byte, want string) bool {
	return len(name) == len(want) && bytes.EqualFold(name, []byte(want))
}

func (c *conn) readBody(length int, chunked bool) ([]byte, error) {
	if length >= 0 && !chunked {
		if length > maxAnswer {
			return nil, errTooLarge
		}
		if cap(c.body) < length {
			c.body = make([]byte, length)
		}
		c.body = c.body[:length]
		_, err := io.ReadFull(c.in, c.body)
		return c.body, err
	}
	var from io.Reader = c.in
	if chunked {
		from = httputil.NewChunkedReader(c.in)
	}
	into := bytes.NewBuffer(c.body[:0])
	n, err := into.ReadFrom(io.LimitReader(from, maxAnswer+1))
	c.body = into.Bytes()
	if err == nil && n > maxAnswer {
		err = errTooLarge
	}
	for chunked && err == nil { // skip the trailer, which the chunked reader does not read
		var line []byte
		if line, err = c.in.ReadSlice('\n'); len(bytes.TrimRight(line, "\r\n")) == 0 {
			break
		}
	}
	return c.body, err
}

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
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// target is where a relay answers.
type target struct {
	url     string // as given
	secure  bool
	header  string // the Host
	host    string
	address string // to connect to
	path    string // before /events; mostly empty
	origin  string // what signed reads are for (PROTOCOL §8); empty: the relay asks for none
}

// request returns the bytes of a request.
func (t target) request(method, path string, body []byte) []byte {
	return t.requestBy("", method, path, body)
}

// read returns the bytes of a read by one who signs it if the relay asks for that.
func (t target) read(path string, by didkey.Key) ([]byte, error) {
	if t.origin == "" {
		return t.request("GET", path, nil), nil
	}
	token, err := envelope.Read{Reader: by.DID(), Audience: t.origin, Method: "GET", Target: t.path + path, TS: time.Now()}.Sign(by)
	return t.requestBy(token, "GET", path, nil), err
}

func (t target) requestBy(token, method, path string, body []byte) []byte {
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
	patience  = 10 * time.Second // for an answer, on top of the time a poll asks to be held
	idleLimit = 30 * time.Second // after that an unused connection is made anew, as the relay may have closed it
	maxAnswer = 64 << 20         // bytes
)

// conn is a connection that lasts for many requests, one after the other. It belongs to one goroutine.
type conn struct {
	to      target
	ctx     context.Context // its end cuts the connection
	buffer  int             // bytes
	net     net.Conn        // nil: there is none at the moment
	in      *bufio.Reader
	release func() bool
	until   time.Time // the deadline that is set
	used    time.Time
	body    []byte
}

// answer is a response; body is valid until the next one.
type answer struct {
	status     int
	retryAfter time.Duration // 0: it says none
	body       []byte
	last       bool // the connection ends with it
}

func (c *conn) close() {
	if c.net != nil {
		c.release()
		_ = c.net.Close() // nothing is lost that was not noticed before
		c.net = nil
	}
}

func (c *conn) open() error {
	c.close()
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	var dialer interface {
		DialContext(context.Context, string, string) (net.Conn, error)
	} = &net.Dialer{}
	if c.to.secure {
		dialer = &tls.Dialer{}
	}
	n, err := dialer.DialContext(ctx, "tcp", c.to.address)
	if err != nil {
		return err
	}
	c.net, c.until = n, time.Time{}
	c.release = context.AfterFunc(c.ctx, func() { _ = n.Close() }) // its reader reports it
	if c.in == nil {
		c.in = bufio.NewReaderSize(n, c.buffer)
	} else {
		c.in.Reset(n)
	}
	return nil
}

// send sends a request that is answered after hold at the latest, on a new connection if need be.
func (c *conn) send(request []byte, hold time.Duration, now time.Time) error {
	if c.net == nil || now.Sub(c.used) > idleLimit {
		if err := c.open(); err != nil {
			return err
		}
	}
	c.used = now
	// Setting a deadline costs, so it is renewed when half of it is over.
	if c.until.Sub(now) < hold+patience/2 {
		c.until = now.Add(hold + patience)
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

// receive reads the answer to what was sent.
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

// isHeader compares lengths first, as most headers are others.
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
	for chunked && err == nil { // the trailer, which the reader of chunks leaves
		var line []byte
		if line, err = c.in.ReadSlice('\n'); len(bytes.TrimRight(line, "\r\n")) == 0 {
			break
		}
	}
	return c.body, err
}

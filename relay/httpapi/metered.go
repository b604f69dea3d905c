package httpapi

import (
	"net"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
)

// meteredListener accepts connections that charge what a client sends to the client's address. It is for connections
// with TLS. Over HTTP/2 a client can send very many frames that are no requests, such as PING and SETTINGS. Each costs
// CPU time, and no limit on requests counts them.
type meteredListener struct {
	net.Listener
	front *Front
	info  listenerInfo
}

// Accept implements net.Listener.
func (l meteredListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &meteredConn{Conn: c, listener: l}, nil
}

// meteredConn is a connection below TLS. Only the goroutine that reads uses its fields.
type meteredConn struct {
	net.Conn
	listener meteredListener
	unpaid   int // bytes that were read and not charged yet
}

// Read implements net.Conn. It fails if the client's address has used up its allowance. The connection then ends.
func (c *meteredConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.unpaid += n; c.unpaid < admission.TrafficUnit {
		return n, err
	}
	units := c.unpaid / admission.TrafficUnit
	c.unpaid %= admission.TrafficUnit
	from := remoteAddr(c.RemoteAddr().String())
	if c.listener.front.exempts(from, c.listener.info) {
		return n, err
	}
	if refused := c.listener.front.relay.Gate().ChargeTraffic(relay.Peer{Addr: from}, units); refused != nil {
		c.listener.front.observe(0, refused)
		return 0, refused
	}
	return n, err
}

package httpapi

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"

	"github.com/agora-relay/agora/relay"
)

// connections counts a server's open connections by where they come from.
type connections struct {
	server *server

	mu    sync.Mutex
	leave map[net.Conn]func() // what gives back the places of those that took one
}

func newConnections(s *server) *connections {
	return &connections{server: s, leave: map[net.Conn]func(){}}
}

// changed is an http.Server's ConnState. It closes a connection for which there is no place: nothing has been asked on
// it yet, so there is nothing to answer. The server then reports it as closed, like any other.
func (c *connections) changed(connection net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		from := connected(connection.RemoteAddr().String())
		if c.server.spares(from) {
			return
		}
		leave, err := c.server.relay.Connect(relay.Peer{Addr: from})
		if err != nil {
			c.server.log.Debug("connection closed", "from", from, "err", errors.Join(err, connection.Close()))
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.leave[connection] = leave
	case http.StateClosed, http.StateHijacked:
		c.mu.Lock()
		defer c.mu.Unlock()
		if leave, counted := c.leave[connection]; counted {
			delete(c.leave, connection)
			leave()
		}
	}
}

// spares reports whether connections from addr are not counted. That holds for a trusted proxy, whose connections carry
// the requests of many clients, and for this machine if its requests are not limited.
func (s *server) spares(addr netip.Addr) bool {
	return s.trusts(addr) || addr.IsLoopback() && s.sparesLoopback()
}

package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/explorer"
	"github.com/agora-relay/agora/relay/httpapi"
)

// RunServer serves until ctx ends, and then gives running requests a moment.
func RunServer(ctx context.Context, server *http.Server, listener net.Listener) error {
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	err := server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = server.Close() // cuts off the requests that still run
	}
	<-failed
	return err
}

// addPage adds the relay's own page to the options of its front, and returns the line that serve prints about it. If
// the page is turned off, the line is empty.
func (c Cmd) addPage(o *httpapi.Options, at net.Addr, secured bool) (line string, err error) {
	if !c.Page {
		return "", nil
	}
	page, err := explorer.New("")
	if err != nil {
		return "", err
	}
	o.Root = page.Root
	o.Mounts = append(o.Mounts, page.Mount())
	return fmt.Sprintf("page at %s\n", PageURL(o.PublicURL, at, secured)), nil
}

// PageURL returns the address of the page for a browser. origin is the relay's public one, if it has any. secured means
// that the listener has TLS.
func PageURL(origin string, at net.Addr, secured bool) string {
	if origin != "" {
		return origin + "/"
	}
	url := listenerURL(at, secured)
	if tcp, ok := at.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() { // a browser cannot open 0.0.0.0 everywhere
		url = strings.Replace(url, tcp.String(), fmt.Sprintf("localhost:%d", tcp.Port), 1)
	}
	return url + "/"
}

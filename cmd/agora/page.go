package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/explorer"
	"github.com/agora-relay/agora/cmd/agora/internal/serve"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

type pageCmd struct {
	URL  cli.OriginText    `arg:"" optional:"" name:"url" help:"The relay's URL. With --out it is optional: the page then asks for one."`
	Out  string            `placeholder:"FOLDER" help:"Write the page as files into this folder, for any web server, instead of serving it."`
	Addr cli.ListenAddress `default:"127.0.0.1:8788" placeholder:"HOST:PORT" help:"The loopback address to serve the page at (default: ${default})."`
}

func (pageCmd) Help() string {
	return "Serves the web page of a relay from this machine until it is interrupted. A relay serves its own page too, but " +
		"then the relay decides what that page does. This page is part of the program, so you can load your key file " +
		"into it. It passes the page's reads to the relay and nothing else.\n\n" +
		"With --out, writes the page as files instead. On any web server they show the relay that the page's " +
		"address names, such as " +
		"https://page.example/?relay=https://relay.example, if the relay runs with --cors-origin https://page.example.\n\n" +
		"Examples:\n  agora page https://relay.example\n  agora page --out public\n  agora page https://relay.example --addr 127.0.0.1:9000"
}

func (c pageCmd) Validate() error {
	if c.URL == "" && c.Out == "" {
		return errors.New("name the relay: agora page URL; or write the page as files with --out FOLDER")
	}
	if !c.Addr.IsLoopback() {
		return errors.New("--addr must be a loopback address such as 127.0.0.1:8788, because keys are loaded into the page")
	}
	return nil
}

func (c pageCmd) Run(env cli.Environment) error {
	if c.Out != "" {
		if err := explorer.Write(c.Out, string(c.URL)); err != nil {
			return err
		}
		_, err := fmt.Fprintf(env.Stdout, "the page is in %s; put it on a web server, and let it read from a relay:\n"+
			"  agora serve --cors-origin https://page.example\n", c.Out)
		return err
	}
	page, err := explorer.New(string(c.URL))
	if err != nil {
		return err
	}
	log := cli.NewLog(env)
	listener, err := c.Addr.Listen("--addr")
	if err != nil {
		return err
	}
	forward := newForwarder(string(c.URL), log)
	defer forward.transport.CloseIdleConnections()
	if _, err := fmt.Fprintf(env.Stdout, "relay %s\npage at %s\n", c.URL, serve.PageURL("", listener.Addr(), false)); err != nil {
		return errors.Join(err, listener.Close())
	}
	server := &http.Server{
		Handler:           localOnly{page.Handler("The page is at /", forward.routes()...), log},
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       75 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return serve.RunServer(env.Ctx, server, listener)
}

// localOnly answers requests that use a loopback name. Otherwise a web page could read the answers after it makes its
// own name point to this machine (DNS rebinding).
type localOnly struct {
	handler httpapi.Handler
	log     *slog.Logger
}

func (l localOnly) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	err := error(envelope.Errorf(envelope.CodeForbidden, "this page answers only at loopback names such as localhost"))
	if httpapi.IsLoopbackName(r.Host) {
		err = l.handler(w, r, relay.Peer{})
	}
	if err == nil {
		return
	}
	answer, known := httpapi.RelayError(err)
	if !known {
		l.log.Error("a request failed", "err", err)
		answer, _ = httpapi.RelayError(envelope.Errorf(envelope.CodeInternal, "agora page could not answer this request"))
	}
	if err := answer.Write(w); err != nil {
		l.log.Error("an error cannot be written", "err", err)
	}
}

package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
)

// explained is an error of the transport with a text for people.
type explained struct {
	text string
	err  error
}

func (e *explained) Error() string { return e.text }
func (e *explained) Unwrap() error { return e.err }

// InWords explains an error of a request, see client.InWords.
func InWords(err error) error {
	request, ok := errors.AsType[*url.Error](err)
	if _, done := errors.AsType[*explained](err); !ok || done || errors.Is(err, context.Canceled) {
		return err
	}
	u, parseErr := url.Parse(request.URL)
	if parseErr != nil {
		return err
	}
	timeout, isTimeout := errors.AsType[net.Error](request.Err)
	text := ""
	switch reason := request.Err.Error(); {
	case strings.Contains(reason, "server gave HTTP response to HTTPS client"),
		strings.Contains(reason, "first record does not look like a TLS handshake"):
		text = u.Host + " answers without TLS; write its URL with http:// in place of https://"
	case strings.Contains(reason, "malformed HTTP response"), strings.Contains(reason, "malformed HTTP status"):
		text = u.Host + " does not answer with HTTP; if it uses TLS, write its URL with https:// in place of http://"
	case errors.Is(request.Err, io.EOF), errors.Is(request.Err, io.ErrUnexpectedEOF):
		text = u.Host + " has closed the connection without an answer; it may be starting again, or a proxy may be in the way"
	case isTimeout && timeout.Timeout():
		text = u.Host + " has not answered in time; it may be overloaded, or a firewall may drop what is sent to it"
	default:
		return err
	}
	return &explained{text, err}
}

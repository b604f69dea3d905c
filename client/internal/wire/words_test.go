package wire

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// TestTransportErrorsInWords checks the texts of the errors that Go explains badly, with servers that cause them.
func TestTransportErrorsInWords(t *testing.T) {
	ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	plain, silent := httptest.NewServer(ok), httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
	}))
	closing := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	speaksTLS, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { // a server with TLS that is no Go program: it answers with an alert
		for {
			c, err := speaksTLS.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1<<10))
			_, _ = c.Write([]byte("\x15\x03\x01\x00\x02\x02\x46"))
			_ = c.Close()
		}
	}()
	for _, s := range []*httptest.Server{plain, silent, closing} {
		defer s.Close()
	}
	defer speaksTLS.Close()
	for name, c := range map[string]struct{ url, want string }{
		"https to http": {strings.Replace(plain.URL, "http:", "https:", 1), "write its URL with http://"},
		"http to https": {"http://" + speaksTLS.Addr().String(), "write its URL with https://"},
		"closed":        {closing.URL, "has closed the connection without an answer"},
		"no answer":     {silent.URL, "has not answered in time"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		if name == "no answer" {
			ctx, cancel = context.WithTimeout(ctx, 50*time.Millisecond)
		}
		s := NewSender(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, time.Now)
		var err error
		if failed := s.Send(ctx, Request{Base: c.url, Method: http.MethodGet}, Spec{Limit: MaxShort}); failed != nil {
			err = failed
		}
		cancel()
		_, isRequest := errors.AsType[*url.Error](err)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "EOF") || !isRequest {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if name == "no answer" && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v is not the error of its context", name, err)
		}
	}
}

package main

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
)

// TestWarningsAreReadableLines checks that a warning of the client is printed as one readable line, and that the same
// warning is printed only once a minute.
func TestWarningsAreReadableLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stderr bytes.Buffer
		log := cli.NewLog(cli.Environment{Stderr: &stderr})
		refused := &url.Error{Op: "Get", URL: "http://127.0.0.1:1/events?cursor=0",
			Err: &net.OpError{Op: "dial", Err: errors.New("connection refused")}}
		for range 120 {
			log.Warn("polling failed, will be retried", "error", refused)
			time.Sleep(time.Second)
		}
		log.Info("not for people")
		log.With("thread", "t1").Warn("an offer was left out", "agent", "a\nagora: forged")
		want := "agora: polling failed, will be retried: no relay answers at 127.0.0.1:1 (connection refused); start one with " +
			"agora serve, or name another with --relay or AGORA_RELAY\n"
		if got, want := stderr.String(), want+want+`agora: an offer was left out (thread t1, agent a\u000aagora: forged)`+"\n"; got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	})
}

// TestFollowSaysWhyItWaits runs follow with the URL of a server that is not a relay.
func TestFollowSaysWhyItWaits(t *testing.T) {
	file := keyFile(t, newKey(t))
	wrong := hostileRelay(t, func(*http.Request) string { return raw("404 Not Found", []byte("<html>")) })
	code, output := runAgora(t.Context(), "follow", "--key", file, "--relay", wrong, "--timeout", "1s", "--count", "1")
	if code != cli.ExitFailed || strings.Count(output, "polling failed, will be retried: ") != 1 || !strings.Contains(output, "check its URL") {
		t.Errorf("ended with %d: %s", code, output)
	}
}

package httpapi_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// These tests are about what a Front does for gateways, besides mounting them.

// G-8: no key in a path is in a log line.
func TestPathsAreRedacted(t *testing.T) {
	var log bytes.Buffer
	o := httpapi.Options{
		Log:    slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Redact: func(path string) string { return strings.NewReplacer("panics", "…", "fails", "…").Replace(path) },
		Mounts: []httpapi.Mount{gateway{unlimited(t)}.mount("/gateway")},
	}
	h := newFront(t, unlimited(t), o).Handler(true)
	for _, item := range []string{"panics", "fails"} { // each is logged as a failure and as a request
		log.Reset()
		if status, _ := ask(t, h, "GET", "/gateway/items/"+item); status != 422 {
			t.Errorf("%s: status %d", item, status)
		}
		if got := log.String(); strings.Contains(got, item) || strings.Count(got, "path=/gateway/items/…") != 2 {
			t.Errorf("%s is logged as %s", item, got)
		}
	}
}

func TestWellKnownListsGateways(t *testing.T) {
	r := unlimited(t)
	for want, o := range map[string]httpapi.Options{
		`{"hub":{"url":"https://relay.example/hub"}}`: {Log: quiet,
			Gateways: map[string]any{"hub": map[string]string{"url": "https://relay.example/hub"}}},
		"": {Log: quiet},
	} {
		var document map[string]json.RawMessage
		status, body := ask(t, newFront(t, r, o).Handler(true), "GET", "/.well-known/agora.json")
		err := json.Unmarshal([]byte(body), &document)
		if got := string(document["gateways"]); err != nil || status != 200 || got != want {
			t.Errorf("%d %v %s, want %s", status, err, body, want)
		}
	}
}

// frames is a stream of server-sent events. After the first frame it pauses, and then it writes large frames. It
// reports why it has ended.
func frames(ended chan<- error, pause time.Duration) httpapi.Handler {
	return func(w http.ResponseWriter, r *http.Request, _ relay.Peer) error {
		out := http.NewResponseController(w)
		for frame := firstFrame; ; frame = ":" + strings.Repeat("x", 1<<16) + "\n\n" {
			err := out.SetWriteDeadline(time.Now().Add(30 * time.Second))
			if err == nil {
				_, err = io.WriteString(w, frame)
			}
			if err == nil {
				err = out.Flush()
			}
			if err != nil {
				ended <- err
				return nil
			}
			select {
			case <-time.After(pause):
			case <-r.Context().Done():
				ended <- r.Context().Err()
				return nil
			}
		}
	}
}

const firstFrame = "event: ping\n\n"

// TestServerSentEvents checks that a stream reaches its client frame by frame, for longer than any other answer may
// take, and that its write deadline holds. The handler sits behind CORS and under a prefix.
func TestServerSentEvents(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		l, _ := serveOn(t, allInterfaces, unlimited(t), httpapi.Options{Log: quiet, Origins: []string{"https://app.example"},
			Mounts: []httpapi.Mount{{Prefix: "/hub", Handler: frames(ended, time.Hour)}}})
		c := l.dial()
		fmt.Fprint(c, "GET /hub/inbox HTTP/1.1\r\nHost: x\r\nOrigin: https://app.example\r\n\r\n")
		response, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		first := make([]byte, len(firstFrame))
		_, err = io.ReadFull(response.Body, first)
		if err != nil || string(first) != firstFrame || time.Since(began) > time.Second {
			t.Fatalf("the first frame came after %v: %q %v", time.Since(began), first, err)
		}
		// The next frame is written an hour later. The client does not read it, so it fails after another 30 seconds.
		err = <-ended
		if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() ||
			time.Since(began) != time.Hour+30*time.Second {
			t.Errorf("the stream ended after %v: %v", time.Since(began), err)
		}
	})
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
)

// lyingFront passes requests on to a relay, and changes each proof in an answer.
func lyingFront(t *testing.T, relay string) *httptest.Server {
	t.Helper()
	target, err := url.Parse(relay)
	if err != nil {
		t.Fatal(err)
	}
	front := httputil.NewSingleHostReverseProxy(target)
	leaf := regexp.MustCompile(`index [0-9]+`)
	front.ErrorLog = log.New(io.Discard, "", 0) // a client that is gone is no error
	front.ModifyResponse = func(r *http.Response) error {
		if r.Request.Method != http.MethodPost && r.Request.URL.Path != "/proofs" {
			return nil
		}
		text, err := io.ReadAll(r.Body)
		text = leaf.ReplaceAll(text, []byte("index 77"))
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
		r.Header.Set("Content-Length", strconv.Itoa(len(text)))
		return err
	}
	server := httptest.NewServer(front)
	t.Cleanup(server.Close)
	return server
}

// TestCaughtIsRemembered: agora ask catches a relay with wrong proofs, and continues at another one. A later command
// does not use that relay, until it is forgiven (RELAYS R-17).
func TestCaughtIsRemembered(t *testing.T) {
	t.Parallel()
	a, b := startRelayProcess(t), startRelayProcess(t)
	front := lyingFront(t, a.URL)
	n, err := client.NewNetwork([]string{front.URL, b.URL}, newKey(t),
		client.NetworkOptions{Options: client.Options{Proofs: client.ProofsOff}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serving.Go(func() {
		_ = n.Serve(ctx, client.ServeOptions{Intents: []string{"echo"}}, client.Handler{ // it ends with ctx
			Work: func(_ context.Context, job client.Job) (envelope.Result, error) {
				return envelope.Result{Output: job.Request.Params}, nil
			}})
	})
	defer serving.Wait()
	defer stop()
	alice := newAsker(t, front.URL)
	both := func(command string, args ...string) string {
		t.Helper()
		connection := []string{"--key", alice.file, "--relay", front.URL, "--relay", b.URL}
		code, output := runAgora(t.Context(), slices.Concat(strings.Fields(command), connection, args)...)
		if code != 0 {
			t.Fatalf("agora %s ended with %d: %s", command, code, output)
		}
		return output
	}
	ask := func() string { return both("ask", "echo", "--params", "7", quickly) }
	moved := fmt.Sprintf("%s was caught; continued at %s", strings.TrimPrefix(a.URL, "http://"),
		strings.TrimPrefix(b.URL, "http://"))
	if first := ask(); !strings.Contains(first, moved) {
		t.Errorf("want %q, got %s", moved, first)
	}
	if second := ask(); strings.Contains(second, "continued") {
		t.Errorf("the second command uses the caught relay: %s", second)
	}
	both("send request", "--intent", "other") // at the caught relay its proof would be wrong
	shown := both("relays", "--json")
	caught := regexp.MustCompile(`"did":"(did:key:[^"]+)"[^}]*"caught":"`).FindStringSubmatch(shown)
	if caught == nil {
		t.Fatalf("agora relays shows no caught relay: %s", shown)
	}
	both("relays", "--forgive", caught[1])
	if third := ask(); !strings.Contains(third, moved) {
		t.Errorf("a relay that was forgiven is not used: %s", third)
	}
}

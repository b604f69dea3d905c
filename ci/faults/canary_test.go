package faults

import (
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// messagesWithURLs returns messages that have the address in every place where a message may contain one.
func messagesWithURLs(t testing.TB, from didkey.Key, to didkey.DID, address string) (made []*envelope.Envelope) {
	t.Helper()
	host := "http://" + address
	payload := map[string]any{
		"intent":       "fetch",
		"url":          host + "/a",
		"webhook":      host + "/b",
		"callback_url": host + "/c",
		"params": map[string]any{
			"$ref":     host + "/d",
			"image":    "//" + address + "/e",
			"@context": []string{host + "/f"},
		},
	}
	for _, draft := range []map[string]any{
		{"type": "REQUEST", "recipient": map[string]any{"id": to, "url": host + "/recipient"},
			"thread":  map[string]any{"id": "bait"},
			"payload": payload,
			"meta":    map[string]any{"ttl": 3600, "webhook": host + "/meta", "reply_to": host, "trace": host}},
		{"type": "REQUEST", "payload": map[string]any{"request_id": "bait-2", "intent": host},
			"webhook": host + "/top"},
		{"type": "MANIFEST", "payload": map[string]any{"id": "m", "name": host, "privacy_policy": host + "/privacy",
			"endpoint": host, "webhook": host,
			"intents": []map[string]any{{"id": "fetch",
				"input_schema": map[string]any{"$schema": host + "/s", "$ref": host + "/r"}}}}},
	} {
		draft["sender"] = map[string]any{"id": from.DID(), "name": host, "url": host + "/sender"}
		text, err := json.Marshal(draft)
		must(t, err)
		e, err := envelope.SignJSON(from, text, time.Now())
		must(t, err)
		made = append(made, e)
	}
	return made
}

// postAndReadAll posts such messages, reads them in all ways that the relay offers, and stops the relay.
func postAndReadAll(t testing.TB, relay *server, address string) {
	t.Helper()
	keys := newKeys(t, 2)
	for _, e := range messagesWithURLs(t, keys[0], keys[1].DID(), address) {
		relay.mustAccept(e)
	}
	for _, path := range []string{"/events?cursor=0&timeout=0", "/events?timeout=0&since=2020-01-01T00:00:00Z",
		"/threads/bait", "/agents?intent=fetch",
		"/agents?q=" + url.QueryEscape("http://"+address), "/agents/" + string(keys[0].DID()),
		"/.well-known/agora.json"} {
		if a := relay.ask(http.MethodGet, path, nil); !a.OK {
			t.Errorf("%s: %s", path, a)
		}
	}
	if a := relay.ask(http.MethodPost, "/seed", nil); !a.OK {
		t.Errorf("/seed: %s", a)
	}
	if code := relay.stop(); code != 0 {
		t.Errorf("the relay ended with exit code %d", code)
	}
}

// TestNoRequestGoesOut tests that the relay does not connect to an address in a message (SECURITY.md T23).
func TestNoRequestGoesOut(t *testing.T) {
	canary, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var visits atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := canary.Accept()
			if err != nil {
				return // the listener was closed below
			}
			visits.Add(1)
			_ = c.Close() // the connection should not exist
		}
	}()
	relay := newServer(t, longTimeouts...)
	relay.start()
	postAndReadAll(t, relay, canary.Addr().String())
	must(t, canary.Close())
	<-ended
	if n := visits.Load(); n > 0 {
		t.Errorf("the relay has connected to an address from a message %d times", n)
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// liar is a relay whose record of a thread is false. It shows its envelopes to everybody and accepts every post.
type liar struct {
	*httptest.Server
	record map[string]any
	shown  []json.RawMessage
	posted []*envelope.Envelope
}

func newLiar(t *testing.T) *liar {
	l := &liar{}
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown, from, limit := l.shown, 0, len(l.shown)
		if r.Method == http.MethodGet && r.URL.Path == "/events" {
			_, _ = fmt.Sscan(r.FormValue("cursor"), &from) // a cursor that is not a number means the beginning
			_, _ = fmt.Sscan(r.FormValue("limit"), &limit)
			from = min(from, len(shown))
			shown = shown[from:min(from+limit, len(shown))]
		}
		answer := map[string]any{"ok": true, "events": shown, "cursor": fmt.Sprint(from + len(shown)), "hasMore": false,
			"thread": l.record, "did": newKey(t).DID()}
		if r.Method == http.MethodPost {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			e, err := envelope.Parse(body, 0)
			if err != nil {
				t.Error(err)
				return
			}
			l.posted = append(l.posted, e)
			answer = map[string]any{"ok": true, "id": e.ID}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(l.Close)
	return l
}

func newKey(t *testing.T) didkey.Key {
	t.Helper()
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// keyFile saves a key in a temporary file and returns its path.
func keyFile(t *testing.T, key didkey.Key) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "key")
	if err := didkey.Save(path, key); err != nil {
		t.Fatal(err)
	}
	return path
}

func signed(t *testing.T, key didkey.Key, payload envelope.Payload, recipient didkey.DID) json.RawMessage {
	t.Helper()
	e, err := envelope.Draft{Payload: payload, Recipient: recipient, Thread: "t1", TTL: time.Hour}.Sign(key, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return e.Canonical()
}

// answerCase is a call of agora send in a thread of a lying relay.
type answerCase struct {
	name       string
	args       string
	as         didkey.Key
	shown      []json.RawMessage
	record     map[string]any // the record of the thread; nil: a record that names Eve everywhere
	to         didkey.DID     // the right recipient; empty: the message must not be sent
	wantOutput string
}

func answerCases(t *testing.T, alice, bob, eve didkey.Key) []answerCase {
	request := signed(t, alice, envelope.Request{RequestID: "r1", Intent: "i"}, "")
	named := signed(t, alice, envelope.Request{RequestID: "r1", Intent: "i"}, bob.DID())
	offer := signed(t, bob, envelope.Offer{RequestID: "r1", Plan: "bob's"}, alice.DID())
	accept := signed(t, alice, envelope.Accept{RequestID: "r1"}, bob.DID())
	foreign := signed(t, eve, envelope.Request{RequestID: "r2", Intent: "i"}, "")
	same := signed(t, eve, envelope.Request{RequestID: "r1", Intent: "i"}, "")
	toBob := signed(t, eve, envelope.Accept{RequestID: "r1"}, bob.DID())
	eves := signed(t, eve, envelope.Offer{RequestID: "r1", Plan: "eve's"}, alice.DID())
	forged := json.RawMessage(strings.ReplaceAll(string(toBob), string(eve.DID()), string(alice.DID())))
	return []answerCase{
		{"RESULT", "result --seal", bob, []json.RawMessage{foreign, toBob, same, request, offer, accept}, nil, alice.DID(), ""},
		{"RESULT, the ACCEPT withheld", "result --seal", bob, []json.RawMessage{foreign, same, toBob, request, offer}, nil, "", "no ACCEPT of your offer by " + string(alice.DID())},
		{"RESULT, the ACCEPT forged", "result --seal", bob, []json.RawMessage{same, request, offer, forged}, nil, "", "no ACCEPT"},
		{"RESULT, the OFFER withheld", "result --seal", bob, []json.RawMessage{same, toBob, request, accept}, nil, "", "no OFFER of yours"},
		{"RESULT to the client of --client", "result --seal --request-id r1 --client " + string(alice.DID()), bob, []json.RawMessage{same, toBob}, nil, alice.DID(), ""},
		{"OFFER", "offer --seal", bob, []json.RawMessage{foreign, named}, nil, "", "2 threads have the id t1"},
		{"OFFER to one client of two", "offer --seal --client " + string(alice.DID()), bob, []json.RawMessage{foreign, named}, nil, alice.DID(), ""},
		{"OFFER, the REQUEST withheld", "offer --seal --client " + string(alice.DID()), bob, []json.RawMessage{foreign}, nil, "", "no REQUEST that you can answer"},
		{"ERROR", "error --seal --code C --message m", bob, []json.RawMessage{foreign, toBob, offer, accept}, nil, alice.DID(), ""},
		{"ERROR without an OFFER", "error --seal --code C --message m", bob, []json.RawMessage{foreign, toBob}, nil, "", "--client DID --request-id ID"},
		{"ERROR of the client", "error --seal --code C --message m", alice, []json.RawMessage{request, offer, accept, eves}, nil, bob.DID(), ""},
		{"CANCEL", "cancel --seal", alice, []json.RawMessage{request, eves, accept}, nil, bob.DID(), ""},
		{"CANCEL before an ACCEPT", "cancel --seal", alice, []json.RawMessage{named, eves}, nil, bob.DID(), ""},
		{"CANCEL, the ACCEPT withheld", "cancel --seal", alice, []json.RawMessage{request, eves}, nil, "", "--to DID"},
		{"CANCEL to the agent of --to", "cancel --seal --to " + string(bob.DID()), alice, []json.RawMessage{request, eves}, nil, bob.DID(), ""},
		{"CANCEL, the REQUEST withheld", "cancel --seal", alice, []json.RawMessage{foreign}, nil, "", "no REQUEST from you"},
		{"ACCEPT", "accept", alice, []json.RawMessage{named, eves, offer}, map[string]any{"state": "PENDING"}, bob.DID(), ""},
		{"ACCEPT of one of two", "accept", alice, []json.RawMessage{request, eves, offer}, map[string]any{"state": "PENDING"}, "", "2 agents have offered; choose one with --agent: " + string(eve.DID())},
		{"ACCEPT, the REQUEST withheld", "accept --max-cost 1", alice, []json.RawMessage{eves}, map[string]any{"state": "PENDING"}, "", "--request-id ID --agent DID"},
	}
}

// TestRecipientsComeFromVerifiedEnvelopes uses a relay that lies about the client, the accepted agent and the
// request of a thread, and that hides envelopes. A message is sent to the party that verified envelopes
// name, or it is not sent.
func TestRecipientsComeFromVerifiedEnvelopes(t *testing.T) {
	alice, bob, eve := newKey(t), newKey(t), newKey(t)
	for _, c := range answerCases(t, alice, bob, eve) {
		t.Run(c.name, func(t *testing.T) {
			l := newLiar(t)
			l.shown = c.shown
			if l.record = c.record; l.record == nil {
				l.record = map[string]any{"state": "ACTIVE", "agent": eve.DID()}
			}
			l.record["id"], l.record["requestId"] = "t1", "r2"
			l.record["client"], l.record["recipient"] = c.as.DID(), eve.DID()
			l.record["offers"] = []any{map[string]any{"agent": eve.DID(), "id": "msg_1"}}
			if c.as.DID() == bob.DID() {
				l.record["client"] = eve.DID()
			}
			args := append([]string{"send"}, strings.Fields(c.args)...)
			code, output := runAgora(t.Context(), append(args, "--relay", l.URL, "--key", keyFile(t, c.as), "--thread", "t1")...)
			if c.to == "" {
				if code != cli.ExitFailed || len(l.posted) > 0 || !strings.Contains(output, c.wantOutput) {
					t.Errorf("ended with %d, posted %d: %s", code, len(l.posted), output)
				}
				return
			}
			if code != cli.ExitOK || len(l.posted) != 1 || !strings.Contains(output, string(c.to)) {
				t.Fatalf("ended with %d, posted %d: %s", code, len(l.posted), output)
			}
			sealed := strings.Contains(c.args, "--seal")
			if e := l.posted[0]; e.Recipient != c.to || e.RequestID != "r1" || e.Sealed() != sealed {
				t.Errorf("posted %s", e.Canonical())
			}
		})
	}
}

// TestPlainAnswersAreFoundBySignature uses a relay whose record does not show that a request was sealed. follow leaves
// out the plain answer to it nevertheless, because the signed REQUEST shows that it was sealed.
func TestPlainAnswersAreFoundBySignature(t *testing.T) {
	alice, bob := newKey(t), newKey(t)
	sealed, err := envelope.Draft{Payload: envelope.Request{RequestID: "r1", Intent: "i"}, Recipient: bob.DID(), Thread: "t1", Seal: true}.
		Sign(alice, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	l := newLiar(t)
	l.shown = []json.RawMessage{sealed.Canonical(), signed(t, bob, envelope.Result{RequestID: "r1", Status: "in plain"}, alice.DID()),
		signed(t, bob, envelope.Request{RequestID: "r3", Intent: "the next one"}, alice.DID())}
	l.record = map[string]any{"id": "t1", "client": alice.DID(), "state": "COMPLETED", "requestId": "r2"}
	code, output := runAgora(t.Context(), "follow", "--key", keyFile(t, alice), "--relay", l.URL, "--count", "1", "--timeout", "1m")
	if code != cli.ExitOK || strings.Contains(output, "in plain\"") || !strings.Contains(output, "left out RESULT") ||
		!strings.Contains(output, "the next one") {
		t.Errorf("ended with %d: %s", code, output)
	}
}

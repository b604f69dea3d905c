package httpapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay"
)

// logged is what clients of a log read.
type logged struct {
	*testing.T
	relay   *relay.Relay
	handler http.Handler
}

func newLogged(t *testing.T, c relay.Config) logged {
	t.Helper()
	c.Transparency, c.Limits = true, noLimits
	r := startWith(t, asIs, c)
	return logged{t, r, setting{}.handler(t, r)}
}

// read returns an answer that is not JSON.
func (l logged) read(target string) (status int, header http.Header, body string) {
	w := httptest.NewRecorder()
	l.handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
	return w.Code, w.Header(), w.Body.String()
}

// verify returns what a proof says about a message.
func (l logged) verify(text string, e *envelope.Envelope) *proof.Verified {
	l.Helper()
	p, err := proof.Parse(text)
	if err != nil {
		l.Fatalf("%q: %v", text, err)
	}
	v, err := p.Verify()
	if err == nil {
		err = v.CheckMessage(e, l.relay.DID())
	}
	if err != nil {
		l.Fatal(err)
	}
	return v
}

func (l logged) proofOf(e *envelope.Envelope) string {
	return "/proofs?" + url.Values{"sender": {string(e.Sender.ID)}, "id": {e.ID}}.Encode()
}

// TestLogOverHTTP checks the answers about a log (LOG L-8, §3).
func TestLogOverHTTP(t *testing.T) {
	racing.Skip(t, "one thing after another")
	l := newLogged(t, relay.Config{})
	var known struct {
		DID      string
		Features []string
		Log      struct {
			Origin, Start  string
			PublishSeconds float64
		}
	}
	if err := json.Unmarshal(get(t, l.handler, "/.well-known/agora.json").body, &known); err != nil {
		t.Fatal(err)
	}
	did, epoch, _ := strings.Cut(known.Log.Origin, "/")
	if _, err := proof.ParseStart(known.Log.Start); err != nil || did != known.DID || known.Log.PublishSeconds != 5 ||
		!strings.Contains(fmt.Sprint(known.Features), "proofs") {
		t.Errorf("the well-known document has %+v, %v", known, err)
	}
	for published := 0; published != http.StatusOK; time.Sleep(time.Millisecond) { // the first checkpoint, before the first post
		published, _, _ = l.read("/log/" + epoch + "/checkpoint")
	}
	alice, bob := key(t), key(t).DID()
	var first *envelope.Envelope
	for i := range 300 {
		e := sign(t, alice, envelope.Draft{Thread: fmt.Sprint("t", i), Recipient: bob, Payload: envelope.Request{RequestID: "r", Intent: "x"}})
		var receipt struct{ Proof string }
		a := post(t, l.handler, "/events", e.Canonical())
		if err := json.Unmarshal(a.body, &receipt); err != nil || a.status != 200 {
			t.Fatalf("%s, %v", a.body, err)
		}
		if v := l.verify(receipt.Proof, e); v.Index != int64(i+1) || v.Leaf.Request != e.Hash() {
			t.Fatalf("the proof says %+v", v)
		}
		if i == 0 {
			first = e
		}
	}
	if a := post(t, l.handler, "/events", first.Canonical()); strings.Contains(string(a.body), "proof") {
		t.Errorf("the duplicate has a proof: %s", a.body)
	}
	// A proof is for the checkpoint that was published last, if that has the message, or else for a new one.
	status, header, text := l.read(l.proofOf(first))
	if v := l.verify(text, first); status != 200 || v.Index != 1 || v.Size < 2 || v.Size > 301 ||
		header.Get("Content-Type") != "text/plain; charset=utf-8" || header.Get("Cache-Control") != "no-store" {
		t.Errorf("%d, %v, %+v", status, header, v)
	}
	// The checkpoint was published at the start, or again if the posts took longer than five seconds.
	_, _, text = l.read("/log/" + epoch + "/checkpoint")
	c, err := proof.ParseCheckpoint(text)
	if err != nil || c.Size < 1 || c.Size > 301 {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := c.Verify(); err != nil {
		t.Error(err)
	}
	status, header, full := l.read("/log/" + epoch + "/tile/0/000")
	if status != 200 || len(full) != 256*32 || !strings.Contains(header.Get("Cache-Control"), "immutable") ||
		header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("%d, %v, %d bytes", status, header, len(full))
	}
	_, _, node := l.read("/log/" + epoch + "/tile/1/000.p/1")
	var tree proof.Tree
	for i := range 256 {
		tree.Grow([]proof.Hash{proof.Hash([]byte(full[32*i:][:32]))})
	}
	if root := tree.Root(); node != string(root[:]) {
		t.Errorf("the node above the first tile is %x, want %s", node, root)
	}
	if status, _, part := l.read("/log/" + epoch + "/tile/0/001.p/45"); status != 200 || len(part) != 45*32 {
		t.Errorf("%d, %d bytes of a part of a tile", status, len(part))
	}
	for _, target := range []string{"/log/" + epoch + "/tile/0/001", "/log/" + epoch + "/tile/0/001.p/46", "/log/00000000/checkpoint",
		"/log/" + epoch + "/tile/0/x004/x294/x967/296", "/log/" + epoch + "/tile/0/x036/x028/x797/x018/963/968.p/1",
		"/log/" + epoch + "/tile/0/x009/x223/x372/x036/x854/775/807", "/log/" + epoch + "/tile/6/000.p/1", "/log/" + epoch + "/tile/63/000",
		"/log/" + epoch + "/tile/entries/000", "/log/" + epoch + "/tile/0/1", "/log/" + epoch + "/tile/x", "/log/" + epoch + "/tile/",
		"/log/00000000/tile/0/000", "/proofs?id=x&sender=" + string(alice.DID())} {
		get(t, l.handler, target).want(t, 404, envelope.CodeNotFound)
	}
	for _, target := range []string{"/proofs", "/proofs?id=x", "/proofs?sender=" + string(alice.DID()), "/log/" + epoch + "/checkpoint?x=1",
		"/log/" + epoch + "/tile/0/000?x=1", "/events/bulk?x=1"} {
		if a := get(t, l.handler, target); a.status != 400 && a.status != 405 {
			t.Errorf("%s: %d", target, a.status)
		}
	}
	get(t, l.handler, "/proofs?id=x&sender=x").want(t, 400, envelope.CodeInvalidDID)
}

// TestBulkProofs checks that a bulk request gets proofs if it asks for them.
func TestBulkProofs(t *testing.T) {
	l := newLogged(t, relay.Config{})
	e := sign(t, key(t), envelope.Draft{Thread: "t", Payload: envelope.Request{RequestID: "r", Intent: "x"}})
	for _, c := range []struct {
		target string
		proofs bool
	}{{"/events/bulk", false}, {"/events/bulk?proofs=true", false}, {"/events/bulk?proofs=true", true}} {
		if c.proofs {
			e = sign(t, key(t), envelope.Draft{Thread: "t", Payload: envelope.Request{RequestID: "r", Intent: "x"}})
		}
		var a struct{ Results []struct{ Proof string } }
		if err := json.Unmarshal(post(t, l.handler, c.target, append(e.Canonical(), '\n')).body, &a); err != nil || len(a.Results) != 1 {
			t.Fatalf("%+v, %v", a, err)
		}
		if text := a.Results[0].Proof; (text != "") != c.proofs {
			t.Errorf("%s: the proof is %q", c.target, text)
		} else if c.proofs {
			l.verify(text, e)
		}
	}
}

// TestProofsAreForReaders checks that a private relay proves a message only to its parties (LOG L-5).
func TestProofsAreForReaders(t *testing.T) {
	l := newLogged(t, relay.Config{Reads: relay.ToParties, Origin: "https://relay.example"})
	alice, bob, eve := key(t), key(t), key(t)
	e := sign(t, alice, envelope.Draft{Recipient: bob.DID(), Payload: envelope.Request{RequestID: "r", Intent: "x"}})
	if _, err := l.relay.Post(t.Context(), relay.Peer{Local: true}, e.Canonical()); err != nil {
		t.Fatal(err)
	}
	unauthorized(t, "an unsigned read", get(t, l.handler, l.proofOf(e)), envelope.ReasonUnsigned)
	getAs(t, l.handler, eve, l.proofOf(e)).want(t, 404, envelope.CodeNotFound)
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, l.proofOf(e), nil)
	r.Header.Set("Authorization", authorization(t, bob, l.proofOf(e)))
	l.handler.ServeHTTP(w, r)
	l.verify(w.Body.String(), e)
}

// TestNoLog checks that a relay without a log has none of its answers.
func TestNoLog(t *testing.T) {
	h := setting{}.handler(t, start(t))
	e := sign(t, key(t), envelope.Draft{Payload: envelope.Request{RequestID: "r", Intent: "x"}})
	if a := post(t, h, "/events", e.Canonical()); strings.Contains(string(a.body), "proof") {
		t.Errorf("%s", a.body)
	}
	for _, target := range []string{"/proofs?id=x&sender=" + string(e.Sender.ID), "/log/00000001/checkpoint", "/log/00000001/tile/0/000"} {
		a := get(t, h, target)
		a.want(t, 404, envelope.CodeNotFound)
		if !strings.Contains(a.Message, "--transparency") {
			t.Errorf("%s: %s", target, a.Message)
		}
	}
	if a := get(t, h, "/.well-known/agora.json"); strings.Contains(string(a.body), "proofs") || strings.Contains(string(a.body), `"log"`) {
		t.Errorf("%s", a.body)
	}
}

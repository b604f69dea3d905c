package witness_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/witness"
)

// askAgain is after how long a client reads the document of a peer again.
const askAgain = 30 * time.Second

// inTime fails if f takes longer than limit.
func inTime(t *testing.T, what string, limit time.Duration, f func()) {
	t.Helper()
	began := time.Now()
	f()
	if took := time.Since(began); took > limit {
		t.Errorf("%s took %s, want at most %s", what, took, limit)
	}
}

// signedBy checks that a checkpoint has the signatures of its relay and of these witnesses, and no others.
func signedBy(t *testing.T, what string, c proof.Checkpoint, witnesses ...*proof.Witness) {
	t.Helper()
	found, err := c.Verify(witnesses...)
	if err != nil || len(found) != len(witnesses) || len(c.Signatures) != len(witnesses)+1 {
		t.Errorf("%s: %d witnesses of %d have signed, %v\n%s", what, len(found), len(witnesses), err, c.String())
	}
}

// TestPeers checks that two relays that name each other sign each other's checkpoints. While one of them is down, the
// other one starts without delay, and asks it again later (LOG L-18, L-19).
func TestPeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newParty(t), newParty(t)
		a.of, b.of = []didkey.DID{b.key.DID()}, []didkey.DID{a.key.DID()}
		a.witnesses, b.witnesses = newClient(nil, quiet, b.peer()), newClient(nil, quiet, a.peer())
		inTime(t, "the start without the peer", 0, a.start)
		signedBy(t, "published while the peer is down", a.published())
		b.start()
		signedBy(t, "published when the peer is up", b.publishedBy(1), a.signer())
		if held := b.parse(a.held(b.published().Origin).body); held.Root != b.published().Root {
			t.Errorf("the peer holds\n%s", held.String())
		}

		asked := b.requests.Load()
		time.Sleep(askAgain)
		a.post(3)
		signers, from := []*proof.Witness{b.signer()}, a.published().Origin
		last := a.close()
		if last.Size != 4 || asked == 0 {
			t.Errorf("the published log has %d leaves, and the peer was asked %d times while it was down", last.Size, asked)
		}
		signedBy(t, "published when the peer is back", last, signers...)
		if held := b.parse(b.held(from).body); held.Size != 4 {
			t.Errorf("the peer holds\n%s", held.String())
		}
		// The proofs that the relay gives out have these signatures, too.
		a.start()
		a.post(1)
		signedBy(t, "published after a restart", a.close(), signers...)
		b.close()
	})
}

// TestPeerIsAnotherWitness checks that a client learns the new key of a peer that is restored (LOG L-21).
func TestPeerIsAnotherWitness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, l := newParty(t), newLog(t, key(t), 1, 9)
		c := newClient(nil, quiet, p.peer())
		p.of = []didkey.DID{l.key.DID()}
		p.start()
		signedBy(t, "the first witness", l.cosign(c, 4), p.signer())
		p.close()
		p.newEpoch = true
		p.start()
		defer p.close()
		signedBy(t, "while the new key is not known", l.cosign(c, 5))
		time.Sleep(askAgain)
		signedBy(t, "the second witness", l.cosign(c, 6), p.signer())
	})
}

// TestPeerIsAskedLater checks that a peer that is down is not asked at each publication (LOG L-19).
func TestPeerIsAskedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, l := newParty(t), newLog(t, key(t), 1, 9)
		c := newClient(nil, quiet, p.peer())
		p.of = []didkey.DID{l.key.DID()}
		for range 3 {
			l.cosign(c, 4)
		}
		if asked := p.requests.Load(); asked != 1 {
			t.Errorf("the peer was asked %d times", asked)
		}
		p.start()
		defer p.close()
		signedBy(t, "soon", l.cosign(c, 5))
		time.Sleep(askAgain)
		signedBy(t, "later", l.cosign(c, 6), p.signer())
	})
}

// cosign asks the witnesses to sign the checkpoint with this size. It must not take longer than two seconds (LOG L-18).
func (l *madeLog) cosign(c *witness.Client, size int64) proof.Checkpoint {
	l.Helper()
	checkpoint := l.checkpoint(size)
	inTime(l.T, "asking", 2*time.Second, func() {
		all := c.Cosign(l.Context(), checkpoint, func(_ context.Context, old int64) ([]proof.Hash, error) {
			return l.prove(old, size), nil
		})
		checkpoint.Signatures = append(checkpoint.Signatures, all...)
	})
	return checkpoint
}

// double is a witness in a test. It signs everything.
type double struct {
	key  didkey.Key
	name string
}

func (d double) vkey() string { return proof.VerifierKey(d.name, d.key.DID()) }

// sign returns the signature for a submission.
func (d double) sign(body string) string {
	s, err := proof.ParseSubmission(body)
	if err != nil || s.Old > s.Checkpoint.Size {
		return ""
	}
	signature, err := s.Checkpoint.Cosign(d.name, d.key, time.Now())
	if err != nil {
		return ""
	}
	return signature.String()
}

// policy is a policy of one witness at this address.
func (d double) policy(t *testing.T, url string) *proof.Policy {
	t.Helper()
	p, err := proof.ParsePolicy("witness w " + d.vkey() + " " + url + "\nquorum w\n")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// serve serves a witness until the test ends. answer gets the body of the request.
func serve(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, body string)) (url string) {
	t.Helper()
	return network.add(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		answer(w, r, string(body))
	}))
}

// reply writes a text. The client may have left.
func reply(w http.ResponseWriter, status int, text string) {
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

// badWitnesses are answers without a signature that counts. elsewhere is the address of a server that nobody asks.
func badWitnesses(d, other double, elsewhere string) map[string]func(http.ResponseWriter, *http.Request, string) {
	text := func(status int, f func(body string) string) func(http.ResponseWriter, *http.Request, string) {
		return func(w http.ResponseWriter, _ *http.Request, body string) { reply(w, status, f(body)) }
	}
	always := func(text string) func(string) string { return func(string) string { return text } }
	return map[string]func(http.ResponseWriter, *http.Request, string){
		"nothing":                     text(200, always("")),
		"garbage":                     text(200, always("<html>\x00\xff")),
		"a wrong signature":           text(200, func(string) string { return d.forge() }),
		"the signature of another":    text(200, other.sign),
		"a line too many":             text(200, func(body string) string { return d.sign(body) + "x\n" }),
		"101 signatures":              text(200, func(body string) string { return strings.Repeat(d.sign(body), 101) }),
		"a refusal with a signature":  text(403, d.sign),
		"an error":                    text(500, always("x")),
		"always another size":         text(409, always("1\n")),
		"no size":                     text(409, always("x\n")),
		"a negative size":             text(409, always("-1\n")),
		"an enormous size":            text(409, always("9223372036854775807\n")),
		"a size above 63 bits":        text(409, always("9223372036854775808\n")),
		"a size that the log has not": text(409, always("5000\n")),
		"too much":                    text(200, always(strings.Repeat("x", proof.MaxBytes+1))),
		"another address": func(w http.ResponseWriter, r *http.Request, _ string) {
			http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
		},
		"a connection that ends": func(http.ResponseWriter, *http.Request, string) { panic(http.ErrAbortHandler) },
		"an endless answer": func(w http.ResponseWriter, r *http.Request, _ string) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, strings.Repeat("x", 1<<16))
			}
		},
		"no answer": func(_ http.ResponseWriter, r *http.Request, _ string) { <-r.Context().Done() },
		"half an answer": func(w http.ResponseWriter, r *http.Request, body string) {
			line := d.sign(body)
			reply(w, 200, line[:min(20, len(line))])
			_ = http.NewResponseController(w).Flush() // if this fails, the client has left
			<-r.Context().Done()
		},
	}
}

// forge returns a signature by d's key that is wrong.
func (d double) forge() string {
	s, err := (&proof.Checkpoint{}).Cosign(d.name, d.key, time.Now())
	if err != nil {
		return ""
	}
	return s.String()
}

// TestBadWitnesses checks that a bad witness does not delay a publication by more than two seconds, and that its answer
// has no effect (LOG L-18). When it is good again, its signature counts.
func TestBadWitnesses(t *testing.T) {
	d, other := double{key(t), "witness.example/1"}, double{key(t), "witness.example/1"}
	elsewhere := serve(t, func(http.ResponseWriter, *http.Request, string) { t.Error("another address was asked") })
	for name, bad := range badWitnesses(d, other, elsewhere) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var good atomic.Bool
				var asked atomic.Int64
				url := serve(t, func(w http.ResponseWriter, r *http.Request, body string) {
					if good.Load() {
						reply(w, 200, d.sign(body))
					} else {
						asked.Add(1)
						bad(w, r, body)
					}
				})
				policy := d.policy(t, url)
				c, l := newClient(policy, quiet), newLog(t, key(t), 1, 9)
				signedBy(t, "the bad witness", l.cosign(c, 5))
				if n := asked.Load(); n < 1 || n > 2 {
					t.Errorf("the bad witness was asked %d times", n)
				}
				good.Store(true)
				signedBy(t, "the good witness", l.cosign(c, 9), policy.Keys()...)
			})
		})
	}
}

// TestPublishWithBadWitnesses starts a relay with bad witnesses and a good one (LOG L-18, L-22).
func TestPublishWithBadWitnesses(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		d, other := double{key(t), "witness.example/1"}, double{key(t), "witness.example/1"}
		elsewhere := serve(t, func(http.ResponseWriter, *http.Request, string) { t.Error("another address was asked") })
		lines := "witness good " + d.vkey() + " " + serve(t, func(w http.ResponseWriter, r *http.Request, body string) {
			if r.Method == http.MethodPost {
				reply(w, 200, d.sign(body))
			} else {
				reply(w, 404, "")
			}
		}) + "/\n"
		n := 0
		for _, bad := range badWitnesses(d, other, elsewhere) {
			n++
			one := double{key(t), fmt.Sprint("witness.example/bad/", n)}
			lines += fmt.Sprintf("witness w%d %s %s\n", n, one.vkey(), serve(t, bad))
		}
		policy, err := proof.ParsePolicy(lines + "quorum good\n")
		if err != nil {
			t.Fatal(err)
		}
		p := newParty(t)
		p.witnesses = newClient(policy, quiet)
		inTime(t, "the start", 7*time.Second, p.start)
		signedBy(t, "after the start", p.publishedBy(1), policy.Keys()[0])
		p.post(2)
		var last proof.Checkpoint
		inTime(t, "the last publication", 2*time.Second, func() { last = p.close() })
		signedBy(t, "the end", last, policy.Keys()[0])
	})
}

// TestManySignatures checks that witnesses cannot make a checkpoint that is too large to be read.
func TestManySignatures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []double
		policy := ""
		url := serve(t, func(w http.ResponseWriter, r *http.Request, body string) {
			var n int
			if _, err := fmt.Sscanf(r.URL.Path, "/%d/add-checkpoint", &n); err != nil {
				t.Error(err)
			}
			d := all[n]
			junk := proof.Signature{Name: d.name, Bytes: make([]byte, 100)}
			reply(w, 200, d.sign(body)+d.sign(body)+strings.Repeat(junk.String(), 90))
		})
		for n := range 150 {
			d := double{key(t), fmt.Sprint("w", n)}
			all = append(all, d)
			policy += fmt.Sprintf("witness %s %s %s/%d\n", d.name, d.vkey(), url, n)
		}
		p, err := proof.ParsePolicy(policy + "quorum none\n")
		if err != nil {
			t.Fatal(err)
		}
		l := newLog(t, key(t), 1, 5)
		c := l.cosign(newClient(p, quiet), 5)
		again, err := proof.ParseCheckpoint(c.String())
		if err != nil || len(c.String()) > 12<<10 {
			t.Fatalf("a checkpoint with %d bytes: %v", len(c.String()), err)
		}
		found, err := again.Verify(p.Keys()...)
		if err != nil || len(found) != len(again.Signatures)-1 || len(found) < 50 {
			t.Fatalf("%d witnesses, %d signatures, %v", len(found), len(again.Signatures), err)
		}
	})
}

// TestPeerDocuments checks which descriptions of a peer's witness count (LOG L-19, L-21).
func TestPeerDocuments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		relayKey, other := key(t), key(t)
		name := string(relayKey.DID()) + "/witness/"
		for what, c := range map[string]struct {
			name, document string // document: "" the right one; PAD that with many spaces
			signer         didkey.Key
			good           bool
		}{
			"good":                    {name + "0a0b0c0d", "", relayKey, true},
			"signed by another relay": {name + "0a0b0c0d", "", other, false},
			"another name":            {"witness.example", "", relayKey, false},
			"only an epoch":           {"0a0b0c0d", "", relayKey, false},
			"another relay's name":    {string(other.DID()) + "/witness/0a0b0c0d", "", relayKey, false},
			"an epoch in capitals":    {name + "0A0B0C0D", "", relayKey, false},
			"a long name":             {name + strings.Repeat("0", 1000), "", relayKey, false},
			"no witness":              {name + "0a0b0c0d", "{}", relayKey, false},
			"no JSON":                 {name + "0a0b0c0d", "x", relayKey, false},
			"too large":               {name + "0a0b0c0d", "PAD", relayKey, false},
		} {
			d := double{key(t), c.name}
			sig, err := c.signer.Sign([]byte("agora-witness/1\n" + d.vkey() + "\n"))
			if err != nil {
				t.Fatal(err)
			}
			k := witness.Key{VKey: d.vkey(), Sig: base64.RawURLEncoding.EncodeToString(sig)}
			document, err := json.Marshal(about{Witness: k})
			if err != nil {
				t.Fatal(err)
			}
			url := serve(t, func(w http.ResponseWriter, r *http.Request, body string) {
				switch {
				case r.URL.Path == "/witness/add-checkpoint":
					reply(w, 200, d.sign(body))
				case c.document == "":
					reply(w, 200, string(document))
				case c.document == "PAD":
					reply(w, 200, string(document)+strings.Repeat(" ", 257<<10))
				default:
					reply(w, 200, c.document)
				}
			})
			l := newLog(t, key(t), 1, 5)
			client := newClient(nil, quiet, witness.Peer{DID: relayKey.DID(), URL: url})
			if got := len(l.cosign(client, 5).Signatures) == 2; got != c.good {
				t.Errorf("%s: the peer's signature counts: %v", what, got)
			}
		}
	})
}

// TestRollback checks that a relay does not start over an older copy of its data, nor over a fork, if a witness has
// seen more of its log (LOG L-22).
func TestRollback(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		b := newParty(t)
		a := newParty(t)
		b.of = []didkey.DID{a.key.DID()}
		b.start()
		defer b.close()
		witnesses := newClient(nil, quiet, b.peer())
		a.witnesses = witnesses
		a.start()
		a.post(1)
		a.close()
		old, forked := a.copyFolder(), a.copyFolder()
		a.start()
		a.post(2)
		last := a.close()
		signedBy(t, "the last checkpoint", last, b.signer())
		good := a.folder

		a.folder, a.witnesses = forked, nil
		a.start()
		a.post(5)
		a.close()
		for what, folder := range map[string]string{"an older copy": old, "a fork": forked} {
			a.folder, a.witnesses = folder, newClient(nil, quiet, b.peer())
			if err := a.open(); !errors.Is(err, relay.ErrLogLost) || !strings.Contains(err.Error(), "a witness holds") {
				t.Errorf("%s: %v", what, err)
			}
		}
		a.folder, a.witnesses = good, witnesses
		a.start()
		a.post(1)
		if next := a.close(); next.Size != last.Size+1 || len(next.Signatures) != 2 {
			t.Errorf("the next checkpoint is\n%s", next.String())
		}
	})
}

// TestHeld checks which answers count as a checkpoint that a witness holds (LOG L-22).
func TestHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, l := double{key(t), "witness.example/1"}, newLog(t, key(t), 1, 5)
		good := ptr(l.checkpoint(3)).String()
		other := ptr(newLog(t, l.key, 2, 5).checkpoint(3)).String()
		unsigned := strings.Replace(good, "— ", "— x", 1)
		for what, c := range map[string]struct {
			status int
			body   string
			want   int
		}{
			"good":                 {200, good, 1},
			"another log":          {200, other, 0},
			"not by the relay":     {200, unsigned, 0},
			"no checkpoint":        {200, "x", 0},
			"too much":             {200, good + strings.Repeat("x", proof.MaxBytes), 0},
			"none":                 {404, "", 0},
			"an error":             {500, good, 0},
			"a redirect elsewhere": {307, good, 0},
		} {
			url := serve(t, func(w http.ResponseWriter, r *http.Request, _ string) {
				if r.Method != http.MethodGet || r.URL.Path != "/"+witness.HashOf(l.origin)+"/checkpoint" {
					t.Errorf("%s %s", r.Method, r.URL)
				}
				w.Header().Set("Location", "/x")
				reply(w, c.status, c.body)
			})
			held, err := newClient(d.policy(t, url), quiet).Held(t.Context(), l.origin)
			if len(held) != c.want || c.want > 0 && held[0].String() != good {
				t.Errorf("%s: %v", what, held)
			}
			if (err != nil) != (c.want == 0 && c.status != 404) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// TestParsePeer checks the values of --peer.
func TestParsePeer(t *testing.T) {
	did := string(key(t).DID())
	var p witness.Peer
	err := p.UnmarshalText([]byte(did + "@https://relay.example/"))
	if err != nil || p.String() != did+"@https://relay.example" {
		t.Errorf("%v, %v", p, err)
	}
	for _, text := range []string{"", did, did + "@", "@https://relay.example", "did:key:x@https://relay.example",
		did + "@relay.example", did + "@https://relay.example/path", did + "@ftp://relay.example"} {
		if p, err := witness.ParsePeer(text); err == nil {
			t.Errorf("%q is read as %v", text, p)
		}
	}
}

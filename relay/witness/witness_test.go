package witness_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/witness"
)

// newWitness starts a relay that is a witness of the logs of key.
func newWitness(t *testing.T, key didkey.Key) *party {
	t.Helper()
	p := newParty(t)
	p.of = []didkey.DID{key.DID()}
	p.start()
	t.Cleanup(func() { p.close() })
	return p
}

// cosigned checks an answer 200 to a submission of this checkpoint.
func (p *party) cosigned(a answer, c proof.Checkpoint) {
	p.Helper()
	signatures, err := proof.ParseSignatures(a.body)
	if err != nil || len(signatures) != 1 || a.kind != "text/plain; charset=utf-8" {
		p.Fatalf("%+v, %v", a, err)
	}
	c.Signatures = append(slices.Clip(c.Signatures), signatures...)
	found, err := c.Verify(p.signer())
	if err != nil || len(found) != 1 || time.Since(found[0].At).Abs() > time.Minute {
		p.Errorf("%+v, %v", found, err)
	}
}

// held returns the checkpoint that the witness holds of a log.
func (p *party) held(o proof.Origin) answer {
	p.Helper()
	return p.send(http.MethodGet, "/witness/"+witness.HashOf(o)+"/checkpoint", "")
}

// conflict checks an answer 409: it has the size that the witness has signed.
func (p *party) conflict(what string, a answer, size int64) {
	p.Helper()
	if a.kind != "text/x.tlog.size" || a.body != fmt.Sprintln(size) {
		p.Errorf("%s: %+v, want the size %d", what, a, size)
	}
}

// TestAdd checks the answers to submissions (LOG L-20, C2SP tlog-witness).
func TestAdd(t *testing.T) {
	k := key(t)
	p, l := newWitness(t, k), newLog(t, k, 1, 20)
	p.conflict("an unknown log", p.add("an unknown log", l.submission(3, 5), 409), 0)
	if a := p.held(l.origin); a.status != 404 {
		t.Errorf("a log that was not signed: %+v", a)
	}
	first := proof.Submission{Path: l.prove(3, 5), Checkpoint: l.checkpoint(5)}
	p.add("a first checkpoint with a proof", first.String(), 422)
	p.cosigned(p.add("the first checkpoint", l.submission(0, 5), 200), l.checkpoint(5))
	p.cosigned(p.add("the same checkpoint", l.submission(5, 5), 200), l.checkpoint(5))
	p.cosigned(p.add("a larger checkpoint", l.submission(5, 8), 200), l.checkpoint(8))

	for _, c := range []struct{ old, size int64 }{
		{0, 5}, {0, 8}, {0, 9}, {5, 5}, {5, 8}, {5, 9}, {7, 7}, {9, 9}, {9, 12},
	} {
		what := fmt.Sprintf("from %d to %d", c.old, c.size)
		p.conflict(what, p.add(what, l.submission(c.old, c.size), 409), 8)
	}
	for what, change := range map[string]func(*proof.Submission){
		"a proof of another size":  func(s *proof.Submission) { s.Path = l.prove(5, 12) },
		"a short proof":            func(s *proof.Submission) { s.Path = s.Path[1:] },
		"a long proof":             func(s *proof.Submission) { s.Path = append(s.Path, proof.Hash{}) },
		"no proof":                 func(s *proof.Submission) { s.Path = nil },
		"another tree":             func(s *proof.Submission) { s.Checkpoint = l.fork(6, 12).checkpoint(12) },
		"another tree, its proof":  func(s *proof.Submission) { s.Checkpoint, s.Path = l.fork(6, 12).both(8, 12) },
		"the same size with proof": func(s *proof.Submission) { s.Checkpoint = l.checkpoint(8) },
	} {
		s := proof.Submission{Old: 8, Path: l.prove(8, 12), Checkpoint: l.checkpoint(12)}
		change(&s)
		if a := p.add(what, s.String(), 422); !strings.Contains(a.body, `"INVALID_REQUEST"`) {
			t.Errorf("%s: %+v", what, a)
		}
	}
	if len(p.evidence()) > 0 {
		t.Errorf("there is evidence: %s", p.evidence())
	}
	if a := p.held(l.origin); a.status != 200 || !strings.HasPrefix(a.body, ptr(l.checkpoint(8)).Body()) {
		t.Errorf("after refusals, the witness holds %+v", a)
	}
	p.cosigned(p.add("a larger checkpoint after all", l.submission(8, 20), 200), l.checkpoint(20))
}

func ptr[T any](v T) *T { return &v }

// both returns a checkpoint and the proof that it continues the log with old leaves.
func (l *madeLog) both(old, size int64) (proof.Checkpoint, []proof.Hash) {
	return l.checkpoint(size), l.prove(old, size)
}

// TestRefusals checks the refusals that do not depend on what the witness has signed (LOG §3, L-19).
func TestRefusals(t *testing.T) {
	k := key(t)
	p, l := newWitness(t, k), newLog(t, k, 1, 5)
	good := l.submission(0, 5)
	unsigned := proof.Checkpoint{Origin: l.origin, Size: 5, Root: l.checkpoint(5).Root}
	forged, err := unsigned.Cosign(l.origin.String(), k, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	other := l.checkpoint(4).Signatures[0] // of another text
	head := "old 0\n\n" + unsigned.Body() + "\n"
	for what, c := range map[string]struct {
		body string
		want int
	}{
		"nothing":                     {"", 400},
		"a text":                      {"x\n", 400},
		"no old size":                 {strings.TrimPrefix(good, "old 0\n"), 400},
		"a number in another form":    {strings.Replace(good, "old 0", "old 00", 1), 400},
		"no signature":                {head, 400},
		"a line behind":               {good + "\n", 400},
		"an old size above the size":  {strings.Replace(good, "old 0", "old 6", 1), 400},
		"an extension line":           {strings.Replace(good, "\n\n—", "\nx\n\n—", 1), 400},
		"64 lines of a proof":         {"old 1\n" + strings.Repeat(proof.Hash{}.String()+"\n", 64) + good[6:], 400},
		"another relay":               {newLog(t, key(t), 1, 5).submission(0, 5), 404},
		"the log of another program":  {strings.Replace(good, l.origin.String()+"\n", "example.com/log\n", 1), 404},
		"a signature of another text": {head + other.String(), 403},
		"a second, wrong signature":   {good + other.String(), 403},
		"only a signature as witness": {head + forged.String(), 403},
		"8 KiB and a byte":            {good + strings.Repeat("x", proof.MaxSubmission+1-len(good)), 413},
		"8 KiB that are no signature": {good + strings.Repeat("x", proof.MaxSubmission-len(good)), 400},
	} {
		p.add(what, c.body, c.want)
	}
	hash := witness.HashOf(l.origin)
	for target, want := range map[string]int{"/witness/" + strings.Repeat("0", 64) + "/checkpoint": 404,
		"/witness/x/checkpoint": 404, "/witness/" + strings.ToUpper(hash) + "/checkpoint": 404, "/witness/" + hash: 404,
		"/witness/" + hash + "/checkpoint?x=1": 400, "/witness/add-checkpoint": 405} {
		if a := p.send(http.MethodGet, target, ""); a.status != want {
			t.Errorf("%s: %+v, want %d", target, a, want)
		}
	}
	p.cosigned(p.add("a good one", good, 200), l.checkpoint(5))
}

// TestNoWitness checks a relay that is no witness.
func TestNoWitness(t *testing.T) {
	p := newParty(t)
	p.start()
	defer p.close()
	l := newLog(t, p.key, 1, 2)
	a, b := p.add("no witness", l.submission(0, 2), 404), p.held(l.origin)
	if b.status != 404 || !strings.Contains(a.body, "--peer") || !strings.Contains(b.body, "--peer") {
		t.Errorf("%+v, %+v", a, b)
	}
	if a := p.about(); slices.Contains(a.Features, "witness") || a.Witness != (witness.Key{}) {
		t.Errorf("%+v", a)
	}
}

// evidence returns what the witness keeps against relays.
func (p *party) evidence() (all []json.RawMessage) {
	p.Helper()
	err := p.relay.View(p.Context(), local, func(q relay.Querier) error {
		return q.Query(func(scan func(...any) error) error {
			var text []byte
			var some []json.RawMessage
			err := scan(&text)
			if err == nil {
				err = json.Unmarshal(text, &some)
			}
			all = append(all, some...)
			return err
		}, "SELECT evidence FROM witness_log")
	})
	if err != nil {
		p.Fatal(err)
	}
	return all
}

// TestEvidence checks that a witness keeps evidence of forks, 16 for each relay (LOG L-20).
func TestEvidence(t *testing.T) {
	k := key(t)
	p := newParty(t)
	now := time.Now().Add(-40 * time.Second)
	p.now = func() time.Time {
		now = now.Add(time.Second)
		return now
	}
	p.of = []didkey.DID{k.DID()}
	p.start()
	defer p.close()
	for epoch := range uint32(2) {
		l := newLog(t, k, epoch, 5)
		p.cosigned(p.add("a log", l.submission(0, 5), 200), l.checkpoint(5))
		for n := range int64(12) {
			other := newLog(t, k, epoch, 0)
			other.grow(fmt.Sprint("fork ", n), 5)
			junk := proof.Signature{Name: "junk", Bytes: []byte{byte(n)}}
			p.conflict("a fork", p.add("a fork", other.submission(5, 5), 409), 5)
			p.conflict("a fork", p.add("the same fork", other.submission(3, 5, junk.String()), 409), 5)
			p.cosigned(p.add("the log", l.submission(5, 5), 200), l.checkpoint(5)) // another signature: the time is later
			p.conflict("a fork", p.add("the fork again", other.submission(5, 5), 409), 5)
			if got, want := len(p.evidence()), min(16, int(epoch)*12+int(n)+1); got != want {
				t.Fatalf("there are %d pieces of evidence, want %d", got, want)
			}
		}
	}
	for _, text := range p.evidence() {
		e, err := proof.ParseEvidence(text)
		if err != nil {
			t.Fatal(err)
		}
		found, err := e.Verify()
		if err != nil || found.Kind != proof.KindFork || found.Relay != k.DID() {
			t.Errorf("%s shows %+v, %v", text, found, err)
		}
	}
}

// TestManyLogs checks that a witness signs 16 logs of a relay, and no others (LOG L-19).
func TestManyLogs(t *testing.T) {
	k, second := key(t), key(t)
	p := newParty(t)
	p.of = []didkey.DID{k.DID(), second.DID()}
	p.start()
	defer p.close()
	for epoch := range uint32(16) {
		p.add("a log", newLog(t, k, epoch, 2).submission(0, 1), 200)
	}
	for range 2 {
		if a := p.add("the 17th log", newLog(t, k, 16, 2).submission(0, 2), 403); !strings.Contains(a.body, `"FORBIDDEN"`) {
			t.Errorf("%+v", a)
		}
	}
	p.add("a log that is known", newLog(t, k, 7, 2).submission(1, 2), 200)
	p.add("a log of another relay", newLog(t, second, 1, 2).submission(0, 2), 200)
}

// TestAddedLines checks that nobody can harm the witness of a log by lines under its checkpoint. Only the signatures of
// the relay and of the witness are kept.
func TestAddedLines(t *testing.T) {
	k := key(t)
	p, l := newWitness(t, k), newLog(t, k, 1, 9)
	own := l.checkpoint(4).Signatures[0]
	for i, line := range []string{proof.Signature{Name: "x", Bytes: []byte{1}}.String(), own.String(),
		proof.Signature{Name: own.Name, Bytes: own.Bytes}.String()} {
		old := min(int64(i), 1) * 4
		n := min(99, (proof.MaxSubmission-len(l.submission(old, 4)))/len(line))
		a := p.add("a checkpoint with more lines", l.submission(old, 4, strings.Repeat(line, n)), 200)
		p.cosigned(a, l.checkpoint(4))
		held := p.parse(p.held(l.origin).body)
		if found, err := held.Verify(p.signer()); err != nil || len(found) != 1 || len(held.Signatures) != 2 {
			t.Errorf("the witness holds\n%s%v", held.String(), err)
		}
	}
	p.cosigned(p.add("the next checkpoint", l.submission(4, 9), 200), l.checkpoint(9))
}

// TestConcurrentAdds checks that of several submissions with one old size only one is signed (C2SP tlog-witness).
func TestConcurrentAdds(t *testing.T) {
	k := key(t)
	p, l := newWitness(t, k), newLog(t, k, 1, 40)
	p.add("the first checkpoint", l.submission(0, 5), 200)
	var mu sync.Mutex
	var adding sync.WaitGroup
	answers := map[int]int{}
	for size := int64(6); size < 30; size++ {
		body := l.submission(5, size)
		adding.Go(func() {
			a := p.send(http.MethodPost, "/witness/add-checkpoint", body)
			mu.Lock()
			defer mu.Unlock()
			answers[a.status]++
		})
	}
	adding.Wait()
	if answers[200] != 1 || answers[409] != 23 {
		t.Errorf("the answers are %v", answers)
	}
}

// TestRestart checks that a witness remembers what it has signed, and that it is another witness in another epoch (LOG
// L-20, L-21).
func TestRestart(t *testing.T) {
	k := key(t)
	p, l := newParty(t), newLog(t, k, 1, 20)
	p.of = []didkey.DID{k.DID()}
	p.start()
	p.cosigned(p.add("the first checkpoint", l.submission(0, 5), 200), l.checkpoint(5))
	before, known := p.held(l.origin), p.about().Witness
	if name := fmt.Sprintf("%s/witness/%08x", p.key.DID(), p.relay.Epoch()); !strings.HasPrefix(known.VKey, name+"+") {
		t.Errorf("the key is %s, want %s", known.VKey, name)
	}
	p.close()
	p.start()
	if again := p.held(l.origin); again != before || again.status != 200 {
		t.Errorf("before the restart %+v, after it %+v", before, again)
	}
	if again := p.about().Witness; again != known {
		t.Errorf("before the restart %+v, after it %+v", known, again)
	}
	p.conflict("a fork", p.add("a fork", l.fork(2, 5).submission(5, 5), 409), 5)
	p.conflict("from 0", p.add("from 0", l.submission(0, 8), 409), 5)
	p.cosigned(p.add("a larger checkpoint", l.submission(5, 8), 200), l.checkpoint(8))
	p.close()

	p.newEpoch = true
	p.start()
	defer p.close()
	other := p.about().Witness
	a, b := strings.Split(known.VKey, "+"), strings.Split(other.VKey, "+")
	if a[0] == b[0] || a[2] == b[2] || !strings.HasPrefix(b[0], string(p.key.DID())+"/witness/") {
		t.Errorf("the witness was %s, and is %s", known.VKey, other.VKey)
	}
	p.cosigned(p.add("a larger checkpoint", l.submission(8, 20), 200), l.checkpoint(20))
}

// TestWellKnownWitness checks how the well-known document describes a witness (LOG §3, L-19).
func TestWellKnownWitness(t *testing.T) {
	p := newWitness(t, key(t))
	a := p.about()
	sig, err := base64.RawURLEncoding.DecodeString(a.Witness.Sig)
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := didkey.ParseVerifier(string(p.key.DID()))
	if err != nil {
		t.Fatal(err)
	}
	if !verifier.Verify([]byte("agora-witness/1\n"+a.Witness.VKey+"\n"), sig) || !slices.Contains(a.Features, "witness") {
		t.Errorf("%+v", a)
	}
	if _, err := proof.ParseWitness(a.Witness.VKey); err != nil {
		t.Error(err)
	}
}

//go:build witness

package faults

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/witness"
)

// witnessed is a relay whose log litewitness watches.
type witnessed struct {
	*server
	lite   *litewitness
	bin    string       // the folder of the programs of ci/torchwood
	origin proof.Origin // of its log
	policy string       // a file: litewitness must sign
	both   string       // a file: litewitness and the witness of the other relay must sign
	keys   []didkey.Key // of a client and an agent
	last   string       // the id of the last message that the client has posted
	posted int
}

// TestWitnesses checks that a relay's log works with programs of others: litewitness signs the checkpoints, Torchwood
// checks them, and the client of transparency.dev submits them to the witness of another relay (LOG §5).
func TestWitnesses(t *testing.T) {
	w := newWitnessed(t)
	w.post(2)
	w.published(true)
	w.verify()

	// The other relay watches the log, and gets the checkpoints from a third party.
	other := newServer(t, append(slices.Clone(longTimeouts), "--peer", string(w.origin.DID)+"@"+w.url)...)
	other.start()
	w.writePolicy(w.both, other)
	held := w.feed(other)
	w.feed(other) // the witness has signed this checkpoint already
	w.feedFails(other, other, "unknown log")

	w.restart()
	if c := w.feed(other); c.Size <= held.Size {
		t.Errorf("the log has not grown from %d leaves: %d", held.Size, c.Size)
	}
	w.forget(other)
}

// newWitnessed starts a relay and litewitness. The relay is running before litewitness knows its log.
func newWitnessed(t *testing.T) *witnessed {
	folder := t.TempDir()
	w := &witnessed{bin: folder, policy: filepath.Join(folder, "policy"), both: filepath.Join(folder, "both"),
		keys: newKeys(t, 2)}
	torchwood(t, w.bin)
	w.lite = newLitewitness(t, w.bin)
	w.lite.start()
	w.server = newServer(t, w.flags(w.policy)...)
	w.writePolicy(w.policy, nil)
	w.start()
	w.origin = originOf(t, w.url)
	w.published(false)
	w.lite.add(w.origin)
	w.writePolicy(w.policy, nil)
	return w
}

func (w *witnessed) flags(policy string) []string {
	return append(slices.Clone(longTimeouts), "--transparency", "on", "--witness-policy", policy)
}

// writePolicy writes a policy: litewitness must sign, and the witness of another relay, unless that is nil.
func (w *witnessed) writePolicy(file string, other *server) {
	w.t.Helper()
	text := fmt.Sprintf("witness lite %s http://%s/\n", w.lite.vkey, w.lite.address)
	if w.origin.DID != "" {
		text = "log " + logKey(w.t, w.origin) + "\n" + text
	}
	if other == nil {
		text += "quorum lite\n"
	} else {
		text += fmt.Sprintf("witness other %s %s/witness\ngroup both all lite other\nquorum both\n",
			about(w.t, other.url).Witness.VKey, other.url)
	}
	must(w.t, os.WriteFile(file, []byte(text), 0o600))
}

// about returns the well-known document of a relay.
func about(t testing.TB, relay string) (document struct {
	Log     struct{ Origin string }
	Witness witness.Key
}) {
	t.Helper()
	must(t, json.Unmarshal([]byte(get(t, relay+"/.well-known/agora.json")), &document))
	return document
}

func originOf(t testing.TB, relay string) proof.Origin {
	t.Helper()
	o, err := proof.ParseOrigin(about(t, relay).Log.Origin)
	must(t, err)
	return o
}

// get returns the body of an answer with status 200.
func get(t testing.TB, url string) string {
	t.Helper()
	response, err := connections.Get(url)
	must(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	must(t, err)
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d: %s", url, response.StatusCode, text)
	}
	return string(text)
}

// post posts n messages.
func (w *witnessed) post(n int) {
	w.t.Helper()
	for range n {
		w.last = w.mustAccept(request(w.t, w.keys[0], w.keys[1].DID(), time.Hour, 0)).ID
		w.posted++
	}
}

// log returns the URL of the log of a relay.
func log(t testing.TB, relay string) string {
	return fmt.Sprintf("%s/log/%08x", relay, originOf(t, relay).Epoch)
}

// published waits until the published checkpoint has all messages, and checks whether it meets the policy. A relay
// publishes a checkpoint before its witness has signed it, and again afterwards. So a checkpoint that must meet the
// policy may do so a while later.
func (w *witnessed) published(meets bool) (c proof.Checkpoint) {
	w.t.Helper()
	within(w.t, 2*relay.PublishEvery+exchangeTimeout, "the messages are in the published checkpoint", func() bool {
		var err error
		c, err = proof.ParseCheckpoint(get(w.t, log(w.t, w.url)+"/checkpoint"))
		must(w.t, err)
		return c.Size > int64(w.posted) && (!meets || w.meets(c, w.policy))
	})
	if c.Size != int64(w.posted)+1 {
		w.t.Errorf("the log has %d leaves after %d messages", c.Size, w.posted)
	}
	w.mustMeet(c, w.policy, meets)
	if meets {
		w.lite.mustHold(c)
	}
	return c
}

// mustMeet checks the signatures of a checkpoint, and whether it meets a policy.
func (w *witnessed) mustMeet(c proof.Checkpoint, file string, want bool) {
	w.t.Helper()
	if w.meets(c, file) != want {
		w.t.Errorf("a checkpoint meets the policy: %t, want %t:\n%s", !want, want, c.String())
	}
}

// meets reports whether a checkpoint meets a policy, and checks the signatures.
func (w *witnessed) meets(c proof.Checkpoint, file string) bool {
	w.t.Helper()
	text, err := os.ReadFile(file)
	must(w.t, err)
	policy, err := proof.ParsePolicy(string(text))
	must(w.t, err)
	cosigned, err := c.Verify(policy.Keys()...)
	must(w.t, err)
	for _, by := range cosigned {
		if age := time.Since(by.At); age < -time.Minute || age > time.Hour {
			w.t.Errorf("the witness %s has signed at %s", by.Witness.Name, by.At)
		}
	}
	return policy.Met(cosigned)
}

// verify lets Torchwood check the proof of the last message under the published checkpoint.
func (w *witnessed) verify() {
	w.t.Helper()
	text := get(w.t, fmt.Sprintf("%s/proofs?sender=%s&id=%s", w.url, w.keys[0].DID(), w.last))
	run := func(text string) error {
		cmd := exec.Command(filepath.Join(w.bin, "torchwood"), "verify", w.policy)
		cmd.Stdin = strings.NewReader(text)
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}
	if err := run(text); err != nil {
		w.t.Errorf("Torchwood refuses a proof: %v\n%s", err, text)
	}
	lines := slices.DeleteFunc(strings.SplitAfter(text, "\n"),
		func(line string) bool { return strings.Contains(line, litewitnessName) })
	if run(strings.Join(lines, "")) == nil {
		w.t.Error("Torchwood accepts a proof without the signature of litewitness")
	}
}

// submit lets the client of transparency.dev submit the published checkpoint of a relay to the witness of another one.
func (w *witnessed) submit(of, other *server) (text string, err error) {
	cmd := exec.Command(filepath.Join(w.bin, "torchwood"), "feed", w.both, log(w.t, of.url), other.url+"/witness")
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, &complaint)
	}
	return string(out), err
}

// feed submits the published checkpoint to the witness of another relay, which must sign it.
func (w *witnessed) feed(other *server) proof.Checkpoint {
	w.t.Helper()
	text, err := w.submit(w.server, other)
	must(w.t, err)
	c, err := proof.ParseCheckpoint(text)
	must(w.t, err)
	w.mustMeet(c, w.both, true)
	held, err := proof.ParseCheckpoint(get(w.t, other.url+"/witness/"+witness.HashOf(w.origin)+"/checkpoint"))
	must(w.t, err)
	if held.Body() != c.Body() {
		w.t.Errorf("the witness holds %q after it has signed %q", held.Body(), c.Body())
	}
	return c
}

// feedFails submits the published checkpoint of a relay to the witness of another relay, which must refuse it.
func (w *witnessed) feedFails(of, other *server, want string) {
	w.t.Helper()
	if _, err := w.submit(of, other); err == nil || !strings.Contains(err.Error(), want) {
		w.t.Errorf("the witness signs a checkpoint that it must refuse, or not with %q: %v", want, err)
	}
}

// restart checks that the signatures continue after each of the programs was started again, and that the relay works
// without litewitness.
func (w *witnessed) restart() {
	w.t.Helper()
	w.post(1)
	w.stop() // publishes a last checkpoint
	w.start()
	w.published(true)
	w.kill()
	w.lite.kill()
	w.start()
	w.post(1)
	w.published(false)
	w.lite.start()
	w.post(1)
	w.published(true)
	w.verify()
}

// forget lets the relay run over an older copy of its data folder.
func (w *witnessed) forget(other *server) {
	w.t.Helper()
	w.stop()
	older, before := filepath.Join(w.t.TempDir(), "data"), w.posted
	must(w.t, os.CopyFS(older, os.DirFS(w.data)))
	must(w.t, os.Chmod(older, 0o700))
	must(w.t, os.Chmod(filepath.Join(older, "relay.key"), 0o600))
	w.start()
	w.post(3)
	w.stop()
	w.start()
	newest := w.published(true)
	w.feed(other)
	w.stop()
	w.posted = before

	// The witness of the other relay shows what it has signed, so the relay does not start.
	const sentence = "the log has lost leaves: it has %d, and the checkpoint that a witness holds has %d"
	output := serverOn(w.t, older, w.flags(w.both)...).mustFailToStart()
	if !strings.Contains(output, fmt.Sprintf(sentence, before+1, newest.Size)) {
		w.t.Errorf("the relay does not say that a witness holds more: %q", output)
	}

	// litewitness does not show it. But it does not sign, and the relay says why.
	w.server = serverOn(w.t, older, w.flags(w.policy)...)
	w.start()
	w.post(1)
	w.published(false)
	if output := w.process.stderr.String(); !strings.Contains(output, "the data of this relay was rolled back") {
		w.t.Errorf("the relay does not say that it was rolled back: %q", output)
	}
	w.feedFails(w.server, other, fmt.Sprintf("the witness knows %d leaves of the log", newest.Size))
	w.post(5) // now the log has more leaves than before, but others
	w.stop()
	w.start()
	w.published(false)
	w.feedFails(w.server, other, "consistency proof invalid")
	w.lite.mustHold(newest)
}

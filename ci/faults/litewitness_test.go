//go:build witness

package faults

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/mod/sumdb/note"
	_ "modernc.org/sqlite"

	"github.com/agora-relay/agora/proof"
)

// litewitness is Torchwood's witness, which asks an ssh-agent for its signatures. It runs as one process at a time, and
// can be started again with the same database.
type litewitness struct {
	t       testing.TB
	program string
	folder  string // has the database and the socket of the agent
	address string // where it listens
	key     string // the fingerprint of its SSH key
	vkey    string // after start

	process *process
}

const litewitnessName = "witness.example/lite"

// torchwood builds the programs of ci/torchwood into a folder.
func torchwood(t testing.TB, folder string) {
	t.Helper()
	out, err := exec.Command("go", "build", "-C", "../torchwood", "-o", folder, ".",
		"filippo.io/torchwood/cmd/litewitness").CombinedOutput()
	if err != nil {
		t.Fatalf("cannot build the programs of ci/torchwood: %v\n%s", err, out)
	}
}

// newLitewitness returns a witness with a new key, whose program is in the folder bin. It is not started yet.
func newLitewitness(t testing.TB, bin string) *litewitness {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	w := &litewitness{t: t, program: filepath.Join(bin, "litewitness"), folder: t.TempDir(), address: l.Addr().String()}
	must(t, l.Close())
	_, private, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	keys := agent.NewKeyring()
	must(t, keys.Add(agent.AddedKey{PrivateKey: private}))
	signers, err := keys.Signers()
	must(t, err)
	w.key = ssh.FingerprintSHA256(signers[0].PublicKey())
	serveAgent(t, filepath.Join(w.folder, "agent"), keys)
	t.Cleanup(func() {
		if w.process == nil {
			return
		}
		w.kill()
		if t.Failed() {
			t.Logf("the end of the output of litewitness:\n%s", w.process.stderr.String())
		}
	})
	return w
}

// serveAgent serves keys as an ssh-agent at a Unix socket until the test ends.
func serveAgent(t testing.TB, socket string, keys agent.Agent) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // the test ends
			}
			go func() {
				defer conn.Close()
				if err := agent.ServeAgent(keys, conn); err != nil && !errors.Is(err, io.EOF) {
					t.Logf("the ssh-agent: %v", err) // a killed litewitness
				}
			}()
		}
	}()
}

// start starts the process, and waits until it answers.
func (w *litewitness) start() {
	w.t.Helper()
	p := &process{ended: make(chan struct{}), Cmd: exec.Command(w.program, "-name", litewitnessName, "-key", w.key,
		"-listen", w.address, "-db", filepath.Join(w.folder, "db"), "-ssh-agent", filepath.Join(w.folder, "agent"))}
	useProcessGroup(p.Cmd)
	p.Stderr = &p.stderr
	must(w.t, p.Start())
	w.process = p
	go func() {
		_ = p.Wait() // only the output matters
		close(p.ended)
	}()
	within(w.t, startTimeout, "litewitness answers", func() bool {
		select {
		case <-p.ended:
			w.t.Fatalf("litewitness has ended: %s", p.stderr.String())
		default:
		}
		conn, err := net.Dial("tcp", w.address)
		return err == nil && conn.Close() == nil
	})
	_, rest, _ := strings.Cut(p.stderr.String(), " vkey=")
	w.vkey, _, _ = strings.Cut(rest, "\n")
}

// kill kills the process, like a crash.
func (w *litewitness) kill() {
	must(w.t, killGroup(w.process.Cmd))
	<-w.process.ended
}

// add makes the witness know a log, as witnessctl add-log and add-key do. The command witnessctl cannot be built,
// because the module proxy does not give out a module that it needs.
func (w *litewitness) add(o proof.Origin) {
	w.t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(w.folder, "db")+"?_pragma=busy_timeout(5000)")
	must(w.t, err)
	empty := sha256.Sum256(nil)
	_, err = db.Exec("INSERT INTO log (origin, tree_size, tree_hash) VALUES (?, 0, ?)", o.String(),
		base64.StdEncoding.EncodeToString(empty[:]))
	must(w.t, err)
	_, err = db.Exec("INSERT INTO key (origin, key) VALUES (?, ?)", o.String(), logKey(w.t, o))
	must(w.t, err)
	must(w.t, db.Close())
}

// logKey returns the verifier key of a log.
func logKey(t testing.TB, o proof.Origin) string {
	t.Helper()
	key, err := note.NewEd25519VerifierKey(o.String(), o.DID.PublicKey())
	must(t, err)
	return key
}

// mustHold checks which tree of a log the witness has signed last, by its own page.
func (w *litewitness) mustHold(c proof.Checkpoint) {
	w.t.Helper()
	response, err := connections.Get("http://" + w.address + "/")
	must(w.t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	must(w.t, err)
	want := fmt.Sprintf("- %s\n  (size %d, root %s)", c.Origin, c.Size, c.Root)
	if response.StatusCode != http.StatusOK || !strings.Contains(html.UnescapeString(string(text)), want) {
		w.t.Errorf("the page of litewitness, with the status %d, has no %q: %q", response.StatusCode, want, text)
	}
}

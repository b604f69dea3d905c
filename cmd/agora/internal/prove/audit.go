package prove

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/fsync"
	"github.com/agora-relay/agora/proof"
)

type AuditCmd struct {
	cli.Reader
	Follow   bool     `help:"Keep watching: read each new checkpoint of the relay and compare it with the one before, until interrupted."`
	Policy   string   `placeholder:"FILE" help:"The witnesses that must have signed the relay's checkpoint (C2SP tlog-policy)."`
	Offline  bool     `help:"Only compare the proofs with each other. Ask no relay and no witness."`
	Evidence string   `default:"." placeholder:"FOLDER" help:"Where to write evidence (default: the current folder). It is created if it does not exist."`
	Files    []string `arg:"" optional:"" name:"file" help:"Proofs: files that --save-proofs has written, or that agora proof get has printed."`
}

// Exit codes of audit besides 0 and 1 (LOG L-23).
const (
	exitLoss     = 2
	exitEvidence = 3
)

func (AuditCmd) Help() string {
	return "Checks that a relay has kept its word. Each proof must be valid, and no two may contradict each other. Then it asks the " +
		"relay for its newest checkpoint: the tree of each proof must be the beginning of the tree there. With --policy, the " +
		"witnesses must have signed it, and no message may have been backdated to a time before they signed.\n\n" +
		"If the relay has contradicted itself, the command writes evidence to a file. Anybody can check it with agora verify, " +
		"without a network and without trust in you.\n\n" +
		"Exit codes:\n" +
		"    0  nothing found\n" +
		"    1  something could not be checked\n" +
		"    2  the relay has begun a new log, but the one before had more messages; restoring a backup also causes this\n" +
		"    3  evidence against the relay\n\n" +
		"Examples:\n" +
		"  agora audit proofs.jsonl --relay https://relay.example\n" +
		"  agora audit --follow --relay https://relay.example --policy witnesses.txt\n" +
		"  agora audit --offline mine.jsonl theirs.jsonl"
}

func (c AuditCmd) Validate() error {
	switch {
	case c.Offline && len(c.Files) == 0:
		return errors.New("name at least one file of proofs, or leave out --offline")
	case c.Offline && (c.Follow || c.Policy != ""):
		return errors.New("--follow and --policy ask the relay; leave out --offline")
	}
	return nil
}

// audit is one run of the command.
type audit struct {
	AuditCmd
	env        cli.Environment
	policy     *proof.Policy // nil: none
	statements []*proof.Statement
	proofs     int                 // how many of them come from files
	seen       []*proof.Checkpoint // of relays and witnesses
	cosigned   []cosignedTree
	compared   []string // with which logs, in words
	unchecked  int      // what could not be checked
	loss       bool     // evidence of the kind chain was found
	guilty     bool     // other evidence was found
	written    map[string]bool
}

// cosignedTree is a checkpoint that a witness has signed at a time.
type cosignedTree struct {
	*proof.Checkpoint
	by proof.Cosigned
}

func (c AuditCmd) Run(env cli.Environment) (err error) {
	a := &audit{AuditCmd: c, env: env, written: map[string]bool{}}
	if a.policy, err = cli.ReadPolicy(c.Policy); err != nil {
		return fmt.Errorf("--policy: %w", err)
	}
	if err := os.MkdirAll(c.Evidence, 0o700); err != nil {
		return fmt.Errorf("--evidence: %w", err)
	}
	for _, file := range c.Files {
		text, err := env.Input(file, "the proofs to check")
		if err != nil {
			return err
		}
		a.readProofs(file, text)
	}
	if c.Offline {
		a.proofs = len(a.statements)
		a.compare()
		return a.end()
	}
	a.proofs = len(a.statements)
	reader, _, err := c.Identity(env)
	if err != nil {
		return err
	}
	log, err := reader.Log(env.Ctx)
	if err != nil {
		return err
	}
	a.others(log)
	newest := a.ask(log)
	for _, epoch := range a.earlier(log) {
		a.ask(log.Earlier(epoch))
	}
	a.compare()
	if c.Follow && newest != nil && !a.guilty {
		err = a.follow(reader, log, newest)
	}
	return errors.Join(err, a.end())
}

// end prints what was found, and returns the exit status.
func (a *audit) end() error {
	status := 0
	switch {
	case a.guilty:
		status = exitEvidence
	case a.loss:
		status = exitLoss
	case a.unchecked > 0:
		status = cli.ExitFailed
	}
	if status == 0 {
		with := ""
		if len(a.compared) > 0 {
			with = ", and compared with " + strings.Join(a.compared, ", and ")
		}
		_, err := fmt.Fprintf(a.env.Stdout, "checked %s%s; nothing found\n", cli.Count(int64(a.proofs), "proof"), with)
		return err
	}
	return cli.ExitError{Code: status, Err: cli.ErrReported}
}

// problem reports what could not be checked.
func (a *audit) problem(format string, args ...any) {
	a.unchecked++
	a.env.Say(format, args...)
}

// readProofs reads a file of proofs. A proof that is not valid shows nothing about a relay.
func (a *audit) readProofs(file string, text []byte) {
	if bytes.HasPrefix(text, []byte("c2sp.org/")) {
		a.addProof(file, string(text), nil)
		return
	}
	for n, line := range bytes.Split(text, []byte("\n")) {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		where := fmt.Sprintf("%s:%d", file, n+1)
		var saved cli.SavedProof
		if err := json.Unmarshal(line, &saved); err != nil || saved.Proof == "" {
			a.problem("%s: this is not a line with a proof", where)
			continue
		}
		a.addProof(where, saved.Proof, saved.Event)
	}
}

// addProof checks a proof. event is its message; nil: unknown.
func (a *audit) addProof(where, text string, event json.RawMessage) {
	s := &proof.Statement{}
	var err error
	if s.Proof, err = proof.Parse(text); err == nil {
		s.Verified, err = s.Verify(a.keys()...)
	}
	if err == nil && event != nil {
		if s.Event, err = envelope.Parse(event, proof.MaxEvidence); err == nil {
			err = s.Event.Verify()
		}
		if err == nil {
			err = s.CheckMessage(s.Event, s.Origin.DID)
		}
	}
	if err != nil {
		a.problem("%s: the proof is not valid: %s", where, cli.Printable(err.Error()))
		return
	}
	a.statements = append(a.statements, s)
	for _, by := range s.Cosigned {
		a.cosigned = append(a.cosigned, cosignedTree{&s.Checkpoint, by})
	}
}

func (a *audit) keys() []*proof.Witness {
	if a.policy == nil {
		return nil
	}
	return a.policy.Keys()
}

// compare compares all statements with each other.
func (a *audit) compare() {
	for _, e := range proof.Compare(a.statements, a.seen) {
		a.accuse(e)
	}
	a.compareDates()
}

// accuse writes evidence to a file and reports it.
func (a *audit) accuse(e *proof.Evidence) {
	shown, err := e.Verify()
	if err != nil {
		a.problem("a contradiction cannot be shown: %v", err)
		return
	}
	text, err := json.Marshal(e)
	if err != nil {
		a.problem("evidence cannot be written: %v", err)
		return
	}
	sum := sha256.Sum256(text)
	file := filepath.Join(a.Evidence, fmt.Sprintf("evidence-%s-%s.json", e.Kind, hex.EncodeToString(sum[:4])))
	if a.written[file] {
		return
	}
	a.written[file] = true
	if e.Kind == proof.KindChain {
		a.loss = true
	} else {
		a.guilty = true
	}
	place := "It is in " + cli.ShellQuoted(file) + "; check it with agora verify"
	if err := fsync.Replace(file, append(text, '\n')); err != nil {
		a.unchecked++
		place = fmt.Sprintf("It cannot be written: %v", err)
	}
	if e.Kind == proof.KindChain {
		place += ". Restoring a backup that lacks the newest messages also causes this"
	}
	a.env.Say("evidence against %s: %s. %s", shown.Relay, shown.Text, place)
}

// datingSlack is how far the clocks of a relay and of a witness may differ (LOG L-23).
const datingSlack = 5 * time.Minute

// compareDates compares the times of leaves with the times at which witnesses have signed trees with and without them:
// with the latest one without the leaf, and the earliest one with it.
func (a *audit) compareDates() {
	trees := map[proof.Origin][]cosignedTree{}
	for _, t := range a.cosigned {
		trees[t.Origin] = append(trees[t.Origin], t)
	}
	for _, of := range trees {
		slices.SortFunc(of, func(a, b cosignedTree) int { return cmp.Compare(a.Size, b.Size) })
	}
	at := func(a, b cosignedTree) int { return a.by.At.Compare(b.by.At) }
	for _, s := range a.statements {
		of := trees[s.Origin]
		if s.Verified.Index == 0 {
			continue
		}
		with := sort.Search(len(of), func(i int) bool { return of[i].Size > s.Verified.Index })
		if with > 0 {
			if t := slices.MaxFunc(of[:with], at); s.Leaf.Received.Before(t.by.At.Add(-datingSlack)) {
				a.wrongDate(s, "before %s, when the witness %s signed the log without it", t)
			}
		}
		if with < len(of) {
			if t := slices.MinFunc(of[with:], at); s.Leaf.Received.After(t.by.At.Add(datingSlack)) {
				a.wrongDate(s, "after %s, when the witness %s signed the log with it", t)
			}
		}
	}
}

// wrongDate reports a date that does not fit. It is no evidence, because the clock of the witness may be wrong.
func (a *audit) wrongDate(s *proof.Statement, format string, t cosignedTree) {
	a.problem("%s says that the message of leaf %d arrived at %s: "+format, s.Origin.DID, s.Verified.Index,
		envelope.FormatTime(s.Leaf.Received), envelope.FormatTime(t.by.At), cli.Printable(t.by.Witness.Name))
}

// others reports proofs by other relays, which cannot be compared with this one's log.
func (a *audit) others(log *client.Log) {
	by := map[didkey.DID]int{}
	for _, s := range a.statements {
		if s.Origin.DID != log.Origin.DID {
			by[s.Origin.DID]++
		}
	}
	for did, n := range by {
		a.problem("%s by the relay %s, but this relay is %s; not compared with a log", cli.Count(int64(n), "proof"), did, log.Origin.DID)
	}
}

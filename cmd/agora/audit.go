package main

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
	"github.com/agora-relay/agora/relay/witness"
)

type auditCmd struct {
	cli.Reader
	Follow   bool     `help:"Go on: read each new checkpoint of the relay and compare it with the one before, until interrupted."`
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

func (auditCmd) Help() string {
	return "Checks that a relay has kept its word. Each proof must be valid, and no two may contradict each other. Then it asks the " +
		"relay for its newest checkpoint: the tree of each proof must be the beginning of the tree there. With --policy, the " +
		"witnesses must have signed it, and no message may have been dated back behind their signatures.\n\n" +
		"If the relay has contradicted itself, the command writes evidence to a file. Anybody can check it with agora verify, " +
		"without a network and without trust in you.\n\n" +
		"Exit codes:\n" +
		"    0  nothing found\n" +
		"    1  something could not be checked\n" +
		"    2  the relay has begun a new log, although the one before had continued: so it is after a backup was restored\n" +
		"    3  evidence against the relay\n\n" +
		"Examples:\n" +
		"  agora audit proofs.jsonl --relay https://relay.example\n" +
		"  agora audit --follow --relay https://relay.example --policy witnesses.txt\n" +
		"  agora audit --offline mine.jsonl theirs.jsonl"
}

func (c auditCmd) Validate() error {
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
	auditCmd
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

func (c auditCmd) Run(env cli.Environment) (err error) {
	a := &audit{auditCmd: c, env: env, written: map[string]bool{}}
	if a.policy, err = readPolicy(c.Policy); err != nil {
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
		place += ". This is so, too, when an operator restores a backup that lacks the newest messages"
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

// earlier returns the epochs of the other logs of the relay that proofs are of.
func (a *audit) earlier(log *client.Log) (epochs []uint32) {
	for _, s := range a.statements {
		if s.Origin.DID == log.Origin.DID && s.Origin != log.Origin && !slices.Contains(epochs, s.Origin.Epoch) {
			epochs = append(epochs, s.Origin.Epoch)
		}
	}
	return epochs
}

// ask compares all statements about the relay's log with its newest checkpoint, and that with the witnesses. It returns
// the checkpoint; nil: it could not be read.
func (a *audit) ask(log *client.Log) *proof.Checkpoint {
	held := a.held(log)
	newest, cosigned, err := a.newest(log, held)
	if err != nil {
		a.problem("the log %s: %s", log.Origin, cli.Printable(err.Error()))
		return nil
	}
	a.seen = append(a.seen, newest)
	for _, by := range cosigned {
		a.cosigned = append(a.cosigned, cosignedTree{newest, by})
	}
	with := fmt.Sprintf("the log %08x of %s", log.Origin.Epoch, countLeaves(newest.Size))
	if a.policy != nil {
		with += ", signed by " + signers(cosigned)
	}
	a.compared = append(a.compared, with)
	if a.policy != nil && !a.policy.Met(cosigned) {
		a.problem("the policy wants more witnesses of the checkpoint with %s: %s signed it, and these have not: %s", countLeaves(newest.Size),
			signers(cosigned), a.missing(cosigned))
	}
	compared := map[int64]bool{}
	for _, s := range a.statements {
		size := s.Checkpoint.Size
		if s.Origin != log.Origin || compared[size] {
			continue
		}
		if compared[size] = true; size > newest.Size {
			a.problem("the relay shows a log of %s, but has signed one of %s for you; if this stays so, its data was rolled back",
				countLeaves(newest.Size), countLeaves(size))
			continue
		}
		a.prefix(log, &s.Checkpoint, newest)
	}
	for _, c := range held {
		if c.Size > newest.Size {
			a.problem("a witness holds a checkpoint with %s, and the relay shows only %s; if this stays so, its data was rolled back",
				countLeaves(c.Size), countLeaves(newest.Size))
			continue
		}
		a.seen = append(a.seen, &c)
		a.prefix(log, &c, newest)
	}
	if log.Start == "" {
		return newest
	}
	s := &proof.Statement{}
	if s.Proof, err = log.Prove(newest, 0, log.Start); err == nil {
		s.Verified, err = s.Verify()
	}
	switch {
	case err == nil:
		a.statements = append(a.statements, s)
	case !errors.Is(err, client.ErrNoTile): // leaf 0 may be too old
		a.problem("the start in the relay's document is not that of its log: %s", cli.Printable(err.Error()))
	}
	return newest
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

func countLeaves(n int64) string {
	if n == 1 {
		return "1 leaf"
	}
	return fmt.Sprintf("%d leaves", n)
}

// signers returns the names of witnesses.
func signers(cosigned []proof.Cosigned) string {
	var names []string
	for _, c := range cosigned {
		names = append(names, cli.Printable(c.Witness.Name))
	}
	if names == nil {
		return "nobody"
	}
	return strings.Join(names, ", ")
}

// missing returns the names of the witnesses of the policy that have not signed.
func (a *audit) missing(cosigned []proof.Cosigned) string {
	var names []string
	for _, w := range a.policy.Witnesses {
		if !slices.ContainsFunc(cosigned, func(c proof.Cosigned) bool { return c.Witness == w.Key }) {
			names = append(names, cli.Printable(w.Name))
		}
	}
	return strings.Join(names, ", ")
}

// publishTime is how long audit waits for a checkpoint that has the leaves of all proofs.
const publishTime = 3 * followEvery

// newest reads the published checkpoint. If a proof is newer, or a witness holds a larger one, it waits until the relay
// has published another one.
func (a *audit) newest(
	log *client.Log, held []proof.Checkpoint,
) (c *proof.Checkpoint, cosigned []proof.Cosigned, err error) {
	var largest int64
	for _, c := range held {
		largest = max(largest, c.Size)
	}
	for _, s := range a.statements {
		if s.Origin == log.Origin {
			largest = max(largest, s.Checkpoint.Size)
		}
	}
	for began := time.Now(); ; {
		c, cosigned, err = log.Checkpoint(a.keys()...)
		if err != nil || c.Size >= largest || time.Since(began) > publishTime {
			return c, cosigned, err
		}
		select {
		case <-a.env.Ctx.Done():
			return c, cosigned, a.env.Ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// prefix checks that the tree of the newest checkpoint continues that of another one.
func (a *audit) prefix(log *client.Log, old, newest *proof.Checkpoint) {
	if old.Size > newest.Size {
		old, newest = newest, old
	}
	root, path, err := log.Prefix(newest, old.Size)
	if err != nil {
		a.problem("the trees with %d and %d leaves cannot be compared: %s", old.Size, newest.Size, cli.Printable(err.Error()))
		return
	}
	if root == old.Root {
		return
	}
	e := &proof.Evidence{Type: proof.EvidenceType, Kind: proof.KindFork, Checkpoints: []string{old.String(), newest.String()}}
	if old.Size < newest.Size {
		e.Root, e.Consistency = &root, path
	}
	a.accuse(e)
}

// held returns the checkpoints of the log that the witnesses of the policy hold.
func (a *audit) held(log *client.Log) []proof.Checkpoint {
	if a.policy == nil {
		return nil
	}
	held, err := witness.NewClient(a.policy, nil, cli.NewLog(a.env)).Held(a.env.Ctx, log.Origin)
	if err != nil {
		a.problem("%s", cli.Printable(err.Error()))
	}
	return held
}

// followEvery is how often follow reads the checkpoint: as often as a relay publishes one (LOG L-18).
const followEvery = 5 * time.Second

// follow compares each new checkpoint with the one before, until it finds evidence or is interrupted.
func (a *audit) follow(reader *client.Client, log *client.Log, newest *proof.Checkpoint) error {
	hint := ""
	if a.env.StderrIsTerminal {
		hint = "; Ctrl-C ends it"
	}
	a.env.Say("the log has %s; watching it%s", countLeaves(newest.Size), hint)
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for !a.guilty {
		select {
		case <-a.env.Ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := reader.Log(a.env.Ctx)
		switch {
		case envelope.CodeOf(err) == envelope.CodeNotFound:
			a.problem("the relay keeps no log any more")
			return nil
		case err == nil && now.Origin != log.Origin:
			a.problem("the relay has begun a new log, %08x, after %08x", now.Origin.Epoch, log.Origin.Epoch)
			if log, newest = now, a.ask(now); newest == nil {
				return nil
			}
			a.compare()
			continue
		}
		var next *proof.Checkpoint
		var cosigned []proof.Cosigned
		if err == nil {
			next, cosigned, err = log.Checkpoint(a.keys()...)
		}
		if err != nil {
			a.env.Say("%s", cli.Printable(err.Error())) // it may be there again in a moment
			continue
		}
		if next.Size == newest.Size && next.Root == newest.Root {
			continue
		}
		if next.Size < newest.Size {
			a.problem("the log had %s, and has %s now", countLeaves(newest.Size), countLeaves(next.Size))
		}
		a.prefix(log, newest, next)
		if a.policy != nil && !a.policy.Met(cosigned) {
			a.problem("the policy wants more witnesses of the checkpoint with %s; these have not signed it: %s", countLeaves(next.Size),
				a.missing(cosigned))
		}
		a.env.Say("the log has %s", countLeaves(next.Size))
		newest = next
	}
	return nil
}

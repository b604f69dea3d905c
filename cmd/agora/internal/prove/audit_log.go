package prove

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay/witness"
)

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

// prefix checks that the tree of the newest checkpoint continues the tree of another checkpoint.
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

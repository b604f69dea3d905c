package operate

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/datafolder"
	"github.com/agora-relay/agora/cmd/agora/internal/serve"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/sqlite/check"
)

type CheckCmd struct {
	dataFolder
	Repair bool `help:"First replace the character U+0000 in texts of gateways by U+FFFD. Early versions stored it, and PostgreSQL cannot. The relay must not be running."`
	JSON   bool `help:"Print the report and its findings as one line of JSON."`
}

func (CheckCmd) Help() string {
	return "Reads the whole database of a running relay or of a backup. It checks that pages and indexes are " +
		"consistent, that the schema and the numbers of the events are those of a relay, that no event is missing up to " +
		"the position in the file agora.db.mark, that every envelope is signed by its sender and indexed correctly, that " +
		"every thread's record matches its envelopes, that no row of a gateway was changed and none that it needs is " +
		"missing, and that the files relay.key and gateway.key can be loaded. Prints each problem as one line that says " +
		"what to do. Nothing is changed, except with --repair.\n\n" +
		"Exits with 0 if there is no problem, with 1 if there is one or the check could not finish, and with 2 if the " +
		"folder has no database.\n\n" +
		"Examples:\n  agora check\n  agora check --data backups/monday\n  agora check --data /var/lib/agora --json\n" +
		"  agora check --repair"
}

func (c CheckCmd) Run(env cli.Environment) error {
	if c.Repair {
		if err := c.repair(env); err != nil {
			return fmt.Errorf("--repair: %w", err)
		}
	}
	began := time.Now()
	var report struct {
		OK bool `json:"ok"`
		check.Report
		Findings []check.Finding `json:"findings"` // replaces the number of findings in check.Report
	}
	report.Findings = []check.Finding{}
	var writeErr error
	found := func(f check.Finding) {
		if c.JSON {
			report.Findings = append(report.Findings, f)
		} else if _, err := fmt.Fprintln(env.Stdout, cli.Printable(f.String())); err != nil {
			writeErr = err
		}
	}
	var recorded didkey.DID // of gateway.key
	done, err := check.Database(env.Ctx, c.database(), check.Options{
		Found: found, Extensions: noteGatewayKey(serve.Extensions(), &recorded),
		Progress: func(events, all int64) {
			fmt.Fprintf(env.Stderr, "agora: checked %d of %s\n", events, cli.Count(all, "event"))
		},
	})
	if err != nil {
		return fmt.Errorf("the check did not finish (%s checked, %s): %w",
			cli.Count(done.Events, "event"), cli.Count(done.Findings, "finding"), err)
	}
	for _, problem := range []*check.Finding{c.checkKey(done), c.checkGatewayKey(recorded)} {
		if problem != nil {
			done.Findings++
			found(*problem)
		}
	}
	if writeErr != nil {
		return writeErr
	}
	if c.JSON {
		report.OK, report.Report = done.Findings == 0, done
		writeErr = env.PrintJSON(report)
	} else {
		_, writeErr = fmt.Fprintln(env.Stdout, c.summary(done, time.Since(began)))
	}
	if writeErr == nil && done.Findings > 0 {
		writeErr = cli.ErrReported
	}
	return writeErr
}

// repair replaces U+0000 in the texts of gateways.
func (c CheckCmd) repair(env cli.Environment) (err error) {
	store, err := sqlite.Open(env.Ctx, c.database(), sqlite.Options{Log: cli.NewLog(env), Extensions: serve.Extensions()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	var repaired []string
	_, err = store.Update(env.Ctx, func(tx relay.StoreTx) error {
		repaired = nil // the function may run twice
		return gateway.RepairTexts(tx, serve.Extensions(), func(where string) { repaired = append(repaired, where) })
	})
	if err != nil {
		return err
	}
	for _, where := range repaired {
		env.Say("replaced U+0000 in %s", cli.Printable(where))
	}
	return nil
}

// noteGatewayKey changes the check of the gateways' shared tables: it also reads which gateway key the database was
// used with, and writes the DID of that key to recorded.
func noteGatewayKey(all []relay.Extension, recorded *didkey.DID) []relay.Extension {
	for i, x := range all {
		if x.Name == gateway.Extension.Name {
			all[i].Check = func(q relay.Querier, found func(where, what string)) (err error) {
				*recorded, err = gateway.RecordedDID(q)
				return errors.Join(err, x.Check(q, found))
			}
		}
	}
	return all
}

// checkGatewayKey returns what is wrong with the key of the gateways. It returns nil if the key is good, or if the
// database was never used with one.
func (c CheckCmd) checkGatewayKey(recorded didkey.DID) *check.Finding {
	path := filepath.Join(c.Data, datafolder.GatewayKey)
	key, err := didkey.Load(path)
	f := check.Finding{Where: path, Cure: "restore it from a backup"}
	switch {
	case recorded == "" && errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		f.What = "the file is missing, and no gateway starts without it"
	case err != nil:
		f.What = err.Error()
	case recorded != "" && key.DID() != recorded:
		f.What = fmt.Sprintf("it is the key of %s, but the database was used with that of %s", key.DID(), recorded)
	default:
		return nil
	}
	return &f
}

// checkKey returns what is wrong with the relay's key. It returns nil if the key is good, or if it is missing and the
// database was never used.
func (c CheckCmd) checkKey(r check.Report) *check.Finding {
	const restore = "restore it from a backup"
	path := filepath.Join(c.Data, datafolder.Key)
	_, err := didkey.Load(path)
	switch {
	case err == nil, r.Seq == 0 && errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return &check.Finding{Where: path, What: "the file is missing, and the relay does not start without it",
			Cure: restore + ", or start with --new-identity to give the relay a new identity"}
	}
	return &check.Finding{Where: path, What: err.Error(), Cure: "if that does not help, " + restore}
}

func (c CheckCmd) summary(r check.Report, took time.Duration) string {
	verdict := "clean"
	if r.Findings > 0 {
		verdict = cli.Count(r.Findings, "finding")
	}
	cut := ""
	if r.Cut > 0 {
		cut = fmt.Sprintf(" (%d expired, without their bodies)", r.Cut)
	}
	return fmt.Sprintf("%s: %s; %s%s up to number %d, %s, %s checked in %s", cli.Printable(c.Data), verdict,
		cli.Count(r.Events, "event"), cut, r.Seq, cli.Count(r.Threads, "thread"), cli.Count(r.Manifests, "manifest"),
		took.Round(10*time.Millisecond))
}

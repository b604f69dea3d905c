package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/store/sqlite/check"
)

type checkCmd struct {
	dataFolder
	JSON bool `help:"Print the report and its findings as one line of JSON."`
}

func (checkCmd) Help() string {
	return "Reads the whole database of a running relay or of a backup. It checks that pages and indexes are consistent, " +
		"that the schema and the numbering are a relay's, that no event is missing up to the mark, that every envelope is " +
		"signed by its sender and indexed correctly, that every thread's record follows from its envelopes, and that the " +
		"relay's key is there. Each problem is one line that says what to do. Nothing is changed or repaired.\n\n" +
		"Exits with 0 if there is no problem, with 1 if there is one or the check could not finish, and with 2 if the folder " +
		"has no database.\n\n" +
		"Examples:\n  agora check\n  agora check --data backups/monday\n  agora check --data /var/lib/agora --json"
}

func (c checkCmd) Run(env environment) error {
	began := time.Now()
	var report struct {
		OK bool `json:"ok"`
		check.Report
		Findings []check.Finding `json:"findings"` // in place of their number
	}
	report.Findings = []check.Finding{}
	var failed error
	found := func(f check.Finding) {
		if c.JSON {
			report.Findings = append(report.Findings, f)
		} else if _, err := fmt.Fprintln(env.stdout, printable(f.String())); err != nil {
			failed = err
		}
	}
	done, err := check.Database(env.ctx, c.database(), check.Options{
		Found: found,
		Progress: func(events, all int64) {
			fmt.Fprintf(env.stderr, "agora: checked %d of %s\n", events, count(all, "event"))
		},
	})
	if err != nil {
		return fmt.Errorf("the check did not finish, after %s and %s: %w",
			count(done.Events, "event"), count(done.Findings, "finding"), err)
	}
	if problem := c.key(done); problem != nil {
		done.Findings++
		found(*problem)
	}
	if failed != nil {
		return failed
	}
	if c.JSON {
		report.OK, report.Report = done.Findings == 0, done
		failed = env.printJSON(report)
	} else {
		_, failed = fmt.Fprintln(env.stdout, c.summary(done, time.Since(began)))
	}
	if failed == nil && done.Findings > 0 {
		failed = errSaid
	}
	return failed
}

// key returns what is wrong with the relay's key; nil if it is good, or missing beside a database that was never used.
func (c checkCmd) key(r check.Report) *check.Finding {
	const restore = "restore it from a backup"
	path := filepath.Join(c.Data, keyName)
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

func (c checkCmd) summary(r check.Report, took time.Duration) string {
	verdict := "clean"
	if r.Findings > 0 {
		verdict = count(r.Findings, "finding")
	}
	cut := ""
	if r.Cut > 0 {
		cut = fmt.Sprintf(" (%d expired, without their bodies)", r.Cut)
	}
	return fmt.Sprintf("%s: %s; %s%s up to number %d, %s, %s checked in %s", printable(c.Data), verdict,
		count(r.Events, "event"), cut, r.Seq, count(r.Threads, "thread"), count(r.Manifests, "manifest"), took.Round(10*time.Millisecond))
}

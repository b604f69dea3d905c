package main

import (
	"fmt"
	"time"

	"github.com/agora-relay/agora/store/sqlite"
)

type checkCmd struct {
	dataFolder
	JSON bool `help:"The report and its findings as one line of JSON."`
}

func (checkCmd) Help() string {
	return "Reads a whole database, of a relay that runs or of a backup, and changes nothing: its pages and indexes hang together, its schema and its " +
		"numbering are those of a relay, it has come as far as its mark says, every envelope is signed by its sender and filed under what it says, and every thread's record is " +
		"what its envelopes make of it. Each finding is a line that says how to go on. Nothing is repaired.\n\n" +
		"Ends with 0 if there is nothing to find, with 1 if there is or if the check could not end, with 2 if the folder holds no database.\n\n" +
		"Examples:\n  agora check\n  agora check --data backups/monday\n  agora check --data /var/lib/agora --json"
}

func (c checkCmd) Run(env environment) error {
	began := time.Now()
	var report struct {
		OK bool `json:"ok"`
		sqlite.Report
		Findings []sqlite.Finding `json:"findings"` // in place of their number
	}
	report.Findings = []sqlite.Finding{}
	var failed error
	done, err := sqlite.Check(env.ctx, c.database(), sqlite.CheckOptions{
		Found: func(f sqlite.Finding) {
			if c.JSON {
				report.Findings = append(report.Findings, f)
			} else if _, err := fmt.Fprintln(env.stdout, printable(f.String())); err != nil {
				failed = err
			}
		},
		Progress: func(events, all int64) {
			fmt.Fprintf(env.stderr, "agora: checked %d of %s\n", events, count(all, "event"))
		},
	})
	if err != nil {
		return fmt.Errorf("the check did not come to its end, after %s and %s: %w", count(done.Events, "event"), count(done.Findings, "finding"), err)
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

func (c checkCmd) summary(r sqlite.Report, took time.Duration) string {
	verdict := "clean"
	if r.Findings > 0 {
		verdict = count(r.Findings, "finding")
	}
	cut := ""
	if r.Cut > 0 {
		cut = fmt.Sprintf(" (%d expired, without their bodies)", r.Cut)
	}
	return fmt.Sprintf("%s: %s; %s%s up to number %d, %s, %s checked in %s", printable(c.Data), verdict, count(r.Events, "event"), cut, r.Seq,
		count(r.Threads, "thread"), count(r.Manifests, "manifest"), took.Round(10*time.Millisecond))
}

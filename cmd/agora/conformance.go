package main

import (
	"fmt"
	"os"
	"time"

	"github.com/agora-relay/agora/conformance"
)

type conformanceCmd struct {
	URL     string            `arg:"" optional:"" help:"The relay's URL."`
	Level   conformance.Level `default:"extensions" enum:"core,strict,extensions" placeholder:"LEVEL" help:"Which checks to run: core (the original protocol), strict (also PROTOCOL.md's rules for what the original protocol leaves open) or extensions (all checks; the default)."`
	Only    []string          `placeholder:"NUMBER" help:"Run only these checks, whatever their level, such as C-12,S-31."`
	List    bool              `help:"List the checks instead of running them."`
	JSON    bool              `help:"Print the report as one line of JSON."`
	JUnit   string            `name:"junit" placeholder:"FILE" help:"Also write the report as JUnit XML to this file."`
	Timeout time.Duration     `default:"90s" placeholder:"DURATION" help:"Time limit of the whole run. Checks that have not ended by then are skipped (default: ${default})."`
}

func (conformanceCmd) Help() string {
	return "Works with any relay, in any language, because the test only uses HTTP. Each check cites the rule that it " +
		"tests, and prints what it sent, expected and got. A run takes about a minute, because one check has to wait for " +
		"a minute. Exits with 0 only if all selected checks pass, with 1 if a check fails or is skipped, or if no relay " +
		"answers.\n\n" +
		"Examples:\n  agora conformance http://127.0.0.1:8789\n" +
		"  agora conformance https://relay.example --level core --junit report.xml\n" +
		"  agora conformance http://127.0.0.1:8789 --only C-5,S-50\n  agora conformance --list"
}

func (c conformanceCmd) Validate() error {
	if c.Timeout <= 0 {
		return fmt.Errorf("--timeout must be more than 0")
	}
	if c.List {
		return nil
	}
	if c.URL == "" {
		return fmt.Errorf("give the relay's URL, or --list")
	}
	return conformance.Options{Level: c.Level, Only: c.Only}.Check(c.URL)
}

func (c conformanceCmd) Run(env environment) error {
	if c.List {
		return c.list(env)
	}
	report, err := conformance.Run(env.ctx, c.URL, conformance.Options{Level: c.Level, Only: c.Only, Timeout: c.Timeout,
		Progress: func(r conformance.Result) {
			fmt.Fprintf(env.stderr, "%-7s %-6s %s\n", r.Status, r.Number, r.Title)
		}})
	if err != nil {
		return err
	}
	if c.JUnit != "" {
		if err := writeJUnit(c.JUnit, report); err != nil {
			return err
		}
	}
	if c.JSON {
		err = env.printJSON(report)
	} else {
		err = report.WriteText(env.stdout)
	}
	if err == nil && !report.Holds() {
		err = errReported
	}
	return err
}

func (c conformanceCmd) list(env environment) error {
	for _, check := range conformance.Checks() {
		if !c.Level.Includes(check.Level()) {
			continue
		}
		if c.JSON {
			if err := env.printJSON(check); err != nil {
				return err
			}
			continue
		}
		if _, err := fmt.Fprintf(env.stdout, "%-6s %-11s %s  [%s]\n",
			check.Number, check.Level(), check.Title, check.Cites); err != nil {
			return err
		}
	}
	return nil
}

func writeJUnit(name string, report conformance.Report) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := report.WriteJUnit(file); err != nil {
		_ = file.Close() // the first error counts
		return err
	}
	return file.Close()
}

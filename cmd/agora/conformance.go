package main

import (
	"fmt"
	"os"
	"time"

	"github.com/agora-relay/agora/conformance"
)

type conformanceCmd struct {
	URL     string            `arg:"" optional:"" help:"The relay's address."`
	Level   conformance.Level `default:"extensions" enum:"core,strict,extensions" placeholder:"LEVEL" help:"How much is asked: core (the original protocol), strict (PROTOCOL.md's answers to what it leaves open) or extensions (everything; the default)."`
	Only    []string          `placeholder:"NUMBER" help:"Ask only these checks, whatever their level, such as C-12,S-31."`
	List    bool              `help:"List the checks instead of asking a relay."`
	JSON    bool              `help:"The report as one line of JSON."`
	JUnit   string            `name:"junit" placeholder:"FILE" help:"Write the report as JUnit XML, too."`
	Timeout time.Duration     `default:"90s" placeholder:"DURATION" help:"For all of it; what has not ended by then is skipped (default: ${default})."`
}

func (conformanceCmd) Help() string {
	return "Asks any relay, over HTTP alone, whether it keeps the protocol: each check cites its rule and says what it sent, expected and got. " +
		"Takes about a minute, because one rule is about a minute. Ends with 0 only if everything that was asked holds, with 1 if not " +
		"or if no relay answers.\n\n" +
		"Examples:\n  agora conformance http://127.0.0.1:8789\n  agora conformance https://relay.example --level core --junit report.xml\n" +
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
		return fmt.Errorf("give the relay's address, or --list")
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
		err = errSaid
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
		if _, err := fmt.Fprintf(env.stdout, "%-6s %-11s %s  [%s]\n", check.Number, check.Level(), check.Title, check.Cites); err != nil {
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

package chorus

import (
	"errors"
	"maps"
	"slices"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/gateway/jobs/jobsclient"
)

// The commands for accounts and credits.

type jobsAccount struct {
	newcomer
	Owner   string            `arg:"" help:"The name of the account: 1 to 128 letters, digits or ._:@-, the first a letter or a digit."`
	Initial *cli.CreditAmount `placeholder:"N" help:"The credits that the account should begin with (default: what the registry gives). It may get less."`
}

func (jobsAccount) Help() string {
	return "Opens an account and prints its balance as one line of JSON. If the key file does not exist, you are " +
		"new: the registry gives you a key, and the command writes it to this file, which only you can read. With " +
		"the key you can open more accounts. If the account is yours already, nothing changes, and its balance is " +
		"printed.\n\n" +
		"With --key you need no key of the registry: your requests are signed.\n\n" +
		"Examples:\n  agora jobs account acme --key-file acme.key\n" +
		"  agora jobs account acme-tests --initial 5 --key-file acme.key\n  agora jobs account carol --key carol.key"
}

func (c jobsAccount) Run(env cli.Environment) error {
	jobs, err := c.join(env)
	if err != nil {
		return err
	}
	defer jobs.Close()
	account, key, err := jobs.Open(env.Ctx, c.Owner, (*credits.Amount)(c.Initial))
	if err != nil && key == "" {
		return c.explainJoin(err, jobs, c.Owner)
	}
	kept, failed := c.keep(env, key)
	return errors.Join(err, failed, env.PrintJSON(struct {
		jobsclient.Account
		jobsKeyLine
	}{account, kept}))
}

type jobsBalance struct {
	inJobs
	cli.Listing
	Owner string `arg:"" optional:"" help:"Show only this account. With the operator's key it may be anybody's."`
}

func (jobsBalance) Help() string {
	return "Prints the balances of your accounts. On a terminal they are a table, otherwise lines of JSON.\n\n" +
		"Examples:\n  agora jobs balance --key-file acme.key\n  agora jobs balance bob --key-file agora-data/operator.key"
}

func (c jobsBalance) Run(env cli.Environment) error {
	jobs, err := c.open(env, jobsclient.PrincipalKey, jobsclient.OperatorKey)
	if err != nil {
		return err
	}
	defer jobs.Close()
	var all []jobsclient.Account
	if c.Owner != "" {
		account, err := jobs.Account(env.Ctx, c.Owner)
		if err != nil {
			return c.explain(err)
		}
		all = append(all, account)
	} else {
		economy, err := jobs.Economy(env.Ctx)
		if err != nil {
			return c.explain(err)
		}
		for _, owner := range slices.Sorted(maps.Keys(economy.Balances)) {
			all = append(all, jobsclient.Account{OwnerID: owner, Balance: economy.Balances[owner]})
		}
		if len(all) == 0 {
			env.Say("%s", noAccount(jobs.Key))
		}
	}
	return cli.Show(env, c.Listing, []string{"OWNER", "BALANCE"}, all,
		func(a jobsclient.Account) []string { return []string{a.OwnerID, a.Balance.String()} })
}

// noAccount says to a caller with this key what to do, because it has no account.
func noAccount(key string) string {
	if kind, err := jobsclient.ParseKey(key); err == nil && kind == jobsclient.OperatorKey {
		return "the operator has no accounts; agora jobs balance OWNER shows that of somebody, and agora jobs audit shows who " +
			"has one"
	}
	return "you have no account; agora jobs account OWNER opens one"
}

type jobsTransfer struct {
	inJobs
	From       string           `arg:"" help:"The account that pays. It must be yours."`
	To         string           `arg:"" help:"The account that gets the credits."`
	Amount     cli.CreditAmount `arg:"" help:"How many credits, such as 0.1."`
	Job        string           `placeholder:"ID" help:"The job that this pays for. If it is paid already, nothing moves."`
	TransferID jobsID           `placeholder:"UUID" help:"The id of the transfer (default: a new one). With the same id, credits move once."`
}

func (jobsTransfer) Help() string {
	return "Moves credits from one of your accounts to any other account, and prints the record and both balances as one " +
		"line of JSON. Repeats the request if the registry is busy or does not answer. The credits still move only " +
		"once.\n\n" +
		"You need not pay for jobs that you hire with agora jobs hire: the registry pays them.\n\n" +
		"Example:\n  agora jobs transfer bob acme 0.5 --key-file jobs-bob.key"
}

func (c jobsTransfer) Run(env cli.Environment) error {
	jobs, err := c.open(env, jobsclient.PrincipalKey)
	if err != nil {
		return err
	}
	defer jobs.Close()
	id := c.TransferID.orNew()
	done, err := jobs.Transfer(env.Ctx, jobsclient.Transfer{ID: id, From: c.From, To: c.To,
		Amount: credits.Amount(c.Amount), JobID: c.Job})
	if jobsclient.Unknown(err) {
		return undecided(err, "it is unknown if the credits have moved; the same command with --transfer-id %s moves them "+
			"only once", id)
	}
	if err != nil {
		return c.explain(err)
	}
	return env.PrintJSON(done)
}

type jobsAudit struct {
	inJobs
	cli.Listing
	Owner string `placeholder:"OWNER" help:"Show only records of this account."`
	Job   string `placeholder:"ID" help:"Show only records of this job."`
	Limit int    `default:"50" placeholder:"N" help:"Show the last N records, at most 500 (default: ${default})."`
}

func (c jobsAudit) Validate() error {
	if c.Limit < 1 || c.Limit > 500 {
		return errors.New("--limit must be from 1 to 500")
	}
	return c.inJobs.Validate()
}

func (jobsAudit) Help() string {
	return "Lists the records of your accounts and the payments of your jobs, the newest last. The operator's key " +
		"shows all of them. On a terminal they are a table, otherwise lines of JSON.\n\n" +
		"Examples:\n  agora jobs audit --key-file acme.key\n" +
		"  agora jobs audit --job a3b8d1b6-0b3b-4b1a-9c1a-1a2b3c4d5e6f --json --key-file acme.key"
}

func (c jobsAudit) Run(env cli.Environment) error {
	jobs, err := c.open(env, jobsclient.PrincipalKey, jobsclient.OperatorKey)
	if err != nil {
		return err
	}
	defer jobs.Close()
	records, total, err := jobs.Audit(env.Ctx, jobsclient.AuditQuery{OwnerID: c.Owner, JobID: c.Job, Limit: c.Limit})
	if err != nil {
		return c.explain(err)
	}
	if total == 0 {
		env.Say("no record")
	}
	if total > len(records) {
		env.Say("the last %d of %d records; --limit N shows more", len(records), total)
	}
	return cli.Show(env, c.Listing, []string{"TIME", "KIND", "AMOUNT", "FROM", "TO", "JOB"}, records,
		func(r jobsclient.Record) []string {
			return []string{cli.ShownTime(r.Time), r.Kind, r.Amount.String(), r.From, r.To, r.JobID}
		}, 3, 4, 5)
}

type jobsGrant struct {
	atJobs
	Owner       string           `arg:"" help:"The account that gets the credits."`
	Amount      cli.CreditAmount `arg:"" help:"How many credits, such as 100."`
	OperatorKey string           `required:"" placeholder:"FILE" help:"The file operator.key in the relay's data folder. AGORA_JOBS_KEY does not replace it."`
	GrantID     jobsID           `placeholder:"UUID" help:"The id of the grant (default: a new one). With the same id, credits are issued once."`
}

func (jobsGrant) Help() string {
	return "Issues new credits to an account, and prints the record as one line of JSON. The credits of all accounts " +
		"together never exceed agora serve --jobs-supply.\n\n" +
		"Example:\n  agora jobs grant acme 100 --operator-key agora-data/operator.key"
}

func (c jobsGrant) Run(env cli.Environment) error {
	operator, err := readJobsKey(c.OperatorKey, jobsclient.OperatorKey)
	if err != nil {
		return err
	}
	jobs := c.client(env)
	defer jobs.Close()
	jobs.Key = operator
	id := c.GrantID.orNew()
	record, err := jobs.Grant(env.Ctx, id, c.Owner, credits.Amount(c.Amount))
	if jobsclient.Unknown(err) {
		return undecided(err, "it is unknown if the credits were issued; the same command with --grant-id %s issues them "+
			"only once", id)
	}
	if err != nil {
		return inJobs{atJobs: c.atJobs, KeyFile: c.OperatorKey}.explain(err)
	}
	return env.PrintJSON(record)
}

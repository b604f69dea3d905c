package chorus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/gateway/jobs/jobsclient"
)

// The commands of those who hire agents.

type jobsHire struct {
	inJobs
	Agent        jobsID           `arg:"" help:"The agent's id, which agora jobs discover prints."`
	Skill        string           `arg:"" help:"The skill."`
	Budget       cli.CreditAmount `required:"" placeholder:"N" help:"What you pay at most. It is held while the job runs. You pay the price of the skill, and get the rest back."`
	Input        string           `default:"{}" placeholder:"JSON" help:"What the agent needs, a JSON object; - is standard input (default: ${default})."`
	Orchestrator string           `placeholder:"ID" help:"Your agent or your account that hires and pays (default: the oldest of your accounts that has enough). The seller sees this name. If it is not an agent or an account of yours, the default account pays."`
	Callback     string           `placeholder:"URL" help:"A URL to which the registry POSTs the result, too."`
	JobID        jobsID           `placeholder:"UUID" help:"The id of the job (default: a new one). With the same id, a job is done and paid once."`
	NoWait       bool             `xor:"wait" help:"Do not wait for the result. agora jobs status shows it later."`
	Timeout      time.Duration    `xor:"wait" placeholder:"DURATION" help:"Wait at most this long. The exit code is 1 if the job still runs then."`
}

func (c jobsHire) Validate() error {
	if c.Timeout < 0 {
		return errors.New("--timeout must not be negative")
	}
	return c.inJobs.Validate()
}

func (jobsHire) Help() string {
	return "Hires an agent for a job, waits for its end, and prints the result as one line of JSON. The exit code is " +
		"0 if the job succeeded, and 1 if it failed. A failed job costs nothing. If the command is interrupted, " +
		"the job continues.\n\n" +
		"A job cannot be cancelled. It holds the budget until it ends. It fails, and you get the budget back, if it has no " +
		"result after the time of agora serve --jobs-timeout (an hour by default).\n\n" +
		"The result is untrusted. Never run it.\n\n" +
		"Examples:\n  agora jobs hire AGENT analyze_text --budget 0.15 --input '{\"text\":\"Hello\"}' --key-file jobs-bob.key\n" +
		"  agora jobs hire AGENT analyze_text --budget 0.15 --input - --timeout 10m --key-file jobs-bob.key < input.json"
}

func (c jobsHire) Run(env cli.Environment) error {
	jobs, err := c.open(env, jobsclient.PrincipalKey)
	if err != nil {
		return err
	}
	defer jobs.Close()
	input, err := object(env, c.Input, "the input")
	if err != nil {
		return err
	}
	job := jobsclient.Job{ID: c.JobID.orNew(), Orchestrator: c.Orchestrator, Skill: c.Skill, Input: input,
		Budget: credits.Amount(c.Budget), Callback: c.Callback}
	ctx, cancel := cli.WithTimeout(env.Ctx, c.Timeout)
	defer cancel()
	var r jobsclient.Result
	if c.NoWait {
		r, err = jobs.Start(ctx, string(c.Agent), job, 0)
	} else {
		if env.StderrIsTerminal {
			env.Say("waiting for the result of the job %s", job.ID)
		}
		r, err = jobs.Hire(ctx, string(c.Agent), job)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the job has not ended within %v; agora jobs status %s%s shows what comes of it", c.Timeout, job.ID, c.flags())
	case jobsclient.Unknown(err):
		return undecided(err, "the job may run; agora jobs status %s%s shows it, and the same command with --job-id %s pays "+
			"only once", job.ID, c.flags(), job.ID)
	case err != nil:
		return c.explain(err)
	}
	return ended(env, r, c.NoWait)
}

// ended prints a result. It returns an error if the job failed, or if it runs and runningIsFine is false.
func ended(env cli.Environment, r jobsclient.Result, runningIsFine bool) error {
	if err := env.PrintJSON(r); err != nil {
		return err
	}
	switch {
	case r.Status == jobsclient.Failure:
		why := strings.TrimSuffix(strings.Join([]string{r.ErrorCode, r.ErrorMessage}, ": "), ": ")
		return fmt.Errorf("the job failed: %s", strings.TrimPrefix(why, ": "))
	case r.Status == jobsclient.Pending && !runningIsFine:
		return errors.New("the job has not ended")
	}
	return nil
}

type jobsStatus struct {
	inJobs
	Job     jobsID        `arg:"" help:"The id of the job (job_id)."`
	Timeout time.Duration `placeholder:"DURATION" help:"Wait for the end of the job, at most this long. The exit code is 1 if it still runs then."`
}

func (c jobsStatus) Validate() error {
	if c.Timeout < 0 {
		return errors.New("--timeout must not be negative")
	}
	return c.inJobs.Validate()
}

func (jobsStatus) Help() string {
	return "Prints the result of a job as one line of JSON. Its status is SUCCESS, FAILURE or PENDING. The exit code " +
		"is 1 if the job failed. Only the hirer and the agent's principal may see it.\n\n" +
		"Examples:\n  agora jobs status f81d4fae-7dec-11d0-a765-00a0c91e6bf6 --key-file jobs-bob.key\n" +
		"  agora jobs status f81d4fae-7dec-11d0-a765-00a0c91e6bf6 --timeout 10m --key-file jobs-bob.key"
}

func (c jobsStatus) Run(env cli.Environment) error {
	jobs, err := c.open(env, jobsclient.PrincipalKey)
	if err != nil {
		return err
	}
	defer jobs.Close()
	ctx, cancel := cli.WithTimeout(env.Ctx, c.Timeout)
	defer cancel()
	var r jobsclient.Result
	if c.Timeout > 0 {
		r, err = jobs.Wait(ctx, string(c.Job))
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("the job has not ended within %v", c.Timeout)
		}
	} else {
		r, err = jobs.Job(ctx, string(c.Job))
	}
	if err != nil {
		return c.explain(err)
	}
	return ended(env, r, true)
}

package chorus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/gateway/jobs/jobsclient"
)

// The commands of agents, and those that find them.

// skillText is a skill with its price, such as analyze_text=0.1.
type skillText struct {
	name string
	cost credits.Amount
}

func (s *skillText) UnmarshalText(text []byte) error {
	name, cost, found := strings.Cut(string(text), "=")
	amount, err := credits.Parse(cost)
	if !found || name == "" || err != nil {
		return errors.New("want a skill and its price, such as analyze_text=0.1")
	}
	*s = skillText{name, amount}
	return nil
}

type jobsRegister struct {
	newcomer
	Name     string      `arg:"" help:"The agent's name, for people to read."`
	Owner    string      `required:"" placeholder:"OWNER" help:"The account that gets the pay. If it does not exist, it is opened without credits."`
	Skill    []skillText `placeholder:"NAME=COST" sep:"none" help:"A skill, and how many credits a job costs. May be repeated."`
	Skills   string      `placeholder:"FILE" help:"A file with more skills: a JSON list of objects with skill_name, cost_per_call, and optionally description, input_schema and output_schema; - is standard input."`
	Endpoint string      `placeholder:"URL" help:"The URL that gets the agent's jobs. Without it, the agent pulls them with agora jobs pull."`
	Agent    jobsID      `placeholder:"UUID" help:"The agent's id (default: a new one). With the id of an agent of yours, the command replaces what it says about itself."`
}

func (jobsRegister) Help() string {
	return "Registers an agent with its skills, and prints its id as one line of JSON. The id of your agent never " +
		"belongs to somebody else, also after agora jobs unregister. To change an agent, give its id with --agent; " +
		"without it, the command makes another agent. A changed agent keeps its reputation.\n\n" +
		"If the key file does not exist, you are new, and the command creates it.\n\n" +
		"Examples:\n  agora jobs register Texts --owner acme --skill analyze_text=0.1 --key-file acme.key\n" +
		"  agora jobs register Texts --owner acme --skills skills.json --endpoint https://host.example/jobs " +
		"--key-file acme.key"
}

func (c jobsRegister) Run(env cli.Environment) error {
	skills := []jobsclient.Skill{}
	if c.Skills != "" {
		text, err := env.Input(c.Skills, "the skills")
		if err != nil {
			return err
		}
		if err := json.Unmarshal(text, &skills); err != nil {
			return fmt.Errorf("the skills must be a JSON list of objects with skill_name and cost_per_call: %w", err)
		}
	}
	for _, s := range c.Skill {
		skills = append(skills, jobsclient.Skill{Name: s.name, Cost: s.cost})
	}
	if len(skills) == 0 {
		env.Say("the agent has no skill, so nobody can hire it; give --skill NAME=COST")
	}
	jobs, err := c.join(env)
	if err != nil {
		return err
	}
	defer jobs.Close()
	done, key, err := jobs.Register(env.Ctx, jobsclient.Registration{AgentID: c.Agent.orNew(), Name: c.Name,
		OwnerID: c.Owner, Endpoint: c.Endpoint, Skills: skills})
	if err != nil && key == "" {
		return c.explainJoin(err, jobs, c.Owner)
	}
	kept, failed := c.keep(env, key)
	return errors.Join(err, failed, env.PrintJSON(struct {
		jobsclient.Registered
		jobsKeyLine
	}{done, kept}))
}

type jobsDiscover struct {
	atJobs
	cli.Listing
	Skill         string            `arg:"" optional:"" help:"The skill. Without it, the command lists all skills."`
	MinReputation float64           `placeholder:"N" help:"Show only agents with this reputation or a higher one (0 to 100)."`
	MaxCost       *cli.CreditAmount `placeholder:"N" help:"Show only agents that cost at most this much."`
}

func (c jobsDiscover) Validate() error {
	if c.MinReputation < 0 || c.MinReputation > 100 {
		return errors.New("--min-reputation must be from 0 to 100")
	}
	return nil
}

func (jobsDiscover) Help() string {
	return "Lists the agents that are online and have the skill, the best reputation first. On a terminal they are a " +
		"table, otherwise lines of JSON. Needs no key.\n\n" +
		"Examples:\n  agora jobs discover\n  agora jobs discover analyze_text --min-reputation 60 --max-cost 0.2"
}

func (c jobsDiscover) Run(env cli.Environment) error {
	jobs := c.client(env)
	defer jobs.Close()
	if c.Skill == "" {
		skills, err := jobs.Skills(env.Ctx)
		if err != nil {
			return err
		}
		if len(skills) == 0 {
			env.Say("no agent is online")
		}
		type named struct {
			Name string `json:"skill_name"`
		}
		var all []named
		for _, name := range skills {
			all = append(all, named{name})
		}
		return cli.Show(env, c.Listing, []string{"SKILL"}, all, func(s named) []string { return []string{s.Name} })
	}
	agents, err := jobs.Discover(env.Ctx, jobsclient.Query{Skill: c.Skill, MinReputation: c.MinReputation,
		MaxCost: (*credits.Amount)(c.MaxCost)})
	if err != nil {
		return err
	}
	if len(agents) == 0 {
		env.Say("no such agent is online")
	}
	return cli.Show(env, c.Listing, []string{"AGENT", "NAME", "OWNER", "COST", "REPUTATION"}, agents,
		func(a jobsclient.Agent) []string {
			cost := ""
			if a.Skill != nil {
				cost = a.Skill.Cost.String()
			}
			return []string{a.AgentID, a.Name, a.OwnerID, cost, score(a.Reputation)}
		}, 1, 2)
}

// score returns a reputation as a text.
func score(reputation float64) string { return strconv.FormatFloat(reputation, 'f', 2, 64) }

type jobsAgent struct {
	atJobs
	cli.Listing
	Agent jobsID `arg:"" help:"The agent's id."`
}

func (jobsAgent) Help() string {
	return "Prints what an agent says about itself, its reputation, and how many jobs have counted for that. Needs " +
		"no key.\n\n" +
		"Example:\n  agora jobs agent a3b8d1b6-0b3b-4b1a-9c1a-1a2b3c4d5e6f"
}

func (c jobsAgent) Run(env cli.Environment) error {
	jobs := c.client(env)
	defer jobs.Close()
	agent, err := jobs.Agent(env.Ctx, string(c.Agent))
	if err != nil {
		return err
	}
	reputation, err := jobs.Reputation(env.Ctx, string(c.Agent))
	if err != nil {
		return err
	}
	type shown struct {
		jobsclient.Agent
		Stats jobsclient.Stats `json:"stats"`
	}
	head := []string{"NAME", "OWNER", "STATUS", "REPUTATION", "SUCCESSES", "FAILURES", "SKILLS"}
	return cli.Show(env, c.Listing, head, []shown{{agent, reputation.Stats}}, func(s shown) []string {
		var skills []string
		for _, skill := range s.Skills {
			skills = append(skills, skill.Name+"="+skill.Cost.String())
		}
		return []string{s.Name, s.OwnerID, s.Status, score(s.Reputation), strconv.Itoa(s.Stats.Successes),
			strconv.Itoa(s.Stats.Failures), strings.Join(skills, " ")}
	})
}

type jobsHeartbeat struct {
	inJobs
	Agent jobsID        `arg:"" help:"The agent's id."`
	Every time.Duration `placeholder:"DURATION" help:"Send a heartbeat each time this has passed, such as 30s, until the command is interrupted."`
}

func (c jobsHeartbeat) Validate() error {
	if c.Every != 0 && c.Every < time.Second {
		return errors.New("--every must be at least 1s")
	}
	return c.inJobs.Validate()
}

func (jobsHeartbeat) Help() string {
	return "Tells the registry that your agent is online. After a heartbeat it is online for 90 seconds. An agent that has never " +
		"sent one is online for 24 hours after its registration and after each job. agora jobs pull sends heartbeats " +
		"too.\n\n" +
		"Example:\n  agora jobs heartbeat a3b8d1b6-0b3b-4b1a-9c1a-1a2b3c4d5e6f --every 30s --key-file acme.key"
}

func (c jobsHeartbeat) Run(env cli.Environment) error {
	jobs, err := c.open(env, jobsclient.PrincipalKey)
	if err != nil {
		return err
	}
	defer jobs.Close()
	for told := false; ; {
		err := jobs.Heartbeat(env.Ctx, string(c.Agent))
		_, refused := errors.AsType[*jobsclient.Error](err)
		if err == nil && !told {
			env.Say("the agent %s is online for 90 seconds after each heartbeat", c.Agent)
			told = true
		}
		switch {
		case c.Every == 0 || refused && !jobsclient.Unknown(err):
			return c.explain(err)
		case env.Ctx.Err() != nil:
			return nil
		case err != nil:
			env.Say("the heartbeat failed, and will be sent again: %v", err)
		}
		select {
		case <-time.After(c.Every):
		case <-env.Ctx.Done():
			return nil
		}
	}
}

type jobsUnregister struct {
	inJobs
	Agent jobsID `arg:"" help:"The agent's id."`
}

func (jobsUnregister) Help() string {
	return "Removes your agent from the registry. Its id stays yours, and its reputation is kept.\n\n" +
		"Example:\n  agora jobs unregister a3b8d1b6-0b3b-4b1a-9c1a-1a2b3c4d5e6f --key-file acme.key"
}

func (c jobsUnregister) Run(env cli.Environment) error {
	jobs, err := c.open(env, jobsclient.PrincipalKey)
	if err != nil {
		return err
	}
	defer jobs.Close()
	if err := jobs.Unregister(env.Ctx, string(c.Agent)); err != nil {
		return c.explain(err)
	}
	env.Say("removed the agent %s", c.Agent)
	return nil
}

type jobsPull struct {
	inJobs
	Agent   jobsID        `arg:"" help:"The agent's id."`
	Timeout time.Duration `placeholder:"DURATION" help:"End after this time, with exit code 1, if no job came."`
}

func (c jobsPull) Validate() error {
	if c.Timeout < 0 {
		return errors.New("--timeout must not be negative")
	}
	return c.inJobs.Validate()
}

func (jobsPull) Help() string {
	return "Waits until there is a job for your agent, prints it as one line of JSON, and ends. If several jobs are " +
		"waiting, prints one line for each. The agent is online while the command waits, and for 90 seconds after " +
		"that. Report the result with agora jobs deliver. A job without a result is handed out again after five " +
		"minutes, so check whether you have done a job with its job_id.\n\n" +
		"What is in a job is untrusted. Never run it.\n\n" +
		"Examples:\n  agora jobs pull a3b8d1b6-0b3b-4b1a-9c1a-1a2b3c4d5e6f --key-file acme.key\n" +
		"  agora jobs pull a3b8d1b6-0b3b-4b1a-9c1a-1a2b3c4d5e6f --timeout 10m --key-file acme.key"
}

// pullRound is how long one request of pull waits. After it comes a heartbeat, which keeps the agent online.
const pullRound = 45 * time.Second

func (c jobsPull) Run(env cli.Environment) error {
	jobs, err := c.open(env, jobsclient.PrincipalKey)
	if err != nil {
		return err
	}
	defer jobs.Close()
	end := time.Now().Add(c.Timeout)
	for {
		wait := pullRound
		if c.Timeout > 0 {
			wait = max(0, min(wait, time.Until(end)))
		}
		began := time.Now()
		err := jobs.Heartbeat(env.Ctx, string(c.Agent))
		var next []jobsclient.Job
		if err == nil {
			next, err = jobs.Pull(env.Ctx, string(c.Agent), wait)
		}
		switch {
		case env.Ctx.Err() != nil:
			return errors.New("interrupted; a job that was handed out just now is handed out again in five minutes")
		case err != nil:
			return c.explain(err)
		case len(next) > 0:
			for _, job := range next {
				if err := env.PrintJSON(job); err != nil {
					return err
				}
			}
			return nil
		case c.Timeout > 0 && time.Until(end) < time.Second:
			return fmt.Errorf("no job came within %v", c.Timeout)
		}
		if err := atLeast(env.Ctx, time.Second, began); err != nil {
			return err
		}
	}
}

// atLeast sleeps until a time since began has passed, or ctx ends. It keeps a loop from being hot.
func atLeast(ctx context.Context, d time.Duration, began time.Time) error {
	select {
	case <-time.After(time.Until(began.Add(d))):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type jobsDeliver struct {
	inJobs
	Agent   jobsID            `arg:"" help:"The agent's id."`
	Job     jobsID            `arg:"" help:"The id of the job (job_id)."`
	Output  string            `xor:"outcome" placeholder:"JSON" help:"The result, a JSON object; - is standard input. The hirer then pays."`
	Failure string            `xor:"outcome" placeholder:"TEXT" help:"Why the job failed. The hirer then pays nothing."`
	Cost    *cli.CreditAmount `placeholder:"N" help:"Take less than the price."`
	Time    time.Duration     `placeholder:"DURATION" help:"How long the job took, such as 1500ms (execution_time_ms). The hirer sees it."`
}

func (c jobsDeliver) Validate() error {
	switch {
	case c.Output == "" && c.Failure == "":
		return errors.New("give the result with --output JSON, or say why there is none with --failure TEXT")
	case c.Time < 0:
		return errors.New("--time must not be negative")
	}
	return c.inJobs.Validate()
}

func (jobsDeliver) Help() string {
	return "Reports the result of a job that your agent has pulled, with --output or --failure. It counts once; the " +
		"same report may be sent again. A success pays the agent's owner the price of the skill.\n\n" +
		"Examples:\n  agora jobs deliver AGENT JOB --output '{\"entities\":[]}' --key-file acme.key\n" +
		"  agora jobs deliver AGENT JOB --output - --key-file acme.key < result.json\n" +
		"  agora jobs deliver AGENT JOB --failure 'The text is empty.' --key-file acme.key"
}

func (c jobsDeliver) Run(env cli.Environment) error {
	jobs, err := c.open(env, jobsclient.PrincipalKey)
	if err != nil {
		return err
	}
	defer jobs.Close()
	r := jobsclient.Result{JobID: string(c.Job), AgentID: string(c.Agent), Status: jobsclient.Success,
		Cost: (*credits.Amount)(c.Cost)}
	if took := c.Time.Milliseconds(); c.Time != 0 {
		r.TimeMS = &took
	}
	if c.Output != "" {
		if r.Output, err = object(env, c.Output, "the result"); err != nil {
			return err
		}
	} else {
		r.Status, r.ErrorMessage, r.ErrorCode = jobsclient.Failure, c.Failure, jobsclient.ExecutionError
	}
	err = jobs.Report(env.Ctx, string(c.Agent), r)
	if refused, ok := errors.AsType[*jobsclient.Error](err); ok && refused.Status == http.StatusConflict {
		return fmt.Errorf("the job has ended already, in another way; agora jobs status %s%s shows how", c.Job, c.flags())
	}
	if err != nil {
		return c.explain(err)
	}
	env.Say("reported the result of the job %s", c.Job)
	return nil
}

// object returns an argument, or standard input if it is -, which must be a JSON object. what describes it.
func object(env cli.Environment, argument, what string) (json.RawMessage, error) {
	text, err := readText(env, argument, what)
	if err != nil {
		return nil, err
	}
	var members map[string]json.RawMessage
	if json.Unmarshal([]byte(text), &members) != nil || members == nil {
		return nil, fmt.Errorf("%s must be a JSON object, such as {\"text\":\"Hello\"}", what)
	}
	return json.RawMessage(text), nil
}

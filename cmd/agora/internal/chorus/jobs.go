package chorus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway/jobs/jobsclient"
	"github.com/agora-relay/agora/internal/fsync"
)

// JobsCmd are the commands for the registry of jobs (Chorus registry).
type JobsCmd struct {
	Account    jobsAccount    `cmd:"" help:"Open an account."`
	Balance    jobsBalance    `cmd:"" help:"Show the balances of your accounts."`
	Register   jobsRegister   `cmd:"" help:"Register an agent with its skills, or change it."`
	Discover   jobsDiscover   `cmd:"" help:"Find agents by a skill."`
	Agent      jobsAgent      `cmd:"" help:"Show an agent and its reputation."`
	Hire       jobsHire       `cmd:"" help:"Hire an agent for a job, and wait for the result."`
	Status     jobsStatus     `cmd:"" help:"Show the result of a job."`
	Pull       jobsPull       `cmd:"" help:"Wait for the next job of your agent, and print it."`
	Deliver    jobsDeliver    `cmd:"" help:"Report the result of a job."`
	Heartbeat  jobsHeartbeat  `cmd:"" help:"Keep your agent online."`
	Unregister jobsUnregister `cmd:"" help:"Remove your agent from the registry."`
	Transfer   jobsTransfer   `cmd:"" help:"Pay somebody."`
	Audit      jobsAudit      `cmd:"" help:"List the records of the ledger."`
	Grant      jobsGrant      `cmd:"" help:"Issue credits to somebody, as the relay's operator."`
}

func (JobsCmd) Help() string {
	return "A registry in which agents offer skills at a price, and others hire them (Chorus registry). Credits are " +
		"held while a job runs, and paid when it succeeds. An agent's reputation follows from its jobs. agora serve " +
		"--jobs runs a registry.\n\n" +
		"Examples:\n  agora jobs account acme --key-file acme.key\n" +
		"  agora jobs register Texts --owner acme --skill analyze_text=0.1 --key-file acme.key\n" +
		"  agora jobs account bob --key-file jobs-bob.key\n  agora jobs discover analyze_text\n" +
		"  agora jobs hire AGENT analyze_text --budget 0.15 --input '{\"text\":\"…\"}' --key-file jobs-bob.key"
}

// jobsURL is the base URL of a jobs gateway.
type jobsURL string

func (u *jobsURL) UnmarshalText(text []byte) error {
	checked, err := jobsclient.CheckURL(string(text))
	*u = jobsURL(checked)
	return err
}

// atJobs is the flag of all commands for jobs.
type atJobs struct {
	Jobs jobsURL `env:"AGORA_JOBS_URL" placeholder:"URL" help:"The URL of the registry. It may end in /k/ and your key (default: AGORA_RELAY or the relay of the profile with /jobs after it, or else ${relay}/jobs)."`
}

// AfterApply sets the default. kong calls it after Validate.
func (c *atJobs) AfterApply(vars kong.Vars, used cli.ChosenProfile) error {
	if c.Jobs != "" {
		return nil
	}
	relay := cmp.Or(os.Getenv("AGORA_RELAY"), used.Text("relay"), vars["relay"])
	if err := c.Jobs.UnmarshalText([]byte(strings.TrimRight(relay, "/") + "/jobs")); err != nil {
		return fmt.Errorf("the URL of the relay in AGORA_RELAY or the profile: %w", err)
	}
	return nil
}

// undecided returns the error of a request that the registry may or may not have done. what says so, and what to do
// next.
func undecided(err error, what string, args ...any) error {
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	return fmt.Errorf("%w; %s", err, fmt.Sprintf(what, args...))
}

// inJobs are the flags of the commands that need to know who you are.
type inJobs struct {
	atJobs
	KeyFile string `xor:"who" placeholder:"FILE" help:"The file with your key for the registry: one line with a cj_ key. agora jobs account and agora jobs register create it (default: the file that AGORA_JOBS_KEY names)."`
	Key     string `xor:"who" placeholder:"FILE" help:"A key file from agora keygen. The registry then knows you by its did:key, and you need no key of the registry. AGORA_KEY does not replace this flag."`
}

// file returns the name of the file with the caller's key for the registry; empty: there is none. kong does not read
// the variable, because it would then refuse --key while the variable is set.
func (c inJobs) file() string {
	if c.Key != "" {
		return ""
	}
	return cmp.Or(c.KeyFile, os.Getenv("AGORA_JOBS_KEY"))
}

// flags returns the flags that say who you are, as a hint with another command must repeat them.
func (c inJobs) flags() string {
	switch {
	case c.KeyFile != "":
		return " --key-file " + cli.ShellQuoted(c.KeyFile)
	case c.Key != "":
		return " --key " + cli.ShellQuoted(c.Key)
	}
	return ""
}

// errNoIdentity is the error of a command that needs to know who you are.
var errNoIdentity = errors.New("say who you are: give --key-file FILE (or AGORA_JOBS_KEY), or --key FILE")

// Validate implements kong's check of flags.
func (c inJobs) Validate() error {
	if c.file() == "" && c.Key == "" && !jobsclient.HasKey(string(c.Jobs)) {
		return errNoIdentity
	}
	return nil
}

// client returns a client for a caller who is nobody yet.
func (c atJobs) client(env cli.Environment) *jobsclient.Client {
	return jobsclient.New(string(c.Jobs), cli.NewLog(env))
}

// jobsKeyNames describe the kinds of keys.
var jobsKeyNames = map[jobsclient.Key]string{
	jobsclient.PrincipalKey: "your key for the registry (cj_…), which agora jobs account creates",
	jobsclient.OperatorKey:  "the operator's key (op_…), which is in operator.key in the relay's data folder",
}

// readJobsKey returns the key in a file. It refuses a file that other users may access, and a key that is not of one of
// these kinds. The first kind is the usual one.
func readJobsKey(name string, kinds ...jobsclient.Key) (string, error) {
	if _, err := jobsclient.ParseKey(name); err == nil {
		return "", errors.New("this needs the name of a file with the key, not the key itself; write the key to a file that " +
			"only you can read")
	}
	text, err := cli.ReadOperatorKey(name)
	if err != nil {
		return "", err
	}
	key := strings.TrimSpace(text)
	kind, err := jobsclient.ParseKey(key)
	switch {
	case err != nil:
		return "", fmt.Errorf("this needs %s, on one line; %s does not contain a key of a registry", jobsKeyNames[kinds[0]], name)
	case !slices.Contains(kinds, kind):
		return "", fmt.Errorf("this needs %s; %s has %s", jobsKeyNames[kinds[0]], name, jobsKeyNames[kind])
	}
	return key, nil
}

// open returns a client for the caller that the flags name. kinds are as for readJobsKey.
func (c inJobs) open(env cli.Environment, kinds ...jobsclient.Key) (*jobsclient.Client, error) {
	jobs := c.client(env)
	switch {
	case c.Key != "":
		key, err := didkey.Load(c.Key)
		if err != nil {
			return nil, err
		}
		jobs.Signer = key
	case c.file() != "":
		key, err := readJobsKey(c.file(), kinds...)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w; agora jobs account OWNER --key-file FILE creates it", err)
		}
		if err != nil {
			return nil, err
		}
		jobs.Key = key
	}
	return jobs, nil
}

// explain adds to the error of a call what to do.
func (c inJobs) explain(err error) error {
	refused, ok := errors.AsType[*jobsclient.Error](err)
	switch {
	case !ok:
	case refused.Status == http.StatusUnauthorized && c.file() != "":
		return fmt.Errorf("%w; the key in %s is not valid at this registry", err, c.file())
	case refused.Status == http.StatusForbidden && cmp.Or(c.Key, c.file()) != "":
		return fmt.Errorf("%w; you have asked with the key in %s", err, cmp.Or(c.Key, c.file()))
	}
	return err
}

// newcomer are the flags of the commands that may make a new principal: if the key file does not exist, they create it.
type newcomer struct{ inJobs }

// Validate implements kong's check of flags. A newcomer need not have a principal yet, so no key is needed.
func (newcomer) Validate() error { return nil }

// join returns a client for the caller that the flags name. If the key file does not exist yet, join checks that it can
// be written, because the gateway tells a key only once.
func (c newcomer) join(env cli.Environment) (*jobsclient.Client, error) {
	file := c.file()
	if file == "" {
		return c.open(env)
	}
	jobs, err := c.open(env, jobsclient.PrincipalKey)
	if !errors.Is(err, fs.ErrNotExist) {
		return jobs, err
	}
	if jobsclient.HasKey(string(c.Jobs)) {
		return nil, fmt.Errorf("%s does not exist, and the URL of the registry has a key; leave out one of them", file)
	}
	trial, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*.tmp")
	if err == nil {
		err = errors.Join(trial.Close(), os.Remove(trial.Name()))
	}
	if err != nil {
		return nil, fmt.Errorf("the key file could not be created, so nothing was sent: %w", err)
	}
	return c.client(env), nil
}

// jobsKeyLine is where a new key is: in the line itself or in a file.
type jobsKeyLine struct {
	Key  string `json:"api_key,omitempty"`
	File string `json:"key_file,omitempty"`
}

// keep stores the key of a new principal, and returns what to print. If the key cannot be stored, it is printed.
func (c newcomer) keep(env cli.Environment, key string) (jobsKeyLine, error) {
	if key == "" {
		return jobsKeyLine{}, nil
	}
	if c.file() == "" {
		env.Say("save api_key now, because it is shown only once; with --key-file FILE, the command writes it to a file")
		return jobsKeyLine{Key: key}, nil
	}
	if err := fsync.Create(c.file(), []byte(key+"\n")); err != nil {
		return jobsKeyLine{Key: key}, fmt.Errorf("the key could not be written to the file, so it is printed: %w", err)
	}
	env.Say("your key is in %s; do not lose it, and keep it secret", c.file())
	return jobsKeyLine{File: c.file()}, nil
}

// explainJoin does the same as explain, for a request that may have made a principal. owner is its owner.
func (c newcomer) explainJoin(err error, jobs *jobsclient.Client, owner string) error {
	anonymous := jobs.Key == "" && jobs.Signer == nil && !jobsclient.HasKey(jobs.URL)
	refused, _ := errors.AsType[*jobsclient.Error](err)
	switch {
	case anonymous && jobsclient.Unknown(err):
		return undecided(err, "it is unknown if the registry has done this; if %s is taken when you try again, its key is "+
			"lost, and you need another name", owner)
	case anonymous && refused != nil && refused.Status == http.StatusConflict && c.file() != "":
		return fmt.Errorf("%w; there is no key file %s, so you asked as somebody new", err, c.file())
	case anonymous && refused != nil && refused.Status == http.StatusConflict:
		return fmt.Errorf("%w; if it is yours, give your key with --key-file FILE", err)
	}
	return c.explain(err)
}

// jobsID is the UUID of an agent, a job, a transfer or a grant.
type jobsID string

var uuidForm = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func (i *jobsID) UnmarshalText(text []byte) error {
	*i = jobsID(strings.ToLower(string(text)))
	if !uuidForm.MatchString(string(*i)) {
		return errors.New("want a UUID, such as a3b8d1b6-0b3b-4b1a-9c1a-1a2b3c4d5e6f")
	}
	return nil
}

// orNew returns the id, or a new one if it is empty.
func (i jobsID) orNew() string { return cmp.Or(string(i), jobsclient.NewID()) }

package trade

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// WorkCmd makes an agent out of any program.
type WorkCmd struct {
	cli.NetworkPoster
	Intent      []string      `sep:"none" placeholder:"INTENT" help:"A service that the program does, such as translation.en_zh. May be repeated (default: the intents of --manifest)."`
	Exec        string        `placeholder:"CMD" help:"The program and its arguments in one text. Quotes and backslashes work as in a shell, but there is no shell. Or give them after --, as PROGRAM ARG..."`
	Program     []string      `arg:"" optional:"" name:"program" help:"The program and its arguments, in place of --exec; put -- before them."`
	Input       string        `default:"job" enum:"job,params,text" placeholder:"job|params|text" help:"What the program reads: the whole job as JSON (job, the default), only its params as JSON (params), or the text in its params (text)."`
	Output      string        `default:"auto" enum:"auto,json,text,lines" placeholder:"auto|json|text|lines" help:"What the program writes: JSON (json), a text (text), a text whose lines reach an A2A caller while the program runs (lines), or JSON if it is valid and otherwise a text (auto, the default)."`
	Price       float64       `placeholder:"AMOUNT" help:"The price of a job (default: 0, free)."`
	Currency    string        `default:"USD" help:"The currency of the price, an ISO 4217 code (default: ${default})."`
	Plan        string        `help:"What the offers say about how you would do the work."`
	ETA         time.Duration `placeholder:"DURATION" help:"What the offers say about how long a job takes."`
	Name        string        `help:"The agent's name in the manifest that is made from --intent."`
	Manifest    string        `placeholder:"FILE" help:"The capability manifest to announce, as JSON (default: one made from --intent, --name and --price)."`
	Concurrency int           `default:"1" placeholder:"N" help:"How many programs run at the same time. While N jobs are accepted and not finished, the agent makes no more offers (default: ${default})."`
	Timeout     time.Duration `default:"10m" placeholder:"DURATION" help:"How long a program may run for a job; 0: until the relay ends the thread (default: ${default})."`
	Grace       time.Duration `default:"10s" placeholder:"DURATION" help:"How long a program may take to end after SIGTERM (default: ${default})."`
	Attempts    int           `default:"3" placeholder:"N" help:"How often a job is begun at most, if this command is killed each time (default: ${default})."`
	MaxJobs     int           `placeholder:"N" help:"End after N jobs."`
	Also        []string      `sep:"," placeholder:"PROTOCOLS" help:"Also take work from these gateways of the relay: hub, jobs, channel, a2a, or all that it has (all). Prints where the agent can be reached then."`
	Credits     float64       `placeholder:"AMOUNT" help:"With --also jobs: the price of a job, in credits of the registry (default: 0)."`
	Culture     string        `default:"en" placeholder:"TAG" help:"With --also hub: the agent's language, such as en or zh-CN (default: ${default})."`
	A2A         bool          `name:"a2a" help:"The same as --also a2a. Then the agent needs no --intent."`
	Public      bool          `help:"With A2A: everybody may call. Without it, callers need the key that is printed, or another one (agora a2a keys new), or sign with their own DID."`
	Listed      bool          `help:"With A2A: show the endpoint in the relay's public list of A2A agents."`
	Leave       bool          `help:"Remove what --also has registered, and end. Needs no program."`
	ErrorDetail bool          `help:"When the program fails, also tell the client the last line of its standard error."`
	State       string        `placeholder:"FILE" help:"The file that says how far the agent has come (default: one for each relay, or one for several, in a folder beside the key file with .work after its name)."`
}

func (WorkCmd) Help() string {
	return "Makes an agent out of any program. The agent announces the service and offers it to everyone who asks. For " +
		"each job that " +
		"a client accepts it starts the program, and sends what the program prints as the RESULT. It runs until it is " +
		"interrupted.\n\n" +
		"Input. The program reads one line of JSON:\n" +
		`  {"thread":"t1","request_id":"r1","intent":"echo","client":"did:key:…","params":{"text":"Hi"},"attempt":1,` + "\n" +
		`   "title":"…","description":"…","max_cost_usd":0.01,"deadline":"2030-02-02T15:30:00Z"}` + "\n" +
		"params is null if there are none. title, description and max_cost_usd are absent if the client did not set " +
		"them. deadline " +
		"is the client's deadline, or the time when the relay ends the thread, whichever is earlier. With --input params " +
		"the program reads only the " +
		"params. With --input text it reads the text " +
		"in the params: they are a string, or an object with a string text. Other requests are refused then. " +
		"The text of the intent " + client.ChannelIntent + " is a message that was said in a channel, and the result is the " +
		"answer there. The text of the intent " + client.A2AIntent + " is the message of an A2A caller. Only the relay's gateways " +
		"may send these.\n" +
		"AGORA_THREAD, AGORA_REQUEST_ID, AGORA_INTENT, AGORA_CLIENT and AGORA_ATTEMPT have the same values. The rest " +
		"of the " +
		"environment is yours, except that all other variables that begin with AGORA_ are removed: they may have " +
		"secrets.\n\n" +
		"All of it comes from strangers. Never let a shell evaluate it, and quote variables.\n\n" +
		"Output. With --output auto, valid JSON is the result as it is; anything else is a text, without the line " +
		"breaks at " +
		"its end. A text must be UTF-8. A result must fit into a message, most often 128 KiB. Standard error goes to the " +
		"log: at most 100 lines in 10 seconds.\n\n" +
		"A2A. With --a2a the agent also gets an endpoint at the relay: a URL where any A2A client can call it. Its card is " +
		"made from the manifest and signed with your key, as agora a2a publish does. Each message of a caller is a job with " +
		"the intent " + client.A2AIntent + ", and is free. With --output lines, each line is a chunk of an artifact that the " +
		"caller gets at once, and the agent signs what it has sent. Then a result may have 4 MiB. For other clients, lines is " +
		"the same as text.\n\n" +
		"Failures. The client gets an ERROR in place of a RESULT: INVALID_REQUEST if the program exits with 65, " +
		"UNAVAILABLE " +
		"(try again later) with 75, TIMEOUT after --timeout, and otherwise EXECUTION_FAILED.\n\n" +
		"Processes. Each program has its own process group. It gets SIGTERM, and SIGKILL after --grace, when its " +
		"time is " +
		"over, when the client cancels, and when the agent is interrupted. When the program has ended, its whole " +
		"group is " +
		"killed. So the program must wait for the processes that it starts in the background. Processes that leave the " +
		"group (setsid) keep running. A " +
		"second " +
		"interrupt kills at once. If the agent itself is killed (SIGKILL), Linux ends the program, but not what it " +
		"has started. On Windows programs are ended at once, without what they have started.\n\n" +
		"Restarts. A job that was not finished is begun again, also after kill -9, and its client gets one answer. " +
		"attempt says how often it was begun. If the agent was killed each time, --attempts times, the client gets the " +
		"ERROR INTERNAL_ERROR (interrupted). With --attempts 1 no job is ever begun twice.\n\n" +
		"Several relays. With --relay repeated, the agent works at all of them, and says so in its manifest. If a " +
		"client's " +
		"relay dies, " +
		"the client continues the job at another one. The agent works once for it.\n\n" +
		"Other protocols. With --also, users of the relay's hub, its registry of jobs, channels and A2A reach the same agent. " +
		"What they ask for comes from the relay's gateway. With --input text, the program reads what they say, and writes the " +
		"answer. They do not pay --price; the registry pays --credits. --leave undoes it.\n\n" +
		"Examples:\n" +
		"  agora work --key bob.key --also all --intent text.upper --input text -- tr a-z A-Z\n" +
		"  agora work --key bob.key --intent translation.en_zh --exec ./translate.sh --price 0.005\n" +
		"  agora work --key bob.key --intent text.upper --input text -- tr a-z A-Z\n" +
		"  agora work --key bob.key --intent text.count --input text -- sh -c 'wc -w | tr -d \" \"'\n" +
		"  agora work --key bob.key --a2a --input text --output lines --name Reader -- ./answer.sh\n" +
		"  agora work --key bob.key --manifest bob.json --exec 'python3 agent.py' --concurrency 4 --timeout 1m\n" +
		"  agora work --key bob.key --relay https://a.example --relay https://b.example --intent text.upper -- tr a-z A-Z"
}

func (c WorkCmd) Validate() error {
	if c.Leave {
		return nil
	}
	switch {
	case c.Exec == "" && len(c.Program) == 0:
		return errors.New("name the program with --exec CMD, or put it and its arguments after --")
	case c.Exec != "" && len(c.Program) > 0:
		return errors.New("give either --exec CMD or -- PROGRAM ARG..., not both; --exec takes the program and all its arguments in " +
			"one text, such as --exec 'python3 agent.py'")
	case len(c.Intent) == 0 && c.Manifest == "" && !c.A2A:
		return errors.New("say what the program does with --intent INTENT, with --manifest FILE, or with --a2a")
	case !c.joins("a2a") && (c.Public || c.Listed):
		return errors.New("--public and --listed are for the endpoint that --a2a publishes; add --a2a")
	case !c.joins("jobs") && c.Credits != 0:
		return errors.New("--credits is the price in the registry of jobs; add --also jobs")
	case c.Manifest != "" && c.Name != "":
		return errors.New("--name is for the manifest that is made from --intent; put the name into the file of --manifest")
	case c.Price < 0 || c.ETA < 0 || c.Timeout < 0 || c.Grace < 0 || c.MaxJobs < 0:
		return errors.New("--price, --eta, --timeout, --grace and --max-jobs must not be negative")
	case c.Concurrency < 1 || c.Concurrency > maxPrograms:
		return fmt.Errorf("--concurrency must be from 1 to %d", maxPrograms)
	case c.Credits < 0 || math.IsInf(c.Credits, 0):
		return errors.New("--credits must not be negative")
	case c.Attempts < 1 || c.Attempts > math.MaxInt32:
		return errors.New("--attempts must be at least 1")
	}
	for _, intent := range c.Intent {
		if intent == "" {
			return errors.New("--intent must not be empty")
		}
	}
	if _, err := c.protocols(); err != nil {
		return err
	}
	_, err := c.argv()
	return err
}

// maxPrograms is the largest --concurrency.
const maxPrograms = 1000

// argv returns the program and its arguments.
func (c WorkCmd) argv() ([]string, error) {
	argv := c.Program
	if c.Exec != "" {
		var err error
		if argv, err = cli.SplitWords(c.Exec, runtime.GOOS != "windows"); err != nil {
			return nil, fmt.Errorf("--exec: %w", err)
		}
	}
	if len(argv) == 0 || argv[0] == "" {
		return nil, errors.New("the name of the program is empty")
	}
	return argv, nil
}

// lookProgram returns an error if the program cannot be started, and says why.
func lookProgram(name string) error {
	_, err := exec.LookPath(name)
	if err == nil {
		return nil
	}
	info, missing := os.Stat(name)
	switch {
	case missing != nil:
		return fmt.Errorf("there is no program %s: %w", name, err)
	case info.IsDir():
		return fmt.Errorf("%s is a folder, not a program", name)
	case !strings.ContainsRune(name, filepath.Separator):
		return fmt.Errorf("there is no program %s in PATH; for the file in this folder write .%c%s", name, filepath.Separator, name)
	}
	return fmt.Errorf("%s cannot be run: %w; make it executable with chmod +x %s", name, err, cli.ShellQuoted(name))
}

// announced returns the manifest as it is posted and as it was read, and the intents that the agent serves.
func (c WorkCmd) announced() (posted envelope.Payload, m envelope.Manifest, intents []string, err error) {
	if c.Manifest == "" {
		m = envelope.Manifest{ID: "cap_work", Name: c.Name}
		for _, intent := range c.Intent {
			m.Intents = append(m.Intents, envelope.Intent{ID: intent})
		}
		if intents = c.Intent; len(intents) == 0 { // with --a2a
			m.Intents = append(m.Intents, envelope.Intent{ID: client.A2AIntent, Name: cmp.Or(c.Name, "messages")})
			intents = []string{client.A2AIntent}
		}
		if c.Price > 0 {
			m.Pricing = &envelope.Pricing{Model: "fixed", Currency: c.Currency, FixedPrice: c.Price}
		} else {
			m.Pricing = &envelope.Pricing{Model: "free"}
		}
		return m, m, intents, nil
	}
	text, err := os.ReadFile(c.Manifest)
	if err != nil {
		return nil, m, nil, fmt.Errorf("--manifest: %w", err)
	}
	if _, err = envelope.Canonicalize(text); err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		return nil, m, nil, fmt.Errorf("the manifest in %s is not valid: %w", c.Manifest, err)
	}
	if intents = c.Intent; len(intents) == 0 {
		for _, intent := range m.Intents {
			if intent.ID != "" {
				intents = append(intents, intent.ID)
			}
		}
	}
	if len(intents) == 0 {
		return nil, m, nil, fmt.Errorf("the manifest in %s has no intents; add some, or give --intent", c.Manifest)
	}
	return envelope.Raw{Type: envelope.TypeManifest, JSON: text}, m, intents, nil
}

// stateFile returns the name of the state file, and creates its folder.
func (c WorkCmd) stateFile() (string, error) {
	if c.State != "" {
		return c.State, nil
	}
	return c.StateFile()
}

func (c WorkCmd) Run(env cli.Environment) (err error) {
	if c.Leave {
		return c.leave(env)
	}
	argv, err := c.argv()
	if err == nil {
		err = lookProgram(argv[0])
	}
	if err != nil {
		return err
	}
	posted, manifest, intents, err := c.announced()
	if err != nil {
		return err
	}
	agent, err := c.open(env)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, agent.state.Close()) }()
	ctx, stop := context.WithCancelCause(env.Ctx)
	defer stop(nil)
	w := newWorkAgent(c, env, argv, stop)
	w.relay, w.maxMessage = agent.relay, c.maxMessage(ctx)
	defer w.watch(env.Ctx)()
	served := intents
	if c.bridged() {
		if posted, served, err = c.join(env, agent, posted, manifest, intents); err != nil {
			return err
		}
	}
	hint := ""
	if env.StderrIsTerminal {
		hint = "; Ctrl-C ends it"
	}
	env.Say("working for %s as %s at %s%s", strings.Join(intents, ", "), agent.key.DID(), c.Names(), hint)
	err = agent.relay.Serve(ctx, client.ServeOptions{Intents: served, State: agent.state.State, Attempts: c.Attempts,
		Manifest: posted, Concurrency: c.Concurrency, MaxAccepted: c.Concurrency, Finished: w.finished}, w.handler())
	if errors.Is(err, errMaxJobs) || env.Ctx.Err() != nil && errors.Is(err, context.Cause(env.Ctx)) {
		return nil
	}
	return err
}

// worker is an agent with its state file and its relays.
type worker struct {
	key   didkey.Key
	state *cli.LockedState
	relay cli.Relays
}

// open returns the agent. The caller closes its state.
func (c WorkCmd) open(env cli.Environment) (a worker, err error) {
	if a.key, err = c.key(); err != nil {
		return a, err
	}
	file, err := c.stateFile()
	if err != nil {
		return a, err
	}
	if a.state, err = cli.OpenState(file, a.key.DID()); err != nil {
		return a, err
	}
	if a.relay, err = c.worker(env, a.key, a.state.State); err != nil {
		err = errors.Join(err, a.state.Close())
	}
	return a, err
}

// key returns the agent's key.
func (c WorkCmd) key() (didkey.Key, error) {
	key, err := didkey.Load(c.Key)
	if errors.Is(err, fs.ErrNotExist) {
		return key, fmt.Errorf("there is no key %s; create one with agora keygen %s", c.Key, cli.ShellQuoted(c.Key))
	}
	return key, err
}

// worker returns the client. It retries for longer than the clients of other commands, because nobody waits for it.
func (c WorkCmd) worker(env cli.Environment, key didkey.Key, state *client.State) (cli.Relays, error) {
	if !c.Many() {
		return c.One().ConnectPatiently(env, key)
	}
	return c.Network(env, key, 0, client.NetworkOptions{State: state})
}

// maxMessage returns the size of the largest message that all relays take, in bytes. Of a relay that does not answer
// now it is the usual size.
func (c WorkCmd) maxMessage(ctx context.Context) int {
	smallest := maxMessage
	for _, url := range c.URLs() {
		if relay, err := client.New(url, nil, client.Options{Attempts: 1}); err == nil {
			smallest = min(smallest, maxMessageOf(ctx, relay))
		}
	}
	return smallest
}

// maxMessage is the size in bytes of the largest message that agora work can handle.
const maxMessage = 16 << 20

// maxMessageOf returns the size of the largest message that a relay takes.
func maxMessageOf(ctx context.Context, relay *client.Client) int {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	info, err := relay.Info(ctx)
	var document struct {
		Limits struct {
			BodyBytes int `json:"bodyBytes"`
		} `json:"limits"`
	}
	const smallest = 4 << 10
	if err != nil || json.Unmarshal(info.JSON, &document) != nil || document.Limits.BodyBytes < smallest {
		return envelope.DefaultMaxBytes
	}
	return document.Limits.BodyBytes
}

// Watch says that the command ends when ctx does, and kills the programs at a second signal. stop ends watching.
func (w *workAgent) watch(ctx context.Context) (stop func()) {
	ended, watching := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case <-ctx.Done():
		case <-ended:
			return
		}
		second := make(chan os.Signal, 1)
		signal.Notify(second, os.Interrupt, syscall.SIGTERM)
		defer signal.Stop(second)
		w.sayStopping()
		select {
		case <-second:
			close(w.kill)
		case <-ended:
		}
	}()
	return func() { close(ended); <-watching }
}

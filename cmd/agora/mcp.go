package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/mcpserver"
	"github.com/agora-relay/agora/cmd/agora/internal/mcpserver/spending"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/internal/fsync"
)

// mcpCmd are the commands for hosts of LLMs that speak MCP.
type mcpCmd struct {
	Serve  mcpServe  `cmd:"" default:"withargs" help:"Give an LLM the tools of an agent, over MCP (the default)."`
	Limits mcpLimits `cmd:"" help:"Show or change what the LLM may spend."`
}

func (mcpCmd) Help() string { return mcpHelp }

const mcpHelp = "Lets an LLM find agents, hire them, and work for them. A host such as Claude Desktop, Cursor or VS Code " +
	"starts the command and talks with it over standard input and output. The LLM acts with your key, but never sees it. " +
	"It can spend nothing until you allow it with agora mcp limits. See docs/MCP.md.\n\n" +
	"With --relay repeated, a job whose relay falls silent continues at another one. See docs/RELAYS.md.\n\n" +
	"Examples:\n  agora mcp --print-config claude-desktop --key alice.key\n  agora mcp --key alice.key\n" +
	"  agora mcp --key alice.key --tools hire\n  agora mcp --key alice.key --http 127.0.0.1:8790\n" +
	"  agora mcp --key alice.key --relay https://a.example --relay https://b.example\n" +
	"  agora mcp limits --key alice.key --per-job 0.10 --per-day 1"

// mcpKey is the flag of both commands.
type mcpKey struct {
	Key string `env:"AGORA_KEY" default:"agora.key" placeholder:"FILE" help:"Your key file; agora mcp creates it if it does not exist (default: ${default})."`
}

// open returns the key, and the spending limits that lie beside it. file is the absolute name of the key file without
// symbolic links, so that all names of one file lead to the same limits.
func (k mcpKey) open() (key didkey.Key, book *spending.Book, file string, err error) {
	if key, err = didkey.LoadOrCreate(k.Key); err != nil {
		return key, nil, "", err
	}
	if file, err = cli.RealPath(k.Key); err != nil {
		return key, nil, "", err
	}
	book, err = spending.Open(file, key.DID(), nil)
	return key, book, file, err
}

type mcpServe struct {
	cli.Remotes
	cli.Proving
	mcpKey
	HTTP        string `name:"http" placeholder:"ADDR" help:"Serve streamable HTTP at this loopback address, such as 127.0.0.1:8790, instead of standard input and output."`
	TokenFile   string `placeholder:"FILE" help:"With --http: the file with the token that clients need. If it does not exist, the command creates it (default: the key file's name with .token after it). AGORA_MCP_TOKEN replaces the file."`
	Tools       string `enum:",hire,work" default:"" placeholder:"SET" help:"Give the LLM only the tools to hire agents (hire), or only those to work for others (work). By default it gets all."`
	PrintConfig bool   `xor:"print" help:"Print what to put into the configuration of a host, and end."`
	PrintSkill  bool   `xor:"print" help:"Print a page that teaches an agent with a shell to do the same with commands of agora, and end."`
	Host        string `arg:"" optional:"" help:"With --print-config: claude-desktop, claude-code, cursor, vscode, codex or generic (the default)."`
}

func (mcpServe) Help() string { return mcpHelp }

func (c mcpServe) Validate() error {
	switch {
	case c.Host != "" && !c.PrintConfig:
		return fmt.Errorf("unexpected argument %s; the name of a host is for --print-config", c.Host)
	case c.TokenFile != "" && c.HTTP == "":
		return errors.New("--token-file needs --http")
	case c.PrintConfig:
		_, _, err := mcpserver.Config(c.host(), "", nil)
		return err
	case c.HTTP != "":
		_, err := loopback(c.HTTP)
		return err
	}
	return nil
}

func (c mcpServe) host() string {
	if c.Host == "" {
		return "generic"
	}
	return c.Host
}

// loopback checks an address of --http. Other machines must not reach it, because the tools spend money.
func loopback(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err == nil && host == "localhost" {
		host = "127.0.0.1"
	}
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
		return "", errors.New("--http needs a loopback address with a port, such as 127.0.0.1:8790; other machines must not reach " +
			"the tools. Use an SSH tunnel to reach them from elsewhere")
	}
	return net.JoinHostPort(host, port), nil
}

func (c mcpServe) Run(env cli.Environment) (err error) {
	switch {
	case c.PrintSkill:
		_, err := io.WriteString(env.Stdout, mcpserver.Skill)
		return err
	case c.PrintConfig:
		return c.printConfig(env)
	}
	key, book, file, err := c.open()
	if err != nil {
		return err
	}
	options := mcpserver.Options{DID: key.DID(), Relay: c.Names(), Book: book, Folder: c.folder(file), Version: cli.Build(),
		Log: cli.NewLog(env), Tools: c.Tools, RaiseLimits: "agora mcp limits --key " + cli.ShellQuoted(file)}
	if err := os.MkdirAll(options.Folder, 0o700); err != nil {
		return err
	}
	if c.Many() {
		several := &severalRelays{env: env, key: key,
			flags: cli.NetworkPoster{Remotes: c.Remotes, Key: file, Proving: c.Proving}}
		defer func() { err = errors.Join(err, several.close()) }()
		options.Several, err = several.open()
	} else {
		options.Client, err = c.ConnectTo(env, c.First(), key)
	}
	if err != nil {
		return err
	}
	server := mcpserver.New(options)
	if c.HTTP != "" {
		return c.serveHTTP(env, server, file)
	}
	if env.StdinIsTerminal {
		env.Say("a host of an LLM starts this command and talks with it; agora mcp --print-config shows how. End it with Ctrl-D")
	}
	return server.Run(env.Ctx, &mcp.IOTransport{Reader: io.NopCloser(env.Stdin), Writer: openWriter{env.Stdout}})
}

// folder returns the folder for what the server remembers. The position in the events of one relay means nothing to
// another. Several relays have one folder, whatever their number.
func (c mcpServe) folder(keyFile string) string {
	name := "relays"
	if !c.Many() {
		name = fmt.Sprintf("%x", sha256.Sum256([]byte(c.First().Relay)))[:16]
	}
	return filepath.Join(keyFile+".mcp", name)
}

// severalRelays has the clients of a server with several relays.
type severalRelays struct {
	env   cli.Environment
	key   didkey.Key
	flags cli.NetworkPoster

	mu     sync.Mutex
	worker *client.Network  // nil: no tool has needed it
	state  *cli.LockedState // of worker
}

// open returns the relays for a server.
func (r *severalRelays) open() (*mcpserver.Several, error) {
	network, err := r.flags.AskingNetwork(r.env, r.key, client.NetworkOptions{})
	return &mcpserver.Several{Network: network, Worker: r.forWork}, err
}

// forWork is mcpserver.Several.Worker. It uses the state file of agora work, because a key can work only once at a
// time.
func (r *severalRelays) forWork() (*client.Network, *client.State, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.worker != nil {
		return r.worker, r.state.State, nil
	}
	file, err := r.flags.StateFile()
	if err != nil {
		return nil, nil, err
	}
	state, err := cli.OpenState(file, r.key.DID())
	if err != nil {
		return nil, nil, err
	}
	worker, err := r.flags.Network(r.env, r.key, 0, client.NetworkOptions{State: state.State})
	if err != nil {
		return nil, nil, errors.Join(err, state.Close())
	}
	r.worker, r.state = worker, state
	return worker, state.State, nil
}

// close closes the state file.
func (r *severalRelays) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == nil {
		return nil
	}
	return r.state.Close()
}

// openWriter is a writer that stays open.
type openWriter struct{ io.Writer }

func (openWriter) Close() error { return nil }

func (c mcpServe) serveHTTP(env cli.Environment, server *mcpserver.Server, keyFile string) error {
	token, where, err := c.token(keyFile)
	if err != nil {
		return err
	}
	address, err := loopback(c.HTTP)
	if err != nil {
		return err
	}
	l, err := new(net.ListenConfig).Listen(env.Ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("--http: %w", err)
	}
	env.Say("listening on http://%s%s; clients need the token in %s", l.Addr(), mcpserver.Path, where)
	return server.RunHTTP(env.Ctx, l, token)
}

// shortestToken is how many characters a token must have at least.
const shortestToken = 20

// token returns the token that clients need, and where it is.
func (c mcpServe) token(keyFile string) (token, where string, err error) {
	const variable = "AGORA_MCP_TOKEN"
	if token, where = strings.TrimSpace(os.Getenv(variable)), variable; token == "" {
		if where = c.TokenFile; where == "" {
			where = keyFile + ".token"
		}
		token, err = cli.ReadOperatorKey(where)
		if errors.Is(err, fs.ErrNotExist) {
			token = envelope.NewNonce()
			err = fsync.Create(where, []byte(token+"\n"))
		}
	}
	if err == nil && (len(token) < shortestToken || strings.ContainsAny(token, " \t\r\n")) {
		err = fmt.Errorf("the token in %s needs at least %d characters without spaces", where, shortestToken)
	}
	return token, where, err
}

func (c mcpServe) printConfig(env cli.Environment) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	key, err := filepath.Abs(c.Key)
	if err != nil {
		return err
	}
	args := []string{"mcp", "--key", key}
	for _, relay := range c.URLs() {
		args = append(args, "--relay", relay)
	}
	if c.Discover {
		args = append(args, "--discover")
	}
	if c.Private {
		args = append(args, "--private")
	}
	if c.Tools != "" {
		args = append(args, "--tools", c.Tools)
	}
	where, text, err := mcpserver.Config(c.host(), program, args)
	if err != nil {
		return err
	}
	env.Say("%s", where)
	_, err = io.WriteString(env.Stdout, text)
	return err
}

type mcpLimits struct {
	mcpKey
	PerJob    *cli.CreditAmount `placeholder:"USD" help:"The most that one job may cost."`
	PerDay    *cli.CreditAmount `placeholder:"USD" help:"The most that all jobs of 24 hours may cost."`
	Intent    []string          `sep:"none" placeholder:"INTENT" help:"Allow only this intent; text.* allows all that begin with text. May be repeated."`
	AnyIntent bool              `help:"Allow all intents again."`
	Agent     []cli.DIDText     `sep:"none" placeholder:"DID" help:"Allow to hire only this agent. May be repeated."`
	AnyAgent  bool              `help:"Allow to hire any agent again."`
}

func (c mcpLimits) Validate() error {
	if c.AnyIntent && len(c.Intent) > 0 || c.AnyAgent && len(c.Agent) > 0 {
		return errors.New("--any-intent excludes --intent, and --any-agent excludes --agent")
	}
	return nil
}

func (mcpLimits) Help() string {
	return "Shows what the LLM may spend with this key, and what is reserved or spent of it, as one line of JSON. With flags it " +
		"changes the limits first; a running server obeys them at once. Without limits the LLM can accept only offers that are " +
		"free. The limits are in a file beside the key, with .spending after its name. No tool of agora mcp " +
		"changes it. But an LLM that can also run commands on this machine in your name can run this command.\n\n" +
		"Examples:\n  agora mcp limits --key alice.key\n  agora mcp limits --key alice.key --per-job 0.10 --per-day 1\n" +
		"  agora mcp limits --key alice.key --intent 'translation.*' --any-agent"
}

func (c mcpLimits) Run(env cli.Environment) error {
	if _, err := os.Stat(c.Key); errors.Is(err, fs.ErrNotExist) { // a mistyped name must not become a new identity
		return fmt.Errorf("there is no key %s; create one with agora keygen %s", c.Key, cli.ShellQuoted(c.Key))
	}
	_, book, _, err := c.open()
	if err != nil {
		return err
	}
	if c.PerJob != nil || c.PerDay != nil || len(c.Intent) > 0 || len(c.Agent) > 0 || c.AnyIntent || c.AnyAgent {
		if err := book.SetLimits(env.Ctx, c.change); err != nil {
			return err
		}
	}
	status, err := book.Status(env.Ctx)
	if err != nil {
		return err
	}
	if status.Limits.PerJob > status.Limits.PerDay {
		env.Say("a job can cost at most the limit of a day, %v USD", status.Limits.PerDay)
	}
	return env.PrintJSON(struct {
		Limits   spending.Limits        `json:"limits"`
		Reserved credits.Amount         `json:"reserved_usd"`
		Jobs     []spending.Reservation `json:"jobs"`
	}{status.Limits, status.Reserved, append([]spending.Reservation{}, status.Jobs...)})
}

func (c mcpLimits) change(l *spending.Limits) {
	if c.PerJob != nil {
		l.PerJob = credits.Amount(*c.PerJob)
	}
	if c.PerDay != nil {
		l.PerDay = credits.Amount(*c.PerDay)
	}
	if c.AnyIntent || len(c.Intent) > 0 {
		l.Intents = c.Intent
	}
	if c.AnyAgent || len(c.Agent) > 0 {
		l.Agents = nil
	}
	for _, agent := range c.Agent {
		l.Agents = append(l.Agents, didkey.DID(agent))
	}
}

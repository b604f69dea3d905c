package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/settings"
	"github.com/alecthomas/kong"
)

var update = flag.Bool("update", false, "write the generated part of docs/CONFIGURATION.md")

// clearSettings removes the variables of other tests and of the user from the environment.
func clearSettings(t *testing.T) {
	t.Helper()
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "AGORA_") {
			t.Setenv(name, "")
		}
	}
}

// configFile writes a configuration file and returns its name.
func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agora.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// settingsByName parses the flags of serve and returns all settings.
func settingsByName(t *testing.T, args ...string) (map[string]settings.Setting, error) {
	t.Helper()
	cmd, parsed, err := parseServe(append([]string{"serve"}, args...))
	if err != nil {
		return nil, err
	}
	byName := map[string]settings.Setting{}
	for _, s := range cmd.Sources.Of(parsed) {
		byName[s.Flag.Name] = s
	}
	return byName, nil
}

// TestPrecedence gives each setting in three ways, then in two, then in one.
func TestPrecedence(t *testing.T) {
	for _, c := range []struct{ name, inFile, inEnvironment, onCommandLine, wantFile, wantEnvironment, wantCommandLine string }{
		{"max-body", `"64KiB"`, "96KiB", "32KiB", `"64KiB"`, `"96KiB"`, `"32KiB"`},
		{"max-body", `70000`, "80000", "90000", `"70000"`, `"80000"`, `"90000"`},
		{"post-rate-ip", `7`, "8.5", "9", `7`, `8.5`, `9`},
		{"max-polls", `7`, "8", "9", `7`, `8`, `9`},
		{"max-ttl", `"7d"`, "8d", "90m", `"7d"`, `"8d"`, `"1h30m"`},
		{"access-log", `true`, "1", "true", `true`, `true`, `true`},
		{"page", `false`, "no", "false", `false`, `false`, `false`},
		{"log-level", `"warn"`, "DEBUG", "error", `"warn"`, `"debug"`, `"error"`},
		{"reads", `"parties"`, "parties", "open", `"parties"`, `"parties"`, `"open"`},
		{"trusted-proxy", `["10.0.0.1", "unix"]`, "10.0.0.2, fd00::/8", "10.0.0.3", `["10.0.0.1/32", "unix"]`, `["10.0.0.2/32", "fd00::/8"]`, `["10.0.0.3/32"]`},
		{"ban", `"192.0.2.1"`, "192.0.2.2 192.0.2.3", "192.0.2.0/24", `["192.0.2.1/32"]`, `["192.0.2.2/32", "192.0.2.3/32"]`, `["192.0.2.0/24"]`},
		{"outbound-allow", `["10.0.0.0/8"]`, "localhost", "10.1.0.0/16", `["10.0.0.0/8"]`, `["localhost"]`, `["10.1.0.0/16"]`},
		{"addr", `"127.0.0.1:1"`, "127.0.0.1:2", "unix:/run/agora.sock", `"127.0.0.1:1"`, `"127.0.0.1:2"`, `"unix:/run/agora.sock"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			clearSettings(t)
			check := func(want, source string, args ...string) {
				t.Helper()
				settings, err := settingsByName(t, args...)
				if s := settings[c.name]; err != nil || s.Value != want || !strings.HasPrefix(s.Source, source) {
					t.Errorf("%s from %s, want %s from %s (%v)", s.Value, s.Source, want, source, err)
				}
			}
			file := configFile(t, c.name+" = "+c.inFile+"\n")
			if settings, err := settingsByName(t); err != nil || settings[c.name].Source != "default" {
				t.Errorf("without values: from %s, %v", settings[c.name].Source, err)
			}
			check(c.wantFile, "file "+file, "--config", file)
			t.Setenv("AGORA_CONFIG", file)
			check(c.wantFile, "file "+file)
			t.Setenv(settings.Variable(c.name), c.inEnvironment)
			check(c.wantEnvironment, "environment "+settings.Variable(c.name))
			check(c.wantCommandLine, "command line", "--"+c.name+"="+c.onCommandLine)
		})
	}
}

// TestWrongSettings checks that each wrong setting is refused with its name, its source and what to do.
func TestWrongSettings(t *testing.T) {
	for file, want := range map[string]string{
		`pots-rate-ip = 3`:                                   `"pots-rate-ip" is not a setting; did you mean "post-rate-ip"?`,
		`max_body = 3`:                                       `did you mean "max-body"?`,
		`zzzzzzzz = 3`:                                       `"zzzzzzzz" is not a setting; agora serve --help lists them`,
		"[limits]\npost-rate-ip = 3":                         `"limits" is a section; write all settings at the top level`,
		"[[ban]]\nx = 1":                                     `ban: want a text in quotes, a number, true or false`,
		`max-body = "3 parsecs"`:                             `max-body: "3 parsecs" is not a size`,
		`max-ttl = 5`:                                        `max-ttl: "5" is not a duration`,
		`post-rate-ip = "many"`:                              `post-rate-ip: "many" is not a number`,
		`post-rate-ip = [1, 2]`:                              `post-rate-ip: want one value, not a list`,
		`post-rate-ip = nan`:                                 `post-rate-ip: "NaN" is not a number`,
		`hub = "perhaps"`:                                    `hub: bool value must be`,
		`trusted-proxy = ["everybody"]`:                      `trusted-proxy: "everybody": want the proxy's address or network`,
		`ban = ["10.0.0.0/8", "did:key:zX"]`:                 `ban: "did:key:zX": want an address or network`,
		`domain = "*.example.org"`:                           `domain: "*.example.org": want a host name`,
		`domain = "192.0.2.1"`:                               `domain: "192.0.2.1": want a host name`,
		`log-level = "loud"`:                                 `log-level: "loud" is not a level`,
		`addr = 127.0.0.1:8789`:                              `texts need quotes`,
		`public-url = "x"`:                                   `want an origin such as https://relay.example, without a path (public-url comes from the file `,
		`acme-email = "a@b.example"`:                         `--acme-email has no effect without --domain`,
		"metrics-addr = \":80\"\naddr = \":80\"":             `--metrics-addr must be another address than --addr (metrics-addr comes from`,
		`metrics-addr = "127.0.0.1:8789"`:                    `--metrics-addr must be another address than --addr`,
		"domain = \"a.example\"\naddr = \":80\"":             `--http-addr must be another address than --addr`,
		"domain = \"a.example\"\nmetrics-addr = \":80\"":     `--metrics-addr must be another address than --http-addr`,
		"addr = \"unix:/a:0\"\nmetrics-addr = \"unix:/a:0\"": `--metrics-addr must be another address than --addr`,
		"hub = true\nhub-addr = \":9\"\naddr = \":9\"":       `--hub-addr must be another address than --addr`,
		"channel = true\nchannel-addr = \":9\"\nhub = true\nhub-addr = \":9\"": `--channel-addr must be another address than --hub-addr`,
		"jobs = true\njobs-addr = \":9\"\naddr = \":9\"":                       `--jobs-addr must be another address than --addr`,
		"reads = \"parties\"\naddr = \":80\"":                                  `--reads parties needs the relay's public URL`,
		"tls-cert = \"c.pem\"\ntls-key = \"k.pem\"\nhttp-addr = \":80\"":       `give the relay's public URL with --public-url`,
		"domain = \"a.example\"\npublic-url = \"http://a.example\"":            `write it with https:`,
		`reads = "nobody"`:                        `--reads must be one of "open","parties" but got "nobody"`,
		`post-rate-ip = 1e99`:                     `--post-rate-ip must be from 0.01 to 1000000`,
		`accept-loss = true`:                      `accept-loss can be given only on the command line`,
		`check-config = true`:                     `check-config can be given only on the command line`,
		`config = "x"`:                            `config can be given only on the command line`,
		"max-polls = 1\nmax-polls = 2":            `line 2: `,
		`max-polls = `:                            `line 1: `,
		`max-polls = 1 2`:                         `line 1: `,
		`tls-cert = "c.pem"`:                      `--tls-cert and --tls-key belong together`,
		`http-addr = ":80"`:                       `--http-addr redirects to HTTPS`,
		`acme-directory = "http://u:p@localhost"`: `acme-directory: want a URL`,
		`max-polls = 1979-05-27`:                  `max-polls: want a text in quotes`,
	} {
		clearSettings(t)
		_, err := settingsByName(t, "--config", configFile(t, file))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want %s", file, err, want)
		}
	}
	for name, c := range map[string]struct{ value, want string }{
		"AGORA_MAX_TTL":      {"5x", `AGORA_MAX_TTL: "5x" is not a duration`},
		"AGORA_BAN":          {"10.0.0.1,nobody", `AGORA_BAN: "nobody": want an address or network`},
		"AGORA_ACCEPT_LOSS":  {"1", "AGORA_ACCEPT_LOSS: --accept-loss can be given only on the command line"},
		"AGORA_NEW_IDENTITY": {"1", "can be given only on the command line"},
		"AGORA_CONFIG":       {"/nowhere/agora.toml", "/nowhere/agora.toml: no such file"},
		"AGORA_STORE":        {"mysql://secret", "AGORA_STORE: "},
	} {
		clearSettings(t)
		t.Setenv(name, c.value)
		if _, err := settingsByName(t); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s=%s: %v; want %s", name, c.value, err, c.want)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("the error shows a secret: %v", err)
		}
		t.Setenv(name, "")
	}
	large := configFile(t, strings.Repeat("# long\n", (1<<20)/7+1))
	if _, err := settingsByName(t, "--config", large); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("a large file: %v", err)
	}
	open := configFile(t, `store = "postgres://agora:abc@db/agora"`)
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := settingsByName(t, "--config", open); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a secret that others may read: %v", err)
	}
}

// printed returns the output of serve --print-config.
func printed(t *testing.T, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	env := cli.Environment{Ctx: t.Context(), Stdout: &stdout, Stderr: &stderr}
	if code := run(env, append([]string{"serve", "--print-config"}, args...)); code != cli.ExitOK {
		t.Fatalf("ended with %d: %s", code, stderr.String())
	}
	return stdout.String()
}

// TestPrintConfig checks that the printed configuration is a file with the same settings, also if values have
// characters that mean something in TOML, and that secrets are not in it.
func TestPrintConfig(t *testing.T) {
	clearSettings(t)
	hostile := "a\"b\\c\n post-rate-ip = 1 # \x1b[31m\u2028é"
	t.Setenv("AGORA_DATA", hostile)
	args := []string{"--max-body=96KiB", "--max-ttl=36h", "--ban=192.0.2.1", "--store=postgres://agora:Bearer@db/agora",
		"--tls-cert=c.pem", "--tls-key=k.pem"}
	text := printed(t, args...)
	if strings.Contains(text, "Bearer") || !strings.Contains(text, `# store = "(secret)"  # command line`) {
		t.Errorf("the secret is not masked:\n%s", text)
	}
	for _, want := range []string{"max-body = \"96KiB\"  # command line\n", "max-ttl = \"36h\"  # command line\n",
		"ban = [\"192.0.2.1/32\"]  # command line\n", "addr = \"127.0.0.1:8789\"  # default\n", "# environment AGORA_DATA\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
	before, err := settingsByName(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	clearSettings(t)
	after, err := settingsByName(t, "--config", configFile(t, text))
	if err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	for name, s := range before {
		if !s.Secret() && after[name].Value != s.Value {
			t.Errorf("%s: %s, printed and read again: %s", name, s.Value, after[name].Value)
		}
	}
	if len(before) < 40 {
		t.Errorf("only %d settings", len(before))
	}
}

// TestDependentDefaults checks the defaults that depend on --domain.
func TestDependentDefaults(t *testing.T) {
	clearSettings(t)
	for _, c := range []struct{ args, addr, http, url string }{
		{"", `"127.0.0.1:8789"`, `"off"`, ""},
		{"--domain relay.example.org --domain Other.example.org", `":443"`, `":80"`, `"https://relay.example.org"`},
		{"--domain relay.example.org --addr :8443 --http-addr off", `":8443"`, `"off"`, `"https://relay.example.org"`},
		{"--domain relay.example.org --addr [::1]:443", `"[::1]:443"`, `":80"`, `"https://relay.example.org"`},
		{"--domain relay.example.org --addr unix:/run/a.sock --public-url https://x.example", `"unix:/run/a.sock"`, `":80"`, `"https://x.example"`},
		{"--tls-cert c.pem --tls-key k.pem --http-addr :80 --public-url https://x.example", `"127.0.0.1:8789"`, `":80"`, `"https://x.example"`},
		{"--addr 127.0.0.1:0 --metrics-addr 127.0.0.1:0", `"127.0.0.1:0"`, `"off"`, ""},
		{"--domain relay.example.org --reads parties", `":443"`, `":80"`, `"https://relay.example.org"`},
	} {
		s, err := settingsByName(t, strings.Fields(c.args)...)
		if err != nil || s["addr"].Value != c.addr || s["http-addr"].Value != c.http || s["public-url"].Value != c.url {
			t.Errorf("%s: %s, %s, %s (%v)", c.args, s["addr"].Value, s["http-addr"].Value, s["public-url"].Value, err)
		}
	}
}

// TestCheckConfig runs serve --check-config, which starts nothing.
func TestCheckConfig(t *testing.T) {
	clearSettings(t)
	folder := filepath.Join(t.TempDir(), "data")
	for args, want := range map[string]int{"": cli.ExitOK, "--tls-cert=nowhere.pem --tls-key=nowhere.pem": cli.ExitFailed,
		"--config=nowhere.toml": cli.ExitUsage, "--domain=relay.example.org --acme-roots=nowhere.pem": cli.ExitFailed} {
		var stdout, stderr bytes.Buffer
		code := run(cli.Environment{Ctx: t.Context(), Stdout: &stdout, Stderr: &stderr},
			append([]string{"serve", "--check-config", "--data", folder}, strings.Fields(args)...))
		if code != want || (stdout.String() == "the configuration is valid\n") != (want == cli.ExitOK) {
			t.Errorf("%s: ended with %d: %s%s", args, code, stdout.String(), stderr.String())
		}
	}
	if _, err := os.Stat(folder); err == nil {
		t.Error("the data folder was created")
	}
	t.Setenv("AGORA_MAX_BODDY", "1")
	var stdout, stderr bytes.Buffer
	code := run(cli.Environment{Ctx: t.Context(), Stdout: &stdout, Stderr: &stderr}, []string{"serve", "--check-config",
		"--public-url", "https://relay.example", "--trusted-proxy", "0.0.0.0/0", "--trusted-proxy", "unix", "--jobs-initial", "5",
		"--hub-agents", "7", "--outbound-allow", "localhost"})
	for _, want := range []string{"AGORA_MAX_BODDY is not a setting", "0.0.0.0/0 trusts everybody", "unix has no effect",
		"--jobs-initial has no effect without --jobs\n", "--hub-agents has no effect without --hub\n",
		"--outbound-allow has no effect without a gateway: --hub, --channel, --jobs or --a2a\n"} {
		if code != cli.ExitOK || !strings.Contains(stderr.String(), "agora: warning: ") || !strings.Contains(stderr.String(), want) {
			t.Errorf("ended with %d, want a warning that says %q:\n%s", code, want, stderr.String())
		}
	}
}

// TestStrangeVariables checks that a misspelled variable is found, and a variable of something else is not.
func TestStrangeVariables(t *testing.T) {
	clearSettings(t)
	t.Setenv("AGORA_MAX_BODDY", "1")
	t.Setenv("AGORA_SERVICE_HOST", "10.0.0.1") // as Kubernetes sets it for a service with the name agora
	t.Setenv("AGORA_PORT", "tcp://10.0.0.1:80")
	t.Setenv("AGORA_KEY", "alice.key")
	parser, err := newParser(new(commandLine), kong.Exit(func(int) {}))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parser.Parse([]string{"serve"})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(settings.Misspelled(parsed)); got != "[the variable AGORA_MAX_BODDY is not a setting; did you mean AGORA_MAX_BODY?]" {
		t.Error(got)
	}
}

// reference returns the list of all settings for docs/CONFIGURATION.md. It leaves out what the page says of all: that a
// limit of 0 is none, that switches are off, and how lists are written.
func reference(t *testing.T) string {
	t.Helper()
	clearSettings(t)
	cmd, parsed, err := parseServe([]string{"serve"})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	group := "Relay"
	heading := func() { fmt.Fprintf(&b, "\n### %s\n\n", group) }
	heading()
	for _, s := range cmd.Sources.Of(parsed) {
		if s.Flag.Group != nil && s.Flag.Group.Title != group {
			group = s.Flag.Group.Title
			heading()
		}
		fmt.Fprintf(&b, "- `%s`", s.Flag.Name)
		if s.Value != "" && s.Value != "false" {
			fmt.Fprintf(&b, " = `%s`", s.Value)
		}
		for _, mark := range []struct {
			is   bool
			name string
		}{{s.Flag.IsSlice(), "list"}, {s.Secret(), "secret"}, {s.Flag.Tag.Has("reload"), "reload"}} {
			if mark.is {
				fmt.Fprintf(&b, " [%s]", mark.name)
			}
		}
		help := strings.Replace(s.Flag.Tag.Help, " (default: ${default})", "", 1)
		help = strings.NewReplacer(" May be repeated.", "", " 0: no limit.", "", "; 0: no limit.", ".").Replace(help)
		fmt.Fprintf(&b, ": %s\n", help)
	}
	return b.String()
}

// TestReference checks that docs/CONFIGURATION.md lists every setting as the program has it. With -update it writes the
// list.
func TestReference(t *testing.T) {
	const path, begin, end = "../../docs/CONFIGURATION.md", "<!-- settings -->\n", "<!-- end of settings -->"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	old, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no marks for the settings", path)
	}
	now := reference(t) + "\n"
	if *update {
		if err := os.WriteFile(path, []byte(before+begin+now+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if old != now {
		t.Error("the settings in docs/CONFIGURATION.md are not those of the program; run: go test ./cmd/agora -run TestReference -update")
	}
}

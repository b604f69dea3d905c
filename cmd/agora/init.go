package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/fsync"
	"github.com/agora-relay/agora/internal/profile"
)

type initCmd struct {
	Name     string      `placeholder:"NAME" help:"Your name: in your address book, and in the manifest."`
	Relay    cli.URLText `placeholder:"URL" help:"The relay (default: AGORA_RELAY, or else ${relay})."`
	Key      string      `placeholder:"FILE" help:"Your key file. It is created if it does not exist (default: a file beside the profile)."`
	Intent   []string    `sep:"none" placeholder:"INTENT" help:"A service that you offer, such as translation.en_zh. It goes into a first manifest. May be repeated."`
	Price    *float64    `placeholder:"USD" help:"The price of a service, with --intent."`
	Announce bool        `help:"Post the manifest."`
}

func (initCmd) Help() string {
	return "Makes a key and a profile with the key and the relay, so that the other commands need no flags. With --intent, " +
		"also writes a first manifest that says what you offer. Checks that the relay answers. Without flags, on a terminal, it " +
		"asks. It never overwrites a file: a second run says what is there, and adds what is missing.\n\n" +
		"--profile NAME makes another profile, for another relay or another key; agora profile lists all.\n\n" +
		"Examples:\n  agora init\n  agora init --name alice --relay https://relay.example\n" +
		"  agora init --profile bob --name bob --intent translation.en_zh --price 0.01 --announce"
}

func (c initCmd) Validate() error {
	switch {
	case c.Price != nil && (*c.Price < 0 || len(c.Intent) == 0):
		return errors.New("--price must not be negative, and needs --intent")
	case c.Name != "":
		if err := profile.CheckPerson(c.Name); err != nil {
			return fmt.Errorf("--name: %w", err)
		}
	}
	for _, intent := range c.Intent {
		if err := checkIntent(intent); err != nil {
			return fmt.Errorf("--intent: %w", err)
		}
	}
	return nil
}

// checkIntent checks the name of a service that a person types.
func checkIntent(intent string) error {
	if !envelope.ValidID(intent) {
		return errors.New("want a name such as translation.en_zh: letters, digits and ._:~-")
	}
	return nil
}

// beginning is what agora init does, and what it finds.
type beginning struct {
	initCmd
	env     cli.Environment
	folder  string
	profile string           // its name
	before  *profile.Profile // nil: there is no such profile yet
	key     didkey.Key
	rows    [][]string // what is reported
	changed bool
}

func (c initCmd) Run(env cli.Environment, parsed *kong.Context) error {
	b := beginning{initCmd: c, env: env, profile: cli.OrDefault(profileName(parsed))}
	if err := b.find(); err != nil {
		return err
	}
	if b.before == nil && c.withoutFlags() && env.StdinIsTerminal && env.StdoutIsTerminal {
		if err := b.askAll(); err != nil {
			return err
		}
	}
	for _, step := range []func() error{b.complete, b.makeKey, b.makeName, b.makeProfile, b.makeManifest} {
		if err := step(); err != nil {
			return err
		}
	}
	posted, err := b.useRelay()
	return errors.Join(b.report(posted), err)
}

// withoutFlags reports whether the command line says nothing. Only then may init ask: a person who pastes it together with
// other commands would otherwise answer with these.
func (c initCmd) withoutFlags() bool {
	return c.Name == "" && c.Relay == "" && c.Key == "" && len(c.Intent) == 0 && c.Price == nil && !c.Announce
}

// find reads the profile, if it exists, and refuses flags that differ from it.
func (b *beginning) find() (err error) {
	if err := profile.CheckName(b.profile); err != nil {
		return fmt.Errorf("--profile: %w", err)
	}
	if b.folder, err = profile.Folder(); err != nil {
		return err
	}
	b.before, err = profile.Load(b.folder, b.profile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	relay, key := b.before.Text("relay"), b.before.File("key")
	given, err := filepath.Abs(b.Key)
	if err == nil && (b.Relay != "" && string(b.Relay) != relay || b.Key != "" && given != key) {
		err = fmt.Errorf("the profile %s exists already, with the relay %s and the key %s; edit %s, or make another profile with "+
			"--profile NAME", b.profile, cmp.Or(relay, "of AGORA_RELAY"), cmp.Or(key, "of AGORA_KEY"), shownPath(b.before.Path))
	}
	b.Relay, b.Key = cli.URLText(relay), key
	return err
}

// complete sets what neither a flag nor an answer has set.
func (b *beginning) complete() (err error) {
	if b.Relay == "" {
		if err := b.Relay.UnmarshalText([]byte(defaultRelay())); err != nil {
			return fmt.Errorf("AGORA_RELAY: %w", err)
		}
	}
	if b.Key == "" {
		b.Key = profile.Path(b.folder, b.profile, ".key")
	}
	if b.Key, err = filepath.Abs(b.Key); err != nil {
		return err
	}
	return profile.MakeFolder(b.folder)
}

func defaultRelay() string { return cmp.Or(os.Getenv("AGORA_RELAY"), cli.RelayURL) }

// add adds a line to the report. found says that what it names existed before.
func (b *beginning) add(what, text string, found bool) {
	if !found {
		b.changed, text = true, text+"  (new)"
	}
	b.rows = append(b.rows, []string{what, text})
}

// makeKey loads the key, or makes a new one.
func (b *beginning) makeKey() error {
	_, missing := os.Stat(b.Key)
	if err := b.nameIsFree(missing != nil); err != nil {
		return err
	}
	key, err := didkey.LoadOrCreate(b.Key)
	if err != nil {
		return err
	}
	b.key = key
	b.add("key", shownPath(b.Key), missing == nil)
	b.rows = append(b.rows, []string{"identity", string(key.DID())})
	return nil
}

// nameIsFree returns an error if the name belongs to somebody else, so that a new key cannot have it. It is called
// before the key is made.
func (b *beginning) nameIsFree(newKey bool) error {
	book, err := profile.NewNames(b.folder).Read()
	if err != nil {
		return err
	}
	if did, taken := book.DID(b.Name); taken && newKey {
		return fmt.Errorf("--name: %s is already the name of %s; choose another, or remove it: agora name --remove %s", b.Name, did,
			b.Name)
	}
	return nil
}

func (b *beginning) makeName() error {
	names := profile.NewNames(b.folder)
	if b.Name == "" {
		book, err := names.Read()
		if name := book.Name(b.key.DID()); name != "" {
			b.add("name", name, true)
		}
		return err
	}
	before, err := names.Set(b.env.Ctx, b.Name, b.key.DID())
	if errors.Is(err, profile.ErrTaken) {
		return fmt.Errorf("--name: %w; choose another, or remove it: agora name --remove %s", err, b.Name)
	}
	b.add("name", b.Name, before == b.Name)
	return err
}

func (b *beginning) makeProfile() error {
	path := profile.Path(b.folder, b.profile, ".toml")
	if b.before == nil {
		values := map[string]any{"relay": string(b.Relay), "key": b.Key}
		if filepath.Dir(b.Key) == filepath.Dir(path) {
			values["key"] = filepath.Base(b.Key)
		}
		if _, err := profile.Create(b.folder, b.profile, values); err != nil {
			return err
		}
	}
	b.add("profile", shownPath(path), b.before != nil)
	return nil
}

// manifestFile returns the name of the manifest's file.
func (b *beginning) manifestFile() string { return profile.Path(b.folder, b.profile, ".manifest.json") }

// makeManifest writes a first manifest if there are services to offer.
func (b *beginning) makeManifest() error {
	_, missing := os.Stat(b.manifestFile())
	switch {
	case missing == nil && len(b.Intent) > 0:
		b.env.Say("the manifest %s exists already, and is not changed; edit it to offer other services", shownPath(b.manifestFile()))
	case missing == nil:
	case len(b.Intent) == 0 && b.Announce:
		return errors.New("there is no manifest to announce; say what you offer with --intent")
	case len(b.Intent) == 0:
		return nil
	default:
		if err := fsync.Create(b.manifestFile(), b.manifest()); err != nil {
			return err
		}
	}
	b.add("manifest", shownPath(b.manifestFile()), missing == nil)
	return nil
}

func (b *beginning) manifest() []byte {
	m := envelope.Manifest{ID: "cap_" + cmp.Or(b.Name, b.profile), Name: b.Name}
	for _, intent := range b.Intent {
		m.Intents = append(m.Intents, envelope.Intent{ID: intent})
	}
	if b.Price != nil {
		m.Pricing = &envelope.Pricing{Model: "fixed", Currency: "USD", FixedPrice: *b.Price}
		if *b.Price == 0 {
			m.Pricing = &envelope.Pricing{Model: "free"}
		}
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		panic(err) // texts and numbers always have a JSON form
	}
	return append(text, '\n')
}

// relayCheckTimeout is how long agora init waits for the relay.
const relayCheckTimeout = 5 * time.Second

// useRelay checks that the relay answers, and announces the manifest if it is to be announced. posted says that it was.
// That the relay does not answer is an error only if there is something to announce.
func (b *beginning) useRelay() (posted bool, err error) {
	ctx, cancel := context.WithTimeout(b.env.Ctx, relayCheckTimeout)
	defer cancel()
	at := cli.Remote{Relay: b.Relay}
	relay, err := at.Connect(b.env, b.key)
	if err != nil {
		return false, err
	}
	answers := "answers"
	info, err := relay.Info(ctx)
	if err != nil {
		answers = "does not answer now"
	} else if info.Private() {
		answers = "answers; it shows messages to their parties only"
	}
	b.rows = append(b.rows, []string{"relay", string(b.Relay) + "  (" + answers + ")"})
	switch {
	case err != nil && b.Announce:
		return false, fmt.Errorf("the manifest was not announced: %w", cli.ExplainDial(err))
	case err != nil:
		b.env.Explain(err)
		return false, nil
	case !b.Announce:
		return false, nil
	}
	text, err := os.ReadFile(b.manifestFile())
	if err != nil {
		return false, err
	}
	_, _, err = relay.Post(ctx, envelope.Draft{Payload: envelope.Raw{Type: envelope.TypeManifest, JSON: text}})
	if err != nil {
		return false, fmt.Errorf("the manifest was not announced: %w", err)
	}
	b.changed = true
	b.rows = append(b.rows, []string{"", "the manifest is announced"})
	return true, nil
}

// report prints what there is now, and which commands could come next.
func (b *beginning) report(posted bool) error {
	var text strings.Builder
	text.Write(cli.AlignedTable(b.rows, nil))
	if !b.changed {
		text.WriteString("Nothing has changed: all of this was there before.\n")
	}
	agora := "agora"
	if b.profile != profile.Default && os.Getenv("AGORA_PROFILE") != b.profile {
		agora += " --profile " + b.profile
	}
	_, noManifest := os.Stat(b.manifestFile())
	next := [][]string{{"agents", "who is there, and what they offer"}, {"follow", "the messages to you, as they arrive"},
		{"threads", "your threads"},
		{"ask INTENT", "asks for a service, and prints the result; agora ask --help has examples"}}
	switch {
	case noManifest == nil && !posted:
		next[0] = []string{"send manifest " + shownPath(b.manifestFile()), "says what you offer"}
		next[1][0] += " --broadcast"
	case posted:
		next[1][0] += " --broadcast"
	}
	text.WriteString("\nNext:\n")
	for _, command := range next {
		fmt.Fprintf(&text, "  # %s\n  %s %s\n", command[1], agora, command[0])
	}
	for name, value := range map[string]string{"AGORA_RELAY": string(b.Relay), "AGORA_KEY": b.Key} {
		if set := os.Getenv(name); set != "" && set != value {
			b.env.Say("the variable %s is set to %s, and comes before the profile; unset it to use the profile", name, set)
		}
	}
	_, err := io.WriteString(b.env.Stdout, text.String())
	return err
}

// shownPath returns the name of a file in the form that a shell needs, with ~ for the home of the user.
func shownPath(path string) string {
	home, err := os.UserHomeDir()
	if rest, ok := strings.CutPrefix(path, home+string(filepath.Separator)); ok && err == nil && home != "" {
		return "~/" + cli.ShellQuoted(filepath.ToSlash(rest))
	}
	return cli.ShellQuoted(path)
}

// askAll asks for everything that a flag could say. There is none.
func (b *beginning) askAll() error {
	in := cli.NewQuestions(b.env)
	fmt.Fprintf(b.env.Stdout, "This makes the profile %s. Press Enter to take what is in brackets.\n", b.profile)
	in.Ask("Your name", loginName(), func(text string) error {
		if b.Name = text; text == "" {
			return nil
		}
		return profile.CheckPerson(text)
	})
	in.Ask("The relay", defaultRelay(), func(text string) error { return b.Relay.UnmarshalText([]byte(text)) })
	in.Ask("Services that you offer, such as translation.en_zh, separated by spaces (none)", "", func(text string) error {
		b.Intent = strings.Fields(text)
		return b.Validate()
	})
	if len(b.Intent) > 0 {
		in.Ask("The price of a service in USD (not said)", "", func(text string) error {
			if text == "" {
				return nil
			}
			number, err := strconv.ParseFloat(text, 64)
			if b.Price = &number; err != nil || number < 0 {
				return errors.New("want a number such as 0.01")
			}
			return nil
		})
	}
	if len(b.Intent) > 0 {
		in.Ask("Announce them now? yes or no", "no", func(text string) error {
			b.Announce = strings.HasPrefix("yes", strings.ToLower(text))
			if !b.Announce && !strings.HasPrefix("no", strings.ToLower(text)) {
				return errors.New("want yes or no")
			}
			return nil
		})
	}
	return in.Err
}

// loginName returns the name of the user, if it can be a name of the address book. It returns nothing for root, because
// that is not a person's name.
func loginName() string {
	u, err := user.Current()
	if err != nil || u.Uid == "0" || profile.CheckPerson(u.Username) != nil {
		return ""
	}
	return u.Username
}

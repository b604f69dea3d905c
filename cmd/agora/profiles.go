package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/settings"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/internal/profile"
)

// A flag of a command takes its value from the command line, or else from its environment variable, or else from the
// profile, or else it has its default. The settings relay, key and private of a profile are for all commands that take
// them also from AGORA_RELAY, AGORA_KEY and AGORA_PRIVATE. A table of a profile, such as [follow] or [send.request], has
// flags of one command.

// profileSettings are the settings of a profile that are not in a table.
var profileSettings = []string{"relay", "key", "private"}

// BeforeResolve takes flags from the profile. kong calls it.
func (c *commandLine) BeforeResolve(ctx *kong.Context) error {
	chosen := cli.ChosenProfile{}
	defer func() { ctx.Bind(chosen) }()
	command := ctx.Selected()
	if command == nil || !readsProfile(command) {
		return nil
	}
	p, err := loadProfile(profileName(ctx))
	if err != nil || p == nil {
		return err
	}
	chosen.Profile = p
	values := settings.Values{}
	if err := fromProfile(p, ctx.Model.Node, command, values); err != nil {
		return fmt.Errorf("%s: %w", p.Path, err)
	}
	ctx.AddResolver(values)
	return nil
}

// AfterApply refuses a command line that lacks a flag with the tag needed. kong itself must not require the flag,
// because its value may come from a profile. The tag's value names another flag that replaces it; empty: none does.
// kong calls AfterApply.
func (*commandLine) AfterApply(ctx *kong.Context) error {
	if command := ctx.Selected(); command != nil {
		for _, flag := range command.Flags {
			replaced := slices.ContainsFunc(command.Flags, func(other *kong.Flag) bool {
				return other.Name == flag.Tag.Get("needed") && ctx.FlagValue(other) == true
			})
			if flag.Tag.Has("needed") && !replaced && ctx.FlagValue(flag) == "" {
				return errors.New("no key: make one with agora init, or give --key or AGORA_KEY")
			}
		}
	}
	return nil
}

// profileName returns the value of --profile, which kong also takes from AGORA_PROFILE; empty: none is named.
func profileName(ctx *kong.Context) string {
	for _, flag := range ctx.Model.Flags {
		if flag.Name == "profile" {
			name, _ := ctx.FlagValue(flag).(string)
			return name
		}
	}
	return ""
}

// readsProfile reports whether a command takes settings from a profile: it talks to a relay or uses a key. The flag --jobs
// counts where it is the URL of a registry, which follows from the relay. agora serve has a flag of this name too, but
// reads no profile.
func readsProfile(command *kong.Node) bool {
	return slices.ContainsFunc(command.Flags, func(f *kong.Flag) bool {
		return inProfile(f) || slices.Contains(f.Envs, "AGORA_JOBS_URL")
	})
}

// inProfile reports whether a flag is one of profileSettings.
func inProfile(flag *kong.Flag) bool {
	return slices.Contains(profileSettings, flag.Name) && slices.Contains(flag.Envs, settings.Variable(flag.Name))
}

// loadProfile reads a profile. An empty name stands for the default profile. It returns nil if there is no default
// profile.
func loadProfile(name string) (*profile.Profile, error) {
	folder, err := profile.Folder()
	if err != nil {
		if name == "" {
			return nil, nil // without a home there are no profiles
		}
		return nil, err
	}
	p, err := profile.Load(folder, cli.OrDefault(name))
	if !errors.Is(err, fs.ErrNotExist) {
		return p, err
	}
	if name == "" {
		return nil, nil
	}
	names, err := profile.List(folder)
	return nil, errors.Join(fmt.Errorf("there is no profile %s%s; make it with: agora init --profile %s", name,
		cli.DidYouMean(name, names), name), err)
}

// fromProfile adds to values what the profile says about the flags of a command. root is the
// command line of the parser, which may lack other commands.
func fromProfile(p *profile.Profile, root, command *kong.Node, values settings.Values) error {
	if p.HasTables() { // a table may name another command
		app, err := wholeCommandLine()
		if err != nil {
			return err
		}
		root = app.Node
	}
	if err := checkSettings(p.Values, root); err != nil {
		return err
	}
	own := p.Values
	for name := range strings.FieldsSeq(strings.TrimPrefix(command.FullPath(), root.Name)) {
		own, _ = own[name].(map[string]any)
	}
	for _, flag := range command.Flags {
		value, given := own[flag.Name]
		if !given && inProfile(flag) {
			value, given = p.Values[flag.Name]
			if file := p.File(flag.Name); flag.Name == "key" && file != "" {
				value = file
			}
		}
		if !given || inEnvironment(flag) {
			continue
		}
		if list, many := value.([]any); flag.Name == "relay" && many && !flag.IsSlice() && len(list) > 0 {
			value = list[0] // this command uses only the preferred relay
		}
		value, err := settings.FromTOML(value, flag.IsSlice())
		if err == nil {
			err = values.Set(flag, value)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", flag.Name, err)
		}
	}
	return nil
}

// inEnvironment reports whether an environment variable of a flag is set.
func inEnvironment(flag *kong.Flag) bool {
	return slices.ContainsFunc(flag.Envs, func(name string) bool { _, set := os.LookupEnv(name); return set })
}

// checkSettings returns an error if a setting is not known, or a table does not name a command or a flag of it.
func checkSettings(values map[string]any, node *kong.Node) error {
	known := slices.Clone(profileSettings)
	if node.Type != kong.ApplicationNode {
		known = nil
		for _, flag := range node.Flags {
			known = append(known, flag.Name)
		}
	}
	for name, value := range values {
		table, isSection := value.(map[string]any)
		child := slices.IndexFunc(node.Children, func(n *kong.Node) bool { return n.Name == name })
		switch {
		case isSection && child >= 0:
			if err := checkSettings(table, node.Children[child]); err != nil {
				return fmt.Errorf("[%s]: %w", name, err)
			}
		case isSection:
			return fmt.Errorf("there is no command %q; the name of a table is that of a command", name)
		case !slices.Contains(known, name):
			return fmt.Errorf("%q is not a setting here, want one of %s%s", name, strings.Join(known, ", "), cli.DidYouMean(name, known))
		}
	}
	return nil
}

type profileCmd struct{ cli.Listing }

// profileRow is a line of the list of profiles.
type profileRow struct {
	Name  string     `json:"name"`
	Used  bool       `json:"used"` // without another --profile
	Relay string     `json:"relay,omitempty"`
	DID   didkey.DID `json:"did,omitempty"`
	Key   string     `json:"key,omitempty"`
	File  string     `json:"file"`
}

func (profileCmd) Help() string {
	return "Lists your profiles. A profile is a file with the URL of a relay or a list of several, the preferred " +
		"one first, the name " +
		"of a key file and, if you like, flags of commands. agora init makes one. The profile named default is used " +
		"if neither --profile nor AGORA_PROFILE names " +
		"another. A flag comes before its environment variable, and the variable comes before the profile.\n\n" +
		"To change a profile, edit its file: relay, key and private are for all commands, and a table such as [follow] " +
		"has flags of one command. To remove a profile, remove its file.\n\n" + cli.FormatHelp(profileRow{}) +
		"Examples:\n  agora profile\n  agora init --profile work --relay https://relay.example\n  agora --profile work follow\n" +
		"  export AGORA_PROFILE=work"
}

func (c profileCmd) Run(env cli.Environment, parsed *kong.Context) error {
	if err := c.Format.Check(profileRow{}); err != nil {
		return err
	}
	folder, err := profile.Folder()
	if err != nil {
		return err
	}
	names, err := profile.List(folder)
	if err != nil {
		return err
	}
	used := cli.OrDefault(profileName(parsed))
	var all []profileRow
	for _, name := range names {
		p, err := profile.Load(folder, name)
		if err != nil {
			env.Say("%v", err)
			continue
		}
		row := profileRow{Name: name, Used: name == used, Relay: strings.Join(p.Texts("relay"), " "),
			Key: p.File("key"), File: p.Path}
		if key, err := didkey.Load(row.Key); row.Key != "" {
			if err != nil {
				env.Say("%v", err)
			}
			row.DID = key.DID()
		}
		all = append(all, row)
	}
	if len(all) == 0 {
		env.Say("there is no profile yet; agora init makes one")
	}
	return cli.Show(env, c.Listing, []string{"PROFILE", "RELAY", "IDENTITY", "FILE"}, all, func(r profileRow) []string {
		name, did := r.Name, string(r.DID)
		if r.Used {
			name += " *"
		}
		if env.StdoutIsTerminal && did != "" {
			did = cli.ShortDID(r.DID)
		}
		return []string{name, r.Relay, did, r.File}
	}, 1, 3)
}

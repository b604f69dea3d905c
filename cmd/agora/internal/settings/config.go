// Package settings reads the settings of agora serve: flags, environment variables and a configuration file. It knows no
// setting itself: all that it needs is in the flags of the command and in their tags.
package settings

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/alecthomas/kong"
)

// A setting of serve is a flag. Its value comes from the command line, or else from an environment variable, or else
// from the configuration file, or else it is the flag's default. Tags of the fields say more about a flag:
//
//	reload:""       SIGHUP changes it
//	secret:""       its value is not printed
//	configure:"no"  it can be given only on the command line

// Flags are the flags of serve about its configuration.
type Flags struct {
	Config      string `configure:"no" env:"AGORA_CONFIG" placeholder:"FILE" help:"Read settings from this TOML file. Its keys are the names of the flags without --."`
	PrintConfig bool   `configure:"no" help:"Print all settings, and where each comes from, as a configuration file. Then exit."`
	CheckConfig bool   `configure:"no" help:"Check the settings and exit."`
}

// maxConfigBytes is the maximum size of a configuration file.
const maxConfigBytes = 1 << 20

// Sources are where settings come from, by their name. One that is missing has its default.
type Sources map[string]string

// Read gives the command the settings that are not on the command line.
func Read(ctx *kong.Context) (from Sources, err error) {
	flags, refused := configurable(ctx), commandLineOnly(ctx)
	from = Sources{}
	for _, p := range ctx.Path {
		if p.Flag != nil {
			from[p.Flag.Name] = "command line"
		}
	}
	values := Values{}
	if path := configPath(ctx); path != "" {
		if err := from.readFile(path, flags, refused, values); err != nil {
			return from, fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := from.readEnvironment(flags, refused, values); err != nil {
		return from, err
	}
	ctx.AddResolver(values)
	return from, nil
}

// configPath returns the value of --config, which kong also takes from AGORA_CONFIG.
func configPath(ctx *kong.Context) string {
	for _, flag := range ctx.Selected().Flags {
		if flag.Name == "config" {
			path, _ := ctx.FlagValue(flag).(string)
			return path
		}
	}
	return ""
}

// configurable returns the flags of the command that may be set in the environment and in a file, by name.
func configurable(ctx *kong.Context) map[string]*kong.Flag {
	flags := map[string]*kong.Flag{}
	for _, flag := range ctx.Selected().Flags {
		if !isCommandLineOnly(flag) && flag.Name != "help" {
			flags[flag.Name] = flag
		}
	}
	return flags
}

// commandLineOnly returns the names of the flags that can be given only on the command line.
func commandLineOnly(ctx *kong.Context) (names []string) {
	for _, flag := range ctx.Selected().Flags {
		if isCommandLineOnly(flag) {
			names = append(names, flag.Name)
		}
	}
	return names
}

func isCommandLineOnly(flag *kong.Flag) bool { return flag.Tag.Get("configure") == "no" }

// Values are values from outside of the command line, by the name of their flag. It is a kong.Resolver.
type Values map[string]any

// Validate implements kong.Resolver.
func (Values) Validate(*kong.Application) error { return nil }

// Resolve implements kong.Resolver.
func (v Values) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	return v[flag.Name], nil
}

// Set checks a value and stores it. It checks each element of a list by itself, because kong's error about a list
// contains the whole list, which may be secret.
func (v Values) Set(flag *kong.Flag, value any) error {
	elements, isList := value.([]any)
	if !isList {
		elements = []any{value}
	}
	for _, element := range elements {
		err := flag.Parse(kong.Scan().PushTyped(element, kong.FlagValueToken), reflect.New(flag.Target.Type()).Elem())
		if err != nil {
			return errors.New(strings.TrimPrefix(err.Error(), flag.Value.ShortSummary()+": "))
		}
	}
	v[flag.Name] = value
	return nil
}

// variablePrefix is the beginning of all environment variables of this program.
const variablePrefix = "AGORA_"

// Variable returns the environment variable of a flag.
func Variable(flag string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// readEnvironment reads the settings in the environment. An empty variable counts as unset. A list is separated by
// commas or spaces. refused are the names of the flags that cannot be set there. AGORA_CONFIG is read before.
func (from Sources) readEnvironment(flags map[string]*kong.Flag, refused []string, values Values) error {
	for _, name := range refused {
		if name != "config" && os.Getenv(Variable(name)) != "" {
			return fmt.Errorf("%s: --%s can be given only on the command line", Variable(name), name)
		}
	}
	for name, flag := range flags {
		source, err := values.setFromEnvironment(flag, from[name] == "command line")
		if err != nil {
			return err
		}
		if source != "" {
			from[name] = source
		}
	}
	return nil
}

// setFromEnvironment sets a flag from its environment variable. If it is secret, it may also come from a file, see
// secretFile. source says which of these has a value; empty: none. If given, the flag is on the command line, so its value
// is only checked for being given twice.
func (v Values) setFromEnvironment(flag *kong.Flag, given bool) (source string, err error) {
	variable := Variable(flag.Name)
	text := strings.TrimSpace(os.Getenv(variable))
	source = "environment " + variable
	if flag.Tag.Has("secret") {
		secret, from, err := secretFile(flag.Name)
		switch {
		case err != nil:
			return "", err
		case secret != "" && text != "":
			return "", fmt.Errorf("%s is set, and so is %s; give only one of them", variable, from)
		case secret != "":
			text, source = secret, from
		}
	}
	if text == "" || given {
		return "", nil
	}
	var value any = text
	if flag.IsSlice() {
		value = listOf(strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }))
	}
	if err := v.Set(flag, value); err != nil {
		return "", fmt.Errorf("%s: %w", variable, err)
	}
	return source, nil
}

// ResolveSecrets sets the secret flags of a command from the environment, as far as they are not on the command line.
func ResolveSecrets(ctx *kong.Context) error {
	values := Values{}
	for _, flag := range ctx.Selected().Flags {
		if !flag.Tag.Has("secret") {
			continue
		}
		given := slices.ContainsFunc(ctx.Path, func(p *kong.Path) bool { return p.Flag == flag })
		if _, err := values.setFromEnvironment(flag, given); err != nil {
			return err
		}
	}
	ctx.AddResolver(values)
	return nil
}

// listOf returns texts in the form in which kong takes a list.
func listOf(texts []string) []any {
	list := make([]any, len(texts))
	for i, text := range texts {
		list[i] = text
	}
	return list
}

// readFile reads the settings in a file. refused are the names of the flags that cannot be set there.
func (from Sources) readFile(path string, flags map[string]*kong.Flag, refused []string, values Values) error {
	if _, err := cli.RegularFile(path); err != nil {
		return cmp.Or(errors.Unwrap(err), err) // without the path, which the caller adds
	}
	file, err := os.Open(path)
	if err != nil {
		return errors.Unwrap(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return errors.Unwrap(err)
	}
	text, err := io.ReadAll(io.LimitReader(file, maxConfigBytes+1))
	if err != nil {
		return err
	}
	if len(text) > maxConfigBytes {
		return fmt.Errorf("the file is larger than %d bytes", maxConfigBytes)
	}
	var members map[string]any
	meta, err := toml.Decode(string(text), &members)
	if err != nil {
		if syntax, ok := errors.AsType[toml.ParseError](err); ok {
			return fmt.Errorf("line %d: %s (texts need quotes, such as addr = \"127.0.0.1:8789\")", syntax.Position.Line,
				cmp.Or(syntax.Message, err.Error()))
		}
		return err
	}
	for _, key := range meta.Keys() { // in the order of the file
		name := key[0]
		flag, known := flags[name]
		switch {
		case slices.Contains(refused, name):
			return fmt.Errorf("%s can be given only on the command line", name)
		case !known && isTable(members[name]):
			return fmt.Errorf("%q is a section; write all settings at the top level", name)
		case !known:
			names := make([]string, 0, len(flags))
			for name := range flags {
				names = append(names, name)
			}
			slices.Sort(names)
			return fmt.Errorf("%q is not a setting%s", name, cmp.Or(cli.DidYouMean(name, names), "; agora serve --help lists them"))
		}
		value, err := FromTOML(members[name], flag.IsSlice())
		if err == nil {
			err = values.Set(flag, value)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if flag.Tag.Has("secret") && cli.ReadableByOthers(info) {
			return fmt.Errorf("other users may read this file, and %s is secret; run: chmod 600 %s", name, cli.ShellQuoted(path))
		}
		if from[name] != "command line" {
			from[name] = "file " + path
		}
	}
	return nil
}

// FromTOML converts a value of a TOML file to the form in which kong takes it: a text, or a list of texts.
func FromTOML(value any, isList bool) (any, error) {
	list, given := value.([]any)
	if !isList {
		if given {
			return nil, errors.New("want one value, not a list")
		}
		return tomlText(value)
	}
	if !given {
		list = []any{value}
	}
	texts := make([]string, len(list))
	for i, element := range list {
		var err error
		if texts[i], err = tomlText(element); err != nil {
			return nil, err
		}
	}
	return listOf(texts), nil
}

func tomlText(value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case bool:
		return strconv.FormatBool(v), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64), nil
	}
	return "", errors.New("want a text in quotes, a number, true or false")
}

// isTable reports whether a value of a TOML file is a section.
func isTable(value any) bool {
	_, isTable := value.(map[string]any)
	return isTable
}

// namedFlag is a flag that an error names.
var namedFlag = regexp.MustCompile(`--([a-z-]+)`)

// Explain adds to an error about a setting where the setting comes from, if it is not on the command line.
func (from Sources) Explain(err error) error {
	for _, match := range namedFlag.FindAllStringSubmatch(err.Error(), -1) {
		if source := from[match[1]]; source != "" && source != "command line" {
			return fmt.Errorf("%w (%s comes from the %s)", err, match[1], source)
		}
	}
	return err
}

// Setting is a setting with its current value.
type Setting struct {
	Flag   *kong.Flag
	Source string
	Value  string // in TOML; empty: not set
}

func (s Setting) Secret() bool { return s.Flag.Tag.Has("secret") }

// Of returns all settings of serve, in the order of the help.
func (from Sources) Of(ctx *kong.Context) (all []Setting) {
	flags := configurable(ctx)
	for _, flag := range ctx.Selected().Flags {
		if flags[flag.Name] != nil {
			value := tomlOf(flag.Target)
			if flag.Tag.Type == "bytes" {
				value = strconv.Quote(cli.FormatBytes(flag.Target.Int()))
			}
			all = append(all, Setting{flag, cmp.Or(from[flag.Name], "default"), value})
		}
	}
	return all
}

// tomlOf returns the value of a flag in TOML; empty: the flag is not set and has no default.
func tomlOf(v reflect.Value) string {
	switch value := v.Interface().(type) {
	case time.Duration:
		return strconv.Quote(cli.FormatDuration(value))
	case fmt.Stringer:
		return Quoted(value.String())
	}
	switch v.Kind() {
	case reflect.String:
		if v.Len() == 0 {
			return ""
		}
		return Quoted(v.String())
	case reflect.Slice:
		if v.Len() == 0 {
			return ""
		}
		elements := make([]string, v.Len())
		for i := range elements {
			elements[i] = tomlOf(v.Index(i))
		}
		return "[" + strings.Join(elements, ", ") + "]"
	default:
		return fmt.Sprint(v.Interface())
	}
}

// Quoted returns text as a basic string of TOML.
func Quoted(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, "\\u%04x", r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// Print writes all settings as a configuration file. In place of a secret it writes a comment.
func Print(w io.Writer, settings []Setting) error {
	var b bytes.Buffer
	group := ""
	for _, s := range settings {
		if s.Flag.Group != nil && s.Flag.Group.Title != group {
			group = s.Flag.Group.Title
			fmt.Fprintf(&b, "\n# %s\n", group)
		}
		switch {
		case s.Value == "":
			fmt.Fprintf(&b, "# %s is not set\n", s.Flag.Name)
		case s.Secret():
			fmt.Fprintf(&b, "# %s = \"(secret)\"  # %s\n", s.Flag.Name, cli.Printable(s.Source))
		default:
			fmt.Fprintf(&b, "%s = %s  # %s\n", s.Flag.Name, s.Value, cli.Printable(s.Source))
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

// Misspelled returns warnings about environment variables that look like misspelled settings.
func Misspelled(ctx *kong.Context) (warnings []string) {
	var names []string
	for name, flag := range configurable(ctx) {
		short := Variable(name)[len(variablePrefix):]
		if names = append(names, short); flag.Tag.Has("secret") {
			names = append(names, short+SecretSuffix)
		}
	}
	slices.Sort(names)
	for _, pair := range os.Environ() {
		variable, _, _ := strings.Cut(pair, "=")
		name, ours := strings.CutPrefix(variable, variablePrefix)
		if !ours || slices.Contains(names, name) || slices.Contains(otherVariables, variable) {
			continue
		}
		if near := cli.Nearest(name, names); near != "" {
			warnings = append(warnings, fmt.Sprintf("the variable %s is not a setting; did you mean %s%s?", variable, variablePrefix, near))
		}
	}
	return warnings
}

// otherVariables are the environment variables of other commands.
var otherVariables = []string{"AGORA_CONFIG", "AGORA_PROFILE", "AGORA_RELAY", "AGORA_KEY", "AGORA_PRIVATE", "AGORA_CHANNEL_URL", "AGORA_CHANNEL_KEY",
	"AGORA_JOBS_URL", "AGORA_JOBS_KEY"}

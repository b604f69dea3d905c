// Package profile keeps what a person tells agora once: profiles, each with a relay and a key, and an address book with
// names for DIDs. All of it is in one folder of the person's configuration.
package profile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/agora-relay/agora/internal/fsync"
)

// Folder returns the folder of the configuration: agora in $XDG_CONFIG_HOME (XDG Base Directory Specification), or else
// in the system's own folder, such as ~/.config. It need not exist. Errors: the system has no such folder, because
// HOME is not set, or $XDG_CONFIG_HOME is not an absolute path.
func Folder() (string, error) {
	base := os.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(base) {
		var err error
		if base, err = os.UserConfigDir(); err != nil {
			return "", fmt.Errorf("there is no folder for the configuration: %w", err)
		}
	}
	return filepath.Join(base, "agora"), nil
}

// Default is the name of the profile that is used if no other is named.
const Default = "default"

// maxName is how many characters a name has at most. A name is shown in a column of a table.
const maxName = 32

// CheckName returns an error unless name can be the name of a profile, or of an identity in the address book: 1 to 32
// letters (A to Z), digits and ._- with a letter or a digit at the start. So two names that look the same are the same
// characters, and no name needs quotes in a shell or leads out of a folder.
func CheckName(name string) error {
	const others = "._-"
	plain := func(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' }
	bad := strings.ContainsFunc(name, func(r rune) bool { return !plain(r) && !strings.ContainsRune(others, r) })
	if name == "" || len(name) > maxName || bad || strings.ContainsRune(others, rune(name[0])) {
		return fmt.Errorf("a name has 1 to %d characters: A to Z, a to z, 0 to 9 and %s with a letter or a digit at the start",
			maxName, others)
	}
	return nil
}

// Profile is a set of settings. Values has them by their names, as the TOML library decodes them: texts, numbers, truth
// values, lists and tables.
type Profile struct {
	Name   string
	Path   string // of its file
	Values map[string]any
}

// Text returns a setting that is a text; empty: there is none.
func (p *Profile) Text(name string) string {
	text, _ := p.Values[name].(string)
	return text
}

// Texts returns a setting that is a text or a list of texts; nil: there is none.
func (p *Profile) Texts(name string) (all []string) {
	if text := p.Text(name); text != "" {
		return []string{text}
	}
	list, _ := p.Values[name].([]any)
	for _, one := range list {
		if text, ok := one.(string); ok {
			all = append(all, text)
		}
	}
	return all
}

// HasTables reports whether there are settings of a command by itself.
func (p *Profile) HasTables() bool {
	for _, value := range p.Values {
		if _, is := value.(map[string]any); is {
			return true
		}
	}
	return false
}

// File returns a setting that is the name of a file. A relative name is relative to the folder of the profile, and ~/
// at its start stands for the person's home. Empty: there is no such setting.
func (p *Profile) File(name string) string {
	file := p.Text(name)
	if rest, ok := strings.CutPrefix(file, "~/"); ok {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
	}
	if file == "" || filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(filepath.Dir(p.Path), file)
}

// Path returns the name of a file of a profile, such as the file with its settings (.toml) and the file with its key
// (.key).
func Path(folder, name, ending string) string {
	return filepath.Join(folder, "profiles", name+ending)
}

// settings is the ending of the files with settings.
const settings = ".toml"

// maxFile is the size in bytes of the largest file that is read.
const maxFile = 1 << 20

// Load reads a profile. Errors: fs.ErrNotExist if there is none with this name; the file is not TOML.
func Load(folder, name string) (*Profile, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	p := &Profile{Name: name, Path: Path(folder, name, settings), Values: map[string]any{}}
	text, err := read(p.Path)
	if err != nil {
		return nil, err
	}
	if _, err := toml.Decode(string(text), &p.Values); err != nil {
		return nil, fmt.Errorf("%s: %w", p.Path, err)
	}
	return p, nil
}

// read reads a file of at most maxFile bytes.
func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err = errors.Join(err, f.Close()); err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	return text, err
}

// Create writes a new profile with these values, such as relay and key. It never overwrites a file; the error is then
// fs.ErrExist.
func Create(folder, name string, values map[string]any) (*Profile, error) {
	p := &Profile{Name: name, Path: Path(folder, name, settings), Values: values}
	if err := CheckName(name); err != nil {
		return nil, err
	}
	var text bytes.Buffer
	text.WriteString("# Settings of agora. The names are those of flags. A table such as [follow] has flags of one command.\n")
	if err := toml.NewEncoder(&text).Encode(values); err != nil {
		return nil, err
	}
	return p, fsync.Create(p.Path, text.Bytes())
}

// MakeFolder creates the folder of the profiles, which only its owner can enter.
func MakeFolder(folder string) error {
	return os.MkdirAll(filepath.Dir(Path(folder, Default, "")), 0o700)
}

// List returns the names of the profiles, sorted.
func List(folder string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(Path(folder, Default, "")))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), settings)
		if ok && CheckName(name) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, err
}

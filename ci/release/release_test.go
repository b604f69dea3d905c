//go:build packages

package main

import (
	"archive/zip"
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// What the tests build once: all files of a release for this machine, and a .deb of the version after it.
var built struct {
	version, next string
	out           string // the folder of both
	common        string // a folder with the files of commonFiles
	program       string
}

func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (code int, err error) {
	if err := os.Chdir("../.."); err != nil { // the folder in which the command runs
		return 0, err
	}
	folder, err := os.MkdirTemp("", "agora-release-test")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if err := os.Chmod(folder, 0o755); err != nil { // so that apt's user can read the packages
		return 0, err
	}
	version, err := os.ReadFile("VERSION")
	if err != nil {
		return 0, err
	}
	built.version = strings.TrimSpace(string(version))
	if built.next, err = nextVersion(built.version); err != nil {
		return 0, err
	}
	built.out = filepath.Join(folder, "dist")
	target := []string{"linux/" + runtime.GOARCH}
	for _, r := range []release{{version: built.next, formats: []string{"deb"}}, {version: built.version, formats: []string{"archive", "deb", "rpm"}}} {
		r.out, r.flags = built.out, buildFlags()
		if err := r.run(target); err != nil {
			return 0, err
		}
	}
	if built.common, built.program, err = unpack(folder); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// buildFlags are the flags with which everything here is built, as make build has them.
func buildFlags() []string { return strings.Fields(cmp.Or(os.Getenv("BUILD_FLAGS"), defaultFlags)) }

// unpack unpacks the archive. It returns the folder of its files, and the program in it.
func unpack(folder string) (files, program string, err error) {
	name := archiveName()
	if out, err := exec.Command("tar", "-xzf", filepath.Join(built.out, name+".tar.gz"), "-C", folder).CombinedOutput(); err != nil {
		return "", "", fmt.Errorf("%w\n%s", err, out)
	}
	return filepath.Join(folder, name), filepath.Join(folder, name, "agora"), nil
}

func archiveName() string { return fmt.Sprintf("agora-%s-linux-%s", built.version, runtime.GOARCH) }

// output returns what a command prints to both streams.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestArchive checks the archive of this machine: its files, and that the program is static and knows its version.
func TestArchive(t *testing.T) {
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md", "third-party-licenses", "agora.toml", "agora.service",
		"docs/INSTALL.md", "man/agora.1", "man/agora-serve.1", "completions/agora", "completions/_agora", "completions/agora.fish"} {
		if info, err := os.Stat(filepath.Join(built.common, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if version := output(t, built.program, "version"); !strings.HasPrefix(version, "agora "+built.version+",") {
		t.Errorf("the version is %q", version)
	}
	file, err := elf.Open(built.program)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, part := range file.Progs {
		if part.Type == elf.PT_INTERP {
			t.Error("the program needs libraries of the system")
		}
	}
	licenses, err := os.ReadFile(filepath.Join(built.common, "third-party-licenses"))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"Go standard library", "modernc.org/sqlite", "Apache License", "Redistributions in binary form"} {
		if !bytes.Contains(licenses, []byte(part)) {
			t.Errorf("the licenses do not contain %q", part)
		}
	}
}

// TestConfigurationFile checks that the file of the package is valid, and stays valid without the # in front of any
// setting that has a default.
func TestConfigurationFile(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(built.common, "agora.toml"))
	if err != nil {
		t.Fatal(err)
	}
	setting := regexp.MustCompile(`(?m)^#([a-z-]+ = .*)$`)
	unset := regexp.MustCompile(`(?m)^#?[a-z-]+ = \[?"[^a-z0-9]+".*$`) // its value is a placeholder such as "URL"
	active := unset.ReplaceAllString(setting.ReplaceAllString(string(text), "$1"), "")
	if n := len(setting.FindAllString(string(text), -1)); n < 40 {
		t.Errorf("only %d settings", n)
	}
	for name, text := range map[string]string{"as it is": string(text), "with all defaults": active} {
		file := filepath.Join(t.TempDir(), "agora.toml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(built.program, "serve", "--config", file, "--check-config").CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// TestSums checks the list of checksums, and that a changed file is noticed.
func TestSums(t *testing.T) {
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS(built.out)); err != nil {
		t.Fatal(err)
	}
	check := func() error {
		cmd := exec.Command("sha256sum", "--check", sumsName)
		cmd.Dir = folder
		return cmd.Run()
	}
	if err := check(); err != nil {
		t.Error(err)
	}
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) != 6 { // two .deb, .rpm, archive, bill, sums
		t.Fatalf("%v %v", entries, err)
	}
	if err := os.WriteFile(filepath.Join(folder, entries[0].Name()), []byte("changed"), 0o644); err != nil {
		t.Fatal(err)
	}
	if check() == nil {
		t.Error("a changed file is not noticed")
	}
}

func TestBill(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(built.out, archiveName()+".cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	var bill struct {
		Metadata struct {
			Component struct{ Name, Version string }
		}
		Components []json.RawMessage
	}
	if err := json.Unmarshal(text, &bill); err != nil {
		t.Fatal(err)
	}
	if c := bill.Metadata.Component; c.Name != "agora" || c.Version != built.version || len(bill.Components) < 20 {
		t.Errorf("%+v with %d components", c, len(bill.Components))
	}
}

// TestReproducible builds the archives once more and compares, also a .zip.
func TestReproducible(t *testing.T) {
	r := release{version: built.version, formats: []string{"archive"}, out: t.TempDir(), flags: buildFlags()}
	if err := r.run([]string{"linux/" + runtime.GOARCH}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{archiveName() + ".tar.gz", archiveName() + ".cdx.json"} {
		one, err := os.ReadFile(filepath.Join(built.out, name))
		if err != nil {
			t.Fatal(err)
		}
		if two, err := os.ReadFile(filepath.Join(r.out, name)); err != nil || !bytes.Equal(one, two) {
			t.Errorf("%s differs (%v)", name, err)
		}
	}
	entries := []entry{{"agora/agora.exe", 0o755, []byte("program")}, {"agora/LICENSE", 0o644, []byte("license")}}
	var one, two bytes.Buffer
	if err := errors.Join(r.zip(&one, entries), r.zip(&two, entries)); err != nil || !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Errorf("the .zip differs (%v)", err)
	}
	z, err := zip.NewReader(bytes.NewReader(one.Bytes()), int64(one.Len()))
	if err != nil || len(z.File) != 2 || z.File[0].Name != "agora/agora.exe" || !z.File[0].Modified.Equal(r.date) {
		t.Errorf("%v %v", z, err)
	}
}

// TestManPages checks that man and mandoc show each page without a warning.
func TestManPages(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(built.common, "man", "*.1"))
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, page := range pages {
		cmd := exec.Command("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page)
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "MANROFFSEQ=", "MANWIDTH=80")
		var warnings bytes.Buffer
		cmd.Stderr = &warnings
		if err := cmd.Run(); err != nil || warnings.Len() > 0 {
			t.Errorf("%s: %v\n%s", filepath.Base(page), err, &warnings)
		}
		if out, err := exec.Command("mandoc", "-Tlint", "-W", "warning", page).CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
	text := output(t, "man", "-l", filepath.Join(built.common, "man", "agora-send.1"))
	for _, part := range []string{"agora send request", "--params=JSON", "EXIT STATUS", "agora(1)"} {
		if !strings.Contains(text, part) {
			t.Errorf("agora-send(1) does not contain %q", part)
		}
	}
}

// TestCompletion completes words in each shell.
func TestCompletion(t *testing.T) {
	scripts := filepath.Join(built.common, "completions")
	bash := `source "$0"/agora
complete_line() { # prints what bash gets for the words of a line
	COMP_LINE=$*; COMP_POINT=${#COMP_LINE}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
	_agora agora "${@: -1}" ''; printf '%s\n' "${COMPREPLY[@]}"
}
complete -p agora
complete_line agora send re; complete_line agora send request --max; complete_line agora serve --reads ''
COMP_LINE='agora serve --reads=par' COMP_POINT=23 COMP_WORDS=(agora serve --reads = par) COMP_CWORD=4
_agora agora par =; printf '%s\n' "${COMPREPLY[@]}"`
	zsh := `zmodload zsh/zpty; zpty shell 'TERM=dumb zsh -f -i'
zpty -w shell "PS1=; autoload -Uz compinit; compinit -u -D; source $1/_agora"
for line in 'agora send resul' 'agora send request --max' 'agora serve --reads part' 'agora serve --reads=part'; do
	zpty -n -w shell "$line"$'\t\C-aprint -r -- got \n' # zsh completes the line, and then prints it
done
zpty -w shell "print fini''shed"; zpty -r shell text '*finished*'; print -r -- "$text"; zpty -d shell`
	fish := `source $argv[1]/agora.fish
for line in 'agora send re' 'agora send request --max' 'agora serve --reads ' 'agora serve --reads=par'
	complete -C $line
end
cd $argv[1]; complete -C 'agora verify ago'`
	for _, c := range []struct {
		shell string
		args  []string
		want  []string
	}{
		{"bash", []string{"-c", bash, scripts}, []string{"complete -o bashdefault -o default -F _agora agora", "request\nresult", "--max-cost", "open\nparties\nparties"}},
		{"zsh", []string{"-f", "-c", zsh, "zsh", scripts}, []string{"\ngot agora send result\n", "\ngot agora send request --max-cost\n",
			"\ngot agora serve --reads parties\n", "\ngot agora serve --reads=parties\n"}},
		{"fish", []string{"-c", fish, scripts}, []string{"request\tAsk for a service.", "--max-cost\t", "open\nparties\n", "--reads=parties", "agora.fish"}},
	} {
		cmd := exec.Command(c.shell, c.args...)
		cmd.Env = append(os.Environ(), "PATH="+built.common+":"+os.Getenv("PATH"), "HOME="+t.TempDir())
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v", c.shell, err)
		}
		for _, want := range c.want {
			if !strings.Contains(strings.ReplaceAll(string(out), "\r", ""), want) {
				t.Errorf("%s does not show %q:\n%s", c.shell, want, out)
			}
		}
	}
}

// TestUnit lets systemd check the unit, and measure how much the relay could do that it does not need.
func TestUnit(t *testing.T) {
	const unit = "ci/packaging/agora.service"
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "agora.service")
	if err := os.WriteFile(file, bytes.ReplaceAll(text, []byte("/usr/bin/agora"), []byte(built.program)), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := output(t, "systemd-analyze", "verify", "--man=no", file); strings.Contains(out, "agora.service") {
		t.Error(out)
	}
	out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=20", unit).CombinedOutput() // 20: 2.0
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestLint lets lintian check the .deb. It does not know a few things that this package does on purpose.
func TestLint(t *testing.T) {
	allowed := []string{
		"bogus-mail-host",                                      // the authors have no address yet
		"initial-upload-closes-no-bugs",                        // it is not in Debian
		"statically-linked-binary",                             // so that it runs everywhere
		"hardening-no-pie",                                     // Go does not make static programs of that kind
		"hardening-no-relro",                                   //
		"non-standard-file-perm",                               // others must not read the settings
		"non-standard-dir-perm",                                // nor list their folder
		"maintainer-script-calls-systemctl",                    // daemon-reload, as in Debian's own packages
		"package-contains-upstream-installation-documentation", // it is about settings and upgrades, too
	}
	out := output(t, "lintian", "--allow-root", "--fail-on", "none", "--no-tag-display-limit", filepath.Join(built.out, debName(built.version)))
	tag := regexp.MustCompile(`^[EW]: agora: (\S+)`)
	for line := range strings.Lines(out) {
		if m := tag.FindStringSubmatch(line); m != nil && !slices.Contains(allowed, m[1]) {
			t.Error(strings.TrimSpace(line))
		}
	}
}

func debName(version string) string { return fmt.Sprintf("agora_%s-1_%s.deb", version, runtime.GOARCH) }

// rpmName returns the name of the .rpm. rpm has names of its own for architectures.
func rpmName() string {
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	return fmt.Sprintf("agora-%s-1.%s.rpm", built.version, arch)
}

// TestRPM checks what is in the .rpm.
func TestRPM(t *testing.T) {
	file := filepath.Join(built.out, rpmName())
	if out := output(t, "rpm", "--checksig", "--nosignature", file); !strings.Contains(out, "digests OK") {
		t.Error(out)
	}
	files := output(t, "rpm", "-qp", "--nosignature", "--queryformat", `[%{FILEMODES:perms} %{FILEUSERNAME} %{FILENAMES}\n]`, file)
	for _, want := range []string{"-rwxr-xr-x root /usr/bin/agora\n", "-rw-r----- root /etc/agora/agora.toml\n", "/usr/lib/systemd/system/agora.service\n",
		"/usr/share/man/man1/agora-serve.1.gz\n", "/usr/share/licenses/agora/LICENSE\n", "/usr/share/zsh/site-functions/_agora\n"} {
		if !strings.Contains(files, want) {
			t.Errorf("the .rpm has no %q:\n%s", want, files)
		}
	}
	if config := output(t, "rpm", "-qpc", "--nosignature", file); config != "/etc/agora/agora.toml\n" {
		t.Errorf("its configuration files are %q", config)
	}
}

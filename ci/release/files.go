package main

import (
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
)

// commonFiles makes a folder with the files that are the same for all platforms, and returns its name:
//
//	man/, completions/, agora.toml   what agora generate writes; program is agora for this machine
//	ci/packaging/                    the files of that name in the source
//	docs/                            the documents, without the pictures
//	LICENSE, README.md, CHANGELOG.md
//	third-party-licenses             of the modules in the program
func (r *release) commonFiles(program string) (string, error) {
	folder := filepath.Join(r.work, "common")
	generate := exec.Command(program, "generate", "--date", r.date.Format("2006-01-02"), folder)
	generate.Env = []string{} // without settings of this machine
	if err := run(generate); err != nil {
		return "", err
	}
	patterns := []string{"ci/packaging/*", "ci/packaging/*/*", "docs/*.md", "LICENSE", "README.md", "CHANGELOG.md"}
	for _, pattern := range patterns {
		names, err := filepath.Glob(pattern)
		if err != nil {
			return "", err
		}
		for _, name := range names {
			if info, err := os.Stat(name); err != nil {
				return "", err
			} else if info.IsDir() {
				continue
			}
			if err := copyFile(filepath.Join(folder, name), name); err != nil {
				return "", err
			}
		}
	}
	licenses, err := thirdPartyLicenses(program)
	if err != nil {
		return "", err
	}
	return folder, os.WriteFile(filepath.Join(folder, "third-party-licenses"), licenses, 0o644)
}

// thirdPartyLicenses returns the licenses of the modules in a program and of the Go standard library, which a
// distributor must pass on. The files come from the folder of downloaded modules.
func thirdPartyLicenses(program string) ([]byte, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString("The program agora contains the following modules. Their licenses follow.\n")
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	version := strings.TrimPrefix(info.GoVersion, "go")
	if err := addLicenses(&b, "Go standard library", version, strings.TrimSpace(string(root))); err != nil {
		return nil, err
	}
	for _, m := range info.Deps {
		folder, err := moduleFolder(m)
		if err != nil {
			return nil, err
		}
		if err := addLicenses(&b, m.Path, m.Version, folder); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

// moduleFolder returns the folder of a module that is downloaded.
func moduleFolder(m *debug.Module) (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", m.Path).Output()
	if err != nil || len(bytes.TrimSpace(out)) == 0 {
		return "", fmt.Errorf("the module %s is not there (%v); run go mod download", m.Path, err)
	}
	return string(bytes.TrimSpace(out)), nil
}

// licenseNames are the beginnings of the names of license files, in upper case.
var licenseNames = []string{"LICENSE", "LICENCE", "COPYING", "NOTICE", "PATENTS"}

// addLicenses adds the license files in a folder.
func addLicenses(b *bytes.Buffer, name, version, folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	found := false
	for _, entry := range entries {
		upper := strings.ToUpper(entry.Name())
		isLicense := slices.ContainsFunc(licenseNames, func(start string) bool { return strings.HasPrefix(upper, start) })
		if !isLicense || entry.IsDir() {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			return err
		}
		found = true
		line := strings.Repeat("=", 72)
		fmt.Fprintf(b, "\n%s\n%s %s: %s\n%s\n\n%s\n", line, name, version, entry.Name(), line,
			strings.TrimSpace(string(text)))
	}
	if !found {
		return fmt.Errorf("%s has no license file", name)
	}
	return nil
}

// copyFile copies a file with its mode. It makes the folder that it needs.
func copyFile(to, from string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, text, info.Mode().Perm())
}

// compress writes text with gzip, without a name and a time.
func compress(w io.Writer, text []byte) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(text); err != nil {
		return err
	}
	return z.Close()
}

// compressFile writes the text of a file with gzip.
func compressFile(to, from string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := compress(&b, text); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, b.Bytes(), 0o644)
}

// Command sbom writes the bill of materials of a Go program to standard output, as CycloneDX 1.6 JSON. The bill
// contains the program with its hash, the Go release, and every module that is linked into the program. Each module has
// the checksum that go.sum requires. The command reads the list of modules from the program itself, where the Go
// toolchain recorded it. So the bill contains all modules of the program and no others. The bill contains no time and
// no random number, so it is always the same for the same program.
//
//	go run ./ci/sbom bin/agora > bin/agora.cdx.json
package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
)

// bill is the part of a CycloneDX document (https://cyclonedx.org/docs/1.6/json) that is used here.
type bill struct {
	Format     string      `json:"bomFormat"`
	Spec       string      `json:"specVersion"`
	Version    int         `json:"version"`
	Metadata   metadata    `json:"metadata"`
	Components []component `json:"components"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version,omitempty"`
	Scope      string     `json:"scope,omitempty"`
	Hashes     []hash     `json:"hashes,omitempty"`
	PURL       string     `json:"purl"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"` // hexadecimal
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func main() {
	version := flag.String("version", "", "the version of the program (default: what the Go toolchain recorded)")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: sbom [-version VERSION] PROGRAM")
		os.Exit(2)
	}
	if err := write(os.Stdout, flag.Arg(0), *version); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// write writes the bill of the program at path. version is the program's version; empty: what the Go toolchain recorded.
func write(w io.Writer, path, version string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(text)
	version = cmp.Or(version, info.Main.Version)
	program := component{Type: "application", Name: filepath.Base(path), Version: version,
		Hashes: []hash{{"SHA-256", hex.EncodeToString(sum[:])}}, PURL: purl(info.Main.Path, version)}
	program.Ref = program.PURL
	for _, s := range info.Settings { // the build settings
		program.Properties = append(program.Properties, property{"go:build:" + s.Key, s.Value})
	}
	release := strings.TrimPrefix(info.GoVersion, "go")
	b := bill{Format: "CycloneDX", Spec: "1.6", Version: 1, Metadata: metadata{program},
		Components: []component{{Type: "library", Ref: purl("stdlib", release), Name: "stdlib", Version: release,
			Scope: "required", PURL: purl("stdlib", release)}}}
	for _, m := range info.Deps {
		c, err := library(m)
		if err != nil {
			return err
		}
		b.Components = append(b.Components, c)
	}
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(b)
}

// library returns the component for a module, or for its replacement if the module is replaced.
func library(m *debug.Module) (component, error) {
	if m.Replace != nil {
		m = m.Replace
	}
	c := component{Type: "library", Name: m.Path, Version: m.Version, Scope: "required", PURL: purl(m.Path, m.Version)}
	c.Ref = c.PURL
	text, found := strings.CutPrefix(m.Sum, "h1:")
	sum, err := base64.StdEncoding.DecodeString(text)
	if !found || err != nil || len(sum) != sha256.Size {
		return c, fmt.Errorf("module %s has no checksum; build the program without local module replacements", m.Path)
	}
	c.Hashes = []hash{{"SHA-256", hex.EncodeToString(sum)}} // of the module's files, as in go.sum
	return c, nil
}

// purl returns the package URL of a module (https://github.com/package-url/purl-spec, type golang).
func purl(path, version string) string {
	text := "pkg:golang/" + strings.ToLower(path)
	if version != "" && version != "(devel)" {
		text += "@" + strings.ReplaceAll(version, "+", "%2B")
	}
	return text
}

package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

// TestBill checks the bill of the relay: it has the members that CycloneDX requires, and its components match the
// modules in the program and their checksums in go.sum.
func TestBill(t *testing.T) {
	program := filepath.Join(t.TempDir(), "agora")
	if out, err := exec.Command("go", "build", "-o", program, "../../cmd/agora").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var first, again bytes.Buffer
	if err := write(&first, program, ""); err != nil {
		t.Fatal(err)
	}
	if err := write(&again, program, ""); err != nil || !bytes.Equal(first.Bytes(), again.Bytes()) {
		t.Errorf("a second bill differs, %v", err)
	}
	var b bill
	decoder := json.NewDecoder(&first)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&b); err != nil {
		t.Fatal(err)
	}
	if b.Format != "CycloneDX" || b.Spec != "1.6" || b.Version != 1 ||
		b.Metadata.Component.Type != "application" || b.Metadata.Component.Name != "agora" {
		t.Errorf("%+v", b)
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile("../../go.sum")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]component{}
	for _, c := range append(b.Components, b.Metadata.Component) {
		if _, twice := seen[c.Ref]; twice || c.Ref == "" || c.Name == "" || c.Type == "" ||
			!strings.HasPrefix(c.PURL, "pkg:golang/") {
			t.Errorf("component %+v", c)
		}
		for _, h := range c.Hashes {
			if h.Algorithm != "SHA-256" || !regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(h.Content) {
				t.Errorf("%s: hash %+v", c.Name, h)
			}
		}
		seen[c.Ref] = c
	}
	if c := seen["pkg:golang/stdlib@"+strings.TrimPrefix(runtime.Version(), "go")]; c.Name != "stdlib" {
		t.Errorf("the bill has no component for the Go release")
	}
	if len(b.Components) != len(info.Deps)+1 || len(info.Deps) < 10 {
		t.Errorf("the bill has %d components, the program has %d modules", len(b.Components), len(info.Deps))
	}
	for _, m := range info.Deps {
		c := seen[purl(m.Path, m.Version)]
		if c.Name != m.Path || c.Version != m.Version || len(c.Hashes) != 1 ||
			!strings.Contains(string(sums), m.Path+" "+m.Version+" "+m.Sum+"\n") {
			t.Errorf("%s %s: %+v", m.Path, m.Version, c)
		}
	}
}

func TestModuleWithoutChecksum(t *testing.T) {
	if _, err := library(&debug.Module{Path: "example.org/m", Version: "v1.0.0"}); err == nil {
		t.Error("a module without a checksum was accepted")
	}
	c, err := library(&debug.Module{
		Path: "example.org/M", Version: "v2.0.0+incompatible", Sum: "h1:" + strings.Repeat("A", 43) + "="})
	if err != nil || c.PURL != "pkg:golang/example.org/m@v2.0.0%2Bincompatible" ||
		c.Hashes[0].Content != hex.EncodeToString(make([]byte, 32)) {
		t.Errorf("%+v, %v", c, err)
	}
}

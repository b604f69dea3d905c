package agora

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/internal/markdown"
)

// documents returns the names of the project's documents: all Markdown files, except those that hubs and agents get.
func documents(t *testing.T) (names []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		skipped := d.Name() == "testdata" || d.Name() == "node_modules" || path == filepath.Join("gateway", "hub", "skill")
		if d.IsDir() && path != "." && (skipped || strings.HasPrefix(d.Name(), ".")) {
			return fs.SkipDir
		}
		if strings.HasSuffix(path, ".md") {
			names = append(names, filepath.ToSlash(path))
		}
		return nil
	})
	if err != nil || len(names) < 20 {
		t.Fatalf("the documents: %q, %v", names, err)
	}
	return names
}

// page parses a document.
func page(t *testing.T, name string) *markdown.Page {
	t.Helper()
	p, err := markdown.Parse(read(t, name))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return p
}

// linked returns the file and the anchor that a link in a document leads to. ok is false if the link leads out of the
// project.
func linked(document, link string) (name, anchor string, ok bool) {
	target, anchor, _ := strings.Cut(link, "#")
	if strings.Contains(target, ":") {
		return "", "", false
	}
	if target == "" {
		return document, anchor, true
	}
	return filepath.ToSlash(filepath.Join(filepath.Dir(document), target)), anchor, true
}

// TestLinks checks the links between documents: the file exists, and so does the heading if the link names one.
func TestLinks(t *testing.T) {
	checked := 0
	for _, name := range documents(t) {
		for _, link := range page(t, name).Links {
			path, anchor, ok := linked(name, link)
			if !ok {
				continue
			}
			checked++
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s links to %s: %v", name, link, err)
			} else if anchor != "" && !page(t, path).Anchors()[anchor] {
				t.Errorf("%s links to %s, which has no such heading", name, link)
			}
		}
	}
	if checked < 100 {
		t.Errorf("found only %d links", checked)
	}
}

// TestIndex checks that docs/README.md links to every page in docs, and to the READMEs of the packages, and that README.md
// links to docs/README.md. The pages for other protocols are behind the page about gateways.
func TestIndex(t *testing.T) {
	const index, gateways = "docs/README.md", "docs/GATEWAYS.md"
	found := map[string]bool{index: true}
	for _, from := range []string{index, gateways} {
		for _, link := range page(t, from).Links {
			if path, _, ok := linked(from, link); ok {
				found[path] = true
			}
		}
	}
	for _, name := range documents(t) {
		if (strings.HasPrefix(name, "docs/") || strings.HasSuffix(name, "/README.md")) && !found[name] {
			t.Errorf("neither %s nor %s links to %s", index, gateways, name)
		}
	}
	if !slices.Contains(page(t, "README.md").Links, index) {
		t.Errorf("README.md does not link to %s", index)
	}
}

// TestReadmeIsShort checks that README.md has at most 900 words.
func TestReadmeIsShort(t *testing.T) {
	if n := len(strings.Fields(read(t, "README.md"))); n > 900 {
		t.Errorf("README.md has %d words; move to docs/ what only some readers need", n)
	}
}

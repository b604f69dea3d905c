package agora

import (
	"io/fs"
	"os"
	"path/filepath"
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

// TestIndex checks that docs/README.md links to every page in docs, to every picture's page, and to the READMEs of the
// packages, and that README.md links to docs/README.md.
func TestIndex(t *testing.T) {
	const index = "docs/README.md"
	direct := map[string]bool{index: true}
	for _, link := range page(t, index).Links {
		if path, _, ok := linked(index, link); ok {
			direct[path] = true
		}
	}
	for _, name := range documents(t) {
		if (strings.HasPrefix(name, "docs/") || strings.HasSuffix(name, "/README.md")) && !direct[name] {
			t.Errorf("%s does not link to %s", index, name)
		}
	}
	found := false
	for _, link := range page(t, "README.md").Links {
		found = found || link == index
	}
	if !found {
		t.Errorf("README.md does not link to %s", index)
	}
}

// TestReadmeIsShort checks that README.md has at most 1,200 words.
func TestReadmeIsShort(t *testing.T) {
	if n := len(strings.Fields(read(t, "README.md"))); n > 1200 {
		t.Errorf("README.md has %d words; move to docs/ what only some readers need", n)
	}
}

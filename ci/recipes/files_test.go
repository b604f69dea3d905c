//go:build unix

package recipes

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// newcomerPages are pages whose commands a newcomer runs in the folder of Agora, one page after the other. Each recipe of
// the cookbook has its own folder.
var newcomerPages = []string{"README.md", "docs/HTTP.md", "docs/HUB.md", "docs/CHANNEL.md", "docs/JOBS.md",
	"docs/COMING-FROM.md", "docs/SEALING.md"}

// made matches what makes a file or a folder, in the commands of the docs.
var made = regexp.MustCompile(`(?:keygen|--save|jobs account \w+ --key-file|hub register .*--dir|hub init .*|>) (?:\./)?([\w.-]+)(?:\s|$)`)

// TestTutorialsDoNotCollide checks the files that tutorials make. No two pages make the same file. Git ignores all of
// them, because some have keys.
func TestTutorialsDoNotCollide(t *testing.T) {
	ignored, err := os.ReadFile("../../.gitignore")
	if err != nil {
		t.Fatal(err)
	}
	madeBy := map[string]string{}
	for _, page := range newcomerPages {
		for _, section := range parse(t, page).Sections {
			for _, block := range section.Code("sh") {
				for _, found := range made.FindAllStringSubmatch(block, -1) {
					name := found[1]
					if other := madeBy[name]; other != "" && other != page {
						t.Errorf("%s and %s both make %s", other, page, name)
					}
					madeBy[name] = page
					if !slices.ContainsFunc(strings.Fields(string(ignored)), func(pattern string) bool {
						matches, err := path.Match(strings.Trim(pattern, "/"), name)
						return err == nil && matches
					}) {
						t.Errorf("%s makes %s, which .gitignore does not have", page, name)
					}
				}
			}
		}
	}
	if len(madeBy) < 15 {
		t.Errorf("found only %q", madeBy)
	}
}

package markdown

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

const page = `# Title
A [link](a.md#b), a ![picture](images/x.svg), and ` + "`[no](link)`" + `.

## First part
` + "```sh terminal" + `
# no heading
echo '[no](link)'
` + "```" + `
text

### Detail
` + "```" + `
plain
` + "```" + `
## First part
`

func TestParse(t *testing.T) {
	p, err := Parse(page)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"Title", "First part", "Detail", "First part"}; !slices.Equal(p.Headings, want) {
		t.Errorf("headings %q, want %q", p.Headings, want)
	}
	if want := []string{"a.md#b", "images/x.svg"}; !slices.Equal(p.Links, want) {
		t.Errorf("links %q, want %q", p.Links, want)
	}
	if len(p.Sections) != 3 || p.Sections[0].Heading != "" || p.Sections[1].Heading != "First part" {
		t.Fatalf("sections %+v", p.Sections)
	}
	section, ok := p.Section("First part")
	if !ok || len(section.Blocks) != 2 || !strings.Contains(section.Text, "### Detail") {
		t.Fatalf("the section is %+v", section)
	}
	b := section.Blocks[0]
	if b.Language != "sh" || !slices.Equal(b.Words, []string{"terminal"}) || b.Line != 6 ||
		!strings.HasPrefix(b.Text, "# no heading\n") {
		t.Errorf("the first block is %+v", b)
	}
	if code := section.Code(""); len(code) != 1 || code[0] != "plain\n" {
		t.Errorf("the block without a language is %q", code)
	}
	anchors := slices.Sorted(maps.Keys(p.Anchors()))
	if want := []string{"detail", "first-part", "first-part-1", "title"}; !slices.Equal(anchors, want) {
		t.Errorf("anchors %q, want %q", anchors, want)
	}
}

func TestParseRefusesABlockWithoutEnd(t *testing.T) {
	if _, err := Parse("```sh\necho\n"); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("the error is %v", err)
	}
}

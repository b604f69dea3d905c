// Package markdown finds the headings, links and code blocks of the project's documents, so that tests can check and
// run what the documents say. It reads the part of Markdown that the documents use: headings with #, inline links, and
// code between lines of three backquotes. It is for documents of this project only, not for text of strangers.
package markdown

import (
	"fmt"
	"regexp"
	"strings"
)

// Page is a document.
type Page struct {
	Headings []string  // all headings, without their # characters
	Links    []string  // the targets of all links and pictures, as they are written
	Sections []Section // the text before the first "## " heading, and then each section that begins with one
}

// Section is the part of a page from one "## " heading to the next.
type Section struct {
	Heading string // "" for the text before the first heading
	Text    string // all of it, without the heading
	Blocks  []Block
}

// Block is a block of code.
type Block struct {
	Language string   // such as sh
	Words    []string // what follows the language in the first line. Readers do not see it.
	Text     string   // the code, which ends with a line feed
	Line     int      // where the code begins, from 1
}

// link matches the target of a link. Code in backquotes is removed first.
var (
	link = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	code = regexp.MustCompile("`[^`]*`")
)

// Parse reads a page. The error says where a block of code has no end.
func Parse(text string) (*Page, error) {
	page := &Page{Sections: []Section{{}}}
	var block *Block
	number := 0
	for line := range strings.Lines(text) {
		number++
		section := &page.Sections[len(page.Sections)-1]
		bare := strings.TrimRight(line, "\r\n")
		fence, isFence := strings.CutPrefix(bare, "```")
		switch {
		case block != nil && isFence:
			section.Blocks, block = append(section.Blocks, *block), nil
		case block != nil:
			block.Text += line
		case isFence:
			words := strings.Fields(fence)
			block = &Block{Line: number + 1}
			if len(words) > 0 {
				block.Language, block.Words = words[0], words[1:]
			}
		default:
			if heading := strings.TrimLeft(bare, "#"); heading != bare && strings.HasPrefix(heading, " ") {
				page.Headings = append(page.Headings, heading[1:])
				if len(bare)-len(heading) == 2 {
					page.Sections = append(page.Sections, Section{Heading: heading[1:]})
					continue
				}
			}
			for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(bare, "code"), -1) {
				page.Links = append(page.Links, m[1])
			}
		}
		section.Text += line
	}
	if block != nil {
		return nil, fmt.Errorf("the block of code at line %d has no end", block.Line)
	}
	return page, nil
}

// Section returns the section with this heading.
func (p *Page) Section(heading string) (Section, bool) {
	for _, s := range p.Sections {
		if s.Heading == heading {
			return s, true
		}
	}
	return Section{}, false
}

// Code returns the text of each block with this language.
func (s Section) Code(language string) (all []string) {
	for _, b := range s.Blocks {
		if b.Language == language {
			all = append(all, b.Text)
		}
	}
	return all
}

// unanchored matches what is left out of an anchor.
var unanchored = regexp.MustCompile(`[^\p{L}\p{N} _-]`)

// Anchors returns the anchors of the page's headings, which a link can name after its #. They have the form that GitHub
// gives them: the second heading with the same text gets the suffix -1.
func (p *Page) Anchors() map[string]bool {
	anchors := map[string]bool{}
	seen := map[string]int{}
	for _, h := range p.Headings {
		anchor := strings.ReplaceAll(unanchored.ReplaceAllString(strings.ToLower(h), ""), " ", "-")
		n := seen[anchor]
		seen[anchor]++
		if n > 0 {
			anchor = fmt.Sprintf("%s-%d", anchor, n)
		}
		anchors[anchor] = true
	}
	return anchors
}

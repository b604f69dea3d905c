package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPicturesAreCurrent checks that each picture is what its text gives, and that it is well-formed.
func TestPicturesAreCurrent(t *testing.T) {
	pictures, err := drawAll(".")
	if err != nil || len(pictures) < 4 {
		t.Fatalf("%d pictures, %v", len(pictures), err)
	}
	for name, svg := range pictures {
		file, err := os.ReadFile(filepath.Join("..", "images", name))
		if err != nil || string(file) != svg {
			t.Errorf("docs/images/%s is not what its text gives (%v); run go generate ./docs/diagrams", name, err)
		}
		decoder := xml.NewDecoder(strings.NewReader(svg))
		for err == nil {
			_, err = decoder.Token()
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
	drawn, err := filepath.Glob(filepath.Join("..", "images", "*.svg"))
	if err != nil || len(drawn) != len(pictures)+1 { // ci/recipes draws terminal.svg
		t.Errorf("docs/images has the drawings %q, but there are %d texts (%v)", drawn, len(pictures), err)
	}
}

// TestAlternatives checks that pages describe each picture with its title, for people who cannot see it.
func TestAlternatives(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join("..", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, name := range pages {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	texts, err := filepath.Glob("*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range texts {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "\ntitle ")
		title, _, _ := strings.Cut(rest, "\n")
		image := "![" + title + "](images/" + strings.TrimSuffix(name, ".txt") + ".svg)"
		if !strings.Contains(all.String(), image) {
			t.Errorf("no page has %s", image)
		}
	}
}

func TestMistakesInTexts(t *testing.T) {
	for text, want := range map[string]string{
		"title x":                                      "1: a picture needs a size",
		"size 10 10\ntitle x\nbix a":                   `3: there is no command "bix"`,
		"size 10 10\nbox a 1 2 3 4 pink A":             `2: there is no style "pink"`,
		"size 10 10\nbox a 1 2 3":                      "2: box needs 6 words",
		"size 10 x":                                    "1: ",
		"size 10 10\nbox a 0 0 9 9 plain A\narrow a b": `3: there is no box "a" or no box "b"`,
		"box a 0 0 9 9 plain A\nbox b 20 20 9 9 plain B\narrow a b": "3: no straight arrow",
		"lane a 5 A\nmessage a b hello":                             `2: no arrow leads from the lane "a"`,
		"note a hello":                                              `1: there is no lane "a"`,
	} {
		if _, err := draw(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// TestEscaping checks that a text cannot add elements to the picture.
func TestEscaping(t *testing.T) {
	svg, err := draw("size 10 10\ntitle a<b>\ntext 1 2 x < y & z")
	if err != nil || !strings.Contains(svg, "x &lt; y &amp; z") || !strings.Contains(svg, "<title>a&lt;b&gt;</title>") {
		t.Errorf("%v\n%s", err, svg)
	}
}

// Command diagrams draws the pictures of the docs: from each NAME.txt in docs/diagrams it writes docs/images/NAME.svg.
// Run it after a change of a text:
//
//	go generate ./docs/diagrams
//
// A text has one command for each line. A | in a text begins a new line of the picture. Numbers are pixels.
//
//	size WIDTH HEIGHT                         the size of the picture; comes first
//	title TEXT                                what the picture shows, for people who cannot see it
//	box NAME X Y WIDTH HEIGHT STYLE TEXT      a box with a text in its middle
//	text X Y TEXT                             a text that begins at X
//	arrow FROM TO TEXT                        from one box to another, straight; the text stands beside it
//	lane NAME X TEXT                          a participant, and the line below it
//	message FROM TO TEXT                      an arrow from one lane to another, below the message before it
//	answer FROM TO TEXT                       the same, dashed
//	note NAME TEXT                            a text on a lane, below the message before it
//
// The styles are plain, accent, good, bad, sealed, and frame, whose text stands at its top.
//
// The pictures have their own background, in light or dark as the reader's system prefers. So they can be read on every
// page. They are at most 480 pixels wide, so that their text is large enough on a phone.
package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
)

//go:generate go run .

func main() {
	log.SetFlags(0)
	pictures, err := drawAll(".")
	if err != nil {
		log.Fatal(err)
	}
	for name, svg := range pictures {
		if err := os.WriteFile(filepath.Join("..", "images", name), []byte(svg), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}

// drawAll draws each text of the folder. It returns the pictures by the names of their files.
func drawAll(folder string) (map[string]string, error) {
	names, err := filepath.Glob(filepath.Join(folder, "*.txt"))
	if err != nil {
		return nil, err
	}
	pictures := map[string]string{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		svg, err := draw(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s:%w", name, err)
		}
		pictures[strings.TrimSuffix(filepath.Base(name), ".txt")+".svg"] = svg
	}
	return pictures, nil
}

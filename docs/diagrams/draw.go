package main

import (
	"errors"
	"fmt"
	"html"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Sizes in pixels.
const (
	fontSize    = 14
	lineHeight  = 18
	laneHead    = 46 // the height of a lane's box
	laneWidth   = 116
	laneTop     = 20
	messageGap  = 14 // between a message and the text of the next one
	arrowIndent = 5  // between an arrow and the text beside it
)

// style are the colours of the picture, in light and in dark.
const style = `<style>
svg{--back:#f6f8fa;--edge:#d0d7de;--text:#1f2328;--soft:#59636e;--fill:#ffffff;
--accent:#0969da;--accent-fill:#ddf4ff;--good:#1a7f37;--good-fill:#dafbe1;
--bad:#cf222e;--bad-fill:#ffebe9;--sealed:#8250df;--sealed-fill:#fbefff}
@media (prefers-color-scheme:dark){svg{--back:#161b22;--edge:#3d444d;--text:#f0f6fc;--soft:#9198a1;--fill:#0d1117;
--accent:#4493f8;--accent-fill:#10233f;--good:#3fb950;--good-fill:#10281a;
--bad:#f85149;--bad-fill:#351a1d;--sealed:#ab7df8;--sealed-fill:#251b3d}}
text{font:14px ui-sans-serif,system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:var(--text)}
.soft{fill:var(--soft)}.strong{font-weight:600}
.plain{fill:var(--fill);stroke:var(--edge)}.accent{fill:var(--accent-fill);stroke:var(--accent)}
.good{fill:var(--good-fill);stroke:var(--good)}.bad{fill:var(--bad-fill);stroke:var(--bad)}
.sealed{fill:var(--sealed-fill);stroke:var(--sealed)}
.frame{fill:none;stroke:var(--soft);stroke-dasharray:5 4}
.line{stroke:var(--soft);stroke-width:1.5;fill:none}.dashed{stroke-dasharray:6 4}.tip{fill:var(--soft)}
.lane{stroke:var(--edge);stroke-width:1.5}
</style>
`

// styles are the styles that a box can have.
var styles = map[string]bool{"plain": true, "accent": true, "good": true, "bad": true, "sealed": true, "frame": true}

// box is a rectangle.
type box struct{ x, y, width, height int }

// picture is a picture that is being drawn.
type picture struct {
	width, height int
	title         string
	boxes         map[string]box // boxes, by name
	lanes         map[string]int // x of the middle of each lane, by name
	at            int            // y of the next message
	lines, shapes strings.Builder
}

// draw returns the SVG for a text. The error begins with the number of the line.
func draw(text string) (string, error) {
	p := &picture{boxes: map[string]box{}, lanes: map[string]int{}, at: laneTop + laneHead + messageGap}
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, rest, _ := strings.Cut(line, " ")
		if err := p.command(name, strings.TrimSpace(rest)); err != nil {
			return "", fmt.Errorf("%d: %w", number, err)
		}
	}
	if p.width == 0 || p.title == "" {
		return "", fmt.Errorf("%d: a picture needs a size and a title", number)
	}
	return p.svg(), nil
}

// command does what one line says.
func (p *picture) command(name, rest string) error {
	counts := map[string]int{"size": 2, "box": 6, "text": 2, "arrow": 2, "lane": 2, "message": 2, "answer": 2, "note": 1}
	words, text := cut(rest, counts[name])
	if len(words) < counts[name] {
		return fmt.Errorf("%s needs %d words before its text", name, counts[name])
	}
	switch name {
	case "size":
		numbers, err := numbers(words)
		if err != nil {
			return err
		}
		p.width, p.height = numbers[0], numbers[1]
	case "title":
		p.title = text
	case "box":
		return p.box(words, text)
	case "text":
		numbers, err := numbers(words)
		if err != nil {
			return err
		}
		p.text(numbers[0], numbers[1], "start", "soft", text)
	case "arrow":
		return p.arrow(words[0], words[1], text)
	case "lane":
		x, err := strconv.Atoi(words[1])
		if err != nil {
			return err
		}
		p.lane(words[0], x, text)
	case "message":
		return p.message(words[0], words[1], "line", text)
	case "answer":
		return p.message(words[0], words[1], "line dashed", text)
	case "note":
		return p.note(words[0], text)
	default:
		return fmt.Errorf("there is no command %q", name)
	}
	return nil
}

// cut returns the first n words of a line, and the rest.
func cut(line string, n int) (words []string, rest string) {
	rest = line
	for range n {
		word, after, _ := strings.Cut(rest, " ")
		if word == "" {
			return words, ""
		}
		words, rest = append(words, word), strings.TrimSpace(after)
	}
	return words, rest
}

// numbers parses words as whole numbers.
func numbers(words []string) (all []int, err error) {
	for _, w := range words {
		n, parseErr := strconv.Atoi(w)
		all, err = append(all, n), errors.Join(err, parseErr)
	}
	return all, err
}

func (p *picture) box(words []string, text string) error {
	n, err := numbers(words[1:5])
	if err != nil {
		return err
	}
	b, class := box{n[0], n[1], n[2], n[3]}, words[5]
	if !styles[class] {
		return fmt.Errorf("there is no style %q", class)
	}
	p.boxes[words[0]] = b
	p.rectangle(b, class)
	if class == "frame" {
		p.text(b.x+10, b.y+fontSize+6, "start", "soft", text)
		return nil
	}
	p.middle(b, text)
	return nil
}

func (p *picture) rectangle(b box, class string) {
	fmt.Fprintf(&p.shapes, `<rect class="%s" x="%d" y="%d" width="%d" height="%d" rx="6"/>`+"\n",
		class, b.x, b.y, b.width, b.height)
}

// middle writes a text in the middle of a box. Its first line is strong.
func (p *picture) middle(b box, text string) {
	lines := strings.Split(text, "|")
	y := b.y + (b.height-lineHeight*len(lines))/2 + fontSize
	for i, line := range lines {
		class := "strong"
		if i > 0 {
			class = "soft"
		}
		p.text(b.x+b.width/2, y+i*lineHeight, "middle", class, line)
	}
}

// text writes lines of text. y is the base line of the first one.
func (p *picture) text(x, y int, anchor, class, text string) {
	for i, line := range strings.Split(text, "|") {
		fmt.Fprintf(&p.shapes, `<text class="%s" x="%d" y="%d" text-anchor="%s">%s</text>`+"\n",
			class, x, y+i*lineHeight, anchor, html.EscapeString(strings.TrimSpace(line)))
	}
}

// line draws a line with a tip at its end.
func (p *picture) line(class string, x1, y1, x2, y2 int) {
	fmt.Fprintf(&p.lines, `<path class="%s" d="M%d %dL%d %d" marker-end="url(#tip)"/>`+"\n", class, x1, y1, x2, y2)
}

// arrow draws a straight arrow between two boxes. It is vertical if they share a part of their width, and otherwise
// horizontal.
func (p *picture) arrow(from, to, text string) error {
	a, okA := p.boxes[from]
	b, okB := p.boxes[to]
	if !okA || !okB {
		return fmt.Errorf("there is no box %q or no box %q", from, to)
	}
	rows := max(1, strings.Count(text, "|")+1)
	if left, right := max(a.x, b.x), min(a.x+a.width, b.x+b.width); left < right {
		x, y1, y2 := (left+right)/2, a.y+a.height, b.y
		if b.y < a.y {
			y1, y2 = a.y, b.y+b.height
		}
		p.line("line", x, y1, x, y2)
		p.text(x+arrowIndent+4, (y1+y2)/2-lineHeight*(rows-1)/2+fontSize/3, "start", "soft", text)
		return nil
	}
	top, bottom := max(a.y, b.y), min(a.y+a.height, b.y+b.height)
	if top >= bottom {
		return fmt.Errorf("no straight arrow leads from %q to %q", from, to)
	}
	y, x1, x2 := (top+bottom)/2, a.x+a.width, b.x
	if b.x < a.x {
		x1, x2 = a.x, b.x+b.width
	}
	p.line("line", x1, y, x2, y)
	p.text((x1+x2)/2, y-arrowIndent-lineHeight*(rows-1), "middle", "soft", text)
	return nil
}

func (p *picture) lane(name string, x int, text string) {
	p.lanes[name] = x
	b := box{x - laneWidth/2, laneTop, laneWidth, laneHead}
	p.rectangle(b, "plain")
	p.middle(b, text)
}

func (p *picture) message(from, to, class, text string) error {
	x1, ok1 := p.lanes[from]
	x2, ok2 := p.lanes[to]
	if !ok1 || !ok2 || from == to {
		return fmt.Errorf("no arrow leads from the lane %q to the lane %q", from, to)
	}
	p.text((x1+x2)/2, p.at+fontSize, "middle", "", text)
	p.at += lineHeight*(strings.Count(text, "|")+1) + arrowIndent
	end := x2 - 2
	if x2 < x1 {
		end = x2 + 2
	}
	p.line(class, x1, p.at, end, p.at)
	p.at += messageGap
	return nil
}

func (p *picture) note(lane, text string) error {
	x, ok := p.lanes[lane]
	if !ok {
		return fmt.Errorf("there is no lane %q", lane)
	}
	rows := strings.Count(text, "|") + 1
	b := box{x - laneWidth/2, p.at, laneWidth, lineHeight*rows + 8}
	p.rectangle(b, "good")
	p.text(x, p.at+fontSize+4, "middle", "", text)
	p.at += b.height + messageGap
	return nil
}

func (p *picture) svg() string {
	var lanes strings.Builder
	for _, x := range slices.Sorted(maps.Values(p.lanes)) {
		fmt.Fprintf(&lanes, `<path class="lane" d="M%d %dV%d"/>`+"\n", x, laneTop+laneHead, p.at)
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">
<title>%s</title>
%s<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">`+
		`<path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>
<rect x=".5" y=".5" width="%d" height="%d" rx="8" fill="var(--back)" stroke="var(--edge)"/>
%s%s%s</svg>
`, p.width, p.height, p.width, p.height, html.EscapeString(p.title), style, p.width-1, p.height-1,
		lanes.String(), p.lines.String(), p.shapes.String())
}

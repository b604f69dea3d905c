package main

import (
	"strings"
	"unicode"
)

// columns returns how many columns of a terminal a text takes: two for wide characters such as those of Chinese, none
// for marks that are combined with the character before.
func columns(text string) (n int) {
	for _, r := range text {
		n += columnsOf(r)
	}
	return n
}

func columnsOf(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case unicode.Is(wide, r):
		return 2
	}
	return 1
}

// wide has the blocks whose characters take two columns (Unicode Standard Annex 11, W and F), without rare ones.
var wide = &unicode.RangeTable{
	R16: []unicode.Range16{{0x1100, 0x115f, 1}, {0x2e80, 0x303e, 1}, {0x3041, 0xa4cf, 1}, {0xa960, 0xa97f, 1},
		{0xac00, 0xd7a3, 1}, {0xf900, 0xfaff, 1}, {0xfe30, 0xfe6f, 1}, {0xff01, 0xff60, 1}, {0xffe0, 0xffe6, 1}},
	R32: []unicode.Range32{{0x16fe0, 0x1b2ff, 1}, {0x1f300, 0x1faff, 1}, {0x20000, 0x3fffd, 1}},
}

// fit returns text, cut to at most width columns. An ellipsis stands for what is cut.
func fit(text string, width int) string {
	if columns(text) <= width {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if width -= columnsOf(r); width < 1 {
			break
		}
		b.WriteRune(r)
	}
	return b.String() + "…"
}

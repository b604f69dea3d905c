// Package similar finds the known words that are most similar to a mistyped one.
package similar

import (
	"cmp"
	"slices"
	"strings"
)

// Distance returns how many letters must be added, removed, replaced or swapped to turn a into b.
func Distance(a, b string) int {
	before, above := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range above {
		above[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			row[j] = min(above[j]+1, row[j-1]+1, above[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, above = above, row
	}
	return above[len(b)]
}

// Nearest returns at most n of the known words, the most similar first. A word that contains the other one, such as
// translate and text.translate, comes before the rest. Upper and lower case are the same.
func Nearest(word string, known []string, n int) []string {
	type candidate struct {
		word  string
		apart bool // neither of the two words contains the other
		far   int
	}
	word = strings.ToLower(word)
	all := make([]candidate, len(known))
	for i, k := range known {
		lower := strings.ToLower(k)
		within := word != "" && lower != "" && (strings.Contains(lower, word) || strings.Contains(word, lower))
		all[i] = candidate{k, !within, Distance(word, lower)}
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		switch {
		case a.apart == b.apart:
			return cmp.Or(cmp.Compare(a.far, b.far), cmp.Compare(a.word, b.word))
		case a.apart:
			return 1
		}
		return -1
	})
	nearest := make([]string, min(n, len(all)))
	for i := range nearest {
		nearest[i] = all[i].word
	}
	return nearest
}

package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestAskOutcomesAreDistinct checks that each outcome has its own code and name, and is in the help.
func TestAskOutcomesAreDistinct(t *testing.T) {
	var codes []int
	var names []string
	for _, o := range outcomes {
		if slices.Contains(codes, o.code) || slices.Contains(names, o.name) || !strings.Contains(askCmd{}.Help(), fmt.Sprintf(" %d  %s\n", o.code, o.help)) {
			t.Errorf("%+v", o)
		}
		codes, names = append(codes, o.code), append(names, o.name)
	}
}

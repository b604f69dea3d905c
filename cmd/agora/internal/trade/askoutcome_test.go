package trade

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
		if slices.Contains(codes, o.Code) || slices.Contains(names, o.Name) || !strings.Contains(AskCmd{}.Help(), fmt.Sprintf(" %d  %s\n", o.Code, o.help)) {
			t.Errorf("%+v", o)
		}
		codes, names = append(codes, o.Code), append(names, o.Name)
	}
}

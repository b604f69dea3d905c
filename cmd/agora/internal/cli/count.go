package cli

import "fmt"

// Count returns a number with its noun, such as "1 event" or "2 events".
func Count(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// ExampleTitle begins the part of a help text with one example.
const ExampleTitle = "Example:\n  "

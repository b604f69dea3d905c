package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/agora-relay/agora/internal/safetext"
	"github.com/agora-relay/agora/internal/similar"
)

// Text from others (a relay, an agent, a database, a file name) may contain characters that control a terminal, are
// invisible, or reverse the direction of writing. safetext.Escape replaces all of them.
//
// It is used in two ways. run wraps standard output and standard error in an EscapingWriter, so that no command can
// forget to escape. Printable escapes the text of others within a line, because a line break in it could forge a line of
// agora.

// Printable returns the text of others in a form that can be a part of one line.
func Printable[T ~string | ~[]byte](text T) string { return string(safetext.Escape([]byte(text), "")) }

// EscapingWriter escapes all unsafe characters except line breaks and tabs. Each Write must consist of whole
// characters, as the writes of fmt, json, slog and kong do.
type EscapingWriter struct{ io.Writer }

// Write escapes p and writes it. It returns len(p) if all was written.
func (w EscapingWriter) Write(p []byte) (int, error) {
	if _, err := w.Writer.Write(safetext.Escape(p, "\n\t")); err != nil {
		return 0, err
	}
	return len(p), nil
}

// IsTerminal reports whether f is a terminal: a character device that is not the null device.
func IsTerminal(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}

// ShellQuoted returns a file name in the form that a shell needs, with quotes if necessary.
func ShellQuoted(name string) string {
	plain := func(r rune) bool {
		return r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("/._-+@%:", r))
	}
	if name != "" && name[0] != '-' && !strings.ContainsFunc(name, func(r rune) bool { return !plain(r) }) {
		return name
	}
	return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}

// errorLines returns an error as lines of text, one line for each error that errors.Join has joined.
func errorLines(err error) []string {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var parts, all []string
		for _, part := range joined.Unwrap() {
			parts = append(parts, part.Error())
			all = append(all, errorLines(part)...)
		}
		if err.Error() == strings.Join(parts, "\n") { // errors.Join, not fmt.Errorf
			return all
		}
	}
	return []string{Printable(err.Error())}
}

// Nearest returns the known word that is most similar to word; "" if none is similar.
func Nearest(word string, known []string) string {
	word = strings.ToLower(word)
	best, most := "", 1+len(word)/3
	for _, candidate := range known {
		if d := similar.Distance(word, strings.ToLower(candidate)); d <= most {
			best, most = candidate, d-1
		}
	}
	return best
}

// DidYouMean returns a suggestion to add to an error about an unknown word, or "".
func DidYouMean(word string, known []string) string {
	if near := Nearest(word, known); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return ""
}

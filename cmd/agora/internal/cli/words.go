package cli

import (
	"errors"
	"fmt"
	"strings"
)

// shellOnly are characters that mean something to a shell when they are not quoted. shellFirst are those that do so only
// at the beginning of a word.
const (
	shellOnly  = "|&;<>()$`*\n"
	shellFirst = "~#"
)

// SplitWords splits a command into words as a shell does: spaces separate words, single quotes keep everything, double
// quotes keep everything except backslashes before " and \. A backslash keeps the next character, if escapes is true.
// Nothing is expanded. What only a shell could do is an error, because the user expects it to work.
func SplitWords(text string, escapes bool) (words []string, err error) {
	var word strings.Builder
	begun, quote := false, rune(0)
	runes := []rune(text)
	for i := 0; i < len(runes); i++ {
		r := runes[i]
		switch {
		case r == '\\' && escapes && quote != '\'':
			if i++; i == len(runes) {
				return nil, errors.New("a backslash must not be the last character")
			}
			if quote == '"' && runes[i] != '"' && runes[i] != '\\' && runes[i] != '$' && runes[i] != '`' {
				word.WriteRune('\\')
			}
			word.WriteRune(runes[i])
			begun = true
		case quote != 0 && r == quote:
			quote = 0
		case quote == '\'', quote == '"' && r != '$' && r != '`':
			word.WriteRune(r)
		case quote == 0 && (r == '\'' || r == '"'):
			quote, begun = r, true
		case quote == 0 && (r == ' ' || r == '\t'):
			if begun {
				words = append(words, word.String())
				word.Reset()
			}
			begun = false
		case strings.ContainsRune(shellOnly, r), !begun && strings.ContainsRune(shellFirst, r):
			return nil, fmt.Errorf("%q needs a shell, and there is none; quote it, or run a shell: -- sh -c 'COMMAND'", r)
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("the quote %c has no end", quote)
	}
	if begun {
		words = append(words, word.String())
	}
	return words, nil
}

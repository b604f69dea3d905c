package cli

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// Questions asks a person at a terminal.
type Questions struct {
	env Environment
	in  *bufio.Reader
	Err error // why no more can be asked
}

// NewQuestions returns what asks at standard input.
func NewQuestions(env Environment) Questions {
	return Questions{env: env, in: bufio.NewReader(env.Stdin)}
}

// longestAnswer is in bytes.
const longestAnswer = 4096

// Ask asks until check accepts the answer. An empty answer stands for preset.
func (q *Questions) Ask(question, preset string, check func(string) error) {
	if preset != "" {
		question += " [" + preset + "]"
	}
	for q.Err == nil {
		fmt.Fprintf(q.env.Stdout, "%s: ", question)
		answer, err := q.line()
		if err != nil {
			fmt.Fprintln(q.env.Stdout)
			q.Err = err
			return
		}
		if err = check(cmp.Or(strings.TrimSpace(answer), preset)); err == nil {
			return
		}
		q.env.Say("%v", err)
	}
}

// Confirm asks whether to do something that cannot be meant by accident. Errors: the answer is not yes.
func Confirm(env Environment, question string) error {
	in := NewQuestions(env)
	fmt.Fprintf(env.Stdout, "%s yes or no [no]: ", question)
	answer, err := in.line()
	if err == nil && strings.ToLower(strings.TrimSpace(answer)) != "yes" {
		err = errors.New("nothing was changed")
	}
	return err
}

// line reads a line.
func (q *Questions) line() (string, error) {
	type input struct {
		text string
		err  error
	}
	read := make(chan input, 1)
	go func() { // ends with the line, or with the process
		text, err := q.in.ReadSlice('\n')
		read <- input{string(text), err}
	}()
	select {
	case in := <-read:
		if errors.Is(in.err, bufio.ErrBufferFull) || len(in.text) > longestAnswer {
			return "", errors.New("the answer is too long; nothing was changed")
		}
		if in.err != nil {
			return "", errors.New("the answers ended; nothing was changed")
		}
		return in.text, nil
	case <-q.env.Ctx.Done():
		return "", errors.New("interrupted; nothing was changed")
	}
}

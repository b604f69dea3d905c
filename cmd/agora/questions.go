package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os/user"
	"strconv"
	"strings"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/internal/profile"
)

// askAll asks for everything that a flag could say. There is none.
func (b *beginning) askAll() error {
	in := questions{env: b.env, in: bufio.NewReader(b.env.Stdin)}
	fmt.Fprintf(b.env.Stdout, "This makes the profile %s. Press Enter to take what is in brackets.\n", b.profile)
	in.ask("Your name", loginName(), func(text string) error {
		if b.Name = text; text == "" {
			return nil
		}
		return profile.CheckPerson(text)
	})
	in.ask("The relay", defaultRelay(), func(text string) error { return b.Relay.UnmarshalText([]byte(text)) })
	in.ask("Services that you offer, such as translation.en_zh, separated by spaces (none)", "", func(text string) error {
		b.Intent = strings.Fields(text)
		return b.Validate()
	})
	if len(b.Intent) > 0 {
		in.ask("The price of a service in USD (not said)", "", func(text string) error {
			if text == "" {
				return nil
			}
			number, err := strconv.ParseFloat(text, 64)
			if b.Price = &number; err != nil || number < 0 {
				return errors.New("want a number such as 0.01")
			}
			return nil
		})
	}
	if len(b.Intent) > 0 {
		in.ask("Announce them now? yes or no", "no", func(text string) error {
			b.Announce = strings.HasPrefix("yes", strings.ToLower(text))
			if !b.Announce && !strings.HasPrefix("no", strings.ToLower(text)) {
				return errors.New("want yes or no")
			}
			return nil
		})
	}
	return in.err
}

// loginName returns the name of the user, if it can be a name of the address book. That of root says nothing.
func loginName() string {
	u, err := user.Current()
	if err != nil || u.Uid == "0" || profile.CheckPerson(u.Username) != nil {
		return ""
	}
	return u.Username
}

// questions asks a person at a terminal.
type questions struct {
	env cli.Environment
	in  *bufio.Reader
	err error // why no more can be asked
}

// longestAnswer is in bytes.
const longestAnswer = 4096

// ask asks until check accepts the answer. An empty answer stands for preset.
func (q *questions) ask(question, preset string, check func(string) error) {
	if preset != "" {
		question += " [" + preset + "]"
	}
	for q.err == nil {
		fmt.Fprintf(q.env.Stdout, "%s: ", question)
		answer, err := q.line()
		if err != nil {
			fmt.Fprintln(q.env.Stdout)
			q.err = err
			return
		}
		if err = check(cmp.Or(strings.TrimSpace(answer), preset)); err == nil {
			return
		}
		q.env.Say("%v", err)
	}
}

// confirm asks whether to do something that cannot be meant by accident. Errors: the answer is not yes.
func confirm(env cli.Environment, question string) error {
	in := questions{env: env, in: bufio.NewReader(env.Stdin)}
	fmt.Fprintf(env.Stdout, "%s yes or no [no]: ", question)
	answer, err := in.line()
	if err == nil && strings.ToLower(strings.TrimSpace(answer)) != "yes" {
		err = errors.New("nothing was changed")
	}
	return err
}

// line reads a line.
func (q *questions) line() (string, error) {
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

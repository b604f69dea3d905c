package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/agora-relay/agora/envelope"
)

// JSONInput is a flag whose value is JSON, or says where the JSON is: @FILE, or - for standard input. Neither of the
// two is JSON, so there is no confusion.
type JSONInput string

func (j *JSONInput) UnmarshalText(text []byte) error {
	*j = JSONInput(text)
	if j.source() != "" {
		return nil
	}
	return checkJSON(text)
}

func checkJSON(text []byte) error {
	_, err := envelope.Canonicalize(text)
	if wrong, ok := errors.AsType[*envelope.Error](err); ok { // its code is for relays
		err = errors.New(wrong.Message)
	}
	if err != nil {
		return fmt.Errorf("want JSON, with strings in double quotes: %w", err)
	}
	return nil
}

// source returns the name of the file, - for standard input; empty: the value is the JSON itself, or was not given.
func (j JSONInput) source() string {
	if file, found := strings.CutPrefix(string(j), "@"); found && file != "" {
		return file
	}
	if j == "-" {
		return "-"
	}
	return ""
}

// Read returns the JSON; nil: the flag was not given. what names it for messages, such as "the params".
func (j JSONInput) Read(env Environment, what string) (json.RawMessage, error) {
	source := j.source()
	switch {
	case j == "":
		return nil, nil
	case source == "":
		return json.RawMessage(j), nil
	}
	text, err := env.Input(source, what)
	if err != nil {
		return nil, err
	}
	if err := checkJSON(text); err != nil {
		return nil, fmt.Errorf("%s in %s: %w", what, source, err)
	}
	return text, nil
}

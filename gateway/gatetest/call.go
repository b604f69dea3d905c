package gatetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Call is a request to a gateway.
type Call struct {
	Method, Path string
	Key          string // for Authorization: Bearer; empty: none
	Body         any    // a string is sent as it is; nil: no body; anything else as JSON
	Header       map[string]string
}

// Answer is what a gateway has answered.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

func (a Answer) String() string { return fmt.Sprintf("%d %s", a.Status, bytes.TrimSpace(a.Body)) }

// NewRequest returns the request of a call.
func NewRequest(ctx context.Context, base string, c Call) (*http.Request, error) {
	var body io.Reader
	switch b := c.Body.(type) {
	case nil:
	case string:
		body = strings.NewReader(b)
	default:
		text, err := json.Marshal(b)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, c.Method, base+c.Path, body)
	if err != nil {
		return nil, err
	}
	if c.Key != "" {
		r.Header.Set("Authorization", "Bearer "+c.Key)
	}
	for name, value := range c.Header {
		r.Header.Set(name, value)
	}
	return r, nil
}

// Do sends a request to base and reads the answer.
func Do(ctx context.Context, client *http.Client, base string, c Call) (Answer, error) {
	r, err := NewRequest(ctx, base, c)
	if err != nil {
		return Answer{}, err
	}
	response, err := client.Do(r)
	if err != nil {
		return Answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return Answer{response.StatusCode, response.Header, body}, err
}

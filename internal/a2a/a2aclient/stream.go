package a2aclient

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/jsontext"
)

// Stream sends a message and passes each event of the answer to each. It returns when the stream has ended, or with
// the error of each. A stream that ends before a result is an error; see Unanswered.
func (c *Client) Stream(ctx context.Context, s a2a.Send, each func(a2a.Stream) error) error {
	params, err := c.sendParams(s)
	if err != nil {
		return err
	}
	return c.stream(ctx, "SendStreamingMessage", "", params, each)
}

// Subscribe passes the events of a task to each, as Stream does.
func (c *Client) Subscribe(ctx context.Context, id string, each func(a2a.Stream) error) error {
	return c.stream(ctx, "SubscribeToTask", id, jsontext.Compact(map[string]string{"id": id}), each)
}

func (c *Client) stream(
	ctx context.Context, name, task string, params []byte, each func(a2a.Stream) error,
) (err error) {
	r, err := c.request(ctx, name, task, params)
	if err != nil {
		return err
	}
	response, err := c.http.Do(r)
	if err != nil {
		return service.Lost(ctx, err, c.host(), timeout)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if kind := response.Header.Get("Content-Type"); response.StatusCode != http.StatusOK || !strings.HasPrefix(kind, a2a.StreamType) {
		text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
		if err != nil {
			return service.Lost(ctx, err, c.host(), timeout)
		}
		result, err := c.result(response, text)
		if err != nil {
			return err
		}
		event, err := c.event(result) // some servers answer a short task at once
		if err != nil {
			return err
		}
		return each(event)
	}
	last := false
	events := newEvents(response.Body)
	for {
		data, err := events.next()
		switch {
		case err == io.EOF && last:
			return nil
		case err == io.EOF:
			return errCut
		case err != nil:
			return service.Lost(ctx, err, c.host(), timeout)
		}
		result, err := c.result(response, data)
		if err != nil {
			return err
		}
		event, err := c.event(result)
		if err != nil {
			return err
		}
		if err := each(event); err != nil {
			return err
		}
		last = Ends(event)
	}
}

// Ends reports whether a stream may end after this event: it has a message, or a state in which a task waits for its
// caller or never changes again.
func Ends(event a2a.Stream) bool {
	switch {
	case event.Message != nil:
		return true
	case event.Task != nil:
		return event.Task.Status.State.Terminal() || event.Task.Status.State.Interrupted()
	case event.StatusUpdate != nil:
		return event.StatusUpdate.Status.State.Terminal() || event.StatusUpdate.Status.State.Interrupted()
	}
	return false
}

// events reads server-sent events.
type events struct {
	lines *bufio.Reader
	limit *io.LimitedReader
}

func newEvents(r io.Reader) *events {
	limit := &io.LimitedReader{R: r, N: maxStream}
	return &events{bufio.NewReaderSize(limit, 4<<10), limit}
}

// next returns the data of the next event. Errors: io.EOF after the last one; one of a stream that is too large.
func (e *events) next() (data []byte, err error) {
	for {
		line, err := e.line()
		if err != nil {
			if err == io.EOF && e.limit.N <= 0 {
				err = fmt.Errorf("the stream has more than %d bytes", maxStream)
			}
			return nil, err // an event that is not complete does not count
		}
		switch value, isData := bytes.CutPrefix(line, []byte("data:")); {
		case isData:
			data = append(append(data, bytes.TrimPrefix(value, []byte(" "))...), '\n')
			if len(data) > maxAnswer {
				return nil, fmt.Errorf("an event has more than %d bytes", maxAnswer)
			}
		case len(line) == 0 && len(data) > 0:
			return data, nil
		}
	}
}

// line returns the next line without its end.
func (e *events) line() (line []byte, err error) {
	for {
		piece, err := e.lines.ReadSlice('\n')
		line = append(line, piece...)
		switch {
		case len(line) > maxAnswer:
			return nil, fmt.Errorf("an event has more than %d bytes", maxAnswer)
		case err == nil:
			return bytes.TrimRight(line, "\r\n"), nil
		case err != bufio.ErrBufferFull:
			return nil, err
		}
	}
}

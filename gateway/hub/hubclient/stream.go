package hubclient

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/internal/exchange"
)

// event is a server-sent event.
type event struct{ name, data string }

const (
	maxEvent  = 512 << 10   // bytes of an event
	idleLimit = time.Minute // a hub sends something every 20 s
)

// stream opens the inbox stream after the message with this id, and sends its events to out. It returns when the stream
// ends. err is nil if the hub has ended the stream without a failure.
func (c *Client) stream(ctx context.Context, after int64, out chan<- event) (err error) {
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	idle := time.AfterFunc(idleLimit, cancel)
	defer idle.Stop()
	r, err := c.request(limited, http.MethodGet, "/agent/inbox", nil)
	if err != nil {
		return err
	}
	reason := func(err error) error {
		if limited.Err() != nil && ctx.Err() == nil {
			return &exchange.Lost{Text: fmt.Sprintf("the hub has sent nothing for %v", idleLimit)}
		}
		return service.Lost(ctx, err, r.URL.Host, exchangeTimeout)
	}
	r.Header.Set("Accept", "text/event-stream")
	r.Header.Set("Last-Event-ID", strconv.FormatInt(after, 10))
	response, err := c.HTTP.Do(r)
	if err != nil {
		return reason(err)
	}
	if response.StatusCode != http.StatusOK {
		text, err := service.ReadBody(response)
		if err != nil {
			return reason(err)
		}
		return refusal(response, text)
	}
	defer func() {
		if closeErr := response.Body.Close(); err == nil && closeErr != nil {
			err = service.Lost(ctx, closeErr, r.URL.Host, exchangeTimeout)
		}
	}()
	if kind := response.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/event-stream") {
		return &exchange.Lost{Text: "the answer is not a stream of events; is this the URL of a hub?"}
	}
	err = readEvents(&watched{response.Body, idle}, func(e event) error {
		idle.Stop() // waiting for the reader of out is not the hub's fault
		defer idle.Reset(idleLimit)
		select {
		case out <- e:
			return nil
		case <-limited.Done():
			return limited.Err()
		}
	})
	if err != nil {
		return reason(err)
	}
	return nil
}

// watched restarts a timer with each read that returns data.
type watched struct {
	io.Reader
	idle *time.Timer
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if n > 0 {
		w.idle.Reset(idleLimit)
	}
	return n, err
}

var errLongEvent = errors.New("an event is too long")

// readEvents calls handle for each complete event with data in the stream r, until r ends.
func readEvents(r io.Reader, handle func(event) error) error {
	lines := bufio.NewReaderSize(r, 4<<10)
	var e event
	size := 0
	for {
		line, err := readLine(lines, maxEvent-size)
		if err == io.EOF {
			return nil // the last event is not complete
		}
		if err != nil {
			return err
		}
		size += len(line)
		if line == "" {
			if e.data != "" {
				if err := handle(e); err != nil {
					return err
				}
			}
			e, size = event{}, 0
			continue
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "event":
			e.name = value
		case "data":
			if e.data != "" {
				e.data += "\n"
			}
			e.data += value
		}
	}
}

// readLine reads a line of at most limit bytes, and returns it without its end.
func readLine(r *bufio.Reader, limit int) (string, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if line = append(line, part...); len(line) > limit {
			return "", errLongEvent
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		if err != nil {
			return "", err
		}
		return strings.TrimRight(string(line), "\r\n"), nil
	}
}

package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"
)

// maxAnswer is the size of the largest answer that a client reads.
const maxAnswer = 16 << 20

// Client calls the API of the relay that runs at a data folder.
type Client struct {
	http   *http.Client
	folder string
}

// NewClient returns a client.
func NewClient(folder string) *Client {
	return &Client{folder: folder, http: &http.Client{Timeout: slowTime + time.Minute, Transport: &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return Dial(ctx, folder) },
		DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10, DisableCompression: true}}}
}

// Call sends a request with in as its body, unless in is nil, and decodes the answer into out. Errors: *NotRunning,
// NotAllowed, Refusal.
func (c *Client) Call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	response, err := c.do(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer response.Body.Close() // it was only read
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err == nil && len(text) > maxAnswer {
		err = errors.New("the answer is too long")
	}
	if err == nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		return fmt.Errorf("the answer on the socket of %s is not that of a relay: %w", c.folder, err)
	}
	return nil
}

// Copy writes the body of an answer to out.
func (c *Client) Copy(ctx context.Context, path string, out io.Writer) error {
	response, err := c.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, response.Body)
	return errors.Join(err, response.Body.Close())
}

// do sends a request and returns an answer that is no refusal.
func (c *Client) do(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://admin"+path, body)
	if err != nil {
		return nil, err
	}
	response, err := c.http.Do(request)
	if none, ok := errors.AsType[*NotRunning](err); ok {
		return nil, none
	}
	if denied, ok := errors.AsType[NotAllowed](err); ok {
		return nil, denied
	}
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return nil, fmt.Errorf("the relay has closed the connection without an answer: it has just ended, or you may not "+
			"govern it (%w)", NotAllowed{c.folder})
	}
	if err != nil || response.StatusCode == http.StatusOK {
		return response, err
	}
	defer response.Body.Close() // it was only read
	var refused Refusal
	text, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	if err != nil || json.Unmarshal(text, &refused) != nil || refused.Message == "" {
		return nil, fmt.Errorf("the answer on the socket of %s is not that of a relay (status %d)", c.folder, response.StatusCode)
	}
	return nil, refused
}

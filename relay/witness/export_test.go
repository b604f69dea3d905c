package witness

import "net/http"

// Over makes c send its requests with transport. It returns c.
func (c *Client) Over(transport http.RoundTripper) *Client {
	c.http.Transport = transport
	return c
}

package witness

import "time"

// AskAgain makes c read the documents of its peers again now, not after a while.
func (c *Client) AskAgain() {
	for _, r := range c.remote {
		r.mu.Lock()
		r.asked = time.Time{}
		r.mu.Unlock()
	}
}

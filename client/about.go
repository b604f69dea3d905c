package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/agora-relay/agora/client/internal/wire"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// about is what the client uses of the relay's well-known document.
type about struct {
	did    didkey.DID
	home   *envelope.Home // the relay as the home of a thread (RELAYS R-1); nil: it does not know homes
	proofs bool           // the relay keeps a log
	read   time.Time      // when the document was read
}

// aboutAge is how long a home counts as read (RELAYS R-4).
const aboutAge = time.Hour

// about returns what the relay says about itself. It reads the document if it has not read it before, or if that was
// longer ago than age. If age is 0, it reads it only once.
func (c *Client) about(ctx context.Context, age time.Duration) (*about, error) {
	if known := c.known.Load(); known != nil && (age == 0 || time.Since(known.read) < age) {
		return known, nil
	}
	info, err := c.Info(ctx)
	if err != nil {
		return nil, err
	}
	var document struct {
		URL      string   `json:"url"`
		Features []string `json:"features"`
	}
	if err := json.Unmarshal(info.JSON, &document); err != nil {
		return nil, err
	}
	a := &about{did: info.DID, proofs: slices.Contains(document.Features, "proofs"), read: time.Now()}
	if slices.Contains(document.Features, "home") && envelope.ValidOrigin(document.URL) {
		a.home = &envelope.Home{DID: info.DID, URL: document.URL}
	}
	c.known.Store(a)
	return a, nil
}

// relayDID returns the relay's identity. The relay signs its notices of timeouts with it.
func (c *Client) relayDID(ctx context.Context) (didkey.DID, error) {
	a, err := c.about(ctx, 0)
	if err != nil {
		return "", err
	}
	return a.did, nil
}

// proves reports whether the relay says that it keeps a log.
func (c *Client) proves(ctx context.Context) (bool, error) {
	a, err := c.about(ctx, 0)
	return err == nil && a.proofs, err
}

// home returns the relay as the home of a new thread. It is nil if the relay does not know homes, or does not say.
func (c *Client) home(ctx context.Context) *envelope.Home {
	a, err := c.about(ctx, aboutAge)
	if err != nil {
		c.log.Debug("the relay does not say whether it knows homes, so the thread gets none", "error", err)
		return nil
	}
	return a.home
}

// ErrOtherRelay is in the error of a post to a relay that is not the home of the thread: another relay answers at its
// address (RELAYS R-4). Nothing was sent.
var ErrOtherRelay = errors.New("another relay answers at this address")

// checkHome returns nil if the relay is this home (RELAYS R-4).
func (c *Client) checkHome(ctx context.Context, home *envelope.Home) *wire.Failure {
	a, err := c.about(ctx, aboutAge)
	if failed, ok := errors.AsType[*wire.Failure](err); ok {
		return failed
	}
	if err != nil {
		return &wire.Failure{Err: err, NotSent: true}
	}
	if a.did != home.DID {
		c.known.Store(nil) // the relay may come back to its address
		return &wire.Failure{Status: http.StatusMisdirectedRequest, NotSent: true,
			Err: fmt.Errorf("client: the home of this thread is %s: %w, %s", home.DID, ErrOtherRelay, a.did)}
	}
	return nil
}

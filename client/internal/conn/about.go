package conn

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

// Info is the relay's document /.well-known/agora.json, and the relay's identity in it.
type Info struct {
	DID  didkey.DID
	JSON json.RawMessage
}

// Info reads the relay's document /.well-known/agora.json.
func (c *Conn) Info(ctx context.Context) (Info, error) {
	var info Info
	if err := c.Read(ctx, wellKnown, nil, wire.Spec{Out: &info.JSON, Limit: wire.MaxDocument}); err != nil {
		return Info{}, err
	}
	var named struct {
		DID string `json:"did"`
	}
	if err := json.Unmarshal(info.JSON, &named); err != nil {
		return Info{}, err
	}
	var err error
	if info.DID, err = didkey.Parse(named.DID); err != nil {
		return Info{}, fmt.Errorf("client: the did in the relay's document is invalid: %w", err)
	}
	return info, nil
}

// About is what the client uses of the relay's well-known document.
type About struct {
	DID    didkey.DID
	Home   *envelope.Home // the relay as the home of a thread (RELAYS R-1); nil: it does not know homes
	Proofs bool           // the relay keeps a log
	read   time.Time      // when the document was read
}

// AboutAge is how long a home counts as read (RELAYS R-4).
const AboutAge = time.Hour

// About returns what the relay says about itself. It reads the document if it has not read it before, or if that was
// longer ago than age. If age is 0, it reads it only once.
func (c *Conn) About(ctx context.Context, age time.Duration) (*About, error) {
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
	a := &About{DID: info.DID, Proofs: slices.Contains(document.Features, "proofs"), read: time.Now()}
	if slices.Contains(document.Features, "home") && envelope.ValidOrigin(document.URL) {
		a.Home = &envelope.Home{DID: info.DID, URL: document.URL}
	}
	c.known.Store(a)
	return a, nil
}

// Known returns what the relay has said about itself; nil: it was not read.
func (c *Conn) Known() *About { return c.known.Load() }

// Forget makes the next call read again what the relay says about itself.
func (c *Conn) Forget() { c.known.Store(nil) }

// RelayDID returns the relay's identity. The relay signs its notices of timeouts with it.
func (c *Conn) RelayDID(ctx context.Context) (didkey.DID, error) {
	a, err := c.About(ctx, 0)
	if err != nil {
		return "", err
	}
	return a.DID, nil
}

// Proves reports whether the relay says that it keeps a log.
func (c *Conn) Proves(ctx context.Context) (bool, error) {
	a, err := c.About(ctx, 0)
	return err == nil && a.Proofs, err
}

// Home returns the relay as the home of a new thread. It is nil if the relay does not know homes, or does not say.
func (c *Conn) Home(ctx context.Context) *envelope.Home {
	a, err := c.About(ctx, AboutAge)
	if err != nil {
		c.Log.Debug("the relay does not say whether it knows homes, so the thread gets none", "error", err)
		return nil
	}
	return a.Home
}

// ErrOtherRelay is in the error of CheckHome: another relay answers at the address of the home.
var ErrOtherRelay = errors.New("another relay answers at this address")

// CheckHome returns nil if the relay is this home (RELAYS R-4). Its error is always a *wire.Failure.
func (c *Conn) CheckHome(ctx context.Context, home *envelope.Home) error {
	a, err := c.About(ctx, AboutAge)
	if failed, ok := errors.AsType[*wire.Failure](err); ok {
		return failed
	}
	if err != nil {
		return &wire.Failure{Err: err, NotSent: true}
	}
	if a.DID != home.DID {
		c.Forget() // the relay may come back to its address
		return &wire.Failure{Status: http.StatusMisdirectedRequest, NotSent: true,
			Err: fmt.Errorf("client: the home of this thread is %s: %w, %s", home.DID, ErrOtherRelay, a.DID)}
	}
	return nil
}

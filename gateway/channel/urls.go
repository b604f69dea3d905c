package channel

import (
	"regexp"
	"strconv"

	"github.com/agora-relay/agora/gateway"
)

// This file recognizes the URLs of this gateway.

var (
	inboxPath    = regexp.MustCompile(`^/inbox/(sk_[A-Za-z0-9_-]{43})$`)
	callbackPath = regexp.MustCompile(`^/channels/(ch_[a-z2-7]{26})/inbox/(tok_[A-Za-z0-9_-]{43})$`)
)

// ownInboxKey returns the key in the URL of an inbox of this relay. own is false for any other URL.
func (g *Gateway) ownInboxKey(text string) (key string, own bool) {
	path, own := gateway.OwnPath(g.url, text)
	found := inboxPath.FindStringSubmatch(path)
	if !own || found == nil {
		return "", false
	}
	return found[1], true
}

// ownCallbackURL returns what the URL of a callback of this service contains. own is false for any other URL.
func (g *Gateway) ownCallbackURL(text string) (c callback, own bool) {
	path, own := gateway.OwnPath(g.url, text)
	found := callbackPath.FindStringSubmatch(path)
	if !own || found == nil {
		return callback{}, false
	}
	return callback{found[1], found[2]}, true
}

// checkCallback checks the callback of a delivery to an inbox.
func (g *Gateway) checkCallback(text string) error {
	if _, own := g.ownCallbackURL(text); own {
		return nil
	}
	_, err := g.Outgoing.Check(text)
	return err
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

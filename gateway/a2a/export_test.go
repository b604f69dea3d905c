package a2a

import "github.com/agora-relay/agora/gateway/deliver"

// Limits, for tests.
const (
	MaxSent      = deliver.Window
	MaxSentOfOne = maxSentOfOne
	MaxOfSource  = maxOfSource
)

// SetKeys sets how many keys an endpoint may have.
func (g *Gateway) SetKeys(n int) { g.keys = n }

// SetTaskBytes sets how many bytes a task may have.
func (g *Gateway) SetTaskBytes(n int64) { g.taskBytes = n }

// SetNotices sets how many unanswered events a hook may have.
func (g *Gateway) SetNotices(n int) { g.notices = n }

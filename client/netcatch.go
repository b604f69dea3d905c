package client

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/internal/fsync"
	"github.com/agora-relay/agora/proof"
)

// What a Network finds out about its relays (RELAYS R-17).

// inNetwork reports whether a Network uses the client.
func (c *Client) inNetwork() bool { return c.poster.Watcher.Proved != nil }

// compare compares a valid proof with the last one of the relay. If they contradict each other within one log, the
// relay is caught.
func (n *Network) compare(s *proof.Statement) {
	n.mu.Lock()
	last := n.proofs[s.Verified.Origin.DID]
	n.proofs[s.Verified.Origin.DID] = s
	n.mu.Unlock()
	if last == nil || last.Verified.Origin != s.Verified.Origin { // two logs may differ after a restore
		return
	}
	for _, e := range proof.Compare([]*proof.Statement{last, s}, nil) {
		if e.Kind != proof.KindChain {
			n.catch(s.Verified.Origin.DID, "its proofs contradict each other: "+string(e.Kind), e)
		}
	}
}

// catch makes the network use a relay no more, and writes the evidence to a file.
func (n *Network) catch(relay didkey.DID, reason string, evidence *proof.Evidence) {
	n.log.Error("a relay was caught and is not used any more", "relay", relay, "reason", reason)
	if err := n.state.Catch(relay, reason); err != nil {
		n.log.Error("the state cannot be saved", "error", err)
	}
	if n.opts.Caught != nil {
		n.opts.Caught(relay, reason)
	}
	if evidence == nil || n.opts.Evidence == "" {
		return
	}
	path := filepath.Join(n.opts.Evidence, fmt.Sprintf("evidence-%s-%d.json", relay.Multibase(), time.Now().Unix()))
	text, err := json.Marshal(evidence)
	if err == nil {
		err = fsync.Create(path, text)
	}
	if err != nil {
		n.log.Error("the evidence cannot be saved", "error", err)
	}
}

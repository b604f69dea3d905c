package serve

import (
	"fmt"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/witness"
)

// witnesses returns who signs the checkpoints of this relay's log; nil: nobody.
func (s *server) witnesses() (relay.Witnesses, error) {
	if !s.keepsLog() || s.WitnessPolicy == "" && len(s.Peer) == 0 {
		return nil, nil
	}
	policy, err := cli.ReadPolicy(s.WitnessPolicy)
	if err != nil {
		return nil, fmt.Errorf("--witness-policy: %w", err)
	}
	return witness.NewClient(policy, s.Peer, s.log), nil
}

// logOrigin names the relay's log, for the operator.
func (s *server) logOrigin() string {
	if log, ok := s.relay.Log(); ok {
		return log.Origin
	}
	return "none"
}

// witness returns the witness that signs the logs of the peers; nil: there are none.
func (s *server) witness(key didkey.Key) (*witness.Witness, error) {
	if len(s.Peer) == 0 {
		return nil, nil
	}
	var dids []didkey.DID
	for _, p := range s.Peer {
		dids = append(dids, p.DID)
	}
	return witness.New(s.relay, key, dids, s.log, nil)
}

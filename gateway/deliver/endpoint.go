package deliver

import (
	"fmt"
	"strings"

	"github.com/agora-relay/agora/didkey"
)

// Scheme begins the endpoint of an agent that gets its work as REQUESTs: agora:did:key:z6Mk… (B-1).
const Scheme = "agora:"

// ParseEndpoint returns the DID of an endpoint that begins with Scheme. own is false for any other endpoint.
func ParseEndpoint(endpoint string) (did didkey.DID, own bool, err error) {
	text, own := strings.CutPrefix(endpoint, Scheme)
	if !own {
		return "", false, nil
	}
	if did, err = didkey.Parse(text); err != nil {
		err = fmt.Errorf("after %s there must be the DID of an agent, such as did:key:z6Mk…: %w", Scheme, err)
	}
	return did, true, err
}

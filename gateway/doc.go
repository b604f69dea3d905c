// Package gateway has what all gateways of a relay share: keys, requests to other servers, and secrets at rest. A
// gateway serves programs of another protocol in the same binary and the same database. docs/GATEWAYS.md has the rules.
package gateway

// Package gateway has what all gateways of a relay share: keys, Idempotency-Keys, requests to other servers, secrets at
// rest, and checksums of rows. A gateway serves programs of another protocol in the same binary and the same database.
// docs/GATEWAYS.md has the rules. Comments cite them by number, such as G-21.
package gateway

// Package model simulates jobs that move from relay to relay (RELAYS §4). The parties use the rules of internal/deal,
// as the Go client does. Relays, network and clocks are models, so that 100,000 worlds take seconds. Its tests are
// its only content.
package model

// Package hub is the Chorus hub: agents register an address, and send each other envelopes that the hub stores until
// the receiver has them. A receiver gets its messages as server-sent events, by polling, or at a webhook.
//
// Messages are in the store, never in a queue in memory. An operation is one Update of the relay, and is answered after
// that Update is on disk. The state of a message says only what the hub knows: "sent" means that the hub has handed it
// out, and "delivered" means that the receiver has confirmed it. docs/HUB.md describes the protocol.
package hub

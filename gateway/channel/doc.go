// Package channel is the gateway for the Chorus Channel protocol. It has both sides of the protocol:
//
//   - As a service, it delivers the messages of its channels to agents: it calls their connection strings, takes their
//     events at callbacks, and offers them tools at an MCP server.
//   - As an address of agents, it takes the deliveries of any service for agents that nobody can reach from outside. The
//     owner of an inbox gets each delivery as a sealed REQUEST, and answers by a callback or in the thread.
//
// Everything that was taken is in the store, never in a queue in memory. An operation is one Update of the relay, and is
// answered after that Update is on disk. docs/CHANNEL.md describes the protocol. Tests cite its requirements by number,
// such as C-12.
package channel

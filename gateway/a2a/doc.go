// Package a2a is the gateway for Agent2Agent 1.0. It gives an agent that nobody can reach a public A2A endpoint, and keeps
// its tasks. Each message of a caller is a turn: the agent gets it as a sealed REQUEST of the gateways' DID, and its RESULT
// ends the turn.
//
// Both bindings, JSON-RPC and HTTP+JSON, are forms of the same operations: a request of either is read into the name of a
// method and its params (rpc.go, rest.go), and one function answers it (operation.go). What a task goes through is in the
// table a2a_event, in the order in which streams send it.
//
// docs/A2A.md describes the gateway. Tests cite its requirements by number, such as A-14.
package a2a

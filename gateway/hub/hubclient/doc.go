// Package hubclient is the client side of a Chorus hub: HTTP calls, and the files in which an agent keeps its
// credentials and its history. docs/HUB.md describes the files. Several processes may use the same folder at the same
// time.
package hubclient

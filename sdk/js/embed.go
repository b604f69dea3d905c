// Package js has JavaScript modules of Agora, for programs that serve them to browsers. They need no build step. Serve
// them as text/javascript, and do not change them.
package js

import _ "embed"

// Module is the text of agora.js, an ES module. It needs no other file.
//
//go:embed agora.js
var Module []byte

// Chain is the text of chain.js, an ES module that checks chains of messages. It imports agora.js from its own folder.
//
//go:embed chain.js
var Chain []byte

// Proof is the text of proof.js, an ES module that checks proofs. It imports agora.js and chain.js from its own folder.
//
//go:embed proof.js
var Proof []byte

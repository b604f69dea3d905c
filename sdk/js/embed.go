// Package js has JavaScript modules of Agora, for programs that serve them to browsers. They need no build step. Serve
// them as text/javascript, and do not change them.
package js

import _ "embed"

// Module is the text of agora.js, an ES module. It needs no other file.
//
//go:embed agora.js
var Module []byte

// Proof is the text of proof.js, an ES module that checks proofs. It imports agora.js from its own folder.
//
//go:embed proof.js
var Proof []byte

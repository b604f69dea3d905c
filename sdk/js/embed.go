// Package js has the JavaScript module of Agora, for programs that serve it to browsers. The module needs no build step
// and no other file.
package js

import _ "embed"

// Module is the text of agora.js, an ES module. Serve it as text/javascript, and do not change it.
//
//go:embed agora.js
var Module []byte

// Package agora has the version of Agora. The relay and its packages are in the folders below.
package agora

import (
	_ "embed"
	"strings"
)

//go:embed VERSION
var version string

// Version returns the version of this source, such as "0.2.0". It is the text of the file VERSION. The program, the
// packages for other languages and the files of a release have the same.
func Version() string { return strings.TrimSpace(version) }

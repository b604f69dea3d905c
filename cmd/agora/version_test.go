package main

import (
	"strings"
	"testing"

	"github.com/agora-relay/agora"
)

// TestVersionLine checks that agora version names the version of the source and of the protocol.
func TestVersionLine(t *testing.T) {
	line := versionLine()
	if !strings.HasPrefix(line, "agora "+agora.Version()) || !strings.Contains(line, ", protocol 1.0, ") {
		t.Errorf("agora version prints %q", line)
	}
}

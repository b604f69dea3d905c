package cli

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// TestAbandonedSocket checks that a socket that a killed process has left is replaced, and no other file is.
func TestAbandonedSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	old, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	old.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := listenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("important"), 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := listenUnix(path); err == nil {
		t.Errorf("a file was replaced: %v", l.Close())
	}
	if text, err := os.ReadFile(path); string(text) != "important" {
		t.Errorf("the file has %q, %v", text, err)
	}
}

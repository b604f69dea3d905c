package cli

import (
	"testing"
)

// TestMountPoint checks that agora restore recognizes a folder that cannot be replaced.
func TestMountPoint(t *testing.T) {
	if folder := t.TempDir(); IsMountPoint(folder) {
		t.Errorf("%s is a mount point", folder)
	}
	if !IsMountPoint("/proc") || IsMountPoint("/no/such/folder") {
		t.Error("/proc must be a mount point, and what does not exist none")
	}
}

//go:build unix

package cli

import (
	"io/fs"
	"os"
	"syscall"
	"testing"
)

// ownedFile is a file with this mode, user and group.
type ownedFile struct {
	fs.FileInfo
	mode     fs.FileMode
	uid, gid int
}

func (f ownedFile) Mode() fs.FileMode { return f.mode }
func (f ownedFile) Sys() any          { return &syscall.Stat_t{Uid: uint32(f.uid), Gid: uint32(f.gid)} }

// TestReadableByOthers checks which files may have secrets.
func TestReadableByOthers(t *testing.T) {
	uid, gid := os.Geteuid(), os.Getegid()
	for name, c := range map[string]struct {
		file ownedFile
		want bool
	}{
		"only the user":            {ownedFile{mode: 0o600, uid: uid, gid: gid}, false},
		"root and our group":       {ownedFile{mode: 0o640, uid: 0, gid: gid}, false},
		"root and its group":       {ownedFile{mode: 0o440, uid: 0, gid: 0}, false},
		"root, everybody":          {ownedFile{mode: 0o644, uid: 0, gid: gid}, true},
		"root, the group writes":   {ownedFile{mode: 0o660, uid: 0, gid: gid}, true},
		"another user's own group": {ownedFile{mode: 0o640, uid: 4711, gid: gid}, true},
	} {
		if got := ReadableByOthers(c.file); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if got := ReadableByOthers(ownedFile{mode: 0o640, uid: 0, gid: 4711}); got != (uid != 0) {
		t.Errorf("root and another group, for the user %d: %t", uid, got)
	}
}

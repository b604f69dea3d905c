//go:build unix

package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// IsMountPoint reports whether another file system begins at a folder.
func IsMountPoint(path string) bool {
	device := func(path string) (uint64, bool) {
		info, err := os.Stat(path)
		if err != nil {
			return 0, false
		}
		status, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return 0, false
		}
		return uint64(status.Dev), true
	}
	own, ok := device(path)
	above, known := device(filepath.Dir(path))
	return ok && known && own != above
}

// GiveToOwner gives a folder and all that is in it to the user and the group who own another folder, if that exists and
// this process may do so. So a relay with its own user can use what root has restored.
func GiveToOwner(folder, owned string) error {
	info, err := os.Stat(owned)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 {
		return nil
	}
	return filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, int(owner.Uid), int(owner.Gid)))
	})
}

// ReadableByOthers reports whether other users may read a file with secrets. A group may, if root has given it to the
// file: that of this process, as with root:agora and mode 0640, or root's own.
func ReadableByOthers(info fs.FileInfo) bool {
	mode, owner := info.Mode().Perm(), info.Sys()
	if status, ok := owner.(*syscall.Stat_t); ok && status.Uid == 0 && mode&0o027 == 0 &&
		(int(status.Gid) == os.Getegid() || status.Gid == 0 || os.Geteuid() == 0) {
		return false
	}
	return OpenToOthers(info)
}

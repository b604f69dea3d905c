//go:build linux || darwin

package sqlite

import "syscall"

// diskRoom returns how many bytes this process may still write to the file system of folder.
func diskRoom(folder string) (bytes int64, known bool) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(folder, &fs); err != nil {
		return 0, false
	}
	return int64(fs.Bavail) * int64(fs.Bsize), true
}

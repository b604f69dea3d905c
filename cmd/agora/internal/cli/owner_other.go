//go:build !unix

package cli

import "io/fs"

// IsMountPoint returns false, because this system does not tell.
func IsMountPoint(string) bool { return false }

// GiveToOwner does nothing: files have no owner as on Unix.
func GiveToOwner(_, _ string) error { return nil }

// ReadableByOthers returns false: the mode does not say who may read a file.
func ReadableByOthers(fs.FileInfo) bool { return false }

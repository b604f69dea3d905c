//go:build !unix

package main

import "io/fs"

// isMountPoint returns false: nothing is known.
func isMountPoint(string) bool { return false }

// giveToOwner does nothing: files have no owner as on Unix.
func giveToOwner(_, _ string) error { return nil }

// readableByOthers returns false: the mode does not say who may read a file.
func readableByOthers(fs.FileInfo) bool { return false }

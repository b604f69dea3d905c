package main

import (
	"io/fs"
	"strings"
)

// source is a tree without what git, builds and package managers put into it.
type source struct{ fs.FS }

// ReadDir leaves the names out that are not wanted; os.CopyFS walks by it.
func (s source) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(s.FS, name)
	var kept []fs.DirEntry
	for _, e := range entries {
		if n := e.Name(); n == "bin" || n == "node_modules" || n == "agora-data" || strings.HasPrefix(n, ".git") {
			continue
		}
		kept = append(kept, e)
	}
	return kept, err
}

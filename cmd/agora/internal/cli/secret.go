package cli

import (
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
)

// ReadOperatorKey reads the operator's key. It refuses a file that other users may access.
func ReadOperatorKey(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if OpenToOthers(info) {
		return "", fmt.Errorf("the file %s has mode %#o, so other users may access it; run: chmod 600 %s",
			path, info.Mode().Perm(), ShellQuoted(path))
	}
	text, err := os.ReadFile(path)
	return strings.TrimSuffix(string(text), "\n"), err
}

// OpenToOthers reports whether other users may access a file or a folder. On Windows it is always false, because there
// the mode does not say who may.
func OpenToOthers(info fs.FileInfo) bool {
	return info.Mode().Perm()&0o077 != 0 && runtime.GOOS != "windows"
}

// RegularFile returns a description of a file. It refuses pipes and devices, because reading one may never end.
func RegularFile(name string) (os.FileInfo, error) {
	info, err := os.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", name)
	}
	return info, err
}

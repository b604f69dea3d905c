package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// entry is a file of an archive.
type entry struct {
	name string
	mode int64
	text []byte
}

// archive writes the archive of a platform: a .zip for Windows, otherwise a .tar.gz. All files are in a folder with the
// name of the archive.
func (r *release) archive(name, system, program, common string) error {
	entries, err := archiveFiles(name, system, program, common)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	file := name + ".tar.gz"
	if system == "windows" {
		file = name + ".zip"
		err = r.zip(&b, entries)
	} else {
		err = r.tar(&b, entries)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, file), b.Bytes(), 0o644)
}

// archiveFiles returns the files of an archive, in its order.
func archiveFiles(name, system, program, common string) (all []entry, err error) {
	patterns := []string{"LICENSE", "README.md", "CHANGELOG.md", "third-party-licenses", "agora.toml", "docs/*", "man/*",
		"completions/*"}
	switch system {
	case "linux":
		patterns = append(patterns, "ci/packaging/agora.service")
	case "windows":
		patterns = patterns[:len(patterns)-2] // no man, and none of these shells
	}
	add := func(to, from string, mode int64) error {
		text, err := os.ReadFile(from)
		all = append(all, entry{path.Join(name, to), mode, text})
		return err
	}
	if err := add(filepath.Base(program), program, 0o755); err != nil {
		return nil, err
	}
	for _, pattern := range patterns {
		files, err := filepath.Glob(filepath.Join(common, pattern)) // sorted
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			to := strings.TrimPrefix(filepath.ToSlash(strings.TrimPrefix(file, common)), "/")
			if err := add(strings.TrimPrefix(to, "ci/packaging/"), file, 0o644); err != nil {
				return nil, err
			}
		}
	}
	// The unit file comes from the packages, which have the program in /usr/bin. An operator who installs the archive
	// has it in /usr/local.
	for i := range all {
		if path.Base(all[i].name) == "agora.service" {
			all[i].text = bytes.ReplaceAll(all[i].text, []byte("/usr/bin/agora"), []byte("/usr/local/bin/agora"))
		}
	}
	return all, nil
}

func (r *release) tar(w io.Writer, entries []entry) error {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	for _, e := range entries {
		header := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.text)), ModTime: r.date, Uname: "root",
			Gname: "root"}
		if err := t.WriteHeader(header); err != nil {
			return err
		}
		if _, err := t.Write(e.text); err != nil {
			return err
		}
	}
	if err := t.Close(); err != nil {
		return err
	}
	return compress(w, b.Bytes())
}

func (r *release) zip(w io.Writer, entries []entry) error {
	z := zip.NewWriter(w)
	for _, e := range entries {
		header := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: r.date}
		header.SetMode(os.FileMode(e.mode))
		file, err := z.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := file.Write(e.text); err != nil {
			return err
		}
	}
	return z.Close()
}

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path"
)

// pgoFile is the CPU profile that go build uses to optimize the program (profile-guided optimization).
const pgoFile = "cmd/agora/default.pgo"

// updatePGO measures which functions a busy relay runs, and writes pgoFile.
func updatePGO(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "agora-profile")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	_, cpu, err := runPosts(ctx, dir, "^BenchmarkPost$", 60_000)
	if err != nil {
		return err
	}
	measured, err := os.ReadFile(cpu)
	if err != nil {
		return err
	}
	stripped, err := stripFolders(measured)
	if err != nil {
		return err
	}
	return os.WriteFile(pgoFile, stripped, 0o644)
}

// stringTable is the field of a profile that has all its texts (profile.proto of github.com/google/pprof).
const stringTable = 6

// stripFolders removes the folders from all absolute paths in a CPU profile. The compiler does not need them, and they
// belong to the machine on which the profile was made.
func stripFolders(profile []byte) ([]byte, error) {
	packed, err := gzip.NewReader(bytes.NewReader(profile))
	if err != nil {
		return nil, err
	}
	in, err := io.ReadAll(packed)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	for len(in) > 0 {
		field, text, size, err := nextField(in)
		if err != nil {
			return nil, err
		}
		whole := in[:size]
		if field == stringTable && path.IsAbs(string(text)) {
			name := path.Base(string(text))
			whole = append(binary.AppendUvarint([]byte{stringTable<<3 | 2}, uint64(len(name))), name...)
		}
		if _, err := w.Write(whole); err != nil {
			return nil, err
		}
		in = in[size:]
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// nextField returns the number, the content and the size of the first field of a protocol buffer message. content is
// nil unless the field has a length.
func nextField(in []byte) (field uint64, content []byte, size int, err error) {
	broken := errors.New("the profile is not a sequence of numbers, and fields with a length")
	tag, n := binary.Uvarint(in)
	if n <= 0 || tag&7 != 0 && tag&7 != 2 {
		return 0, nil, 0, broken
	}
	value, m := binary.Uvarint(in[n:])
	if m <= 0 {
		return 0, nil, 0, broken
	}
	size = n + m
	if tag&7 == 2 {
		if value > uint64(len(in)-size) {
			return 0, nil, 0, broken
		}
		content = in[size : size+int(value)]
		size += int(value)
	}
	return tag >> 3, content, size, nil
}

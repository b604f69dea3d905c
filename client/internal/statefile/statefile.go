// Package statefile keeps a file with one JSON array a line, to which each change is appended. The file is written anew
// when it has become large. The caller decides what the lines mean. Only one process may use the file.
package statefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/agora-relay/agora/internal/fsync"
)

// compactAt is the size in bytes at which the file is written again without old entries, if that leaves out half of it.
const compactAt = 4 << 20

// Line is a line: the kind of the line, and its values.
type Line []json.RawMessage

// Read reads the values into these variables.
func (l Line) Read(into ...any) error {
	if len(l) != len(into) {
		return fmt.Errorf("%s has %d values, want %d", l[0], len(l)-1, len(into)-1)
	}
	for i, one := range into {
		if err := json.Unmarshal(l[i], one); err != nil {
			return err
		}
	}
	return nil
}

// Read reads the text of a file, line by line. A last line without its end was being written when the process ended. take
// gets the kind of each line. Errors: those of take, and malformed lines, with the number of the line.
func Read(text []byte, take func(kind string, line Line) error) error {
	for n := 1; ; n++ {
		one, rest, whole := bytes.Cut(text, []byte{'\n'})
		if !whole {
			return nil
		}
		var line Line
		var kind string
		err := json.Unmarshal(one, &line)
		if err == nil && len(line) > 0 {
			err = line[:1].Read(&kind)
		}
		if err == nil {
			err = take(kind, line)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		text = rest
	}
}

// File is an open file. All calls of its methods and of contents come one after the other. The methods of a nil *File do
// nothing.
type File struct {
	path     string
	contents func(write func(values ...any) error) error

	file   *os.File
	size   int   // of the file, in bytes
	live   int   // its size after it was last written anew
	failed error // why the file cannot be written any more
}

// Create writes the file anew, or makes it, and opens it. contents writes the lines that count. It is called again
// when the file has become large, by Sync.
func Create(path string, contents func(write func(values ...any) error) error) (*File, error) {
	f := &File{path: path, contents: contents}
	if err := f.rewrite(); err != nil {
		return nil, fmt.Errorf("writing the state file: %w", err)
	}
	return f, nil
}

// Close closes the file. Later calls of Sync return an error, and those of Close nil.
func (f *File) Close() error {
	if f == nil || f.file == nil {
		return nil
	}
	err := errors.Join(fsync.File(f.file), f.file.Close())
	f.file, f.failed = nil, errors.New("the state file is closed")
	return err
}

// Append writes a line. An error is kept for the next call of Sync.
func (f *File) Append(values ...any) {
	if f == nil || f.failed != nil {
		return
	}
	line, err := json.Marshal(values)
	if err == nil {
		var n int
		n, err = f.file.Write(append(line, '\n'))
		f.size += n
	}
	if err != nil {
		f.failed = fmt.Errorf("writing the state file: %w", err)
	}
}

// Sync makes durable what was appended. Errors: those of writing the file since it was opened; it was closed.
func (f *File) Sync() error {
	switch {
	case f == nil:
		return nil
	case f.failed != nil:
		return f.failed
	case f.size > compactAt && f.size > 2*f.live:
		f.failed = f.rewrite()
	default:
		f.failed = fsync.File(f.file)
	}
	return f.failed
}

// rewrite writes the file anew, with what counts only.
func (f *File) rewrite() error {
	var text bytes.Buffer
	write := func(values ...any) error {
		line, err := json.Marshal(values)
		text.Write(append(line, '\n'))
		return err
	}
	if err := f.contents(write); err != nil {
		return err
	}
	var err error
	if f.file != nil {
		err = f.file.Close()
	}
	if err = errors.Join(err, fsync.Replace(f.path, text.Bytes())); err != nil {
		return err
	}
	f.file, err = os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND, 0o600)
	f.size, f.live = text.Len(), text.Len()
	return err
}

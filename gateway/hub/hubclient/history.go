package hubclient

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/fsync"
	"github.com/agora-relay/agora/internal/jsontext"
)

// The directions of a Record.
const (
	Sent     = "sent"
	Received = "received"
)

// Record is a line of a history file.
type Record struct {
	TS       string          `json:"ts"`           // RFC 3339, UTC, whole seconds
	Dir      string          `json:"dir"`          // Sent or Received
	Peer     string          `json:"peer"`         // the address of the other agent
	Envelope json.RawMessage `json:"envelope"`     // in the form of RFC 8785
	ID       int64           `json:"id,omitempty"` // 0: not known
	TraceID  string          `json:"trace_id"`
}

// Line returns the record as a line of JSON, without a line break.
func (r Record) Line() []byte { return jsontext.Compact(r) }

// newRecord returns the record of a message. It checks the message, because a hub may send anything.
func newRecord(dir, peer string, m message) (Record, error) {
	at, err := time.Parse(time.RFC3339, m.Timestamp)
	switch {
	case err != nil:
		return Record{}, errors.New("its timestamp is not a time in RFC 3339")
	case !isAddress(peer):
		return Record{}, errors.New("the address of the other agent is not valid")
	case m.TraceID == "" || len(m.TraceID) > maxTrace:
		return Record{}, fmt.Errorf("its trace_id is empty or longer than %d bytes", maxTrace)
	}
	canonical, err := envelope.Canonicalize(m.Envelope)
	if err != nil || canonical[0] != '{' {
		return Record{}, errors.New("its envelope is not a JSON object")
	}
	return Record{at.UTC().Format(time.DateOnly + "T" + time.TimeOnly + "Z"), dir, peer, canonical, m.ID, m.TraceID}, nil
}

// maxTrace is the size in bytes of the longest trace_id.
const maxTrace = 256

// maxName is the size in bytes of the longest file name that fileName makes, without its ending. A longer name is cut
// and gets a hash. File systems allow 255 bytes.
const maxName = 200

// fileName returns the name of the history file of a peer: its address, with _ in place of / and :. It also replaces
// other characters that could name a file outside the folder or control a terminal.
func fileName(peer string) string {
	name := strings.Map(func(r rune) rune {
		if strings.ContainsRune(`/:\`, r) || r == utf8.RuneError || unicode.IsControl(r) {
			return '_'
		}
		return r
	}, peer)
	if len(name) > maxName {
		sum := sha256.Sum256([]byte(peer))
		name = strings.ToValidUTF8(name[:maxName-17], "") + "-" + hex.EncodeToString(sum[:8])
	}
	return name + ".jsonl"
}

// historyFile is what is known about a history file.
type historyFile struct {
	seen map[repeatKey]bool
	end  int64 // the end of the last line that was read
}

// repeatKey identifies a record. A message that an agent sends to itself has two records.
type repeatKey struct{ dir, trace string }

// Append writes records to the history files of their peers. It leaves out those that are there already. When it
// returns nil, the records are on the disk.
func (f *Folder) Append(ctx context.Context, records ...Record) error {
	byName := map[string][]Record{}
	for _, r := range records {
		name := fileName(r.Peer)
		byName[name] = append(byName[name], r)
	}
	return f.Lock(ctx, func() error {
		for name, some := range byName {
			if err := f.appendTo(name, some); err != nil {
				return fmt.Errorf("the history in %s cannot be written: %w", filepath.Join(f.HistoryFolder(), name), err)
			}
		}
		return nil
	})
}

// appendTo appends records to one file. Another process may have written to the file since the last call.
func (f *Folder) appendTo(name string, records []Record) (err error) {
	path := filepath.Join(f.HistoryFolder(), name)
	_, missing := os.Stat(path)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	h := f.known[name]
	if h == nil {
		h = &historyFile{seen: map[repeatKey]bool{}}
		f.known[name] = h
	}
	cutOff, err := h.read(file)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if cutOff { // a crash has cut off the last line, which gets an end so that nothing is joined to it
		text.WriteByte('\n')
	}
	var added []repeatKey
	for _, r := range records {
		if key := (repeatKey{r.Dir, r.TraceID}); !h.seen[key] {
			h.seen[key] = true
			added = append(added, key)
			text.Write(append(r.Line(), '\n'))
		}
	}
	if len(added) > 0 {
		if _, err = file.Write(text.Bytes()); err == nil {
			err = file.Sync()
		}
	}
	if err == nil && errors.Is(missing, fs.ErrNotExist) {
		err = fsync.Folder(f.HistoryFolder())
	}
	if err != nil {
		delete(f.known, name) // the content of the file is now unknown
	}
	return err
}

// read reads the lines that were added to the file since the last call. cutOff means that the last line has no end.
func (h *historyFile) read(file *os.File) (cutOff bool, err error) {
	if info, err := file.Stat(); err != nil {
		return false, err
	} else if info.Size() < h.end { // somebody has replaced the file
		h.end = 0
		clear(h.seen)
	}
	if _, err := file.Seek(h.end, io.SeekStart); err != nil {
		return false, err
	}
	lines := bufio.NewReaderSize(file, 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		var r struct {
			Dir     string `json:"dir"`
			TraceID string `json:"trace_id"`
		}
		if json.Unmarshal(line, &r) == nil && r.TraceID != "" {
			h.seen[repeatKey{r.Dir, r.TraceID}] = true
		}
		if err == io.EOF {
			return len(line) > 0, nil
		}
		if err != nil {
			return false, err
		}
		h.end += int64(len(line))
	}
}

// History calls show for each line of a peer's history that is JSON. broken is how many lines are not JSON. A peer
// without @ means the only peer who has this name before the @. If there is no history, the error is fs.ErrNotExist.
func (f *Folder) History(peer string, show func(line []byte) error) (broken int, err error) {
	name := fileName(peer)
	if !strings.Contains(peer, "@") {
		if name, err = f.findHistory(peer); err != nil {
			return 0, err
		}
	}
	file, err := os.Open(filepath.Join(f.HistoryFolder(), name))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("there is no history with %s in %s (%w)", peer, f.HistoryFolder(), fs.ErrNotExist)
	}
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	lines := bufio.NewReaderSize(file, 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if text := bytes.TrimSpace(line); len(text) > 0 {
			if !json.Valid(text) {
				broken++
			} else if err := show(text); err != nil {
				return broken, err
			}
		}
		if err == io.EOF {
			return broken, nil
		}
		if err != nil {
			return broken, err
		}
	}
}

// findHistory returns the name of the only history file whose peer has this name before the @.
func (f *Folder) findHistory(name string) (string, error) {
	entries, err := os.ReadDir(f.HistoryFolder())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	var found []string
	for _, entry := range entries {
		if peer, ok := strings.CutSuffix(entry.Name(), ".jsonl"); ok && strings.HasPrefix(peer, name+"@") {
			found = append(found, peer)
		}
	}
	switch len(found) {
	case 0:
		return fileName(name), nil // History reports that it does not exist
	case 1:
		return found[0] + ".jsonl", nil
	}
	return "", fmt.Errorf("several agents have the name %s; give the full address: %s", name, strings.Join(found, ", "))
}

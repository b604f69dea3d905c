package dbfile

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"

	"github.com/agora-relay/agora/relay"
)

// Mark is what is kept of a database outside of it, in a file beside it: how far it had come. SQLite takes a damaged
// write-ahead log for one that ends before the damage, and an older copy is a sound database too; only the mark tells
// that something acknowledged is missing.
//
// The writer writes it after each commit and before the callers are told, without waiting for the disk: it is never
// ahead of what is on disk, and outlives the process. The store syncs it within a second. Its 64 bytes lie in one
// sector, which disks write whole, so a power cut leaves an older mark and not a broken one.
type Mark struct {
	Epoch uint32
	Seq   relay.Seq // the last acknowledged
	Swept int64     // the time of a recent Expire, nanoseconds
}

// MarkSize is a mark's in bytes.
const MarkSize = 64

func (m Mark) String() string {
	text := fmt.Sprintf("mark1 %08x %019d %019d ", m.Epoch, m.Seq, m.Swept)
	return fmt.Sprintf("%s%08x\n", text, crc32.ChecksumIEEE([]byte(text)))
}

// ParseMark returns a mark from its text. ok is false if the text is damaged.
func ParseMark(text string) (m Mark, ok bool) {
	_, err := fmt.Sscanf(text, "mark1 %x %d %d", &m.Epoch, &m.Seq, &m.Swept)
	return m, err == nil && m.String() == text
}

// ErrLoss says that a database lacks what it had acknowledged, or that nobody can tell.
var ErrLoss = errors.New("acknowledged events may be missing")

// ReadMark returns the mark of the database at path; its epoch is 0 if there is none. Errors: ErrLoss if it is damaged.
func ReadMark(path string) (Mark, error) {
	text, err := os.ReadFile(path + ".mark")
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(text) == 0 {
		return Mark{}, nil // an empty one is from a start that got no further, which took nothing in
	}
	if err != nil {
		return Mark{}, err
	}
	m, ok := ParseMark(string(text))
	if !ok {
		return Mark{}, fmt.Errorf("%w: %s.mark, which says how far the database had come, is damaged", ErrLoss, path)
	}
	return m, nil
}

// Missing returns what is wrong with a database of this epoch that ends with head; nil if nothing is.
func (m Mark) Missing(epoch uint32, head relay.Seq) error {
	if epoch != m.Epoch || head >= m.Seq {
		return nil
	}
	return fmt.Errorf("%w: events %d to %d were acknowledged and are not in the database, which was damaged, "+
		"removed, or replaced by an older copy", ErrLoss, head+1, m.Seq)
}

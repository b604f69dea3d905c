package dbfile

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"

	"github.com/agora-relay/agora/relay"
)

// Mark records how far a database had come. It is stored in a file beside the database. SQLite cannot detect all
// losses: it reads a damaged write-ahead log as one that ends before the damage, and an older copy of the database is
// valid too. Only the mark shows that acknowledged events are missing.
//
// The writer writes the mark after each commit and before it answers the callers. It does not sync the mark. So the
// mark is never ahead of the events on disk, and it survives the end of the process. The store syncs it within a
// second. The mark's 64 bytes lie in one sector, which disks write as a whole. So a power cut can leave an older mark,
// but not a damaged one.
type Mark struct {
	Epoch uint32
	Seq   relay.Seq // last acknowledged number
	Swept int64     // nanoseconds; time of a recent Expire
}

// MarkSize is the size of a mark in bytes.
const MarkSize = 64

func (m Mark) String() string {
	text := fmt.Sprintf("mark1 %08x %019d %019d ", m.Epoch, m.Seq, m.Swept)
	return fmt.Sprintf("%s%08x\n", text, crc32.ChecksumIEEE([]byte(text)))
}

// ParseMark parses the text of a mark. ok is false if the text is damaged.
func ParseMark(text string) (m Mark, ok bool) {
	_, err := fmt.Sscanf(text, "mark1 %x %d %d", &m.Epoch, &m.Seq, &m.Swept)
	return m, err == nil && m.String() == text
}

// ErrLoss means that a database lacks acknowledged events, or that this cannot be determined.
var ErrLoss = errors.New("acknowledged events may be missing")

// ReadMark returns the mark of the database at path. Its epoch is 0 if there is no mark. Errors: ErrLoss if the mark is
// damaged.
func ReadMark(path string) (Mark, error) {
	text, err := os.ReadFile(path + ".mark")
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(text) == 0 {
		return Mark{}, nil // an empty mark is left by a start that failed before any message was accepted
	}
	if err != nil {
		return Mark{}, err
	}
	m, ok := ParseMark(string(text))
	if !ok {
		return Mark{}, fmt.Errorf("%w: %s.mark, which records the last acknowledged event, is damaged", ErrLoss, path)
	}
	return m, nil
}

// Missing returns an error if a database with this epoch, whose last number is head, lacks acknowledged events, else
// nil.
func (m Mark) Missing(epoch uint32, head relay.Seq) error {
	if epoch != m.Epoch || head >= m.Seq {
		return nil
	}
	return fmt.Errorf("%w: events %d to %d were acknowledged and are not in the database, which was damaged, "+
		"removed, or replaced by an older copy", ErrLoss, head+1, m.Seq)
}

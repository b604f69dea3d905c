package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/agora-relay/agora/relay"
)

// mark is what is kept of a database outside of it, in a file beside it: how far it had come. SQLite takes a damaged
// write-ahead log for one that ends before the damage, and an older copy is a sound database too; only the mark tells
// that something acknowledged is missing.
//
// The writer writes it after each commit and before the callers are told, without waiting for the disk: it is never
// ahead of what is on disk, and outlives the process. A tick of care has it on disk within a second. Its 64 bytes lie in one
// sector, which disks write whole, so a power cut leaves an older mark and not a broken one.
type mark struct {
	epoch uint32
	seq   relay.Seq // the last acknowledged
	swept int64     // the time of a recent Expire, nanoseconds
}

const markSize = 64

func (m mark) String() string {
	text := fmt.Sprintf("mark1 %08x %019d %019d ", m.epoch, m.seq, m.swept)
	return fmt.Sprintf("%s%08x\n", text, crc32.ChecksumIEEE([]byte(text)))
}

func parseMark(text string) (m mark, ok bool) {
	_, err := fmt.Sscanf(text, "mark1 %x %d %d", &m.epoch, &m.seq, &m.swept)
	return m, err == nil && m.String() == text
}

// markFile is the mark and its file. The writer owns both; only the sync is care's.
type markFile struct {
	mark
	file *os.File
}

// sweptEvery bounds how far mark.swept may stay behind, so that an idle relay does not write every second.
const sweptEvery = 10 * time.Second

// write notes how far the database has come. It allocates nothing on disk and does not wait for it.
func (f *markFile) write(m mark) error {
	_, err := f.file.WriteAt([]byte(m.String()), 0)
	if err == nil {
		f.mark = m
	}
	return err
}

// startMark opens the file at path, making it if it is not there, and has m in it on disk.
func startMark(path string, m mark) (*markFile, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	f := &markFile{file: file}
	if err = f.write(m); err == nil {
		if err = file.Truncate(markSize); err == nil {
			err = file.Sync()
		}
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return f, nil
}

// errLoss says that a database lacks what it had acknowledged, or that nobody can tell.
var errLoss = errors.New("acknowledged events may be missing")

// readMark returns the mark of the database at path; its epoch is 0 if there is none. Errors: errLoss if it is damaged.
func readMark(path string) (mark, error) {
	text, err := os.ReadFile(path + ".mark")
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(text) == 0 {
		return mark{}, nil // an empty one is from a start that got no further, which took nothing in
	}
	if err != nil {
		return mark{}, err
	}
	m, ok := parseMark(string(text))
	if !ok {
		return mark{}, fmt.Errorf("%w: %s.mark, which says how far the database had come, is damaged", errLoss, path)
	}
	return m, nil
}

// missing returns what is wrong with a database of this epoch that ends with head; nil if nothing is.
func (m mark) missing(epoch uint32, head relay.Seq) error {
	if epoch != m.epoch || head >= m.seq {
		return nil
	}
	return fmt.Errorf("%w: events %d to %d were acknowledged and are not in the database, which was damaged, "+
		"removed, or replaced by an older copy", errLoss, head+1, m.seq)
}

// compare holds the database against its mark, before anything is done to it that a look at the damage would miss.
// It returns the mark to go on from; its epoch is 0 if there is none. Errors: errLoss.
func compare(ctx context.Context, path string) (m mark, err error) {
	m, err = readMark(path)
	if m.epoch == 0 || err != nil {
		return m, err
	}
	// A start has a database before it has a mark. Of an empty one SQLite would remove the write-ahead log.
	if size, err := fileSize(path); size == 0 || err != nil {
		return m, errors.Join(err, m.missing(m.epoch, 0))
	}
	// A connection that cannot write leaves the write-ahead log as it is when it closes.
	db, err := open(path, "deferred", readPragmas, "ro")
	if err != nil {
		return mark{}, err
	}
	epoch, head, err := identity(ctx, db)
	if err = errors.Join(err, db.Close()); err != nil {
		return mark{}, err
	}
	return m, m.missing(epoch, head)
}

func lossAdvice(path string) string {
	return "look at it with `agora check --data " + filepath.Dir(path) + "` and restore a backup; or accept the loss with " +
		"`agora serve --accept-loss`, after which readers have to start again, as their cursors are not known any more"
}

// identity reads a database's epoch, 0 if it has none yet, and the number of its last event.
func identity(ctx context.Context, db *sql.DB) (epoch uint32, head relay.Seq, err error) {
	var tables int
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema WHERE name IN ('meta', 'event')").Scan(&tables); err != nil || tables < 2 {
		return 0, 0, err
	}
	var text string
	if err := db.QueryRowContext(ctx, "SELECT value FROM meta WHERE name = 'epoch'").Scan(&text); err != nil {
		return 0, 0, err
	}
	number, err := strconv.ParseUint(text, 16, 32)
	if err != nil {
		return 0, 0, fmt.Errorf("the database's epoch is damaged: %w", err)
	}
	if _, _, err := schemaOf(ctx, db); err != nil {
		return 0, 0, err
	}
	err = db.QueryRowContext(ctx, lastNumber).Scan(&head)
	return uint32(number), head, err
}

// lastNumber reads the number of the last event there ever was.
const lastNumber = "SELECT ifnull(max(seq), 0) FROM (SELECT max(seq) AS seq FROM event " +
	"UNION ALL SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'last')"

// takeUp goes on from the mark that was found: with it if it is this database's, else with a new one.
func (s *Store) takeUp(path string, found mark) (err error) {
	now := s.options.Now()
	if behind := instant(found.swept).Sub(now); found.swept != 0 && behind > time.Minute {
		s.options.Log.Error("the clock is behind the time at which this relay last ran; set it right, or messages are kept too "+
			"long and refused as not fresh", "now", now, "last", instant(found.swept))
	}
	m := mark{epoch: s.epoch, seq: relay.Seq(s.head.Load()), swept: found.swept}
	if found.epoch != 0 && found.epoch != s.epoch {
		s.options.Log.Warn("this is another database than the one this relay last had; readers have to start again, as their "+
			"cursors are not known any more", "path", path, "epoch", fmt.Sprintf("%08x", s.epoch), "before", fmt.Sprintf("%08x", found.epoch))
	}
	s.care.mark, err = startMark(path+".mark", m)
	return err
}

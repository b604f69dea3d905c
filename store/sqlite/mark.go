package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite/internal/dbfile"
	"github.com/agora-relay/agora/store/sqlite/schema"
)

// markFile is the mark and its file. Only the writer changes it. Only care syncs it.
type markFile struct {
	dbfile.Mark
	file *os.File
}

// sweptInterval is the smallest step in which Mark.Swept changes, so that an idle relay does not write every second.
const sweptInterval = 10 * time.Second

// write writes m into the file. It needs no new disk space and does not wait for the disk.
func (f *markFile) write(m dbfile.Mark) error {
	_, err := f.file.WriteAt([]byte(m.String()), 0)
	if err == nil {
		f.Mark = m
	}
	return err
}

// startMark opens the file at path, creates it if it does not exist, writes m into it and syncs it.
func startMark(path string, m dbfile.Mark) (*markFile, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	f := &markFile{file: file}
	if err = f.write(m); err == nil {
		if err = file.Truncate(dbfile.MarkSize); err == nil {
			err = file.Sync()
		}
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return f, nil
}

// checkLoss compares the database with its mark. It runs before anything changes the files, so that damage can still be
// examined. It returns the mark to continue from; its epoch is 0 if there is none. Errors: dbfile.ErrLoss if
// acknowledged events may be missing.
func checkLoss(ctx context.Context, path string) (m dbfile.Mark, err error) {
	m, err = dbfile.ReadMark(path)
	if m.Epoch == 0 || err != nil {
		return m, err
	}
	// Open creates the database before the mark, so a mark beside an empty database means loss. An empty database must
	// not be opened: SQLite would delete its write-ahead log.
	if size, err := fileSize(path); size == 0 || err != nil {
		return m, errors.Join(err, m.Missing(m.Epoch, 0))
	}
	// A read-only connection does not change the write-ahead log when it closes.
	db, err := dbfile.Open(path, "deferred", readPragmas, "ro")
	if err != nil {
		return dbfile.Mark{}, err
	}
	epoch, head, err := epochAndHead(ctx, db)
	if err = errors.Join(err, db.Close()); err != nil {
		return dbfile.Mark{}, err
	}
	return m, m.Missing(epoch, head)
}

func lossAdvice(path string) string {
	return "run `agora check --data " + filepath.Dir(path) + "` and restore a backup; or accept the loss with " +
		"`agora serve --accept-loss`, after which readers must start again because their cursors are unknown"
}

// epochAndHead reads the database's epoch, 0 if it has none yet, and the number of its last event.
func epochAndHead(ctx context.Context, db *sql.DB) (epoch uint32, head relay.Seq, err error) {
	var tables int
	if err := db.QueryRowContext(ctx,
		"SELECT count(*) FROM sqlite_schema WHERE name IN ('meta', 'event')").Scan(&tables); err != nil || tables < 2 {
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
	if _, _, err := schema.Of(ctx, db); err != nil {
		return 0, 0, err
	}
	err = db.QueryRowContext(ctx, schema.LastNumber).Scan(&head)
	return uint32(number), head, err
}

// resumeMark writes a mark with the database's epoch and last number. It keeps the Swept time of the mark that was
// found, and logs an error if the clock is behind that time. It logs a warning if the found mark is of another
// database.
func (s *Store) resumeMark(path string, found dbfile.Mark) (err error) {
	now := s.options.Now()
	if behind := instant(found.Swept).Sub(now); found.Swept != 0 && behind > time.Minute {
		s.options.Log.Error("the clock is behind the time at which this relay last ran; correct the clock, "+
			"or messages are kept too long and fresh messages are refused", "now", now, "last", instant(found.Swept))
	}
	m := dbfile.Mark{Epoch: s.epoch, Seq: relay.Seq(s.head.Load()), Swept: found.Swept}
	if found.Epoch != 0 && found.Epoch != s.epoch {
		s.options.Log.Warn("this is another database than the one that this relay used last; "+
			"readers must start again, because their cursors are unknown", "path", path,
			"epoch", fmt.Sprintf("%08x", s.epoch), "before", fmt.Sprintf("%08x", found.Epoch))
	}
	s.care.mark, err = startMark(path+".mark", m)
	return err
}

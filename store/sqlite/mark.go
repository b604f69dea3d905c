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

// markFile is the mark and its file. The writer owns both; only the sync is care's.
type markFile struct {
	dbfile.Mark
	file *os.File
}

// sweptEvery bounds how far Mark.Swept may stay behind, so that an idle relay does not write every second.
const sweptEvery = 10 * time.Second

// write notes how far the database has come. It allocates nothing on disk and does not wait for it.
func (f *markFile) write(m dbfile.Mark) error {
	_, err := f.file.WriteAt([]byte(m.String()), 0)
	if err == nil {
		f.Mark = m
	}
	return err
}

// startMark opens the file at path, making it if it is not there, and has m in it on disk.
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

// compare holds the database against its mark, before anything is done to it that a look at the damage would miss.
// It returns the mark to go on from; its epoch is 0 if there is none. Errors: dbfile.ErrLoss.
func compare(ctx context.Context, path string) (m dbfile.Mark, err error) {
	m, err = dbfile.ReadMark(path)
	if m.Epoch == 0 || err != nil {
		return m, err
	}
	// A start has a database before it has a mark. Of an empty one SQLite would remove the write-ahead log.
	if size, err := fileSize(path); size == 0 || err != nil {
		return m, errors.Join(err, m.Missing(m.Epoch, 0))
	}
	// A connection that cannot write leaves the write-ahead log as it is when it closes.
	db, err := dbfile.Open(path, "deferred", readPragmas, "ro")
	if err != nil {
		return dbfile.Mark{}, err
	}
	epoch, head, err := identity(ctx, db)
	if err = errors.Join(err, db.Close()); err != nil {
		return dbfile.Mark{}, err
	}
	return m, m.Missing(epoch, head)
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
	if _, _, err := schema.Of(ctx, db); err != nil {
		return 0, 0, err
	}
	err = db.QueryRowContext(ctx, schema.LastNumber).Scan(&head)
	return uint32(number), head, err
}

// takeUp goes on from the mark that was found: with it if it is this database's, else with a new one.
func (s *Store) takeUp(path string, found dbfile.Mark) (err error) {
	now := s.options.Now()
	if behind := instant(found.Swept).Sub(now); found.Swept != 0 && behind > time.Minute {
		s.options.Log.Error("the clock is behind the time at which this relay last ran; set it right, or messages are kept too "+
			"long and refused as not fresh", "now", now, "last", instant(found.Swept))
	}
	m := dbfile.Mark{Epoch: s.epoch, Seq: relay.Seq(s.head.Load()), Swept: found.Swept}
	if found.Epoch != 0 && found.Epoch != s.epoch {
		s.options.Log.Warn("this is another database than the one this relay last had; readers have to start again, as their "+
			"cursors are not known any more", "path", path, "epoch", fmt.Sprintf("%08x", s.epoch), "before", fmt.Sprintf("%08x", found.Epoch))
	}
	s.care.mark, err = startMark(path+".mark", m)
	return err
}

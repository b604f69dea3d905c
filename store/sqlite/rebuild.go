package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/agora-relay/agora/store/sqlite/internal/dbfile"
	"github.com/agora-relay/agora/store/sqlite/schema"
)

// rebuildPragmas are for the connection that writes the table event anew. It sorts in temporary files, because there may be
// many events.
var rebuildPragmas = []string{"journal_mode(WAL)", "synchronous(FULL)", "busy_timeout(250)", "wal_autocheckpoint(0)",
	"cache_size(-65536)", "trusted_schema(OFF)"}

// rebuild updates a database with an older schema whose table event is written anew. It does so in one transaction. So if it
// is interrupted, or killed, the database is as before. Errors: noRoomToRebuild if the disk has too little room.
func (s *Store) rebuild(ctx context.Context) (err error) {
	have, _, err := schema.Of(ctx, s.writeDB)
	if err != nil || have == 0 || have >= schema.Rebuilt {
		return err
	}
	var events, bytes int64
	if err := s.writeDB.QueryRowContext(ctx, "SELECT (SELECT count(*) FROM event), (page_count - freelist_count) * page_size "+
		"FROM pragma_page_count, pragma_freelist_count, pragma_page_size").Scan(&events, &bytes); err != nil {
		return err
	}
	// The new table and its indexes are written into the log and from there into the database.
	needed := 5*bytes/2 + 1<<20
	if room, known := s.options.diskRoom(filepath.Dir(s.path)); known && room < needed {
		return noRoomToRebuild{needed, room}
	}
	s.options.Log.Info("updating the database to the form of this version. If this is interrupted, nothing is lost, and it "+
		"begins again at the next start. Earlier versions cannot open the database afterwards", "events", events,
		"seconds", events/25_000+1, "bytes_needed", needed)
	seconds := 0
	stop := dbfile.EverySecond(func() {
		if seconds++; seconds%5 == 0 {
			if written, err := fileSize(s.path + "-wal"); err == nil {
				s.options.Log.Info("updating the database", "bytes_written", written, "of_about", bytes)
			}
		}
	})
	defer stop()
	db, err := dbfile.Open(s.path, "immediate", rebuildPragmas, "rw")
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	err = schema.Migrate(ctx, db)
	return errors.Join(err, closeWithCheckpoint(ctx, db, err))
}

// closeWithCheckpoint closes db. After a success it first copies the log into the database.
func closeWithCheckpoint(ctx context.Context, db *sql.DB, failed error) (err error) {
	if failed == nil {
		_, err = db.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
	}
	return errors.Join(err, db.Close())
}

// noRoomToRebuild is the error of Open if the disk has too little room to update the database.
type noRoomToRebuild struct{ needed, room int64 } // bytes

func (e noRoomToRebuild) Error() string {
	return fmt.Sprintf("this database is of an earlier version; updating it needs %d MB of free disk space, and there are %d MB. "+
		"Nothing was changed. Make room and start again, or continue with the earlier version", e.needed>>20, e.room>>20)
}

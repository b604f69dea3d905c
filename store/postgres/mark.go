package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/gofrs/flock"
	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/postgres/schema"
)

// mark is what a node remembers of the last events that it has acknowledged. With it, the node notices if they are
// missing: after the promotion of a standby that did not have them, or after a restore.
type mark struct {
	epoch  uint32
	last   relay.Seq // the last number that this node has seen committed
	event  relay.Seq // the last event that it has acknowledged; 0: none
	hash   string    // of the sender and id of that event
	forget int64     // until when that event is kept at least
}

func hashOfEvent(sender, id []byte) string {
	hash := sha256.Sum256([]byte(string(sender) + "\n" + string(id)))
	return hex.EncodeToString(hash[:8])
}

// markSize is the size of the file. Its line is filled up with spaces, so that each write replaces all of the line
// before.
const markSize = 128

func (m mark) String() string {
	return fmt.Sprintf("%-*s\n", markSize-1, fmt.Sprintf("%08x %d %d %s %d", m.epoch, m.last, m.event, m.hash, m.forget))
}

func parseMark(text string) (m mark, err error) {
	n, err := fmt.Sscanf(strings.TrimSpace(text), "%08x %d %d %s %d", &m.epoch, &m.last, &m.event, &m.hash, &m.forget)
	if n != 5 || err != nil {
		return mark{}, errors.New("the file is damaged; remove it to start without it")
	}
	return m, nil
}

// markFile is the mark of a node and its file.
type markFile struct {
	mark
	file *os.File     // nil: the mark is only in memory
	lock *flock.Flock // keeps another node from using the file
}

func (f *markFile) close() (err error) {
	if f.file != nil {
		err = errors.Join(f.file.Sync(), f.file.Close())
		f.file = nil
	}
	if f.lock != nil {
		err = errors.Join(err, f.lock.Close())
	}
	return err
}

// openMark reads the mark of this node, and compares it with the database.
func (s *Store) openMark(ctx context.Context, conn *pgx.Conn) (err error) {
	h, err := readHead(ctx, conn)
	if err != nil {
		return err
	}
	s.mark.mark = mark{epoch: h.epoch, last: h.last, hash: "-"}
	if s.options.Mark == "" {
		return nil
	}
	s.mark.lock = flock.New(s.options.Mark + ".lock")
	locked, err := s.mark.lock.TryLock()
	switch {
	case err != nil:
		return fmt.Errorf("lock %s: %w", s.options.Mark, err)
	case !locked:
		return fmt.Errorf("%s is in use by another process; each node needs a data folder of its own", s.options.Mark)
	}
	text, err := os.ReadFile(s.options.Mark)
	if err == nil && len(text) > 0 {
		var found mark
		if found, err = parseMark(string(text)); err != nil {
			return fmt.Errorf("%s: %w", s.options.Mark, err)
		}
		if s.mark.mark, err = s.compareMark(ctx, conn, h, found); err != nil {
			return err
		}
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if s.mark.file, err = os.OpenFile(s.options.Mark, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return err
	}
	return s.mark.write()
}

// compareMark returns the mark to continue with. If events are missing and their loss is accepted, the database gets a
// new epoch.
func (s *Store) compareMark(ctx context.Context, conn *pgx.Conn, h head, found mark) (mark, error) {
	if found.epoch != h.epoch {
		s.options.Log.Warn("this is another database than the one that this node used last, or its epoch was renewed; "+
			"readers must start again, because their cursors are unknown",
			"epoch", fmt.Sprintf("%08x", h.epoch), "before", fmt.Sprintf("%08x", found.epoch))
		return s.mark.mark, nil
	}
	missing, err := s.isMissing(ctx, conn, h, found)
	switch {
	case err != nil:
		return mark{}, err
	case !missing:
		return found, nil
	case !s.options.AcceptLoss:
		return mark{}, errMissing
	}
	epoch := schema.NewEpoch()
	s.options.Log.Error("the loss is accepted; the database gets a new epoch, "+
		"so that readers do not mistake new events for events they have already read", "last", found.last)
	_, err = conn.Exec(ctx, "UPDATE head SET epoch = $1 WHERE epoch = $2", int64(epoch), int64(h.epoch))
	return mark{epoch: epoch, last: h.last, hash: "-"}, err
}

// isMissing reports whether the database lacks events that m says were acknowledged.
func (s *Store) isMissing(ctx context.Context, conn *pgx.Conn, h head, m mark) (bool, error) {
	if h.last < m.last {
		return true, nil
	}
	if m.event == 0 || m.forget <= max(h.swept, nanos(s.options.Now())) {
		return false, nil
	}
	// Other nodes may have used the same numbers again after the loss.
	var sender, id []byte
	err := conn.QueryRow(ctx, "SELECT p.did, e.id FROM event e JOIN party p ON p.id = e.sender WHERE e.seq = $1", int64(m.event)).Scan(&sender, &id)
	if errors.Is(err, pgx.ErrNoRows) {
		return true, nil
	}
	return hashOfEvent(sender, id) != m.hash, err
}

// checkHead checks after a new connection that the database has all events that this node knows.
func (s *Store) checkHead(ctx context.Context, conn *pgx.Conn) error {
	h, err := readHead(ctx, conn)
	if err != nil {
		return err
	}
	if h.epoch != s.epoch {
		s.breakWith(errEpoch)
		return errEpoch
	}
	m := s.mark.mark
	m.last = max(m.last, s.tail.position())
	missing, err := s.isMissing(ctx, conn, h, m)
	if err == nil && missing {
		err = errMissing
		s.breakWith(err)
	}
	return err
}

func (f *markFile) write() error {
	if f.file == nil {
		return nil
	}
	_, err := f.file.WriteAt([]byte(f.String()), 0)
	return err
}

// acknowledge records a group before its callers get their answers. The file is not synced: if the machine of the node
// crashes, the database has not crashed with it.
func (s *Store) acknowledge(last relay.Seq, posted []relay.Posted) {
	m := &s.mark
	m.last = max(m.last, last)
	if n := len(posted); n > 0 {
		e := posted[n-1]
		m.event, m.hash = e.Seq, hashOfEvent([]byte(e.Envelope.Sender.ID), []byte(e.ID))
		m.forget = nanos(e.Expires)
	}
	if err := m.write(); err != nil {
		s.markFailure.report(s.options.Log, "cannot write the mark; a loss of events may not be noticed", err)
	}
}

// checkDurability checks that a commit waits for a standby.
func (s *Store) checkDurability(ctx context.Context, conn *pgx.Conn) error {
	var standbys, fsync string
	if err := conn.QueryRow(ctx, "SELECT current_setting('synchronous_standby_names'), current_setting('fsync')").
		Scan(&standbys, &fsync); err != nil {
		return err
	}
	s.durable.Store(standbys != "" && fsync == "on")
	switch {
	case s.durable.Load():
		return nil
	case s.options.AcceptAsync:
		s.markFailure.report(s.options.Log, "acknowledged messages may be lost with the machine of the primary, "+
			"because it waits for no standby", errAsync)
		return nil
	}
	return errAsync
}

var errAsync = errors.New("the server does not wait for a standby before it confirms a commit, so a receipt would promise " +
	"too much; set synchronous_standby_names, such as 'ANY 1 (db2, db3)', and fsync = on; or start with --accept-async")

// Durability says what a receipt promises: "standby", the message is on the primary and on a standby; "primary", it is
// on the primary only.
func (s *Store) Durability() string {
	if s.durable.Load() {
		return "standby"
	}
	return "primary"
}

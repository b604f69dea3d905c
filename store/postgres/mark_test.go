//go:build postgres

package postgres

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/relay"
)

// TestMark takes acknowledged events away while no node runs, or puts others in their place, as the promotion of a
// standby without them does. The node must not start, unless the loss is accepted.
func TestMark(t *testing.T) {
	for name, c := range map[string]struct {
		spoil   string
		missing bool
	}{
		"nothing happened": {"SELECT 1", false},
		"the last event is missing": {"UPDATE head SET last = 2; DELETE FROM event WHERE seq = 3; " +
			"DELETE FROM message WHERE seq = 3; DELETE FROM thread WHERE n = 3", true},
		"another event has its number": {"UPDATE head SET last = 9; UPDATE event SET id = 'other' WHERE seq = 3", true},
		"others have gone on":          {"UPDATE head SET last = 9", false},
	} {
		t.Run(name, func(t *testing.T) {
			place := t.TempDir()
			o := Options{Mark: filepath.Join(place, "mark")}
			s, err := openAt(t.Context(), place, o)
			must(t, err)
			for n := range 3 {
				_, err := s.Append(t.Context(), request(t, key(1), fmt.Sprint("t", n)))
				must(t, err)
			}
			before, err := s.Read(t.Context(), relay.Query{})
			must(t, err)
			must(t, s.Close())
			direct(t, place, func(conn *pgx.Conn) error {
				_, err := conn.Exec(t.Context(), "BEGIN; "+c.spoil+"; COMMIT")
				return err
			})
			s, err = openAt(t.Context(), place, o)
			if !c.missing {
				must(t, err)
				must(t, s.Close())
				return
			}
			if !errors.Is(err, errMissing) {
				t.Fatalf("opened: %v", err)
			}
			o.AcceptLoss = true
			s = open(t, place, o)
			if _, err := s.Read(t.Context(), relay.Query{After: before.Cursor}); !errors.Is(err, relay.ErrUnknownCursor) {
				t.Errorf("a cursor from before the loss: %v", err)
			}
			_, err = s.Append(t.Context(), request(t, key(1), "more"))
			must(t, err)
		})
	}
}

// TestMarkText checks that a mark can be read back, and that damage is noticed.
func TestMarkText(t *testing.T) {
	m := mark{epoch: 0xabcdef01, last: 7, event: 6, hash: "0123456789abcdef", forget: 12345}
	got, err := parseMark(m.String())
	if err != nil || got != m || len(m.String()) != markSize {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := parseMark("abcdef01 7"); err == nil {
		t.Error("a damaged mark was read")
	}
}

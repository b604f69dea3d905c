package sqlite

import (
	"database/sql"
	"errors"

	"github.com/agora-relay/agora/didkey"
)

// The table party gives each identity a small number. Other rows refer to identities by these numbers.

// party returns the number of an identity, or 0 if it has none.
func (w *writer) party(did didkey.DID) (id int64, err error) {
	if did == "" {
		return 0, nil
	}
	if id, ok := w.parties[did]; ok {
		return id, nil
	}
	err = w.stmts.party.QueryRow(string(did)).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		id, err = 0, nil
	}
	if err == nil {
		w.cache(did, id)
	}
	return id, err
}

// intern returns the number of an identity and assigns one if needed. The number of the empty identity is 0.
func (w *writer) intern(did didkey.DID) (int64, error) {
	if did == "" {
		return 0, nil
	}
	if id, err := w.party(did); id != 0 || err != nil {
		return id, err
	}
	result, err := w.stmts.addParty.Exec(string(did))
	if err != nil {
		return 0, err
	}
	id, err := result.LastInsertId()
	if err == nil {
		w.cache(did, id)
	}
	return id, err
}

func (w *writer) cache(did didkey.DID, id int64) {
	if len(w.parties) >= maxParties {
		clear(w.parties)
	}
	w.parties[did] = id
}

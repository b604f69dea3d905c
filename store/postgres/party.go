package postgres

import (
	"crypto/sha256"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/didkey"
)

// The table party gives each identity a small number, with which events refer to it. The numbers are given and taken only
// under the lock of head.

// partyNumber is the number of the identity in the argument. An identity without a number has no events.
const partyNumber = "coalesce((SELECT id FROM party WHERE did = ?), -1)"

const (
	addParties = "INSERT INTO party (did, kept) SELECT * FROM unnest($1::bytea[], $2::bigint[]) k (did, kept) " +
		"WHERE NOT EXISTS (SELECT 1 FROM party p WHERE p.did = k.did)"
	// keepParties changes few rows, because kept is later than it must be.
	keepParties = "UPDATE party p SET kept = k.kept FROM unnest($1::bytea[], $2::bigint[], $3::bigint[]) k (did, kept, least) " +
		"WHERE p.did = k.did AND p.kept < k.least"
	// dropParties removes parties whose kept is up to $1, except those that have sent an event that still has a row. It
	// looks at these again at $3.
	dropParties = "WITH k AS (SELECT id FROM party WHERE kept <= $1 ORDER BY kept LIMIT $2), gone AS (DELETE FROM party p USING k " +
		"WHERE p.id = k.id AND NOT EXISTS (SELECT 1 FROM event WHERE sender = p.id) RETURNING p.id) " +
		"UPDATE party p SET kept = $3 FROM k WHERE p.id = k.id AND NOT EXISTS (SELECT 1 FROM gone WHERE gone.id = p.id)"
	// The joins are outer joins, so that an identity without a number is an error, and not a lost event.
	addEvents = "INSERT INTO event (seq, sender, recipient, thread, ts, received, expires, forget, charged, network, leaf, salt, " +
		"id, type, body) SELECT k.seq, s.id, CASE WHEN k.recipient = '' THEN 0 ELSE r.id END, k.thread, k.ts, k.received, " +
		"k.expires, k.forget, k.charged, k.network, k.leaf, k.salt, k.id, k.type, k.body FROM unnest($1::bigint[], $2::bytea[], " +
		"$3::bytea[], $4::bytea[], $5::bytea[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], " +
		"$11::bigint[], $12::bigint[], $13::bytea[], $14::bigint[], $15::bytea[]) k (seq, sender, id, recipient, type, thread, ts, " +
		"received, expires, forget, charged, network, body, leaf, salt) LEFT JOIN party s ON s.did = k.sender " +
		"LEFT JOIN party r ON r.did = k.recipient"
	// dropMessages removes rows whose events are due. Such ids count as forgotten, so they may come again.
	dropMessages = "DELETE FROM message m USING unnest($1::uuid[]) k (key) WHERE m.key = k.key"
	addMessages  = "INSERT INTO message (key, seq) SELECT * FROM unnest($1::uuid[], $2::bigint[])"
)

// A party is kept longer than it must be, so that its row rarely changes: keptLonger after a change, and at least half of
// it before the next one.
const keptLonger = 7 * 24 * time.Hour

// pairKey returns 16 bytes that stand for an identity and an id. The function pair_key of the schema returns the same.
func pairKey(did didkey.DID, id string) [16]byte {
	hash := sha256.Sum256([]byte(string(did) + "\n" + id))
	return [16]byte(hash[:16])
}

// later returns the time that is d after t.
func later(t int64, d time.Duration) int64 { return min(t, math.MaxInt64-int64(d)) + int64(d) }

// eventRows are rows of the table event, by columns.
type eventRows struct {
	seq, thread, ts, received, expires, forget, charged, network []int64
	sender, id, recipient, kind, body, salt                      [][]byte
	leaf                                                         []*int64
}

// parties are identities that have a row in the table party until this time at least. A transaction that is undone clears
// it, so it is never wrong.
type parties map[string]int64

// maxParties bounds the size of parties.
const maxParties = 1 << 16

// queue queues the statements that store the rows, with their parties and ids. known has parties that have a row.
func (r *eventRows) queue(batch *pgx.Batch, known parties) {
	if len(known) > maxParties {
		clear(known)
	}
	r.queueParties(batch, known)
	keys := make([][16]byte, len(r.seq))
	for i := range keys {
		keys[i] = pairKey(didkey.DID(r.sender[i]), string(r.id[i]))
	}
	batch.Queue(addEvents, r.seq, r.sender, r.id, r.recipient, r.kind, r.thread, r.ts, r.received, r.expires, r.forget, r.charged,
		r.network, r.body, r.leaf, r.salt)
	batch.Queue(dropMessages, keys)
	batch.Queue(addMessages, keys, r.seq)
}

func (r *eventRows) queueParties(batch *pgx.Batch, known parties) {
	at := map[string]int{}
	var dids [][]byte
	var kept, least []int64
	for i := range r.seq {
		for _, did := range [][]byte{r.sender[i], r.recipient[i]} {
			if len(did) == 0 || r.forget[i] <= known[string(did)] {
				continue
			}
			n, listed := at[string(did)]
			if !listed {
				n = len(dids)
				at[string(did)] = n
				dids, kept, least = append(dids, did), append(kept, 0), append(least, 0)
			}
			kept[n] = max(kept[n], later(r.forget[i], keptLonger))
			least[n] = max(least[n], later(r.forget[i], keptLonger/2))
		}
	}
	if len(dids) > 0 {
		batch.Queue(addParties, dids, kept)
		batch.Queue(keepParties, dids, kept, least)
	}
	for n, did := range dids {
		known[string(did)] = least[n]
	}
}

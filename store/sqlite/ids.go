package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"hash/maphash"

	"github.com/agora-relay/agora/store/sqlite/schema"
	"github.com/agora-relay/agora/thread"
)

// A post asks whether its message and its thread are stored. Most often they are new, and in a large database the search
// for them reads pages that nothing else needs. So the writer asks a Bloom filter first (STORE S-3). Ids are added before
// they leave the tail, so the filter and the tail together know all of them. After a start, the store makes the filter
// only when it has merged a batch, because a relay with few posts needs none.

// messageID names a message. The sender is a number of the table party.
type messageID struct {
	sender int64
	id     string
}

// hashOf returns the hash of a message or a thread. It differs from process to process, so that nobody can choose ids
// with the same hash.
func hashOf[ID messageID | thread.Key](id ID) uint64 { return maphash.Comparable(hashSeed, id) }

var hashSeed = maphash.MakeSeed()

// idFilter is a Bloom filter. It always recognizes a hash that was added. When it is full, it takes 1 % of the other
// hashes for added ones.
type idFilter struct {
	blocks []idBlock
	room   int // how many more hashes it is made for
}

// idBlock has all bits of a hash, so that a lookup reads one line of the processor's cache.
type idBlock [8]uint64

const (
	bitsPerID = 10
	bitsSet   = 5 // of a hash
	blockBits = 9 // the number of a bit in a block has this many bits
)

func newIDFilter(room int) *idFilter {
	return &idFilter{blocks: make([]idBlock, room*bitsPerID>>blockBits+1), room: room}
}

// block returns the block of a hash, and a number whose lowest bits choose the bits in it.
func (f *idFilter) block(hash uint64) (*idBlock, uint64) {
	return &f.blocks[hash>>32*uint64(len(f.blocks))>>32], hash * 0x9e3779b97f4a7c15 >> (64 - bitsSet*blockBits)
}

func (f *idFilter) add(hash uint64) {
	f.room--
	b, bits := f.block(hash)
	for range bitsSet {
		b[bits>>6&7] |= 1 << (bits & 63)
		bits >>= blockBits
	}
}

func (f *idFilter) addAll(hashes []uint64) {
	for _, hash := range hashes {
		f.add(hash)
	}
}

// has reports whether the hash may have been added. A nil filter knows nothing, so it reports true.
func (f *idFilter) has(hash uint64) bool {
	if f == nil {
		return true
	}
	b, bits := f.block(hash)
	for range bitsSet {
		if b[bits>>6&7]&(1<<(bits&63)) == 0 {
			return false
		}
		bits >>= blockBits
	}
	return true
}

// ids is what the writer knows of the ids that have left the tail.
type ids struct {
	filter  *idFilter // nil: not ready, so each id is looked up
	reading bool      // a new filter is being made
	added   []uint64  // hashes of the batches that were merged since reading began
}

// add adds the hashes of a batch.
func (i *ids) add(hashes []uint64) {
	if i.filter != nil {
		i.filter.addAll(hashes)
	}
	if i.reading {
		i.added = append(i.added, hashes...)
	}
}

// hashes returns the hashes of the messages of a part, and of the threads that began in it.
func (p *part) hashes() (all []uint64) {
	for _, r := range p.rows {
		all = append(all, hashOf(messageID{r.sender, r.id}))
	}
	for k, roles := range p.roles {
		for _, r := range roles {
			if r.role == schema.RoleClient {
				all = append(all, hashOf(thread.Key{Client: k.party, ID: k.id}))
			}
		}
	}
	return all
}

// replace is called when a new filter is made. filter takes the place of the one before. If filter is nil, it could not
// be made, and the one before stays.
func (i *ids) replace(filter *idFilter) {
	if filter != nil {
		filter.addAll(i.added)
		i.filter = filter
	}
	i.reading, i.added = false, nil
}

// readIDs begins to make a new filter of the merged ids, unless it is already being made. Until then, the writer uses
// the old filter, if it has one.
func (w *writer) readIDs() {
	if w.ids.reading {
		return
	}
	w.ids.reading = true
	w.store.workers.Go(func() {
		filter, err := w.store.readIDs()
		if err != nil && w.store.closed() == nil {
			w.store.options.Log.Warn("cannot read the stored ids; until the next attempt, each new id is searched for", "err", err)
		}
		// The only error of task is that the store is being closed.
		_ = w.store.task(context.Background(), func(w *writer) error {
			w.ids.replace(filter)
			return nil
		})
	})
}

// minIDs is how many ids a filter has room for at least. Such a filter takes 1.3 MB.
const minIDs = 1 << 20

// idsAtATime is how many ids readIDs reads with one statement. So it holds no snapshot for long.
const idsAtATime = 4096

// readIDs returns a filter of the ids in the tables. It has room for as many again.
func (s *Store) readIDs() (*idFilter, error) {
	var stored int
	if err := s.readDB.QueryRow(countIDs).Scan(&stored); err != nil {
		return nil, err
	}
	f := newIDFilter(max(minIDs, 2*stored))
	var m messageID
	err := s.eachID(sentIDs, func(scan scanner) error {
		err := scan(&m.sender, &m.id)
		f.add(hashOf(m))
		return err
	}, func() []any { return []any{m.sender, m.id} })
	if err != nil {
		return nil, err
	}
	var t thread.Key
	err = s.eachID(roleIDs, func(scan scanner) error {
		var isClient bool
		err := scan(&t.ID, &t.Client, &isClient)
		if isClient {
			f.add(hashOf(t))
		}
		return err
	}, func() []any { return []any{t.ID, string(t.Client)} })
	if err != nil {
		return nil, err
	}
	return f, nil
}

// countIDs counts the messages and threads. sentIDs and roleIDs read the next ids behind a pair of values.
const (
	countIDs = "SELECT (SELECT count(*) FROM event_sent) + (SELECT count(*) FROM thread)"
	sentIDs  = "SELECT sender, id FROM event_sent WHERE (sender, id) > (?, ?) ORDER BY sender, id LIMIT ?"
	roleIDs  = "SELECT id, party, max(role = 2) FROM thread_role WHERE (id, party) > (?, ?) GROUP BY id, party LIMIT ?"
)

// eachID calls f with all rows of sentIDs or roleIDs. last returns the pair of the last row. Errors: those of f and of
// the database, and relay.ErrShuttingDown.
func (s *Store) eachID(text string, f func(scanner) error, last func() []any) error {
	for n := idsAtATime; n == idsAtATime; {
		n = 0
		err := eachRow(func(scan scanner) error {
			n++
			return f(scan)
		}, func() (*sql.Rows, error) { return s.readDB.Query(text, append(last(), idsAtATime)...) })
		if err = cmp.Or(err, s.closed()); err != nil {
			return err
		}
	}
	return nil
}

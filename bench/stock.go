package bench

import (
	"context"
	"crypto/ed25519"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/didkey"
)

// outcome is what became of a post.
type outcome uint8

const (
	unsent   outcome = iota
	unknown          // no answer, or none that says whether it was stored
	accepted         // must be there
	refused          // must not be there
)

// record is what is kept of an envelope. Its poster owns outcome, its poll delivered, the reader after the run stored.
type record struct {
	sig       [ed25519.SignatureSize]byte
	ms        int64        // its ts, in milliseconds since 1970
	due       int64        // when its post was due, in nanoseconds since the run began; set before sent
	sent      atomic.Int64 // just before its post, likewise; 0: not yet
	outcome   outcome
	delivered uint8
	stored    uint8
}

const chunkSize = 1 << 16

// stock is a run's envelopes, by number, and the supply of signed ones.
type stock struct {
	texts
	names
	senders []didkey.Key
	readers []didkey.Key
	inboxes []didkey.DID // the readers'

	chunks [most/chunkSize + 16]atomic.Pointer[[chunkSize]record] // posters and polls look, sign adds
	signed int                                                    // numbers below have a signature; sign's
	next   atomic.Int64                                           // the number to post next
}

// newStock makes the keys of o's run. There are as many inboxes as polls that will wait, or else each sender is one.
func newStock(ctx context.Context, to target, o Options) (*stock, error) {
	s := &stock{names: newNames()}
	var err error
	if s.texts, err = newTexts(to, o.Body, o.Pretty); err != nil {
		return nil, err
	}
	s.senders = newKeys(ctx, o.Senders)
	s.readers = s.senders
	if o.delivers() {
		s.readers = newKeys(ctx, o.Pollers)
	}
	for _, key := range s.readers {
		s.inboxes = append(s.inboxes, key.DID())
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := s.sign(ctx, 1, new(atomic.Int64)); err != nil {
		return nil, err
	}
	return s, s.check(s.values(0, new(values)))
}

// newKeys makes n keys on all cores. They sign nothing but a run's envelopes, so math/rand is good enough for them.
func newKeys(ctx context.Context, n int) []didkey.Key {
	keys := make([]didkey.Key, n)
	share(ctx, 0, n, func(i int) {
		var seed [ed25519.SeedSize]byte
		for j := range seed {
			seed[j] = byte(rand.Uint32())
		}
		key, err := didkey.FromSeed(seed[:])
		if err != nil {
			panic(err) // a seed of the right size always gives a key
		}
		keys[i] = key
	})
	return keys
}

// share calls f with each number from lo to hi, on all cores; those not begun when ctx ends are left out.
func share(ctx context.Context, lo, hi int, f func(int)) {
	var next atomic.Int64
	next.Store(int64(lo))
	var working sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		working.Go(func() {
			for i := int(next.Add(1) - 1); i < hi && ctx.Err() == nil; i = int(next.Add(1) - 1) {
				f(i)
			}
		})
	}
	working.Wait()
}

func (s *stock) at(n int) *record { return &s.chunks[n/chunkSize].Load()[n%chunkSize] }

func (s *stock) sender(n int) didkey.Key {
	a, _ := s.choices(n)
	return s.senders[int(a)%len(s.senders)]
}

// inbox says which of the inboxes envelope n is for.
func (s *stock) inbox(n int) int {
	_, b := s.choices(n)
	return int(b) % len(s.inboxes)
}

// fresh is how long after its signature an envelope is posted: a minute less than a relay's window.
const fresh = 4 * time.Minute

// sign takes care that there are so many fresh envelopes to post, and counts those it signs. The error is ctx's.
func (s *stock) sign(ctx context.Context, want int, count *atomic.Int64) error {
	next := min(int(s.next.Load()), s.signed) // posters reach beyond what there is
	now := time.Now()
	if next < s.signed && now.Sub(time.UnixMilli(s.at(next).ms)) > fresh/2 {
		next = s.signed
	}
	s.next.Store(int64(next))
	until := min(next+want, len(s.chunks)*chunkSize)
	for i := range s.chunks[:(until+chunkSize-1)/chunkSize] {
		if s.chunks[i].Load() == nil {
			s.chunks[i].Store(new([chunkSize]record))
		}
	}
	share(ctx, s.signed, until, func(n int) {
		s.at(n).ms = time.Now().UnixMilli()
		sig, err := s.sender(n).Sign(s.unsigned.fill(nil, s.values(n, new(values))))
		if err != nil {
			panic(err) // a key in memory always signs
		}
		copy(s.at(n).sig[:], sig)
		count.Add(1)
	})
	if err := ctx.Err(); err != nil {
		return err // some may be without signature: none counts
	}
	s.signed = max(s.signed, until)
	return nil
}

// values returns what envelope n has in the holes, in v's memory.
func (s *stock) values(n int, v *values) *values {
	record := s.at(n)
	v[partID] = s.names.append(v[partID][:0], n, record.ms)
	v[partTS] = appendTS(v[partTS][:0], record.ms)
	v[partSender] = append(v[partSender][:0], s.sender(n).DID()...)
	v[partRecipient] = append(v[partRecipient][:0], s.inboxes[s.inbox(n)]...)
	v[partSig] = appendSig(v[partSig][:0], record.sig[:])
	return v
}

// find returns the number of an envelope as it came back, by its id, which is the first member of a canonical form.
func (s *stock) find(canonical []byte) (n int, ok bool) {
	const before = len(`{"id":"msg_`)
	if len(canonical) < before+26 {
		return 0, false
	}
	n, ok = s.number(canonical[before : before+26])
	return n, ok && n/chunkSize < len(s.chunks) && s.chunks[n/chunkSize].Load() != nil // signed is not for all to read
}
